"""Place a program's buffers in memory: the workspace, a handle's own memory, and the constants.

Buffers of the workspace share bytes unless they live at the same time. Placing the largest first
nearly always needs no more bytes than live at one step, the minimum of any plan. Where it needs
more, CP-SAT searches for a better plan: a buffer is a rectangle of its lifetime and its bytes, and
rectangles must not overlap.
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
# Deterministic seconds for the search for a better plan than the first one.
_SECONDS = 5.0
# First bytes of a file of constants.
_MAGIC = b"CPEMBEDW"
# Number of words of which a checksum is computed at once, to bound the memory of their products.
_WORDS = 1 << 20


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

    def meets(self, piece: Piece) -> bool:
        """True if both pieces are needed at one step."""
        return self.first <= piece.last and piece.first <= self.last


@dataclass(frozen=True)
class MemoryPlan:
    """Placement of pieces in one block of memory.

    Attributes
    ----------
    places : mapping from str to int
        Offsets of pieces in bytes.
    bytes, least : int
        Size of the memory, and a lower bound on the size of any plan.
    """

    places: Mapping[str, int]
    bytes: int
    least: int


def workspace_of(program: Program) -> MemoryPlan:
    """Place the buffers of a program's workspace."""
    sizes = program.by_name
    return plan_memory(
        [Piece(name, sizes[name].bytes, *life) for name, life in program.lives().items()]
    )


def plan_memory(pieces: Sequence[Piece], seconds: float = _SECONDS) -> MemoryPlan:
    """Place pieces at multiples of :data:`ALIGNMENT`, searching for at most ``seconds``."""
    places, least = _best_fit(pieces), least_bytes(pieces)
    if _end(pieces, places) > least and seconds > 0:
        places = _searched(pieces, places, least, seconds)
    return MemoryPlan(places, _end(pieces, places), least)


def least_bytes(pieces: Iterable[Piece]) -> int:
    """Return the largest number of bytes that live at one step."""
    # The number grows only at steps where a piece begins to live.
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
    """Place each piece, the largest first, in the smallest gap that is large enough."""
    places: dict[str, int] = {}
    placed: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: (-piece.bytes, piece.first, piece.name)):
        size = aligned(piece.bytes)
        neighbours = sorted((places[p.name], aligned(p.bytes)) for p in placed if p.meets(piece))
        # Gaps below and between the neighbours; without one that fits, the piece goes above them.
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
    """Search for better places than these; the result is the same in every build."""
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
        """Checksum of the contents, which the runtime computes too.

        It is the sum of the 64-bit words, and the sum of each one times its place, counted from 1,
        modulo 2**64 (Fletcher).
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
        """Return the contents of a file of constants: an aligned header, then the constants."""
        sums = b"".join(value.to_bytes(8, "little") for value in self.sums)
        header = _MAGIC + len(self.contents).to_bytes(8, "little") + sums
        return header.ljust(ALIGNMENT, b"\0") + self.contents


def blob_of(*programs: Program) -> Blob:
    """Return the constants that calls of programs take; one that several take is there once."""
    parts: list[bytes] = []
    places: dict[str, int] = {}
    end = 0
    for program, buffer in ((p, b) for p in programs for b in p.with_role(Role.CONSTANT)):
        # Names of a network's constants are digests of their contents.
        if buffer.name in places:
            continue
        if buffer.name in program.used and buffer.data is not None:
            data = np.ascontiguousarray(buffer.data).tobytes()
            parts.append(data.ljust(aligned(len(data)), b"\0"))
            places[buffer.name] = end
            end += len(parts[-1])
    return Blob(b"".join(parts), places)


# -- a program ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Places of the buffers of a program.

    Its constants are inside the library, or, if ``in_file``, in a file next to it.
    """

    program: Program
    blob: Blob
    in_file: bool

    @cached_property
    def workspace(self) -> MemoryPlan:
        """Plan of the memory that a run writes between its steps."""
        return workspace_of(self.program)

    @cached_property
    def handle_places(self) -> tuple[dict[str, int], int]:
        """Offsets in a handle's own memory, and its bytes.

        It holds packed and filled buffers, and copies of weights that a run reads.
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
        """Buffers of the library: the caller's, and those that calls take."""
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
