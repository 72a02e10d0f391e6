"""Parts of fused schedules: loops over tiles around operators, with estimates of their costs.

Tiles are as large as fit, among those of halved sizes: larger tiles move less. An operator in tiles
costs what its tile costs with everything on chip (:meth:`OperatorCosts.inside_bound`), times the
number of tiles, and its transfers; the exact cost replaces this estimate where it was computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cpembed.cost.fusion.block import OperatorAxis, tensor_bytes
from cpembed.cost.fusion.operator_costs import OperatorCosts, Use
from cpembed.cost.fusion.schedule import FusedLoop, Part, Sequence, part_operators

_STREAMS = 1 / 16
"""Part of the memory on chip that tiles leave to operands which pass through it."""


@dataclass(frozen=True)
class _Part:
    """Operators that are executed as one part, with tensors on chip.

    ``live`` are on chip during the part, ``free`` the bytes that they leave; ``charges`` are their
    transfers by operator.
    """

    begin: int
    end: int
    live: frozenset[str]
    free: float
    charges: Mapping[int, Use]


@dataclass(frozen=True)
class _Tiles:
    """Loops around a part, the outermost first, with tile sizes and numbers of tiles."""

    axes: tuple[frozenset[OperatorAxis], ...]
    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    extents: Mapping[OperatorAxis, int]
    stationary: frozenset[str] = frozenset()


class PartSearch:
    """Best loops around consecutive operators of a block, by estimates.

    Parameters
    ----------
    costs : OperatorCosts
        Costs of the block's operators.
    """

    def __init__(self, costs: OperatorCosts) -> None:
        self.costs, self.block = costs, costs.block
        self._exact: dict[tuple[Part, frozenset[str], frozenset[str]], float] = {}
        self._joint: dict[tuple[int, int], list[frozenset[OperatorAxis]]] = {}

    def remember(self, schedule: Sequence, uses: Mapping[int, Use] | None) -> None:
        """Remember the exact costs of a schedule's parts.

        Parameters
        ----------
        schedule : Sequence
            Schedule of the block.
        uses : mapping of int to Use, or None
            Use of each operator; None if a tile does not fit.
        """
        before = frozenset[str]()
        for part, names in zip(schedule.parts, schedule.resident, strict=True):
            numbers = part_operators(part)
            if uses is not None:
                value = sum(self.costs.rank(number, uses[number]) for number in numbers)
                self._exact[part, names, names - before] = value
            before = frozenset(
                name
                for name in names
                if any(n > numbers[-1] for n in self.block.readers.get(name, ()))
            )

    def best(
        self, begin: int, end: int, live: frozenset[str], added: frozenset[str], limit: float
    ) -> tuple[float, Part | None]:
        """Return the least estimate of a part below a limit, and the part.

        Parameters
        ----------
        begin, end : int
            First and last operator.
        live : frozenset of str
            Tensors that are on chip during the part.
        added : frozenset of str
            Those that are not on chip before it.
        limit : float
            Cost of a part that is of no use.
        """
        block = self.block
        free = self.costs.memory.tile_capacity
        free -= sum(block.tensor_bytes(name, block.extents) for name in live)
        if free < 0:
            return math.inf, None
        charges: dict[int, Use] = {}
        for name in added:
            number, use = self._charge(name, begin, end)
            if use is not None:
                charges[number] = charges.get(number, Use()) + use
        part = _Part(begin, end, live, free, charges)
        if begin == end:
            if (begin, live, added) in self._exact:
                return self._exact[begin, live, added], begin
            return self._operator(begin, part, _Tiles((), (), (), block.extents), live, free), begin
        best: tuple[float, Part | None] = math.inf, None
        for tiles in self._tiles(part):
            loops = self._loops(part, tiles)
            value = self._exact.get((loops, live, added), 0.0)
            numbers = range(begin, end + 1) if not value else range(0)
            for number in numbers:
                inside = self._internal(part, number) | live | tiles.stationary
                room = free - self._stationary_bytes(tiles) - self._live_bytes(part, number, tiles)
                value += self._operator(number, part, tiles, inside, room)
                if value >= min(limit, best[0]):
                    break
            else:
                if value < best[0]:
                    best = value, loops
        return best

    def _charge(self, name: str, begin: int, end: int) -> tuple[int, Use | None]:
        """Return the transfers of a tensor that becomes resident, and the operator that pays."""
        block = self.block
        size, source = block.tensor_bytes(name, block.extents), block.producers.get(name, -1)
        if begin <= source <= end:
            # It stays until its last reader.
            if name not in block.results:
                return source, None
            return source, self.costs.transfer(source, size, is_output=True)
        number = next(n for n in block.readers[name] if begin <= n <= end)
        return number, self.costs.transfer(number, size, is_output=False)

    def _internal(self, part: _Part, number: int) -> frozenset[str]:
        """Return the intermediates of a part that are on chip while an operator is executed."""
        names = set[str]()
        for source in range(part.begin, number + 1):
            name = self.block.operators[source].output.name
            readers = [n for n in self.block.readers.get(name, ()) if n <= part.end]
            if name not in part.live and readers and max(readers) >= number:
                names.add(name)
        return frozenset(names)

    def _live_bytes(self, part: _Part, number: int, tiles: _Tiles) -> float:
        names = self._internal(part, number)
        return sum(self.block.tensor_bytes(name, tiles.extents) for name in names)

    def _stationary_bytes(self, tiles: _Tiles) -> float:
        """Return the bytes of tensors that stay on chip in the inner loop."""
        extents = {**self.block.extents, **dict.fromkeys(tiles.axes[0], tiles.sizes[0])}
        return sum(self.block.tensor_bytes(name, extents) for name in tiles.stationary)

    def _tiles(self, part: _Part) -> Iterator[_Tiles]:
        """Yield loops around a part in tiles that fit, of which no larger ones do."""
        every = self._joint_axes(part.begin, part.end)
        for outer in every:
            if self._accumulates(outer, part.live):
                for tiles in self._largest(part, (outer,)):
                    yield tiles
                    break
                for inner in every:
                    if inner == outer:
                        continue
                    smallest = math.inf
                    for tiles in self._largest(part, (outer, inner)):
                        # Smaller tiles of the outer loop leave room for larger ones of the inner.
                        if tiles.sizes[1] != smallest:
                            yield tiles
                        smallest = tiles.sizes[1]

    def _accumulates(self, axes: frozenset[OperatorAxis], resident: frozenset[str]) -> bool:
        """Return True if no tile leaves sums that are not on chip afterwards."""
        return all(
            self.block.operators[n].output.name in resident
            for n, axis in axes
            if self.block.operators[n].axes[axis].is_reduction
        )

    def _largest(self, part: _Part, axes: tuple[frozenset[OperatorAxis], ...]) -> Iterator[_Tiles]:
        """Yield for each size of the outer loop the largest tiles that fit."""
        for outer in self._halvings(axes[0]):
            if len(axes) == 1:
                tiles = self._tiled(part, axes, (outer,))
                if tiles is not None:
                    yield tiles
                continue
            for inner in self._halvings(axes[1]):
                tiles = self._tiled(part, axes, (outer, inner))
                if tiles is not None:
                    yield tiles
                    break

    def _halvings(self, axes: frozenset[OperatorAxis]) -> list[int]:
        extent, granule = self.block.extents[next(iter(axes))], self.block.granule(axes)
        sizes, count = list[int](), -(-extent // granule)
        while count > 1:
            count = -(-count // 2)
            sizes.append(min(count * granule, extent))
        return sizes

    def _tiled(
        self, part: _Part, axes: tuple[frozenset[OperatorAxis], ...], sizes: tuple[int, ...]
    ) -> _Tiles | None:
        """Return tiles of a part with the tensors that the inner loop leaves in place, or None."""
        block = self.block
        extents = dict(block.extents)
        for each, size in zip(axes, sizes, strict=True):
            extents |= dict.fromkeys(each, size)
        counts = tuple(
            -(-block.extents[next(iter(each))] // size)
            for each, size in zip(axes, sizes, strict=True)
        )
        stationary = set[str]()
        if len(axes) == 2:
            numbers = range(part.begin, part.end + 1)
            internal = {block.operators[n].output.name for n in numbers}
            for name in block.touched(numbers):
                source = block.producers.get(name, -1)
                is_sum = source in numbers and any(
                    n == source and block.operators[n].axes[axis].is_reduction
                    for n, axis in axes[1]
                )
                if name not in part.live and (
                    is_sum or (name not in internal and not self._moves(name, axes[1]))
                ):
                    stationary.add(name)
        tiles = _Tiles(axes, sizes, counts, extents, frozenset(stationary))
        room = part.free - self._stationary_bytes(tiles)
        for number in range(part.begin, part.end + 1):
            needed = self._live_bytes(part, number, tiles)
            inside = self._internal(part, number) | part.live | tiles.stationary
            streams = sum(
                tensor_bytes(number, tensor, extents)
                for tensor in block.operators[number].tensors
                if tensor.name not in inside
            )
            needed += min(streams, _STREAMS * self.costs.memory.tile_capacity)
            if needed > room:
                return None
        return tiles

    def _moves(self, name: str, axes: frozenset[OperatorAxis]) -> bool:
        for number, axis in axes:
            tensor = self.block.operators[number].tensor(name)
            if tensor is not None and axis in tensor.axes:
                return True
        return False

    def _joint_axes(self, begin: int, end: int) -> list[frozenset[OperatorAxis]]:
        if (begin, end) not in self._joint:
            self._joint[begin, end] = self.block.joint_axes(begin, end)
        return self._joint[begin, end]

    def _loops(self, part: _Part, tiles: _Tiles) -> FusedLoop:
        """Return the loops of a part around its operators."""
        numbers = tuple(range(part.begin, part.end + 1))
        body = Sequence(numbers, tuple(self._internal(part, number) for number in numbers))
        loop = FusedLoop(tiles.axes[-1], tiles.sizes[-1], body)
        for axes, size in zip(tiles.axes[-2::-1], tiles.sizes[-2::-1], strict=True):
            loop = FusedLoop(axes, size, Sequence((loop,), (tiles.stationary,)))
        return loop

    def _operator(
        self, number: int, part: _Part, tiles: _Tiles, inside: frozenset[str], room: float
    ) -> float:
        """Return the least cost of an operator in tiles; the exact one if that was computed."""
        block, count = self.block, float(math.prod(tiles.counts))
        operator = block.operators[number]
        use = part.charges.get(number, Use()) + self._boundary(number, part, tiles, inside)
        is_exact, exact = self.costs.cached_use(number, tiles.extents, inside, room)
        if is_exact and exact is None:
            return math.inf
        if exact is not None:
            return self.costs.rank(number, exact.times(count) + use)
        for tensor in operator.tensors:
            if tensor.name in inside:
                continue
            size = tensor_bytes(number, tensor, tiles.extents) * count
            use += self.costs.transfer(number, size, is_output=tensor.is_output)
        return self.costs.rank(
            number, self.costs.inside_bound(number, tiles.extents).times(count) + use
        )

    def _boundary(self, number: int, part: _Part, tiles: _Tiles, inside: frozenset[str]) -> Use:
        """Return the transfers of tensors that are on chip in a part's loops alone."""
        block, use = self.block, Use()
        outer: dict[OperatorAxis, int] = dict(block.extents)
        if tiles.axes:
            outer |= dict.fromkeys(tiles.axes[0], tiles.sizes[0])
        for tensor in block.operators[number].tensors:
            is_output = tensor.is_output
            if tensor.name in tiles.stationary:
                size = block.tensor_bytes(tensor.name, outer) * tiles.counts[0]
                use += self.costs.transfer(number, size, is_output=is_output)
            elif is_output and tensor.name not in part.live and tensor.name in inside:
                # Parts of intermediates that are needed elsewhere too.
                readers = block.readers.get(tensor.name, ())
                if tensor.name in block.results or any(n > part.end for n in readers):
                    size = block.tensor_bytes(tensor.name, block.extents)
                    use += self.costs.transfer(number, size, is_output=True)
        return use
