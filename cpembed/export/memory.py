"""Where the buffers of a workspace lie: those that live at the same time apart, others on the same
bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cpembed.export.program import Program

ALIGNMENT = 64
"""Bytes: kernels are compiled for buffers that start at a multiple."""


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


def plan_memory(pieces: Sequence[Piece]) -> MemoryPlan:
    """Places for pieces, all at multiples of :data:`ALIGNMENT`."""
    places = _best_fit(pieces)
    return MemoryPlan(places, _end(pieces, places), least_bytes(pieces))


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
