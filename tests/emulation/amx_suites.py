"""What ``run`` builds of a suite's layers for AMX, run and verified, in a process of its own: a
fault ends this one only.

``python -m tests.emulation.amx_suites SUITE TARGET [EMULATOR.so]`` writes one JSON object: layer's
index -> what was found. Without an emulator the CPU must have AMX.
"""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest.mock import patch

from cpembed.driver.named import default_dtypes, hardware_spec
from cpembed.driver.run import run
from cpembed.driver.run_result import RunResult
from cpembed.workloads.suites import Layer
from cpembed.workloads.suites import suite as shipped_suite
from tests.emulation.amx_cases import emulate


def run_layer(layer: Layer, target: str) -> dict[str, Any]:
    """Verify what the model chooses of a layer, images in NHWC."""
    workload = layer.workload(default_dtypes(hardware_spec(target)), "NHWC")
    # The time of an emulator says nothing; and AMX it is, were something beside it faster.
    with patch("cpembed.targets.cpu.target.CpuTarget.time"):
        found = run(workload, target, seed=1, untuned=True, backend="native")
    if not isinstance(found, RunResult):
        return {"error": f"nothing was run of {workload.name}"}
    return {"backend": found.backend, "verified": found.verification.verified}


def main() -> None:
    suite, target, *libraries = sys.argv[1:]
    for library in libraries:
        emulate(library)
    layers = shipped_suite(suite)
    print(json.dumps({layer.index: run_layer(layer, target) for layer in layers}))


if __name__ == "__main__":
    main()
