"""The texts that the executor is tested with are CUDA: nvcc takes them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cpembed.targets.cuda import device
from tests.unit.targets.cuda.emulator.running import text

TEXTS = sorted(path.name for path in Path(__file__).parent.glob("*.cu"))
SM_90 = ("bulk_operations.cu", "hopper.cu", "objects.cu", "orders.cu", "reduce.cu")
INCLUDES = "#include <cstdint>\n#include <cuda.h>\n#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_cuda(name: str, tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on the path")
    functions = "".join(device.function(function) for function in device.names())
    (tmp_path / name).write_text(INCLUDES + functions + _complete(text(name)))
    architecture = "sm_90a" if name in SM_90 else "sm_80"
    options = ("-std=c++17", f"-arch={architecture}", "-cubin", "-o", "text.cubin", name)
    done = subprocess.run(
        ["nvcc", *options], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _complete(source: str) -> str:
    """Return a text whose type and operation are replaced, if it leaves them open."""
    return source.replace("TYPE", "float").replace("OPERATION", "add.f32")
