"""Places of a program's buffers in memory: the workspace, a handle's own memory, and the constants.

Buffers of the workspace that live at the same time lie apart, others on the same bytes. Placing the
largest first nearly always needs no more than the buffers that live at one time, which no plan can
do without. Where it needs more, CP-SAT searches for a better plan: a buffer is a rectangle of its
lifetime and its bytes, and rectangles must not overlap.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cpembed.export.program import CALLER_ROLES, Buffer, Program, Role

ALIGNMENT = 64
"""Alignment of buffers in bytes, for which kernels are compiled."""
SECONDS = 5.0
"""Deterministic seconds for the search for a better plan than the first one."""
MAGIC = b"CPEMBEDW"
"""First bytes of a file of constants."""
_WORDS = 1 << 20
"""Number of words of which a checksum is computed at once."""


def aligned(size: int) -> int:
    """Round bytes up to a multiple of :data:`ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


# -- the workspace --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """Memory that is needed from step ``first`` to step ``last``, both included."""

    name: str
    bytes: int
    first: int
    last: int

    def meets(self, other: Piece) -> bool:
        """True if both are needed at one time."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class MemoryPlan:
    """Offsets of pieces in bytes by name, the size of the memory, and a lower bound on the size of
    any plan.
    """

    places: Mapping[str, int]
    bytes: int
    least: int


def workspace_of(program: Program) -> MemoryPlan:
    """Return the plan of a program's workspace."""
    sizes = program.by_name
    return plan_memory(
        [Piece(name, sizes[name].bytes, *life) for name, life in program.lives().items()]
    )


def plan_memory(pieces: Sequence[Piece], seconds: float = SECONDS) -> MemoryPlan:
    """Place pieces at multiples of :data:`ALIGNMENT`; ``seconds`` limit the search for a better
    plan than the first one.
    """
    places, least = _best_fit(pieces), least_bytes(pieces)
    if _end(pieces, places) > least and seconds > 0:
        places = _searched(pieces, places, least, seconds)
    return MemoryPlan(places, _end(pieces, places), least)


def least_bytes(pieces: Iterable[Piece]) -> int:
    """Return the largest number of bytes that live at one step."""
    pieces = tuple(pieces)
    return max(
        (
            sum(aligned(piece.bytes) for piece in pieces if piece.first <= step <= piece.last)
            for step in {piece.first for piece in pieces}
        ),
        default=0,
    )


def _end(pieces: Iterable[Piece], places: Mapping[str, int]) -> int:
    return max((places[piece.name] + aligned(piece.bytes) for piece in pieces), default=0)


def _best_fit(pieces: Sequence[Piece]) -> dict[str, int]:
    """Place the largest first, each in the smallest gap between the placed pieces that live with
    it, or above them where no gap is large enough.
    """
    places: dict[str, int] = {}
    placed: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: (-piece.bytes, piece.first, piece.name)):
        size = aligned(piece.bytes)
        neighbours = sorted((places[p.name], aligned(p.bytes)) for p in placed if p.meets(piece))
        end, gaps = 0, list[tuple[int, int]]()
        for start, length in neighbours:
            if start - end >= size:
                gaps.append((start - end, end))
            end = max(end, start + length)
        places[piece.name] = min(gaps)[1] if gaps else end
        placed.append(piece)
    return places


def _searched(
    pieces: Sequence[Piece], places: Mapping[str, int], least: int, seconds: float
) -> dict[str, int]:
    """Search for better places than these; every build finds the same ones."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    top = _end(pieces, places) // ALIGNMENT
    end = model.new_int_var(least // ALIGNMENT, top, "end")
    starts: dict[str, cp_model.IntVar] = {}
    times: list[cp_model.IntervalVar] = []
    lines: list[cp_model.IntervalVar] = []
    for piece in pieces:
        size = aligned(piece.bytes) // ALIGNMENT
        start = model.new_int_var(0, top - size, piece.name)
        length = piece.last - piece.first + 1
        times.append(model.new_fixed_size_interval_var(piece.first, length, piece.name))
        lines.append(model.new_fixed_size_interval_var(start, size, piece.name))
        model.add(start + size <= end)
        model.add_hint(start, places[piece.name] // ALIGNMENT)
        starts[piece.name] = start
    model.add_no_overlap_2d(times, lines)
    model.minimize(end)
    solver = cp_model.CpSolver()
    # One worker and deterministic time make a build reproducible; wall time only ends a hang.
    solver.parameters.max_deterministic_time = seconds
    solver.parameters.max_time_in_seconds = 4 * seconds
    solver.parameters.num_workers = 1
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return dict(places)
    return {name: solver.value(start) * ALIGNMENT for name, start in starts.items()}


# -- constants ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blob:
    """Constants in a row, each at a multiple of :data:`ALIGNMENT`; ``places`` are their offsets."""

    contents: bytes
    places: Mapping[str, int]

    @cached_property
    def sums(self) -> tuple[int, int]:
        """Checksum that the runtime computes too: the sum of the 64-bit words, and the sum of each
        times its place, which begins at 1, modulo 2**64 (Fletcher).
        """
        words = np.frombuffer(self.contents, "<u8")
        plain = placed = 0
        for start in range(0, words.size, _WORDS):
            part = words[start : start + _WORDS]
            places = np.arange(start + 1, start + 1 + part.size, dtype=np.uint64)
            plain += int(part.sum(dtype=np.uint64))
            placed += int((part * places).sum(dtype=np.uint64))
        return plain % 2**64, placed % 2**64

    def file(self) -> bytes:
        """Contents of a file of constants: a line of header, then the constants."""
        sums = b"".join(value.to_bytes(8, "little") for value in self.sums)
        header = MAGIC + len(self.contents).to_bytes(8, "little") + sums
        return header.ljust(ALIGNMENT, b"\0") + self.contents


def blob_of(program: Program) -> Blob:
    """Return the constants that calls of a program take."""
    parts: list[bytes] = []
    places: dict[str, int] = {}
    end = 0
    for buffer in program.with_role(Role.CONSTANT):
        if buffer.name in program.used and buffer.data is not None:
            data = np.ascontiguousarray(buffer.data).tobytes()
            parts.append(data.ljust(aligned(len(data)), b"\0"))
            places[buffer.name] = end
            end += len(parts[-1])
    return Blob(b"".join(parts), places)


# -- a program ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Places of the buffers of a program; its constants are in the library, or in a file beside
    it.
    """

    program: Program
    blob: Blob
    in_file: bool

    @cached_property
    def workspace(self) -> MemoryPlan:
        return workspace_of(self.program)

    @cached_property
    def handle_places(self) -> tuple[dict[str, int], int]:
        """Offsets in the memory of a handle, and its bytes: packed and filled buffers, and weights
        that a run reads.
        """
        read = {name for call in self.program.run for name in call.arguments}
        places: dict[str, int] = {}
        end = 0
        for buffer in self.program.buffers:
            is_read = buffer.role is Role.WEIGHTS and buffer.name in read
            if buffer.role is Role.PACKED or buffer.fill is not None or is_read:
                places[buffer.name] = end
                end += aligned(buffer.bytes)
        return places, end

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers of the library: the caller's, and those that calls take."""
        used = self.program.used
        return tuple(b for b in self.program.buffers if b.role in CALLER_ROLES or b.name in used)

    def place(self, buffer: Buffer) -> int:
        """Return the number of a buffer of the caller, or the offset of any other in bytes."""
        if buffer.role in CALLER_ROLES:
            return self.program.with_role(buffer.role).index(buffer)
        if buffer.role is Role.CONSTANT:
            return self.blob.places[buffer.name]
        if buffer.is_shared:
            return self.workspace.places[buffer.name]
        return self.handle_places[0][buffer.name]
