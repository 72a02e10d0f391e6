"""Schedules of a program on a CPU, estimated with the layout transforms around the contraction.

Overheads rank embeddings without knowing the machine. This model does, so it chooses among the best
by overheads: it adds the fastest schedule's time to that of copying operands into their layouts and
back.
"""

from __future__ import annotations

import math
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
from cpembed.targets.cpu.schedules import Schedules, apply_knobs
from cpembed.transform.program import DerivedProgram, PackedOperand

CONSIDERED_ON_CPU = 64
"""Number of embeddings, best by overheads, from which :func:`shortlist` selects."""

_PER_FAMILY = 4
"""Maximum number of embeddings per family behind the best ones."""

PRODUCTS = "products_us"
"""Name of the part of an estimate that the products take."""

TIE_RATIO = 1.02
"""Maximum ratio of two estimates whose difference says nothing about which is faster."""

Objective = Literal["total", "kernel"]
"""Cost to minimise: a whole call, with packing and unpacking (weights are packed ahead), or the
contraction alone."""


def objective_named(name: str | None) -> Objective:
    """Return an objective by name; the whole call by default."""
    return "kernel" if name == "kernel" else "total"


def shortlist(ranked: tuple[RankedCandidate, ...]) -> tuple[RankedCandidate, ...]:
    """Select the candidates that the model compares.

    These are the best :data:`~cpembed.targets.base.CONSIDERED`, and behind them the best few of
    each family in which every instruction axis walks one workload axis.
    """
    family_sizes = Counter(map(_family, ranked[:CONSIDERED]))
    selection = list(ranked[:CONSIDERED])
    for item in ranked[CONSIDERED:]:
        family = _family(item)
        # Tiles cut from several axes may crowd these families out by their overheads, although a
        # single axis can be read in place.
        if family_sizes[family] < _PER_FAMILY and all(len(axes) <= 1 for _, axes in family):
            selection.append(item)
            family_sizes[family] += 1
    return tuple(selection)


def _family(ranked: RankedCandidate) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(ranked.candidate.embedding.family.items())


def machine_weights(fastest: Estimated, machine: Calibration) -> Weights:
    """Return the weights under which a score is the time of the overheads.

    The cost of copying an element is expressed in multiply-accumulates of this kernel.
    """
    program = fastest.ranked.candidate.program
    calls = fastest.ranked.overheads.calls * program.instruction.macs
    per_mac = fastest.scored.parts[PRODUCTS] * 1e3 / calls
    element = size_bytes(program.operands[0].dtype) / model_constants().line_bytes
    # Threads share the copies as they share the products that per_mac is an average of.
    # Elements that are copied twice belong to windows, whose neighbours go to distant places: an
    # element costs as much as a scattered one.
    copy_ns = machine.copy_ns_per_line * element * model_constants().scattered / thread_count()
    return Weights(1.0, copy_ns / per_mac if per_mac else 1.0)


def _whole_call(program: DerivedProgram, space: Schedules, knobs: Knobs) -> tuple[Estimate, float]:
    """Estimate a whole call, which reads the first factor where it is, or packs it inside.

    The second value is the microseconds of packing and unpacking around the kernel.
    """
    packing = space.packing(program, knobs)
    kernel = space.estimate(knobs, 0 if packing is None else packing.bytes)
    nest = space.on_original(knobs) or space.nest
    affinity = space.applied(knobs), in_order(program), space.machine, space.threads
    return kernel, copies_us(program, space.machine, nest, packing, cache_affine(*affinity))


def copies_us(
    program: DerivedProgram,
    machine: Calibration,
    nest: Nest,
    packing: PerThreadPacking | None,
    affine: Collection[str] = (),
) -> float:
    """Estimate the microseconds of packing operands that are not packed ahead, and of unpacking.

    Layouts that are the same memory cost nothing.

    Parameters
    ----------
    program : DerivedProgram
        Program of the kernel.
    machine : Calibration
        Constants of the machine.
    nest : Nest
        Nest that stores the results, and may read the first factor in its original layout.
    packing : PerThreadPacking or None
        Packing that the kernel does itself.
    affine : collection of str
        Operands that each thread transforms where it computes
        (:func:`~cpembed.targets.cpu.estimate.cache_affine`).
    """
    threads = thread_count()
    total = 0.0
    for operand in copied_operands(program):
        if nest.unpadded and operand is first_factor(program):
            continue
        if packing is not None and operand.name == packing.operand.name:
            total += per_thread_packing_us(packing, machine)
        elif operand.name == program.workload.output.name:
            # An epilogue may store another type than that of the sums.
            result = replace(operand, dtype=nest.operands[2].dtype)
            total += transform_us(result, machine, threads, affine=operand.name in affine)
        else:
            total += transform_us(operand, machine, threads, affine=operand.name in affine)
    return total


def copied_operands(program: DerivedProgram) -> list[PackedOperand]:
    """Return the operands that are packed or unpacked whenever the kernel runs."""
    ahead = packed_before(program.workload)
    return [o for o in program.operands if o.name not in ahead and not o.is_identity]


_SCREENED = 24
"""Number of schedules, fastest without copies, that are estimated with copies if few are requested:
the order of the tasks decides how much of an image each thread packs."""

_CHANGES = ("block", "block", "order", "panel", "stream")
"""Changes that make a neighbour; block sizes, of which there are many, twice as often."""

_FURTHER_CHANGE = 0.3
"""Probability of one more change."""


@dataclass(frozen=True, eq=False)
class CpuSpace(Space[Knobs]):
    """Schedules of a program."""

    program: DerivedProgram
    schedules: Schedules
    """Schedules of the contraction alone."""
    objective: Objective = "total"
    """``total`` to include packing and unpacking in the cost, ``kernel`` for the kernel alone."""

    @cached_property
    def copies_operands(self) -> bool:
        """True if operands are packed or unpacked whenever the kernel runs."""
        return bool(copied_operands(self.program))

    @cached_property
    def _kernels(self) -> list[tuple[Estimate, Knobs]]:
        """Schedules that are worth timing, fastest contraction first."""
        return self.schedules.ranked()

    @cached_property
    def _uses_cache_tiles(self) -> bool:
        """True if the data exceeds the near caches, so that cache tiles matter."""
        return any(knobs.cache_tiles for _, knobs in self._kernels)

    @cached_property
    def loops(self) -> tuple[tuple[TileLoop, ...], tuple[TileLoop, ...]]:
        """Loops over rows and loops over columns that can be blocked."""
        rows, columns = (
            tuple(loop for loop in side if loop.steps > 1) for side in self.schedules.loops
        )
        return rows, columns

    def ranked(self, limit: int | None = None) -> Sequence[Scored[Knobs]]:
        if limit is None or limit > _SCREENED:
            scored = [self._scored(knobs, kernel) for kernel, knobs in self._kernels]
            return sorted(scored, key=lambda item: item.cost)[:limit]
        return self._fastest(limit, math.inf)

    def best_within(self, limit: float) -> Scored[Knobs] | None:
        if self.least_best > limit:
            return None
        best = self._fastest(1, limit)
        return best[0] if best and best[0].cost <= limit else None

    @property
    def least_best(self) -> float:
        return self._least_best

    @cached_property
    def _least_best(self) -> float:
        blocks = map(Knobs, self.schedules.blocks)
        return min(map(self.schedules.least_us, blocks)) + self._least_copies_us

    @cached_property
    def _least_copies_us(self) -> float:
        """Lower bound of the copies around any schedule: the results are unpacked in any case."""
        output = self.program.operand(self.program.workload.output.name)
        if self.objective != "total" or output.is_identity:
            return 0.0
        # An epilogue may store another type than that of the sums.
        result = replace(output, dtype=self.schedules.nest.operands[2].dtype)
        machine, threads = self.schedules.machine, thread_count()
        return min(transform_us(result, machine, threads, affine=a) for a in (False, True))

    def _fastest(self, limit: int, bound: float) -> list[Scored[Knobs]]:
        """Return the schedules of the lowest costs, of which none above a bound is searched."""
        # Copies cost much to estimate; if few schedules are requested, only the fastest
        # contractions are worth it, and of these none that a lower bound leaves out.
        scored: dict[str, Scored[Knobs]] = {}
        copies = self._least_copies_us
        fastest_kernel = math.inf

        def score(kernel: Estimate, knobs: Knobs) -> Scored[Knobs]:
            key = schedule_key(knobs)
            if key not in scored:
                scored[key] = self._scored(knobs, kernel)
            return scored[key]

        def useful_us(kernel: Estimate, knobs: Knobs) -> float:
            """Return the time of a kernel beyond which it is slower than this one with copies."""
            nonlocal fastest_kernel
            if limit > 1 or not self.copies_operands or kernel.us >= fastest_kernel:
                return bound - copies
            fastest_kernel = kernel.us
            return min(score(kernel, knobs).cost, bound) - copies

        best: list[Scored[Knobs]] = []
        screened = _SCREENED if self.copies_operands else limit
        for kernel, knobs in self.schedules.ranked(screened, useful_us):
            least = self.schedules.least_us(knobs) + copies
            if len(best) == limit and least > best[-1].cost:
                continue
            best = sorted([*best, score(kernel, knobs)], key=lambda item: item.cost)[:limit]
        return best

    def scored(self, schedule: Knobs) -> Scored[Knobs]:
        return self._scored(schedule, self.schedules.estimate(schedule))

    def _scored(self, knobs: Knobs, contraction: Estimate) -> Scored[Knobs]:
        """Score a schedule, given the estimate of the contraction on packed operands."""
        kernel, copies = contraction, 0.0
        if self.copies_operands:
            packing_kernel, copies = _whole_call(self.program, self.schedules, knobs)
            kernel = packing_kernel if self.objective == "total" else contraction
        cost = kernel.us + copies if self.objective == "total" else kernel.us
        parts = {"us": kernel.us, "moves_us": copies, PRODUCTS: kernel.products_us}
        return Scored(cost, knobs, parts)

    def key(self, schedule: Knobs) -> str:
        return schedule_key(schedule)

    def form(self) -> object:
        """Return a value that is equal for kernels of the same code with equal copies."""
        nest = apply_knobs(self.schedules.nest, self.schedules.model, Knobs())
        # Names of loops do not count, nor loops of one iteration: they differ between embeddings
        # with fused axes of one step, or digits under other names, whose code is the same.
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
            tuple((o.name, o.elements) for o in copied_operands(self.program)),
        )

    def neighbour(self, schedule: Knobs, random: Random) -> Knobs | None:
        # Mostly one change, so that the search stays near a good schedule; sometimes several, which
        # single steps would have to reach through bad ones.
        while True:
            schedule = self._changed(schedule, random.choice(_CHANGES), random)
            if random.random() >= _FURTHER_CHANGE:
                return schedule

    def transferred(self, schedule: Knobs, source: Space[Knobs]) -> Knobs | None:
        """Translate a schedule of another space; loops correspond by their kind and position."""
        if not isinstance(source, CpuSpace):
            return None
        names = {
            source_loop.origin: own_loop
            for source_loops, own_loops in zip(source.loops, self.loops, strict=True)
            for source_loop, own_loop in zip(source_loops, own_loops, strict=False)
        }

        def translated(sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
            renamed = ((names[name], size) for name, size in sizes if name in names)
            return {loop.origin: min(size, loop.steps) for loop, size in renamed}

        blocks = translated(schedule.register_tiles.items())
        panels = translated(schedule.cache_tiles.items())
        return replace(schedule, register_tiles=blocks, cache_tiles=panels)

    def canonical(self, schedule: Knobs) -> Knobs:
        """Return a schedule without knobs that have no effect.

        This is a block of one point, a cache tile of a whole loop, and the order if there are loops
        of one kind only.
        """
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
        model = self.schedules.model
        has_blocks = [any(loop.tiles_of(1) > 1 for loop in side) for side in self.schedules.loops]
        order: LoopOrder = schedule.loop_order if all(has_blocks) else "columns"
        streams = schedule.non_temporal and model.streams
        return Knobs(blocks, order, panels, streams, split_k=schedule.split_k)

    def _changed(self, knobs: Knobs, change: str, random: Random) -> Knobs:
        if change == "order":
            return replace(knobs, loop_order="rows" if knobs.columns_outermost else "columns")
        if change == "stream":
            return replace(knobs, non_temporal=not knobs.non_temporal)
        loops = [loop for loops in self.loops for loop in loops]
        if not loops or (change == "panel" and not self._uses_cache_tiles):
            return knobs
        loop = random.choice(loops)
        # Neighbouring sizes, since a register block that is much larger does not fit.
        if change == "block":
            size = knobs.register_tiles.get(loop.origin, 1) + random.choice((-1, 1))
            size = max(1, min(loop.steps, size))
            return replace(knobs, register_tiles={**knobs.register_tiles, loop.origin: size})
        return replace(knobs, cache_tiles=_neighbouring_cache_tiles(knobs, loop, random))


def _neighbouring_cache_tiles(knobs: Knobs, loop: TileLoop, random: Random) -> dict[str, int]:
    """Add a cache tile of the loop, or remove, double or halve the present one, in whole blocks."""
    block = knobs.register_tiles.get(loop.origin, 1)
    unchanged = {name: size for name, size in knobs.cache_tiles.items() if name != loop.origin}
    size = knobs.cache_tiles.get(loop.origin)
    if size is None:
        points = loop.steps // random.choice((2, 4, 8))
    else:
        points = random.choice((size // 2, size * 2, loop.steps))
    if points >= loop.steps:
        return unchanged
    return {**unchanged, loop.origin: max(block, points - points % block)}


def schedule_json(schedule: Knobs) -> dict[str, Any]:
    """Return a schedule for documents, also under the names of version 0.1 until 0.2."""
    document: dict[str, Any] = msgspec.to_builtins(schedule)
    return document | {
        "blocks": document["register_tiles"],
        "columns_outermost": schedule.columns_outermost,
        "panels": document["cache_tiles"],
        "streams": schedule.non_temporal,
        "parts": schedule.split_k,
    }


def schedule_key(knobs: Knobs) -> str:
    """Return a key that is unique among the schedules of an embedding."""
    parts = (
        sorted(knobs.register_tiles.items()),
        knobs.loop_order,
        sorted(knobs.cache_tiles.items()),
        knobs.non_temporal,
        *([knobs.split_k] if knobs.split_k > 1 else []),
    )
    return repr(parts)
