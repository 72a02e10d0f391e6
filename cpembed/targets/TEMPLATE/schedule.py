"""Schedules are orders of the outer loops; estimates count how often tiles change."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from cpembed.errors import LoweringError
from cpembed.runtime.tuning.space import Scored, Space
from cpembed.targets.TEMPLATE.lower import Tile, Walk

_PERMUTED = 6
"""Maximum number of loops whose orders are all enumerated (720); further ones stay outside."""


@dataclass(frozen=True)
class Order:
    """Names of the outer loops, outermost first."""

    loops: tuple[str, ...]


class OrderSpace(Space[Order]):
    """Space of all orders; estimates are exact, because nothing overlaps."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk

    def ranked(self, limit: int | None = None) -> Sequence[Scored[Order]]:
        # Loops of one iteration stay outside, where they change nothing.
        moving = [name for name, extent in self.walk.extents.items() if extent > 1]
        single = [name for name in self.walk.extents if name not in moving]
        first, moving = moving[:-_PERMUTED], moving[-_PERMUTED:]
        orders = (Order((*single, *first, *each)) for each in itertools.permutations(moving))
        return sorted(map(self.scored, orders), key=lambda item: item.cost)[:limit]

    def scored(self, schedule: Order) -> Scored[Order]:
        if sorted(schedule.loops) != sorted(self.walk.extents):
            raise LoweringError(f"order: {schedule.loops} are not the program's loops")
        return Scored(float(cycles(self.walk, schedule)), schedule)

    def neighbour(self, schedule: Order, random: Random) -> Order | None:
        """Swap two loops."""
        if len(schedule.loops) < 2:
            return None
        names = list(schedule.loops)
        left, right = random.sample(range(len(names)), 2)
        names[left], names[right] = names[right], names[left]
        return Order(tuple(names))


def cycles(walk: Walk, order: Order) -> int:
    """Count the cycles of a walk: one for each execution, and those of every transfer.

    An input is fetched whenever its tile changes. The output is stored whenever its tile changes,
    and fetched again if it was stored before.
    """
    executions = math.prod(walk.extents.values())
    fetched = sum(tile.cycles * _changes(walk, tile, order) for tile in walk.inputs)
    stored = _changes(walk, walk.output, order)
    reloaded = stored - math.prod(walk.extents[name] for name in walk.output.loops)
    return executions + fetched + walk.output.cycles * (stored + reloaded)


def _changes(walk: Walk, tile: Tile, order: Order) -> int:
    """Number of times that another tile is needed than before."""
    # The iterations of all loops down to the innermost one that moves the tile.
    moving = [n for n, name in enumerate(order.loops) if name in tile.loops]
    extents = [walk.extents[name] for name in order.loops]
    # A loop of one iteration moves nothing, even if the tile depends on it.
    innermost = max((n for n in moving if extents[n] > 1), default=-1)
    return math.prod(extents[: innermost + 1])
