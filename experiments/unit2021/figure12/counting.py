"""Counts of AArch64 instructions that qemu executes, and the time that they take at least.

qemu has no times; a plugin (``count.c``), compiled by the host's C compiler, counts what it
executes. :func:`least_cycles` is an estimate: what the issue pipelines of a Neoverse N1, the core
of the paper's Graviton2, need for so many instructions if nothing else holds them up.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

from cpembed.targets.arm.emulator import emulator, missing

SOURCE = Path(__file__).resolve().parent / "count.c"
PLUGIN_VARIABLE = "QEMU_PLUGIN"
INTERFACES = (1, 2, 3, 4, 5, 6)
"""Versions of qemu's interface to plugins; 7.2 has the first."""

CLASSES = ("dot", "multiply", "vector", "memory", "branch", "integer")
"""Classes of instructions in the order of a line of the plugin: SDOT and UDOT, the multiplications
of integer vectors, further instructions of the vector unit, loads and stores, branches, and what is
left."""

Counts = Mapping[str, int]
Result = TypeVar("Result")

PIPELINES: Mapping[tuple[str, ...], int] = {
    CLASSES: 4,
    ("dot", "multiply", "vector"): 2,
    ("multiply",): 1,
    ("memory",): 2,
    ("branch",): 1,
    ("integer",): 3,
}
"""Instructions of some classes that a Neoverse N1 can execute in a cycle: four are decoded, two
issued to vector pipelines, of which one multiplies integers, two to load/store pipelines, one to
the branch pipeline, three to integer pipelines. Published in the Arm Neoverse N1 Software
Optimization Guide; LLVM has the pipelines too (AArch64SchedNeoverseN1.td)."""


def counting_needs() -> str:
    """Return what this machine lacks to count; empty if nothing."""
    if emulator() is None:
        return missing()
    return "" if _compiler() else "a C compiler (gcc, clang or cc)"


@cache
def emulator_version() -> str:
    """Return the emulator's name and version, as it states them."""
    program = emulator()
    assert program is not None
    process = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return process.stdout.splitlines()[0]


def counted(action: Callable[[], Result]) -> tuple[Result, Counts]:
    """Run an action and count the instructions of all programs that it has qemu execute."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "counts"
        with _variable(f"file={_plugin()},out={output}"):
            result = action()
        lines = output.read_text().splitlines() if output.exists() else []
    return result, total(map(parsed, lines))


@cache
def _plugin() -> Path:
    """Return the plugin, compiled for the version of the interface that qemu accepts.

    Raises :class:`RuntimeError` if it accepts none of :data:`INTERFACES`.
    """
    program = emulator()
    assert program is not None
    answer = ""
    for interface in INTERFACES:
        path = _compiled(interface)
        # Plugins are loaded before the program, which need not exist.
        with _variable(f"file={path},out={os.devnull}"):
            process = subprocess.run(
                [program, str(path.with_suffix(".missing"))], capture_output=True, check=False
            )
        answer = process.stderr.decode(errors="replace").strip()
        if "plugin" not in answer.replace(str(path.parent), ""):
            return path
    raise RuntimeError(f"{program} takes no plugin that counts instructions: {answer}")


@contextmanager
def _variable(value: str) -> Iterator[None]:
    """Have qemu load the plugin that the value of its variable names."""
    before = os.environ.get(PLUGIN_VARIABLE)
    os.environ[PLUGIN_VARIABLE] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[PLUGIN_VARIABLE]
        else:
            os.environ[PLUGIN_VARIABLE] = before


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    # Removed when the process ends.
    return tempfile.TemporaryDirectory(prefix="cpembed-")


@cache
def _compiled(interface: int) -> Path:
    """Return the plugin, compiled for a version of the interface."""
    compiler = _compiler()
    assert compiler is not None
    path = Path(_folder().name) / f"version_{interface}.so"
    flags = ["-O2", "-fPIC", "-shared", f"-DVERSION={interface}"]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(path)], check=True)
    return path


def parsed(line: str) -> Counts:
    """Return the counts of a line of the plugin.

    >>> parsed("8 0 3 16 2 5")["memory"]
    16
    """
    return dict(zip(CLASSES, map(int, line.split()), strict=True))


def total(counts: Iterable[Counts]) -> Counts:
    """Return the sum of some counts, zeros without any."""
    each = list(counts)
    return {name: sum(count[name] for count in each) for name in CLASSES}


def least_cycles(counts: Counts) -> float:
    """Return the cycles that a core's pipelines need: those of the busiest pipeline.

    >>> least_cycles({"dot": 8, "multiply": 0, "vector": 0, "memory": 2, "branch": 1, "integer": 1})
    4.0
    """
    return max(sum(counts[name] for name in classes) / rate for classes, rate in PIPELINES.items())
