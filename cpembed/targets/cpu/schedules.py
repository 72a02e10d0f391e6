"""Schedules of a nest on a CPU: the possible blocks, orders and tiles, and their costs.

:class:`Schedules` enumerates and estimates; what a register block costs is told by a
:class:`~cpembed.targets.cpu.register_blocks.RegisterModel`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import get_args

from cpembed.codegen.halo import least_share, reads_no_padding
from cpembed.codegen.nest import Nest, Pass, Prefetch, TileLoop
from cpembed.codegen.passes import (
    cache_tile,
    drop_unit_loops,
    loop_to_split,
    order_tasks,
    register_tile,
    shorten_remainder,
    split_k,
)
from cpembed.codegen.per_thread_packing import PerThreadPacking, pack_per_thread, plan_packing
from cpembed.codegen.plan import Knobs, LoopOrder
from cpembed.codegen.prefetch import prefetch_a, prefetch_b, prefetch_c
from cpembed.codegen.traffic import USED_SHARE, Reuse, touched_lines
from cpembed.errors import LoweringError
from cpembed.targets.cpu.calibration import Calibration, model_constants
from cpembed.targets.cpu.estimate import BlockStep, Estimate, estimate, split_k_sum_us
from cpembed.targets.cpu.register_blocks import BlockLoops, RegisterModel, block_sides
from cpembed.transform.program import DerivedProgram

_ROUNDOFF = 1e-9
"""Maximum relative error of an estimate's sums of floats, and more."""

_ESTIMATED_BLOCKS = 24
"""Number of register blocks, best by the cost of their steps alone, whose schedules are
estimated."""


_SHARED_NESTS = 48
"""Number of nests whose schedules are remembered, the most recent ones."""


@dataclass(frozen=True)
class Schedules:
    """Schedules of a nest on a machine with their estimates."""

    nest: Nest
    """Nest with lanes in digits."""
    model: RegisterModel
    """Costs of register blocks."""
    machine: Calibration
    unpadded: Nest | None = None
    """The nest on the first factor in its original layout, if it can be read there."""
    _executed_nests: dict[object, tuple[Nest, Reuse]] = field(
        default_factory=dict[object, tuple[Nest, Reuse]], repr=False, compare=False
    )
    _nests_on_original: dict[object, Nest | None] = field(
        default_factory=dict[object, "Nest | None"], repr=False, compare=False
    )
    _steps: dict[tuple[int, int], BlockStep] = field(
        default_factory=dict[tuple[int, int], BlockStep], repr=False, compare=False
    )

    @property
    def threads(self) -> int:
        return self.nest.threads

    @cached_property
    def _sums_nest(self) -> Nest:
        """Nest without the epilogue, which no estimate of a contraction depends on."""
        return replace(self.nest, epilogue=None, channels=None, residual=None)

    @cached_property
    def _estimated_nests(self) -> dict[object, tuple[Nest, Reuse]]:
        """Nests of the sums by schedule, which all schedules of equal nests share."""
        # All that `apply_knobs` reads of a model: loops, and the name of a product, which stands
        # for its registers.
        model = self.model
        loops = tuple(tuple(loop.origin for loop in side) for side in self.loops)
        return _shared_nests(self._sums_nest, loops, model.product, model.largest, model.streams)

    @cached_property
    def loops(self) -> BlockLoops:
        """Loops whose points form a block: those of rows and those of columns."""
        return self.model.loops(self.nest)

    def ranked(
        self, limit: int | None = None, within: Callable[[Estimate, Knobs], float] | None = None
    ) -> list[tuple[Estimate, Knobs]]:
        """Return the schedules that are worth timing, fastest by estimate first.

        Blocks that cannot be among them by a lower bound of their time are not estimated.

        Parameters
        ----------
        limit : int, optional
            Maximum number of schedules.
        within : callable, optional
            Returns, for the fastest schedule of each block, microseconds beyond which no schedule
            is of use.
        """
        scored: list[tuple[Estimate, Knobs]] = []
        useful = math.inf
        for blocks in self.blocks:
            slowest = useful
            if limit is not None and len(scored) >= limit:
                slowest = min(useful, sorted(pair[0].us for pair in scored)[limit - 1])
            if self.least_us(Knobs(blocks)) > slowest:
                continue
            added = [self._scored(knobs) for knobs in self._proposals(blocks)]
            if within is not None:
                useful = min(useful, within(*min(added, key=lambda pair: pair[0].us)))
            scored += added
        return sorted(scored, key=lambda pair: pair[0].us)[:limit]

    def least_us(self, knobs: Knobs) -> float:
        """Return a lower bound of the estimates of a register block in any order.

        All data are in the nearest cache, all threads are busy all the time, and of what only
        padding sees nothing is computed.
        """
        rows, columns = block_sides(self.loops, knobs)
        step = self._step(rows, columns)
        # Tiles cover each loop at least once.
        tasks = math.prod(task.extent / task.unit for task in self.nest.tasks) / (rows * columns)
        tasks /= self.threads
        steps = tasks * math.prod(loop.extent for loop in self.nest.reductions) * self._least_share
        machine, constants = self.machine, model_constants()
        products, loads = steps * step.products_ns, steps * step.loads_ns
        busy = max(products, loads) + constants.not_hidden * min(products, loads)
        rest = step.stored_lines * machine.store_line_ns[0] + machine.task_ns + step.task_ns
        launch = min(machine.call_us, machine.launch_us)
        # A little less, since sums of floats in another order differ in their last digits.
        return (1 - _ROUNDOFF) * ((1 + step.slowdown) * (busy + tasks * rest) / 1e3 + launch)

    @cached_property
    def _least_share(self) -> float:
        return least_share(self.nest)

    def _step(self, rows: int, columns: int) -> BlockStep:
        """Return the cost of a step of a block, of which many schedules have the sides."""
        side = rows, columns
        if side not in self._steps:
            self._steps[side] = self.model.step(self.nest, self.machine, rows, columns)
        return self._steps[side]

    def _scored(self, knobs: Knobs) -> tuple[Estimate, Knobs]:
        """Estimate a schedule, with non-temporal loads if these are faster."""
        cached = self.estimate(knobs), knobs
        if not self.model.streams:
            return cached
        streaming = replace(knobs, non_temporal=True)
        return min(cached, (self.estimate(streaming), streaming), key=lambda pair: pair[0].us)

    def best(self) -> Knobs:
        return self.ranked(1)[0][1]

    def estimate(self, knobs: Knobs, packed_bytes: int = 0) -> Estimate:
        """Estimate a schedule.

        ``packed_bytes`` of the first factor are packed at a time inside the kernel, 0 if it comes
        packed.
        """
        step = self._step(*block_sides(self.loops, knobs))
        bypassing = self.model.non_temporal(self.nest, knobs)
        nest, reuse = self._estimated(knobs)
        contraction = estimate(
            nest, step, self.machine, self.threads, reuse, bypassing, packed_bytes
        )
        if knobs.split_k == 1:
            return contraction
        # The sum of the parts is a pass of its own after the kernel.
        adding = split_k_sum_us(nest, self.machine, self.threads)
        return replace(
            contraction, us=contraction.us + adding, overhead_us=contraction.overhead_us + adding
        )

    def applied(self, knobs: Knobs) -> Nest:
        """Return the nest as it is executed.

        Raises :class:`LoweringError` as :func:`apply_knobs` does.
        """
        return self._executed(knobs)[0]

    def _executed(self, knobs: Knobs) -> tuple[Nest, Reuse]:
        """Return the nest of a schedule and its cache traffic."""
        # Non-temporal loads are no part of the key, because they change neither.
        return self._looked_up(self._executed_nests, self.nest, knobs)

    def _estimated(self, knobs: Knobs) -> tuple[Nest, Reuse]:
        """Return the nest of a schedule of the sums and its cache traffic."""
        # Split-K is rejected with some epilogues, and stores sums of its own without one.
        if knobs.split_k > 1:
            return self._executed(knobs)
        return self._looked_up(self._estimated_nests, self._sums_nest, knobs)

    def _looked_up(
        self, table: dict[object, tuple[Nest, Reuse]], nest: Nest, knobs: Knobs
    ) -> tuple[Nest, Reuse]:
        key = self._key(knobs)
        # Where the model has no such loads, the passes reject the schedule, which the cache would
        # hide.
        if key not in table or (knobs.non_temporal and not self.model.streams):
            scheduled = apply_knobs(nest, self.model, knobs, self.loops)
            table[key] = scheduled, Reuse(scheduled, self.threads)
        return table[key]

    @staticmethod
    def _key(knobs: Knobs) -> object:
        blocks, panels = tuple(knobs.register_tiles.items()), tuple(knobs.cache_tiles.items())
        return blocks, panels, knobs.loop_order, knobs.split_k

    def scheduled(self, program: DerivedProgram, knobs: Knobs, *, whole_call: bool = False) -> Nest:
        """Return the nest that a back end writes down.

        Parameters
        ----------
        program : DerivedProgram
            Program of the kernel.
        knobs : Knobs
            Schedule.
        whole_call : bool
            True for a call that packs and unpacks too, which takes the first factor in its original
            layout and reads it there or packs it, each thread for itself.

        Raises
        ------
        LoweringError
            If the schedule does not fit (:func:`apply_knobs`).
        """
        nest, reuse = self._executed(knobs)
        packing = self.packing(program, knobs) if whole_call else None
        original = self.on_original(knobs) if whole_call else None
        prefetched, second_level = self.model.prefetched, self.machine.cache_bytes[1]
        if Prefetch.C in prefetched:
            nest = prefetch_c(nest, reuse, second_level)
        if original is not None:
            nest = replace(original, prefetched=nest.prefetched)
            reuse = Reuse(nest, self.threads)
        # A factor that each thread packs for itself is in a near cache already.
        if Prefetch.A in prefetched and packing is None:
            nest = prefetch_a(nest, reuse, second_level, model_constants().prefetch_a_share)
        if Prefetch.B in prefetched:
            nest = prefetch_b(nest, reuse, second_level, model_constants().prefetch_b_share)
        nest = replace(nest, non_temporal=self.model.non_temporal(self.nest, knobs))
        return nest if packing is None else pack_per_thread(nest, packing)

    def on_original(self, knobs: Knobs) -> Nest | None:
        """Return the nest of whole calls that read the first factor where it is, or None."""
        if self.unpadded is None:
            return None
        key = self._key(knobs), knobs.non_temporal
        if key not in self._nests_on_original:
            nest = apply_knobs(self.unpadded, self.model, knobs)
            # There is nothing to read where the original layout has no padding.
            self._nests_on_original[key] = nest if reads_no_padding(nest) else None
        return self._nests_on_original[key]

    def packing(self, program: DerivedProgram, knobs: Knobs) -> PerThreadPacking | None:
        """Return the packing of the first factor by the threads of a kernel, or None.

        None if they read it where it is, or share sums.
        """
        nest = self.applied(knobs)
        if knobs.split_k > 1 or self.on_original(knobs) is not None:
            return None
        shares, sizes = model_constants().packing_shares, self.machine.cache_bytes
        rooms = [share * size for share, size in zip(shares, sizes, strict=False)]
        return plan_packing(program, nest, rooms, model_constants().packed_in)

    def _proposals(self, blocks: Mapping[str, int]) -> Iterator[Knobs]:
        """Yield the schedules of a register block that are worth timing."""
        orders: tuple[LoopOrder, ...] = get_args(LoopOrder)
        for order in orders:
            knobs = Knobs(blocks, order)
            yield knobs
            parts = self._parts(knobs)
            if parts > 1:
                yield replace(knobs, split_k=parts)
            for panels in self._panels(knobs):
                yield replace(knobs, cache_tiles=panels)

    @cached_property
    def blocks(self) -> list[dict[str, int]]:
        """Register blocks, least cost of all their steps first."""
        rows, columns = self.loops
        names = [loop.origin for loop in (*rows, *columns)]
        scored: list[tuple[float, tuple[int, ...]]] = []
        for row_points, row_blocks, row_count in _choices(rows, self.model.largest):
            for column_points, column_blocks, column_count in _choices(columns, self.model.largest):
                side = row_points, column_points
                if not self.model.fits(*side):
                    continue
                step = self._step(*side)
                cost = max(step.products_ns, step.loads_ns) * row_count * column_count
                scored.append((cost, (*row_blocks, *column_blocks)))
        return [
            {name: size for name, size in zip(names, sizes, strict=True) if size > 1}
            for _, sizes in sorted(scored)[:_ESTIMATED_BLOCKS]
        ]

    def _parts(self, knobs: Knobs) -> int:
        """Return the number of parts of the reduction (split-K) that gives each thread a task.

        1 if there are enough tasks, or no such number divides a reduction loop.
        """
        tasks, epilogue = self._estimated(knobs)[0].task_count, self.nest.epilogue
        if tasks >= self.threads or (epilogue and not epilogue.is_of_sum_alone):
            return 1
        parts = -(-self.threads // tasks)
        return next((n for n in range(parts, 1, -1) if loop_to_split(self.nest, n)), 1)

    def _panels(self, knobs: Knobs) -> Iterator[dict[str, int]]:
        """Yield cache tiles of the loops of either factor, if the data exceeds the L2 cache."""
        room = self.machine.cache_bytes[1] * USED_SHARE / self.nest.line_bytes
        inner = {loop.name: loop.extent for loop in (*self.nest.reductions, *self.nest.inner)}
        all_extents = inner | {task.name: task.extent for task in self.nest.tasks}
        touched = partial(touched_lines, line_bytes=self.nest.line_bytes)
        first, second, output = self.nest.operands
        if sum(touched(o, all_extents) for o in self.nest.operands) <= room:
            return
        rows, columns = ([loop for loop in side if loop.steps > 1][:1] for side in self.loops)
        shares = model_constants().cache_tile_shares
        candidates = [*itertools.product(rows, (first,), shares)]
        candidates += itertools.product(columns, (second,), shares)
        # Then also tiles whose results stay in the cache until all their columns are written.
        if knobs.columns_outermost and touched(output, all_extents) > room:
            candidates += itertools.product(rows, (output,), shares[:1])
        proposed: set[tuple[str, int]] = set()
        for loop, operand, share in candidates:
            lines_per_point = max(1, touched(operand, all_extents | {loop.name: 1}))
            size = knobs.register_tiles.get(loop.origin, 1)
            points = size * max(1, int(room * share / lines_per_point) // size)
            if size <= points < loop.steps and (loop.origin, points) not in proposed:
                proposed.add((loop.origin, points))
                yield {loop.origin: points}


# Layouts of a network often lead to equal nests.
@lru_cache(_SHARED_NESTS)
def _shared_nests(*_: object) -> dict[object, tuple[Nest, Reuse]]:
    """Return the table of a nest and of the function that makes its blocks."""
    return {}


def apply_knobs(
    nest: Nest, model: RegisterModel, knobs: Knobs, loops: BlockLoops | None = None
) -> Nest:
    """Return the nest of a schedule.

    Parameters
    ----------
    nest : Nest
        Nest with lanes in digits.
    model : RegisterModel
        Costs of register blocks.
    knobs : Knobs
        Schedule.
    loops : BlockLoops, optional
        Loops whose points form a block; by default the model's of the nest.

    Raises
    ------
    LoweringError
        If a register tile does not fit, or names a loop whose points share nothing.
    """
    rows, columns = loops or model.loops(nest)
    by_origin = {loop.origin: loop for loop in (*rows, *columns)}
    untileable = [
        name for name in (*knobs.register_tiles, *knobs.cache_tiles) if name not in by_origin
    ]
    if untileable:
        raise LoweringError(
            f"loop {untileable[0]} cannot be tiled: use one of {', '.join(by_origin)}"
        )
    sides = block_sides((rows, columns), knobs)
    if knobs.non_temporal and not model.streams:
        raise LoweringError("only loads of tiles can leave the nearest cache as it is")
    if not model.fits(*sides):
        raise LoweringError(f"a tile of {sides[0]} x {sides[1]} does not fit the registers")
    outer, inner = (columns, rows) if knobs.columns_outermost else (rows, columns)
    # The inner side stays in registers while it is reused, so the shorter one is inside.
    longer, shorter = (rows, columns) if sides[0] >= sides[1] else (columns, rows)
    names = [loop.origin for loop in (*longer, *shorter) if loop.origin in knobs.register_tiles]
    # Order: tasks are ordered while loops are whole; cache tiles are cut from whole loops and
    # register tiles from cache tiles; only then are remainders known, and loops of one iteration.
    # Split-K comes last, because it copies the finished task for each part of the reduction.
    sequence: list[Pass] = [
        partial(order_tasks, outermost_first=[loop.name for loop in (*outer, *inner)]),
        partial(
            cache_tile, tiles={by_origin[n].name: size for n, size in knobs.cache_tiles.items()}
        ),
        partial(register_tile, tiles={by_origin[n].name: knobs.register_tiles[n] for n in names}),
        shorten_remainder,
        drop_unit_loops,
    ]
    if knobs.split_k > 1:
        sequence.append(partial(split_k, parts=knobs.split_k))
    return nest.after(sequence)


def _choices(loops: Sequence[TileLoop], largest: int) -> Iterator[tuple[int, tuple[int, ...], int]]:
    """Yield blocks of at most ``largest`` points.

    A block is ``(points, block size per loop, number of such blocks)``.
    """
    if not loops:
        yield 1, (), 1
        return
    *outer, loop = loops
    for size in range(1, min(loop.steps, largest) + 1):
        for points, blocks, count in _choices(outer, largest // size):
            yield points * size, (*blocks, size), count * loop.tiles_of(size)
