"""TVM on this machine."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import sys
from cpembed.codegen import runtime
runtime.tvm()
assert "tvm" in sys.modules
assert "torch" not in sys.modules
try:
    import torch
except ImportError:
    # It is not installed: nothing else may keep it from being imported.
    from importlib.util import find_spec
    assert find_spec("torch") is None
"""


def test_tvm_is_loaded_without_pytorch_which_can_be_imported_later() -> None:
    subprocess.run([sys.executable, "-c", _SCRIPT], check=True)
