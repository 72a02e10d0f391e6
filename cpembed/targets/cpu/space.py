"""The schedules of a program on a CPU, with packing and unpacking in their estimates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from cpembed.codegen.nest import TileLoop
from cpembed.codegen.plan import Knobs, LoopOrder
from cpembed.runtime.tuning.space import Scored, Space
from cpembed.targets.cpu.choice import PRODUCTS, Objective, moved, whole_call
from cpembed.targets.cpu.estimate import Estimate
from cpembed.targets.cpu.register_blocks import Schedules, apply_knobs
from cpembed.targets.cpu.trials import schedule_key
from cpembed.transform.program import DerivedProgram

_WITH_MOVES = 24
"""Schedules, the fastest without moves, that are compared with them where few are asked for: the
order of the tasks decides how much of an image each thread packs."""

_CHANGES = ("block", "block", "order", "panel", "stream")
"""What a neighbour differs in; block sizes, of which there are many, twice as often."""

_ANOTHER = 0.3
"""Probability that a neighbour differs in one more thing."""


@dataclass(frozen=True, eq=False)
class CpuSpace(Space[Knobs]):
    """``schedules`` are those of the contraction alone; ``objective`` says whether moving data
    around it counts."""

    program: DerivedProgram
    schedules: Schedules
    objective: Objective = "total"

    @cached_property
    def moves(self) -> bool:
        """Whether anything is packed or unpacked whenever it runs."""
        return bool(moved(self.program))

    @cached_property
    def _kernels(self) -> list[tuple[Estimate, Knobs]]:
        """Schedules worth timing, the fastest contraction first."""
        return self.schedules.ranked()

    @cached_property
    def _has_panels(self) -> bool:
        """Whether there is more data than the near caches hold, so that panels matter."""
        return any(knobs.cache_tiles for _, knobs in self._kernels)

    @cached_property
    def loops(self) -> tuple[tuple[TileLoop, ...], tuple[TileLoop, ...]]:
        """What can be blocked: loops over rows, and over columns."""
        nest, model = self.schedules.nest, self.schedules.model
        rows, columns = (
            tuple(loop for loop in loops if loop.steps > 1)
            for loops in (model.rows(nest), model.columns(nest))
        )
        return rows, columns

    def ranked(self, limit: int | None = None) -> Sequence[Scored[Knobs]]:
        few = limit is not None and limit <= _WITH_MOVES
        kernels = self._kernels[: _WITH_MOVES if few else None]
        found = [self._scored(knobs, kernel) for kernel, knobs in kernels]
        return sorted(found, key=lambda item: item.cost)[:limit]

    def scored(self, schedule: Knobs) -> Scored[Knobs]:
        return self._scored(schedule, self.schedules.estimate(schedule))

    def _scored(self, knobs: Knobs, alone: Estimate) -> Scored[Knobs]:
        """``alone`` is the contraction's estimate on operands that come packed."""
        kernel, moves = alone, 0.0
        if self.moves:
            whole, moves = whole_call(self.program, self.schedules, knobs)
            kernel = whole if self.objective == "total" else alone
        cost = kernel.us + moves if self.objective == "total" else kernel.us
        parts = {"us": kernel.us, "moves_us": moves, PRODUCTS: kernel.products_us}
        return Scored(cost, knobs, parts)

    def key(self, schedule: Knobs) -> str:
        return schedule_key(schedule)

    def form(self) -> object:
        """Kernels of the same code whose moves copy as much: fused axes of one step, digits named
        otherwise."""
        nest = apply_knobs(self.schedules.nest, self.schedules.model, Knobs())
        tasks = [task for task in nest.tasks if task.extent > 1]
        names = {loop.name: f"task {n}" for n, loop in enumerate(tasks)}
        names |= {loop.name: f"step {n}" for n, loop in enumerate(nest.reductions)}
        names |= {loop.name: loop.name for loop in nest.inner}
        unit = {task.name for task in nest.tasks} - set(names)
        accesses = [
            frozenset(
                repr(replace(t, iterator=names[t.iterator]) if t.iterator in names else t)
                for t in operand.access.terms
                if not set(t.iterators) & unit
            )
            for operand in nest.operands
        ]
        return (
            tuple((task.extent, task.unit) for task in tasks),
            tuple(loop.extent for loop in nest.reductions),
            nest.inner,
            tuple(accesses),
            tuple((o.name, o.elements) for o in moved(self.program)),
        )

    def neighbour(self, schedule: Knobs, random: Random) -> Knobs | None:
        while True:
            schedule = self._changed(schedule, random.choice(_CHANGES), random)
            if random.random() >= _ANOTHER:
                return schedule

    def transferred(self, schedule: Knobs, source: Space[Knobs]) -> Knobs | None:
        """The same schedule: loops correspond by their kind and place."""
        if not isinstance(source, CpuSpace):
            return None
        names = {
            mine.origin: yours
            for ours, theirs in zip(source.loops, self.loops, strict=True)
            for mine, yours in zip(ours, theirs, strict=False)
        }

        def here(sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
            found = ((names[name], size) for name, size in sizes if name in names)
            return {loop.origin: min(size, loop.steps) for loop, size in found}

        blocks, panels = here(schedule.register_tiles.items()), here(schedule.cache_tiles.items())
        return replace(schedule, register_tiles=blocks, cache_tiles=panels)

    def canonical(self, schedule: Knobs) -> Knobs:
        """Blocks of one point, and panels of a whole loop, are none; with loops of one kind only
        there is no order."""
        rows, columns = self.loops
        extents = {loop.origin: loop.steps for loop in (*rows, *columns)}
        blocks = {
            n: schedule.register_tiles[n] for n in extents if schedule.register_tiles.get(n, 1) > 1
        }
        panels = {
            name: size
            for name in extents
            if blocks.get(name, 1)
            <= (size := schedule.cache_tiles.get(name, extents[name]))
            < extents[name]
        }
        nest, model = self.schedules.nest, self.schedules.model
        sides = (model.rows(nest), model.columns(nest))
        walked = [any(loop.tiles_of(1) > 1 for loop in loops) for loops in sides]
        order: LoopOrder = schedule.loop_order if all(walked) else "columns"
        streams = schedule.non_temporal and model.streams
        return Knobs(blocks, order, panels, streams, schedule.split_k)

    def _changed(self, knobs: Knobs, change: str, random: Random) -> Knobs:
        if change == "order":
            return replace(knobs, loop_order="rows" if knobs.columns_outermost else "columns")
        if change == "stream":
            return replace(knobs, non_temporal=not knobs.non_temporal)
        loops = [loop for loops in self.loops for loop in loops]
        if not loops or (change == "panel" and not self._has_panels):
            return knobs
        loop = random.choice(loops)
        if change == "block":
            size = knobs.register_tiles.get(loop.origin, 1) + random.choice((-1, 1))
            size = max(1, min(loop.steps, size))
            return replace(knobs, register_tiles={**knobs.register_tiles, loop.origin: size})
        return replace(knobs, cache_tiles=_other_panels(knobs, loop, random))


def _other_panels(knobs: Knobs, loop: TileLoop, random: Random) -> dict[str, int]:
    """A panel of the loop added, or one that is there removed, doubled or halved, in whole
    blocks."""
    block = knobs.register_tiles.get(loop.origin, 1)
    others = {name: size for name, size in knobs.cache_tiles.items() if name != loop.origin}
    size = knobs.cache_tiles.get(loop.origin)
    if size is None:
        wanted = loop.steps // random.choice((2, 4, 8))
    else:
        wanted = random.choice((size // 2, size * 2, loop.steps))
    if wanted >= loop.steps:
        return others
    return {**others, loop.origin: max(block, wanted - wanted % block)}
