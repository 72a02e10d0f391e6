"""Schedules that fit a GPU, ranked by estimates: plain ones, and refinements of the best."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from random import Random
from typing import Any, ClassVar, TypeVar, cast

from cpembed.errors import LoweringError
from cpembed.runtime.tuning.space import Scored, Space
from cpembed.targets.cuda.lower import TiledProduct
from cpembed.targets.cuda.model import Gpu

S = TypeVar("S")

WARPS = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4), (4, 2))
"""Numbers of warps of a block along rows and columns."""
ROW_TILES, COLUMN_TILES = (1, 2, 4), (1, 2, 4, 8)
"""Numbers of instruction tiles of a warp along rows and columns."""
RASTER_GROUPS = (1, 4, 8)
"""Numbers of adjacent blocks of rows that share columns of the second factor in L2."""
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Numbers of blocks that share the reduction of a result."""


def leaves_half_idle(count: int, extent: int) -> bool:
    """Return True if a block of so many tiles, more than one, has twice as many as there are."""
    return 1 < count >= 2 * extent


def product_form(product: TiledProduct) -> tuple[Any, ...]:
    """Return a key that is equal for products that differ only in the names of their loops."""
    layouts = tuple(
        tuple((x.length, x.needs_packing, x.layout.elements) for x in operand)
        for operand in (product.first, product.second)
    )
    output = product.output
    return product.tiles, layouts, output.length, output.along == product.axes[1]


class RefinedSpace(Space[S]):
    """Schedules of one product on a GPU; their type is a frozen dataclass."""

    refined: ClassVar[int]
    """Number of the best plain schedules that are refined."""
    choices: ClassVar[Mapping[str, Sequence[object]]]
    """Values of each field of a schedule that a neighbour may change."""

    def __init__(self, tiled: TiledProduct, gpu: Gpu) -> None:
        self.tiled = tiled
        self.gpu = gpu
        self._refusal: LoweringError | None = None

    @property
    def lower_bound(self) -> float:
        # All products of the instruction, on all tensor cores.
        cycles = math.prod(self.tiled.tiles) * self.gpu.product_cycles
        return self.gpu.microseconds(cycles / self.gpu.multiprocessors / self.product_units)

    @property
    def product_units(self) -> int:
        """Number of products that a multiprocessor executes at a time."""
        return 1

    def form(self) -> object:
        return product_form(self.tiled)

    def group(self, schedule: S) -> object:
        fields = cast(Any, schedule)
        return fields.block, fields.splits

    @abstractmethod
    def plain(self) -> Iterator[Scored[S]]:
        """Yield schedules without refinements."""

    @abstractmethod
    def refinements(self, schedule: S) -> Iterator[Scored[S]]:
        """Yield refinements of a plain schedule."""

    def fitting(self, schedules: Iterable[S]) -> Iterator[Scored[S]]:
        """Yield the schedules that can be executed, with their estimates."""
        for schedule in schedules:
            try:
                scored = self.scored(schedule)
            except LoweringError as error:
                # The first schedules are the smallest, which nothing but the workload refuses.
                self._refusal = self._refusal or error
            else:
                yield scored

    def splits_of(self, depth: int) -> Iterator[tuple[int, int]]:
        """Yield raster groups and splits for stages of a depth, in instruction tiles."""
        for group, splits in itertools.product(RASTER_GROUPS, SPLITS):
            # Every part of a split reduction has at least two stages.
            if (group, splits) != (1, 1) and splits * depth <= max(1, self.tiled.tiles[3] // 2):
                yield group, splits

    @abstractmethod
    def rank(self, item: Scored[S]) -> tuple[float, ...]:
        """Return the key that schedules are sorted by."""

    @cached_property
    def _ranked(self) -> tuple[Scored[S], ...]:
        # Refinements multiply the number of schedules, so only the best are refined.
        schedules = sorted(self.plain(), key=self.rank)
        if not schedules:
            reason = f": {self._refusal}" * (self._refusal is not None)
            raise LoweringError(f"no schedule fits a multiprocessor of {self.gpu.name}{reason}")
        for item in schedules[: self.refined]:
            schedules += self.refinements(item.schedule)
        return tuple(sorted(schedules, key=self.rank))

    def ranked(self, limit: int | None = None) -> Sequence[Scored[S]]:
        return self._ranked[:limit]

    def neighbour(self, schedule: S, random: Random) -> S | None:
        """Return a schedule that differs in one choice."""
        name = random.choice(list(self.choices))
        values = [value for value in self.choices[name] if value != getattr(schedule, name)]
        return cast("S", replace(cast(Any, schedule), **{name: random.choice(values)}))
