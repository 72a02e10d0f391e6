"""The schedules of a program on a CPU, with packing and unpacking in their estimates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any, Literal

import msgspec

from cpembed.codegen.nest import Nest, TileLoop
from cpembed.codegen.packing import packed_before
from cpembed.codegen.per_thread_packing import PerThreadPacking
from cpembed.codegen.plan import Knobs, LoopOrder
from cpembed.codegen.program_nest import first_factor, in_order
from cpembed.codegen.runtime import thread_count
from cpembed.cost.ranking import RankedCandidate
from cpembed.embedding.constraint_set import Weights
from cpembed.ir.dtypes import size_bytes
from cpembed.runtime.tuning.space import Scored, Space
from cpembed.targets.base import CONSIDERED
from cpembed.targets.choice import Estimated
from cpembed.targets.cpu.calibration import Calibration, model_constants
from cpembed.targets.cpu.estimate import Estimate, cache_affine, per_thread_packing_us, transform_us
from cpembed.targets.cpu.register_blocks import Schedules, apply_knobs
from cpembed.transform.program import DerivedProgram, PackedOperand

AMONG = 64
"""The best embeddings by their overheads, of which :func:`contenders` takes some."""

_OF_A_FAMILY = 4

PRODUCTS = "products_us"
"""Part of an estimate: what the products take."""

EQUAL = 1.02
"""Estimates that differ by less say nothing of which is faster."""

Objective = Literal["total", "kernel"]
"""What is to be short: the contraction with the packing and unpacking around it (weights are packed
ahead), or the contraction alone."""


def objective_named(name: str | None) -> Objective:
    """Return an objective by name; the whole call by default."""
    return "kernel" if name == "kernel" else "total"


def contenders(ranked: tuple[RankedCandidate, ...]) -> tuple[RankedCandidate, ...]:
    """What the model chooses among, of the best :data:`AMONG`: the best :data:`CONSIDERED`, and
    behind them the best few of each family that walks one axis with each instruction axis. Tiles
    cut out of several axes may crowd those out by their overheads, yet one axis can be read as it
    lies in memory."""
    seen = Counter(map(_family, ranked[:CONSIDERED]))
    found = list(ranked[:CONSIDERED])
    for item in ranked[CONSIDERED:]:
        family = _family(item)
        if seen[family] < _OF_A_FAMILY and all(len(axes) <= 1 for _, axes in family):
            found.append(item)
            seen[family] += 1
    return tuple(found)


def _family(ranked: RankedCandidate) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(ranked.candidate.embedding.family.items())


def machine_weights(fastest: Estimated, machine: Calibration) -> Weights:
    """Weights under which a score is the time that the overheads take: what an element costs to
    move, in units of what a multiply-accumulate of this kernel costs. Elements that are there twice
    are those of windows, whose neighbours go elsewhere."""
    program = fastest.ranked.candidate.program
    calls = fastest.ranked.overheads.calls * program.instruction.macs
    per_mac = fastest.scored.parts[PRODUCTS] * 1e3 / calls
    element = size_bytes(program.operands[0].dtype) / model_constants().line_bytes
    # Both are shared by the threads.
    moved_ns = machine.copy_ns_per_line * element * model_constants().scattered / thread_count()
    return Weights(1.0, moved_ns / per_mac if per_mac else 1.0)


def whole_call(program: DerivedProgram, space: Schedules, knobs: Knobs) -> tuple[Estimate, float]:
    """The contraction on what it packs itself or reads as it came, and the microseconds of moving,
    by the model; raises as :meth:`Schedules.applied`."""
    inside = space.packing(program, knobs)
    kernel = space.estimate(knobs, 0 if inside is None else inside.bytes)
    nest = space.on_original(knobs) or space.nest
    shared = space.applied(knobs), in_order(program), space.machine, space.threads
    return kernel, moves_us(program, space.machine, nest, inside, cache_affine(*shared))


def moves_us(
    program: DerivedProgram,
    machine: Calibration,
    nest: Nest,
    inside: PerThreadPacking | None,
    affine: Collection[str] = (),
) -> float:
    """Microseconds of packing what is not packed ahead and of unpacking, by the model; ``nest``
    stores the results, and may read the first factor as it came; ``inside`` is what it packs
    itself; ``near``: see :func:`~cpembed.targets.cpu.estimate.cache_affine`.

    Layouts that are the same memory cost nothing.
    """
    threads = thread_count()
    total = 0.0
    for operand in moved(program):
        if nest.unpadded and operand is first_factor(program):
            continue
        if inside is not None and operand.name == inside.operand.name:
            total += per_thread_packing_us(inside, machine)
        elif operand.name == program.workload.output.name:
            # In the type that is stored of the sums.
            stored = replace(operand, dtype=nest.operands[2].dtype)
            total += transform_us(stored, machine, threads, affine=operand.name in affine)
        else:
            total += transform_us(operand, machine, threads, affine=operand.name in affine)
    return total


def moved(program: DerivedProgram) -> list[PackedOperand]:
    """Operands that are packed or unpacked whenever the kernel runs."""
    ahead = packed_before(program.workload)
    return [o for o in program.operands if o.name not in ahead and not o.is_identity]


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


def schedule_json(schedule: Knobs) -> dict[str, Any]:
    """A schedule in documents: under the older names too, until 0.2."""
    document: dict[str, Any] = msgspec.to_builtins(schedule)
    return document | {
        "blocks": document["register_tiles"],
        "columns_outermost": schedule.columns_outermost,
        "panels": document["cache_tiles"],
        "streams": schedule.non_temporal,
        "parts": schedule.split_k,
    }


def schedule_key(knobs: Knobs) -> str:
    """What no two schedules of an embedding share."""
    parts = (
        sorted(knobs.register_tiles.items()),
        knobs.loop_order,
        sorted(knobs.cache_tiles.items()),
        knobs.non_temporal,
        *([knobs.split_k] if knobs.split_k > 1 else []),
    )
    return repr(parts)
