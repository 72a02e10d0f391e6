"""Which elements a GEMM or an ALU instruction touches, and how often in a row.

For each outer and inner iteration and each micro-op, an index is the micro-op's field plus what the
iterations add. Programs repeat few instructions on few micro-ops, so answers are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import ProgramError
from cpembed.targets.vta.columns import Columns, Numbers
from cpembed.targets.vta.config import VtaConfig
from cpembed.targets.vta.encoding import unpack_uops
from cpembed.targets.vta.formats import FACTORS, LOOPS, Opcode
from cpembed.targets.vta.isa import Memory

Elements = slice | NDArray[np.int64]
"""Elements of a buffer, each once."""

PARAMETERS = (*LOOPS, *FACTORS, "reset", "op", "use_immediate", "immediate")
"""What GEMM and ALU instructions are made of, their tokens left out."""

_DISTANCE = {Opcode.GEMM: 3, Opcode.ALU: 2}
"""Micro-ops from one that writes an accumulator to the first that may use it again."""


@dataclass(frozen=True)
class Accesses:
    """``problem`` is (what is wrong, remedy), or None; the elements only hold where it is None."""

    dst: Elements
    src: Elements
    wgt: Elements
    problem: tuple[str, str] | None = None


@dataclass(frozen=True)
class _Index:
    """An index of micro-ops into a memory, and what iterations add."""

    memory: Memory
    values: Numbers
    outer: int
    inner: int

    def last(self, outer: int, inner: int) -> int:
        return int(self.values.max()) + (outer - 1) * self.outer + (inner - 1) * self.inner

    def elements(self, size: int, outer: int, inner: int) -> Elements:
        used = np.zeros(size, bool)
        used[self.values] = True
        for count, step in ((inner, self.inner), (outer, self.outer)):
            used = _repeated(used, count, step)
        found = np.flatnonzero(used)
        if len(found) == found[-1] - found[0] + 1:
            return slice(int(found[0]), int(found[-1]) + 1)
        return found

    def at(self, iterations: Numbers) -> Numbers:
        """The indices at rows (outer, inner), one after the other."""
        offsets = iterations @ np.array([self.outer, self.inner])
        return (offsets[:, None] + self.values[None, :]).ravel()


class AccessTable:
    """The accesses of a program's GEMM and ALU instructions."""

    def __init__(self, columns: Columns, config: VtaConfig) -> None:
        self._config = config
        self._opcodes: list[int] = columns.opcode.tolist()
        self._rows = columns.table(*PARAMETERS)
        self._known: dict[tuple[int, bytes, bytes], Accesses] = {}

    def of(self, number: int, uops: NDArray[np.uint32]) -> Accesses:
        """``uops``: the micro-ops that the instruction executes."""
        key = (self._opcodes[number], self._rows[number].tobytes(), uops.tobytes())
        found = self._known.get(key)
        if found is None:
            row: list[int] = self._rows[number].tolist()
            values: dict[str, int] = dict(zip(PARAMETERS, row, strict=True))
            found = _accesses(Opcode(self._opcodes[number]), values, uops, self._config)
            self._known[key] = found
        return found


def _accesses(
    opcode: Opcode, values: dict[str, int], uops: NDArray[np.uint32], config: VtaConfig
) -> Accesses:
    nothing = slice(0, 0)
    try:
        dst, src, wgt = unpack_uops(uops, config)
    except ProgramError as error:
        return Accesses(nothing, nothing, nothing, (str(error), "load micro-ops there"))
    source = Memory.INP if opcode is Opcode.GEMM else Memory.ACC
    indices = {
        "dst": _Index(Memory.ACC, dst, values["dst.outer"], values["dst.inner"]),
        "src": _Index(source, src, values["src.outer"], values["src.inner"]),
        "wgt": _Index(Memory.WGT, wgt, values["wgt.outer"], values["wgt.inner"]),
    }
    unread = {"wgt"} if opcode is Opcode.ALU else set[str]()
    if values["reset"]:
        unread |= {"src", "wgt"}
    if opcode is Opcode.ALU and values["use_immediate"] and (dst != src).any():
        at = int(np.flatnonzero(dst != src)[0])
        what = f"micro-op {values['uop_begin'] + at} has dst {dst[at]} and src {src[at]}"
        problem = (
            f"{what} with an immediate, and the RTL reads the accumulator at src",
            "encode src = dst",
        )
        return Accesses(nothing, nothing, nothing, problem)
    loops = values["outer"], values["inner"]
    for name, index in indices.items():
        size, last = config.elements(index.memory), index.last(*loops)
        if name not in unread and last >= size:
            problem = (
                f"{name} reaches {index.memory.name} element {last}, of 0..{size - 1}",
                "use smaller factors, counts or indices",
            )
            return Accesses(nothing, nothing, nothing, problem)
    elements = {
        name: nothing if name in unread else index.elements(config.elements(index.memory), *loops)
        for name, index in indices.items()
    }
    repeated = None if values["reset"] else _repetition(opcode, values, indices)
    return Accesses(elements["dst"], elements["src"], elements["wgt"], repeated)


def _repeated(used: NDArray[np.bool_], count: int, step: int) -> NDArray[np.bool_]:
    """Elements shifted 0 to count-1 times by ``step``, by doubling."""
    if step == 0 or count == 1:
        return used
    found, done = used.copy(), 1
    while done < count:
        shift = min(done, count - done)
        found[shift * step :] |= found[: len(found) - shift * step].copy()
        done += shift
    return found


def _repetition(
    opcode: Opcode, values: dict[str, int], indices: dict[str, _Index]
) -> tuple[str, str] | None:
    """The pipelines read an accumulator before the micro-ops shortly before have written it."""
    outer, inner = values["outer"], values["inner"]
    reads = ["dst"]
    if opcode is Opcode.ALU and not values["use_immediate"]:
        reads.append("src")
    for first, last in _windows(outer * inner, inner):
        iterations = np.stack(np.divmod(np.arange(first, last), inner), axis=1)
        written = indices["dst"].at(iterations)
        for name in reads:
            read = indices[name].at(iterations)
            for distance in range(1, _DISTANCE[opcode]):
                same = np.flatnonzero(written[:-distance] == read[distance:])
                if len(same):
                    return _too_close(opcode, name, int(written[same[0]]), distance)
    return None


def _windows(iterations: int, inner: int) -> list[tuple[int, int]]:
    """Ranges of iterations that hold every kind of neighbours: within a row of inner iterations,
    and where a row ends."""
    if inner <= 4:
        return [(0, min(iterations, 3 * inner + 2))]
    return [(0, 3), (inner - 2, min(iterations, inner + 2))]


def _too_close(opcode: Opcode, name: str, element: int, distance: int) -> tuple[str, str]:
    needed = _DISTANCE[opcode] - 1
    use = "writes" if name == "dst" else "reads"
    place = "right after" if distance == 1 else "two micro-ops after"
    others = "another micro-op" if needed == 1 else f"{needed} other micro-ops"
    return (
        f"a micro-op {use} accumulator {element} {place} one that writes it",
        f"put {others} between, by another order of micro-ops and loops",
    )
