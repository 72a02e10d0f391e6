"""The best complete mapping of a search so far, and its improvement decision by decision."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpembed.cost.machine.bounds import HoldOrder, moving_loops, stage_operands
from cpembed.cost.machine.nest import ExecutionNest, Floats
from cpembed.cost.machine.objective import Cost
from cpembed.cost.machine.passes import Stage
from cpembed.cost.machine.refinement import Decisions, neighbours, reordered
from cpembed.cost.machine.times import cycles
from cpembed.cost.machine.traffic import Tilings
from cpembed.hw.machine import Hierarchy

CALL = 64
"""Number of tilings that take as long to count as what is done once for many of them."""


def loop_order(
    resident: HoldOrder, nest: ExecutionNest, loops: Mapping[str, frozenset[str]]
) -> tuple[str, ...]:
    """Return loops, innermost first: those that leave the first of the operands in place.

    Parameters
    ----------
    resident : sequence of str
        Operands that are held from a stage on inwards, the outermost first.
    nest : ExecutionNest
        Nest with the loops.
    loops : mapping of str to set of str
        Loops that move each operand.
    """
    windowed = {name for operand in nest.operands for name in nest.windowed(operand)}
    return tuple(
        sorted(
            (loop.name for loop in nest.loops),
            key=lambda name: (*(name in loops[o] for o in resident), name not in windowed),
        )
    )


@dataclass
class Incumbent:
    """The best complete tilings so far.

    ``cost`` is theirs, or that of other tilings, of another nest, which they have to be better
    than: then there are none at first.
    """

    nest: ExecutionNest
    machine: Hierarchy
    pricing: Cost
    bound: float = -math.inf
    cost: float = math.inf
    tilings: Tilings | None = None
    counted: int = 0
    key: tuple[float, float, float] = (math.inf, math.inf, math.inf)

    def update(self, tilings: Tilings) -> bool:
        """Keep the best of some tilings if it is better, and return whether it is."""
        self.counted += tilings.rows + CALL
        cost = np.round(self.pricing.value(tilings, self.nest, self.machine), 6)
        amount = self._second(tilings, cost)
        size = -math.prod(tilings.sizes.values(), start=np.ones(tilings.rows))
        row = int(np.lexsort((size, amount, cost))[0])
        key = float(cost[row]), float(amount[row]), float(size[row])
        if key >= self.key:
            return False
        self.key, self.tilings = key, tilings.select([row])
        self.cost = float(self.pricing.value(self.tilings, self.nest, self.machine)[0])
        return True

    def _second(self, tilings: Tilings, cost: Floats) -> Floats:
        """Return what decides between equal costs: bytes of equal cycles, else cycles."""
        if self.pricing.counts_cycles:
            return self.pricing.amount(tilings)
        second = np.full(tilings.rows, math.inf)
        rows = np.flatnonzero(cost == cost.min())
        second[rows] = cycles(tilings.select(rows), self.nest, self.machine)
        return second

    def refine(self, start: Tilings, limit: int) -> None:
        """Replace one tiling by better ones that differ in one decision, again and again.

        About ``limit`` tilings are counted.
        """
        names = tuple(loop.name for loop in self.nest.loops)
        levels, local = (
            len(self.machine.levels) - 1,
            Incumbent(self.nest, self.machine, self.pricing),
        )
        better = local.update(start) and bool(names)
        while better and local.counted < limit:
            assert local.tilings is not None
            decisions, better = Decisions.from_tilings(local.tilings, names, levels), False
            for changed in neighbours(decisions, self.nest, self.machine):
                better = self._step(local, changed) or better
            if not better:
                for changed in reordered(decisions, self.machine, self._loop_order):
                    better = self._step(local, changed) or better
        if local.tilings is not None:
            self.update(local.tilings)

    def _step(self, local: Incumbent, changed: Decisions) -> bool:
        fitting = changed.select(changed.fit(self.nest, self.machine))
        if not fitting.sizes.shape[2]:
            return False
        return local.update(fitting.tilings(self.nest, self.machine))

    def _loop_order(self, resident: Sequence[str]) -> tuple[str, ...]:
        return loop_order(tuple(resident), self.nest, moving_loops(self.nest))


def staged(tilings: Tilings, nest: ExecutionNest, machine: Hierarchy) -> Tilings:
    """Return a tiling with as many stages at each level as it has operands, of equal sizes.

    Parameters
    ----------
    tilings : Tilings
        Tiling, in one row, that holds all operands of a level at one place.
    nest : ExecutionNest
        Nest that it tiles.
    machine : Hierarchy
        Machine with its memories.
    """
    stages = list[Stage]()
    for stage in tilings.stages:
        for number, operands in enumerate(stage_operands(nest, machine, stage.level)):
            parts = dict[str, Floats]() if number else stage.parts
            stages.append(replace(stage, parts=parts, operands=operands))
    return replace(tilings, stages=tuple(stages))
