"""oneDNN's own account of what it ran: the lines that it prints, caught and read.

With profiling on, oneDNN writes one line per primitive to the process's standard output:
``onednn_verbose,v1,primitive,exec,cpu,convolution,brg_conv_fwd:avx10_1_512_amx,...,0.0341797``,
the last field being milliseconds ("Verbose Mode" in oneDNN's developer guide).
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from cpembed.errors import InvariantError
from cpembed.runtime.baselines import Primitives

_STDOUT = 1


@dataclass(frozen=True)
class Executed:
    """A primitive that ran: ``problem`` is its sizes (``64x64x3x3`` of a reorder)."""

    kind: str
    implementation: str
    problem: str
    us: float

    @property
    def name(self) -> str:
        """OneDNN's plain matrix product names no implementation."""
        return self.implementation or self.kind


def read_log(lines: Iterable[str]) -> list[Executed]:
    """The primitives among the lines, in order; other lines are passed over.

    >>> line = "onednn_verbose,v1,primitive,exec,cpu,convolution,brg:amx,f,d,a,x,mb1_ic64,0.03125"
    >>> read_log([line])
    [Executed(kind='convolution', implementation='brg:amx', problem='mb1_ic64', us=31.25)]
    """
    found: list[Executed] = []
    for line in lines:
        fields = line.strip().split(",")
        if fields[0] != "onednn_verbose" or "exec" not in fields:
            continue
        # Older versions have fewer fields before "exec"; what follows it is the engine.
        rest = fields[fields.index("exec") + 2 :]
        if len(rest) < 4:
            continue
        try:
            us = float(rest[-1]) * 1e3
        except ValueError:
            continue
        found.append(Executed(rest[0], rest[1], rest[-2], us))
    return found


def per_call(executed: list[Executed], calls: int, weights: str) -> Primitives:
    """Averages over equal calls; ``weights`` are the sizes of the weights as oneDNN writes them."""
    if not executed or len(executed) % calls:
        raise InvariantError(
            f"oneDNN reported {len(executed)} primitives over {calls} equal calls: "
            "unset ONEDNN_VERBOSE, or report this"
        )
    spent = {"work": 0.0, "activations": 0.0, "weights": 0.0}
    for one in executed:
        moved = "weights" if one.problem == weights else "activations"
        spent[moved if one.kind == "reorder" else "work"] += one.us / calls
    return Primitives(
        us=spent["work"],
        reorder_us=spent["activations"],
        weights_us=spent["weights"],
        names=tuple(one.name for one in executed[: len(executed) // calls]),
    )


def logged(work: Callable[[], object], profile: Callable[[bool], None]) -> list[Executed]:
    """Do the work with profiling on and read what oneDNN printed meanwhile; nothing of it reaches
    standard output. ``profile`` switches profiling.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
        with _standard_output_into(file):
            profile(True)
            try:
                work()
            finally:
                profile(False)
        file.seek(0)
        return read_log(file)


@contextmanager
def _standard_output_into(file: IO[str]) -> Generator[None]:
    """Redirect file descriptor 1, which the library writes to behind Python's back."""
    libc = ctypes.CDLL(None)
    sys.stdout.flush()
    # What C wrote before and still holds back belongs to the real output.
    libc.fflush(None)
    kept = os.dup(_STDOUT)
    try:
        os.dup2(file.fileno(), _STDOUT)
        try:
            yield
        finally:
            libc.fflush(None)
            os.dup2(kept, _STDOUT)
    finally:
        os.close(kept)
