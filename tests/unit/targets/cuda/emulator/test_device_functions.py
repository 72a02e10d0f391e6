"""Every device function is translated from its PTX."""

from __future__ import annotations

import re

import numpy as np

from cpembed.targets.cuda import device
from cpembed.targets.cuda.emulator.executor import Launch, compile_text
from tests.unit.targets.cuda.emulator.running import needs_compiler

pytestmark = needs_compiler


def test_every_device_function_compiles_here() -> None:
    lines = list[str]()
    for name in device.names():
        source = device.function(name)
        parameters = re.search(rf"void {name}\(([^)]*)\)", source)
        assert parameters
        lines.append(f"{source}\nstatic void (*p_{name})({parameters[1]}) = {name};")
    lines.append('extern "C" __global__ void kernel(int* out) { out[0] = 1; }')
    out = np.zeros(1, np.int32)
    compile_text("\n".join(lines)).run(Launch("kernel", (1, 1, 1), (1, 1, 1)), [out])
    assert out[0] == 1
