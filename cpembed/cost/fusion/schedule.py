"""Schedules of fused blocks: a tree of loops over tiles, with the tensors that stay on chip.

A :class:`Sequence` executes its parts one after the other; a part is an operator or a
:class:`FusedLoop`, whose body is a sequence again, executed for each tile. Some tensors are in the
memory on chip during a part, in tiles of the loops around, and stay there for the next part if they
are on chip then too. Where the part does not produce them, they are loaded once; where they are
read elsewhere, or are results, they are stored once. All other tensors are moved between the
memories by the operators, which tile them as :mod:`cpembed.cost.machine` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cpembed.cost.fusion.block import Block, Extents, OperatorAxis
from cpembed.cost.fusion.operator_costs import OperatorCosts, Use


@dataclass(frozen=True)
class FusedLoop:
    """Loop over tiles of consecutive operators.

    Attributes
    ----------
    axes : frozenset of (int, str)
        Axis of each operator that the loop tiles.
    tile : int
        Elements of a tile along these axes; the last tile may have fewer.
    body : Sequence
        Schedule of a tile.
    """

    axes: frozenset[OperatorAxis]
    tile: int
    body: Sequence


Part = int | FusedLoop
"""Operator, by its place in the block, or loop over several."""


@dataclass(frozen=True)
class Sequence:
    """Parts that are executed one after the other.

    ``resident`` are the tensors that are on chip during each part.
    """

    parts: tuple[Part, ...]
    resident: tuple[frozenset[str], ...]

    @property
    def operators(self) -> tuple[int, ...]:
        """Operators of all parts, in their order."""
        return tuple(n for part in self.parts for n in part_operators(part))

    def loops(self) -> Iterator[FusedLoop]:
        """Yield all loops of the schedule."""
        for part in self.parts:
            if isinstance(part, FusedLoop):
                yield part
                yield from part.body.loops()

    def stays(self) -> Iterator[tuple[str, int, int]]:
        """Yield the tensors on chip, each with the first and the last part of its stay."""
        for begin, names in enumerate(self.resident):
            before = self.resident[begin - 1] if begin else frozenset[str]()
            for name in sorted(names - before):
                end = begin
                while end + 1 < len(self.parts) and name in self.resident[end + 1]:
                    end += 1
                yield name, begin, end


def part_operators(part: Part) -> tuple[int, ...]:
    """Return the operators of a part."""
    return part.body.operators if isinstance(part, FusedLoop) else (part,)


def unfused(block: Block) -> Sequence:
    """Return the schedule in which every tensor goes through main memory."""
    parts = tuple(range(len(block.operators)))
    return Sequence(parts, (frozenset[str](),) * len(parts))


class Evaluation:
    """Costs of schedules of a block."""

    def __init__(self, costs: OperatorCosts) -> None:
        self.costs, self.block = costs, costs.block

    def uses(self, schedule: Sequence) -> dict[int, Use] | None:
        """Return the use of each operator, or None if a tile does not fit the memory on chip."""
        return self._sequence(
            schedule, self.block.extents, self.costs.memory.tile_capacity, frozenset()
        )

    def value(self, uses: Mapping[int, Use]) -> float:
        """Return the cost of all operators by the objective."""
        return sum(self.costs.value(number, use) for number, use in uses.items())

    def rank(self, uses: Mapping[int, Use]) -> float:
        """Return the cost by which schedules are compared."""
        return sum(self.costs.rank(number, use) for number, use in uses.items())

    def _sequence(
        self, sequence: Sequence, extents: Extents, free: float, resident: frozenset[str]
    ) -> dict[int, Use] | None:
        uses: dict[int, Use] = {}
        for part, names in zip(sequence.parts, sequence.resident, strict=True):
            inside = resident | names
            occupied = sum(self.block.tensor_bytes(name, extents) for name in names)
            if occupied > free:
                return None
            if isinstance(part, FusedLoop):
                more = self._loop(part, extents, free - occupied, inside)
            else:
                use = self.costs.use(part, extents, inside, free - occupied)
                more = None if use is None else {part: use}
            if more is None:
                return None
            uses = _added(uses, more)
        for number, use in self.transfers(sequence, extents):
            uses = _added(uses, {number: use})
        return uses

    def transfers(self, sequence: Sequence, extents: Extents) -> Iterator[tuple[int, Use]]:
        """Yield the loads and stores of resident tensors, with the operators that need them."""
        block = self.block
        for name, begin, end in sequence.stays():
            size = block.tensor_bytes(name, extents)
            source, readers = block.producers.get(name, -1), block.readers.get(name, ())
            operators = [
                n for part in sequence.parts[begin : end + 1] for n in part_operators(part)
            ]
            if source not in operators:
                reader = next(n for n in operators if n in readers)
                yield reader, self.costs.transfer(reader, size, is_output=False)
            elif name in block.results or any(n not in operators for n in readers):
                yield source, self.costs.transfer(source, size, is_output=True)

    def _loop(
        self, loop: FusedLoop, extents: Extents, free: float, resident: frozenset[str]
    ) -> dict[int, Use] | None:
        extent = extents[next(iter(loop.axes))]
        full, rest = divmod(extent, loop.tile)
        uses: dict[int, Use] = {}
        for count, tile in ((full, loop.tile), (1, rest)):
            if not count or not tile:
                continue
            inner = {**extents, **dict.fromkeys(loop.axes, tile)}
            body = self._sequence(loop.body, inner, free, resident)
            if body is None:
                return None
            uses = _added(uses, {number: use.times(count) for number, use in body.items()})
        # Sums that a reduction goes on with are read again in all tiles but the first.
        for number, axis in loop.axes:
            operator = self.block.operators[number]
            if operator.axes[axis].is_reduction:
                name = operator.output.name
                size = self.block.tensor_bytes(name, extents)
                again = full + (rest > 0) - 1
                uses = _added(uses, {number: self.costs.reread(number, name, size).times(again)})
        return uses


def _added(uses: Mapping[int, Use], more: Mapping[int, Use]) -> dict[int, Use]:
    return {n: uses.get(n, Use()) + more.get(n, Use()) for n in {**uses, **more}}
