"""Where the buffers of a workspace lie: those that live at the same time apart, others on the same
bytes.

Placing the largest first nearly always needs no more than what lives at one time, which no plan can
do without. Where it needs more, CP-SAT looks for better: a piece is a rectangle of its lifetime and
its bytes, and rectangles must not overlap.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cpembed.export.program import Program

ALIGNMENT = 64
"""Bytes: kernels are compiled for buffers that start at a multiple."""

SECONDS = 5.0
"""Of a search for a better plan than the first one."""


@dataclass(frozen=True)
class Piece:
    """Memory that is needed from step ``first`` to step ``last``, both included."""

    name: str
    bytes: int
    first: int
    last: int

    def meets(self, other: Piece) -> bool:
        """Whether both are needed at one time."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class MemoryPlan:
    """The place of each piece, a byte offset, and the bytes of all; ``least``: what no plan can do
    without."""

    places: Mapping[str, int]
    bytes: int
    least: int


def aligned(size: int) -> int:
    """The next multiple of a line."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def workspace_of(program: Program) -> MemoryPlan:
    """The plan of a program's workspace."""
    sizes = program.by_name
    return plan_memory(
        [Piece(name, sizes[name].bytes, *life) for name, life in program.lives().items()]
    )


def plan_memory(pieces: Sequence[Piece], seconds: float = SECONDS) -> MemoryPlan:
    """Places for pieces, all at multiples of :data:`ALIGNMENT`; ``seconds`` may go into a search
    for better ones than those of the largest first."""
    places, least = _best_fit(pieces), least_bytes(pieces)
    if _end(pieces, places) > least and seconds > 0:
        places = _searched(pieces, places, least, seconds)
    return MemoryPlan(places, _end(pieces, places), least)


def least_bytes(pieces: Iterable[Piece]) -> int:
    """The most that lives at one step."""
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
    """The largest first, each in the smallest gap between those that are placed and live with it;
    above them where none is large enough."""
    places: dict[str, int] = {}
    placed: list[Piece] = []
    for piece in sorted(pieces, key=lambda one: (-one.bytes, one.first, one.name)):
        size = aligned(piece.bytes)
        others = sorted(
            (places[other.name], aligned(other.bytes)) for other in placed if other.meets(piece)
        )
        end, gaps = 0, list[tuple[int, int]]()
        for start, length in others:
            if start - end >= size:
                gaps.append((start - end, end))
            end = max(end, start + length)
        places[piece.name] = min(gaps)[1] if gaps else end
        placed.append(piece)
    return places


def _searched(
    pieces: Sequence[Piece], places: Mapping[str, int], least: int, seconds: float
) -> dict[str, int]:
    """Better places than these, where CP-SAT finds some in time; the same ones in every build."""
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
    solver.parameters.max_deterministic_time = seconds
    solver.parameters.max_time_in_seconds = 4 * seconds
    solver.parameters.num_workers = 1
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return dict(places)
    return {name: solver.value(start) * ALIGNMENT for name, start in starts.items()}
