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

from cpembed.cost.fusion.block import Block
from cpembed.cost.fusion.operator_costs import OperatorCosts, Use
from cpembed.cost.fusion.parts import PartSearch
from cpembed.cost.fusion.schedule import (
    Evaluation,
    FusedLoop,
    Part,
    Sequence,
    unfused,
)
from cpembed.cost.machine.objective import Objective
from cpembed.cost.machine.sizes import cuts

ROWS = 512
"""Limit of the work of each search for the mapping of an operator."""

_PROVEN = 1e-9
"""Maximum gap of a cost that is proven to be the least, for rounding errors."""

_INPUTS = 3
"""Maximum number of tensors from main memory, the smallest ones, that a loop may keep on chip."""

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
        self.parts = PartSearch(costs)

    def run(self) -> FusedBlock:
        """Return the best schedule."""
        start = unfused(self.block)
        first = self.evaluation.uses(start)
        assert first is not None
        best, uses, rank = start, first, self.evaluation.rank(first)
        least, evaluated = self._bound(self.costs.rank), {start}
        for _ in range(_ROUNDS):
            if rank <= least * (1 + _PROVEN) or time.monotonic() > self.end:
                break
            estimate, schedule = self._best(rank)
            if schedule is None or schedule in evaluated or estimate >= rank * (1 - _PROVEN):
                break
            evaluated.add(schedule)
            exact = self.evaluation.uses(schedule)
            self.parts.remember(schedule, exact)
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
                use += self.costs.transfer(number, size, is_output=tensor.is_output)
            if self.costs.objective is not Objective.CYCLES or self.costs.overlaps:
                total += cost(number, use)
            else:
                total += cost(number, self.inside[number])
        if self.costs.objective is not Objective.CYCLES:
            for name in shared - set(block.producers):
                reader = block.readers[name][0]
                size = block.tensor_bytes(name, block.extents)
                use = self.costs.transfer(reader, size, is_output=False)
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
                    for added in self._additions(begin, end, live):
                        value, part = self.parts.best(begin, end, live | added, added, room)
                        if part is None or value >= room:
                            continue
                        after = frozenset(
                            name
                            for name in live | added
                            if any(n > end for n in self.block.readers.get(name, ()))
                        )
                        entry = cost + value, (*parts, part), (*resident, live | added)
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

    def _additions(self, begin: int, end: int, live: frozenset[str]) -> Iterator[frozenset[str]]:
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
