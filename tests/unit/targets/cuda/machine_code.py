"""Machine code of a cubin, as nvdisasm lists it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")


def disassembler() -> str | None:
    """``nvdisasm``, from the path or from the package nvidia-cuda-nvdisasm."""
    found = shutil.which("nvdisasm")
    if found is not None:
        return found
    try:
        import nvidia
    except ImportError:
        return None
    places = [Path(folder) for folder in nvidia.__path__]
    return next((str(f) for p in places for f in sorted(p.glob("**/bin/nvdisasm"))), None)


def opcodes(cubin: Path) -> dict[str, list[str]]:
    """Opcodes of each kernel, in order; skips the test where nothing lists them."""
    command = disassembler()
    if command is None:
        pytest.skip("nvdisasm is not there: pip install nvidia-cuda-nvdisasm")
    listing = subprocess.run(
        [command, "-c", str(cubin)], capture_output=True, text=True, check=True
    ).stdout
    parts = re.split(r"(?m)^\s*\.section\s+\.text\.(\w+)", listing)
    named = zip(parts[1::2], parts[2::2], strict=True)
    return {name: OPCODE.findall(body) for name, body in named}
