"""Search for the schedule of a block with the least cost, with a lower bound.

Schedules are built by dynamic programming from the first operator to the last: at each operator,
for each set of tensors that are on chip, the least cost of everything before it. A part is an
operator, or a loop over consecutive operators, whose body is searched in the same way. While
schedules are compared, an operator costs what it costs with everything on chip, and its transfers
to and from main memory; the exact cost replaces this where it was computed. The best schedule is
then computed exactly, and the search repeated until it has been computed before.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from cpembed.cost.fusion.block import Block, OperatorAxis, tensor_bytes
from cpembed.cost.fusion.operator_costs import OperatorCosts, Use
from cpembed.cost.fusion.schedule import (
    Evaluation,
    FusedLoop,
    Part,
    Sequence,
    part_operators,
    unfused,
)
from cpembed.cost.machine.objective import Objective
from cpembed.cost.machine.sizes import cuts

ROWS = 512
"""Limit of the work of each search for the mapping of an operator."""

_STREAMS = 1 / 16
"""Part of the memory on chip that tiles leave to operands which pass through it."""

_INPUTS = 3
"""Maximum number of tensors from main memory, the smallest ones, that a loop may keep on chip."""

_PROVEN = 1e-9
"""Maximum gap of a cost that is proven to be the least, for rounding errors."""

_ROUNDS = 64
"""Maximum number of schedules that are computed exactly before tile sizes are refined."""


@dataclass(frozen=True)
class FusedBlock:
    """Best schedule of a block, and the unfused one.

    Attributes
    ----------
    schedule : Sequence
        Loops and tensors on chip.
    uses, unfused_uses : mapping of int to Use
        Cycles, bytes and energy of each operator, fused and with every tensor in main memory.
    cost, unfused_cost : float
        Costs by the objective.
    bound : float
        Lower bound on the cost of every schedule, fused or not.
    searches : int
        Number of mappings of operators that were searched for.
    costs : OperatorCosts
        Costs of the operators.
    """

    schedule: Sequence
    uses: Mapping[int, Use]
    unfused_uses: Mapping[int, Use]
    cost: float
    unfused_cost: float
    bound: float
    searches: int
    costs: OperatorCosts

    def cycles(self, number: int, use: Use) -> float:
        """Return the cycles of an operator with everything that it moves."""
        return self.costs.cycles(number, use)

    @property
    def gap(self) -> float:
        """Fraction by which another schedule could cost less, at most."""
        return max(0.0, 1.0 - self.bound / self.cost) if self.cost > 0 else 0.0


_Prefix = tuple[float, tuple[Part, ...], tuple[frozenset[str], ...]]
"""Estimate of the first parts of a schedule, these parts, and the tensors on chip during each."""


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
    held: frozenset[str] = frozenset()


def fuse(
    block: Block,
    objective: Objective = Objective.CYCLES,
    *,
    rows: int = ROWS,
    seconds: float | None = None,
) -> FusedBlock:
    """Search for the schedule of a block with the least cost.

    Parameters
    ----------
    block : Block
        Operators in their order, and their machine.
    objective : Objective
        Quantity to minimize: cycles, bytes to and from main memory, or energy.
    rows : int
        Limit of the work of each search for the mapping of an operator.
    seconds : float, optional
        Time after which no further schedule is tried; by default there is no limit.

    Raises
    ------
    SpecError
        Not all operands pass one memory next to main memory, or there are no energies.
    """
    end = math.inf if seconds is None else time.monotonic() + seconds
    costs = OperatorCosts(block, objective, rows)
    return _FusionSearch(costs, end).run()


class _FusionSearch:
    def __init__(self, costs: OperatorCosts, end: float) -> None:
        self.costs, self.block, self.end = costs, costs.block, end
        self.evaluation = Evaluation(costs)
        count = len(self.block.operators)
        self.inside = [costs.inside_bound(number, costs.block.extents) for number in range(count)]
        self.least = [costs.rank(number, use) for number, use in enumerate(self.inside)]
        self._exact: dict[tuple[Part, frozenset[str], frozenset[str]], float] = {}
        self._joint: dict[tuple[int, int], list[frozenset[OperatorAxis]]] = {}

    def run(self) -> FusedBlock:
        """Return the best schedule."""
        start = unfused(self.block)
        first = self.evaluation.uses(start)
        assert first is not None
        best, uses, rank = start, first, self.evaluation.rank(first)
        least, seen = self._bound(self.costs.rank), {start}
        for _ in range(_ROUNDS):
            if rank <= least * (1 + _PROVEN) or time.monotonic() > self.end:
                break
            estimate, schedule = self._best(rank)
            if schedule is None or schedule in seen or estimate >= rank * (1 - _PROVEN):
                break
            seen.add(schedule)
            exact = self.evaluation.uses(schedule)
            self._remember(schedule, exact)
            if exact is not None and self.evaluation.rank(exact) < rank:
                best, uses, rank = schedule, exact, self.evaluation.rank(exact)
        best, uses = self._refined(best, uses, rank)
        cost = self.evaluation.value(uses)
        return FusedBlock(
            schedule=best,
            uses=uses,
            unfused_uses=first,
            cost=cost,
            unfused_cost=self.evaluation.value(first),
            bound=min(self._bound(self.costs.value), cost),
            searches=self.costs.searches,
            costs=self.costs,
        )

    def _remember(self, schedule: Sequence, uses: Mapping[int, Use] | None) -> None:
        """Remember the exact costs of a schedule's parts."""
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

    def _bound(self, cost: Callable[[int, Use], float]) -> float:
        """Return a lower bound on the cost of all schedules.

        Each operator costs no less than with its intermediates on chip, for nothing; an input of
        several operators may be loaded by any of them, and is counted for none but in sums.
        """
        block, total = self.block, 0.0
        intermediates = {t for t in block.producers if t not in block.results}
        shared = {t for t, readers in block.readers.items() if len(readers) > 1}
        for number, operator in enumerate(block.operators):
            use = self.inside[number]
            for tensor in operator.tensors:
                if tensor.name in intermediates or tensor.name in shared:
                    continue
                size = block.tensor_bytes(tensor.name, block.extents)
                use += self.costs.apart(number, size, is_output=tensor.is_output)
            if self.costs.objective is not Objective.CYCLES or self.costs.overlaps:
                total += cost(number, use)
            else:
                total += cost(number, self.inside[number])
        if self.costs.objective is not Objective.CYCLES:
            for name in shared - set(block.producers):
                reader = block.readers[name][0]
                size = block.tensor_bytes(name, block.extents)
                use = self.costs.apart(reader, size, is_output=False)
                total += cost(reader, use)
        return total

    # ------------------------------------------------------------------------ dynamic programming

    def _best(self, limit: float) -> tuple[float, Sequence | None]:
        """Return the least estimate below a limit, and its schedule."""
        count = len(self.block.operators)
        suffix = [sum(self.least[n:]) for n in range(count + 1)]
        table: list[
            dict[frozenset[str], tuple[float, tuple[Part, ...], tuple[frozenset[str], ...]]]
        ]
        table = [{} for _ in range(count + 1)]
        table[0][frozenset()] = 0.0, (), ()
        for begin in range(count):
            for live, (cost, parts, resident) in table[begin].items():
                for end in range(begin, count):
                    room = limit - cost - suffix[end + 1]
                    if suffix[begin] - suffix[end + 1] >= room:
                        continue
                    for kept in self._kept(begin, end, live):
                        value, part = self._part(begin, end, live | kept, kept, room)
                        if part is None or value >= room:
                            continue
                        after = frozenset(
                            name
                            for name in live | kept
                            if any(n > end for n in self.block.readers.get(name, ()))
                        )
                        entry = cost + value, (*parts, part), (*resident, live | kept)
                        states = table[end + 1]
                        if after not in states or entry[0] < states[after][0]:
                            states[after] = entry
                        if end == count - 1:
                            limit = min(limit, entry[0])
                            room = min(room, limit - cost)
        if not table[count]:
            return math.inf, None
        cost, parts, resident = min(table[count].values(), key=lambda entry: entry[0])
        return cost, Sequence(parts, resident)

    def _kept(self, begin: int, end: int, live: frozenset[str]) -> Iterator[frozenset[str]]:
        """Yield the sets of tensors that become resident with a part."""
        block, outputs, inputs = self.block, list[str](), list[str]()
        for name in block.touched(range(begin, end + 1)):
            if name in live:
                continue
            source, readers = block.producers.get(name, -1), block.readers.get(name, ())
            later = any(n > end for n in readers)
            if begin <= source <= end:
                # Sums of several tiles stay on chip.
                if later or (end > begin and source == end):
                    outputs.append(name)
            elif later or end > begin:
                inputs.append(name)
        inputs.sort(key=lambda name: block.tensor_bytes(name, block.extents))
        for count in range(min(len(inputs), _INPUTS), -1, -1):
            for size in range(len(outputs), -1, -1):
                for names in itertools.combinations(outputs, size):
                    yield frozenset(inputs[:count]) | frozenset(names)

    # ------------------------------------------------------------------------------------ parts

    def _part(
        self, begin: int, end: int, live: frozenset[str], kept: frozenset[str], limit: float
    ) -> tuple[float, Part | None]:
        """Return the least estimate of a part below a limit, and the part."""
        block = self.block
        free = self.costs.memory.tile_capacity
        free -= sum(block.tensor_bytes(name, block.extents) for name in live)
        if free < 0:
            return math.inf, None
        charges: dict[int, Use] = {}
        for name in kept:
            number, use = self._charge(name, begin, end)
            if use is not None:
                charges[number] = charges.get(number, Use()) + use
        part = _Part(begin, end, live, free, charges)
        if begin == end:
            if (begin, live, kept) in self._exact:
                return self._exact[begin, live, kept], begin
            return self._operator(begin, part, _Tiles((), (), (), block.extents), live, free), begin
        best: tuple[float, Part | None] = math.inf, None
        for tiles in self._tiles(part):
            loops = self._loops(part, tiles)
            value = self._exact.get((loops, live, kept), 0.0)
            numbers = range(begin, end + 1) if not value else range(0)
            for number in numbers:
                inside = self._internal(part, number) | live | tiles.held
                room = free - self._held_bytes(part, tiles) - self._live_bytes(part, number, tiles)
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
            return source, self.costs.apart(source, size, is_output=True)
        number = next(n for n in block.readers[name] if begin <= n <= end)
        return number, self.costs.apart(number, size, is_output=False)

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

    def _held_bytes(self, part: _Part, tiles: _Tiles) -> float:
        """Return the bytes of tensors that stay on chip in the inner loop."""
        extents = {**self.block.extents, **dict.fromkeys(tiles.axes[0], tiles.sizes[0])}
        return sum(self.block.tensor_bytes(name, extents) for name in tiles.held)

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
        held = set[str]()
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
                    held.add(name)
        tiles = _Tiles(axes, sizes, counts, extents, frozenset(held))
        room = part.free - self._held_bytes(part, tiles)
        for number in range(part.begin, part.end + 1):
            needed = self._live_bytes(part, number, tiles)
            inside = self._internal(part, number) | part.live | tiles.held
            streams = sum(
                tensor_bytes(block.operators[number], number, tensor, extents)
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
            loop = FusedLoop(axes, size, Sequence((loop,), (tiles.held,)))
        return loop

    def _operator(
        self, number: int, part: _Part, tiles: _Tiles, inside: frozenset[str], room: float
    ) -> float:
        """Return the least cost of an operator in tiles; the exact one if that was computed."""
        block, count = self.block, float(math.prod(tiles.counts))
        use = part.charges.get(number, Use())
        operator = block.operators[number]
        for tensor in operator.tensors:
            is_held = tensor.name in tiles.held
            if is_held and (block.producers.get(tensor.name) == number or not tensor.is_output):
                size = block.tensor_bytes(
                    tensor.name,
                    {**block.extents, **dict.fromkeys(tiles.axes[0], tiles.sizes[0])},
                )
                use += self.costs.apart(number, size * tiles.counts[0], is_output=tensor.is_output)
            elif tensor.is_output and tensor.name not in part.live and tensor.name in inside:
                # Parts of intermediates that are needed elsewhere too.
                readers = block.readers.get(tensor.name, ())
                if tensor.name in block.results or any(n > part.end for n in readers):
                    size = block.tensor_bytes(tensor.name, block.extents)
                    use += self.costs.apart(number, size, is_output=True)
        is_exact, exact = self.costs.cached_use(number, tiles.extents, inside, room)
        if is_exact and exact is None:
            return math.inf
        if exact is not None:
            return self.costs.rank(number, exact.times(count) + use)
        for tensor in operator.tensors:
            if tensor.name in inside:
                continue
            size = tensor_bytes(operator, number, tensor, tiles.extents) * count
            use += self.costs.apart(number, size, is_output=tensor.is_output)
        return self.costs.rank(
            number, self.costs.inside_bound(number, tiles.extents).times(count) + use
        )

    # ---------------------------------------------------------------------------------- refinement

    def _refined(
        self, best: Sequence, uses: dict[int, Use], rank: float
    ) -> tuple[Sequence, dict[int, Use]]:
        """Return a schedule with other tile sizes as long as one of them costs less."""
        improved = True
        while improved and time.monotonic() < self.end:
            improved = False
            for loop in list(best.loops()):
                for size in self._neighbours(loop):
                    changed = _resized(best, loop, size)
                    exact = self.evaluation.uses(changed)
                    if exact is not None and self.evaluation.rank(exact) < rank * (1 - _PROVEN):
                        best, uses, rank = changed, exact, self.evaluation.rank(exact)
                        improved = True
                        break
                if improved:
                    break
        return best, uses

    def _neighbours(self, loop: FusedLoop) -> list[int]:
        granule = self.block.granule(loop.axes)
        extent = self.block.extents[next(iter(loop.axes))]
        sizes = [granule * size for size in cuts(-(-extent // granule))]
        larger = [size for size in sizes if size > loop.tile][:2]
        smaller = [size for size in sizes if size < loop.tile][-1:]
        return [min(size, extent) for size in (*reversed(larger), *smaller)]


def _resized(sequence: Sequence, loop: FusedLoop, size: int) -> Sequence:
    """Return a schedule with another tile size of one loop."""

    def changed(part: Part) -> Part:
        if part is loop:
            return replace(loop, tile=size)
        if isinstance(part, FusedLoop):
            return replace(part, body=_resized(part.body, loop, size))
        return part

    return replace(sequence, parts=tuple(changed(part) for part in sequence.parts))
