"""Compilation of CUDA text by nvcc: PTX once, and machine code of it for each architecture."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from cpembed.errors import BackendUnavailable, LoweringError
from cpembed.targets.cuda.instructions import TensorCoreInstruction

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
"""Architectures that machine code of a text for sm_80 is saved for."""

COMPILER = "nvcc"


def compiler() -> str | None:
    """Return the path of nvcc; None if it is not on the path."""
    return shutil.which(COMPILER)


def missing() -> str | None:
    """Return why there is no machine code for a GPU, with the remedy; None if nvcc is there."""
    if compiler() is not None:
        return None
    return "nvcc is not on the path, and machine code for a GPU is needed: install CUDA's toolkit"


@cache
def supported(path: str) -> frozenset[str]:
    """Return the architectures, ``sm_80`` for instance, that a compiler makes machine code of."""
    process = subprocess.run([path, "--list-gpu-code"], capture_output=True, text=True, check=False)
    return frozenset(re.findall(r"sm_\d+[af]?", process.stdout))


def compiled(
    source: Path, name: str, architectures: Sequence[str] = ARCHITECTURES
) -> list[dict[str, str]]:
    """Write the images of a CUDA text beside it, and return their documents.

    PTX is that of the first architecture: drivers compile it for every later GPU, those that are
    not built yet included. Machine code of the other architectures is made of the same PTX, so that
    the text is read once. Architectures that the compiler does not know are left out.

    Parameters
    ----------
    source : Path
    name : str
        Beginning of the names of files.
    architectures : sequence of str
        Architectures, that of the text's instructions first.

    Raises
    ------
    BackendUnavailable
        If there is no nvcc.
    LoweringError
        If it rejects the text, or knows none of the architectures.
    """
    path, folder = compiler(), source.parent
    if path is None:
        raise BackendUnavailable(missing() or "")
    # What ends in a letter is not listed by all versions, so only its number is looked for.
    numbers = {re.sub(r"\D", "", architecture) for architecture in supported(path)}
    usable = [each for each in architectures if re.sub(r"\D", "", each) in numbers]
    if not usable or usable[0] != architectures[0]:
        raise LoweringError(f"{path} knows no {architectures[0]}: use a later CUDA toolkit")
    virtual = usable[0].replace("sm_", "compute_")
    images = [{"architecture": virtual, "file": f"{name}.{virtual}.ptx"}]
    ptx = folder / images[0]["file"]
    _run([path, "-ptx", f"-arch={virtual}", "-std=c++17", "-O3", "-o", str(ptx), str(source)])
    for architecture in usable:
        cubin = f"{name}.{architecture}.cubin"
        _run([path, "-cubin", f"-arch={architecture}", "-o", str(folder / cubin), str(ptx)])
        images.append({"architecture": architecture, "file": cubin})
    return images


def _run(command: Sequence[str]) -> None:
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        lines = [line for line in process.stderr.splitlines() if "error" in line]
        raise LoweringError(f"nvcc rejects a kernel: {(lines or [process.stderr.strip()])[0]}")


def architectures_of(instruction: TensorCoreInstruction, *, bulk: bool = False) -> tuple[str, ...]:
    """Return the architectures that have an instruction, the oldest first.

    Warp groups are executed by compute capability 9.0 alone.

    Parameters
    ----------
    instruction : TensorCoreInstruction
    bulk : bool
        True if they make bulk copies, which are there from compute capability 9.0.
    """
    if instruction.kind == "wgmma":
        return ("sm_90a",)
    least = max(instruction.architecture, 90 * bulk)
    return tuple(name for name in ARCHITECTURES if int(name.removeprefix("sm_")) >= least)
