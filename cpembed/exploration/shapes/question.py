"""What is asked of ``cpembed shape``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.exploration.shapes.cells import Cost
from cpembed.exploration.shapes.choice import Costs, Found, best_one, best_two
from cpembed.exploration.shapes.executions import Scope
from cpembed.exploration.shapes.median import Budget, best_sets
from cpembed.exploration.shapes.shape import tile_bytes
from cpembed.exploration.shapes.within import Near, limit_of, sets_within
from cpembed.time_limit import Clock

DEFAULT_SET = "in_place_padded"


@dataclass(frozen=True)
class Model:
    """A suite or a model and how it is read."""

    name: str
    layout: str = "NCHW"
    inputs: Mapping[str, Sequence[int]] | None = None


@dataclass(frozen=True)
class Question:
    """The best ``count`` shapes or fewer within ``scope``. ``buffer_bytes``: the tiles of a shape's
    operands take no more; ``total_macs``: nor have the shapes more together. ``layouts``: tensors
    of a model stay packed between its layers, and what counts of packing is copying them from one
    layout to another; constants are packed ahead. ``within``: all sets of shapes are listed that
    cost at most so many percent more than the best."""

    scope: Scope
    count: int
    constraints: ConstraintSet
    cost: Cost = field(default_factory=Cost)
    buffer_bytes: int | None = None
    total_macs: int | None = None
    timeout: float | None = None
    layouts: bool = False
    within: float | None = None

    def admitted(self) -> NDArray[np.int64]:
        """The shapes whose tiles the buffer holds and that the total allows, by number."""
        shapes = self.scope.shapes
        admitted = np.ones(len(shapes), np.bool_)
        if self.buffer_bytes is not None:
            admitted &= tile_bytes(shapes) <= self.buffer_bytes
        if self.total_macs is not None:
            admitted &= shapes.prod(axis=1) <= self.total_macs
        return np.flatnonzero(admitted)

    def choose(self, costs: Costs, sizes: NDArray[np.int64], clock: Clock) -> Found:
        """The best shapes by their costs; ``sizes`` are their multiply-accumulates."""
        if self.total_macs is None and self.count <= 2:
            return best_one(costs) if self.count == 1 else best_two(costs)
        return best_sets(costs, self.count, clock.left(), self._budget(sizes))

    def near(self, costs: Costs, sizes: NDArray[np.int64], best: float, clock: Clock) -> Near:
        """The sets that cost little more than the best, which costs ``best``."""
        limit = limit_of(best, self.within or 0.0)
        return sets_within(costs, self.count, limit, clock, self._budget(sizes))

    def _budget(self, sizes: NDArray[np.int64]) -> Budget | None:
        return None if self.total_macs is None else Budget(sizes.tolist(), self.total_macs)
