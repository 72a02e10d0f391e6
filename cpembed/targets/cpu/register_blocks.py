"""The choice of a schedule: how many points of which loops a task computes, in which order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import get_args

from cpembed.codegen.halo import reads_no_padding
from cpembed.codegen.nest import Nest, Pass, Prefetch, TileLoop
from cpembed.codegen.passes import (
    cache_tile,
    can_tile,
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
from cpembed.codegen.program_nest import lane_name
from cpembed.codegen.traffic import USED_SHARE, Reuse, touched_lines
from cpembed.errors import LoweringError
from cpembed.targets.cpu.calibration import Calibration, model_constants
from cpembed.targets.cpu.estimate import BlockStep, Estimate, estimate, split_k_sum_us
from cpembed.transform.program import DerivedProgram, Loop


@dataclass(frozen=True)
class LaneRoles:
    """Kernel names of the lanes: ``C[row, column] += A[row, depth] * B[depth, column]``.

    ``row`` is None for an instruction whose first factor has one row, ``depth`` for one that adds
    a single product to a sum.
    """

    row: str | None
    column: str
    depth: str | None


def lane_roles(program: DerivedProgram) -> LaneRoles:
    """Read the roles off the accesses of the instruction's computation."""
    computation = program.instruction.computation
    used = [
        {name for index in computation.access(operand.name).index for name in index.iterators}
        for operand in computation.operands
    ]
    if len(used) != 3:
        raise LoweringError(f"{program.instruction.name} is not a product of two operands")
    first, second, output = used
    rows = sorted((first & output) - second)
    columns = sorted((second & output) - first)
    depths = sorted((first & second) - output)
    if len(rows) > 1 or len(columns) != 1 or len(depths) > 1:
        raise LoweringError(f"{program.instruction.name} is not a matrix product")
    row, depth = (lane_name(found[0]) if found else None for found in (rows, depths))
    return LaneRoles(row, lane_name(columns[0]), depth)


def useful_depth(program: DerivedProgram, roles: LaneRoles, group: int) -> int:
    """Steps of the depth lane that can add to a sum, in whole groups: an axis that is shorter than
    the lane and feeds it alone leaves the others to padding, which one factor holds zeros for."""
    lane = next(o for o in program.instruction_axes if lane_name(o.name) == roles.depth)
    found = program.embedding.digits.get(lane.name, ())
    if len(found) != 1 or found[0].stride != 1:
        return lane.extent
    return min(lane.extent, -(-program.workload.extents[found[0].axis] // group) * group)


def lane_extent(nest: Nest, lane: str | None) -> int:
    """Extent of a lane; 1 where the nest does not have it."""
    return nest.inner_loop(lane).extent if lane in {loop.name for loop in nest.inner} else 1


def digits(nest: Nest, lane: str | None) -> tuple[Loop, ...]:
    """The inner loops a lane was split into, outermost first."""
    if lane is None:
        return ()
    return tuple(
        loop for loop in nest.inner if loop.name == lane or loop.name.startswith(f"{lane}_")
    )


def row_loops(nest: Nest, *, results: bool = False) -> tuple[TileLoop, ...]:
    """Task loops that move the first factor and keep the second: what to block for its reuse.

    By falling distance between their points. With ``results``, those that move the results by a
    constant too.
    """
    return _blockable(nest, moves=0, keeps=1, results=results)


def column_loops(nest: Nest, *, results: bool = False) -> tuple[TileLoop, ...]:
    """Task loops that move the second factor and keep the first, likewise."""
    return _blockable(nest, moves=1, keeps=0, results=results)


def _blockable(nest: Nest, *, moves: int, keeps: int, results: bool) -> tuple[TileLoop, ...]:
    def walks(number: int, loop: TileLoop) -> bool:
        return loop.name in nest.operands[number].access.iterators

    found = (
        loop
        for loop in nest.tasks
        if walks(moves, loop) and not walks(keeps, loop) and can_tile(nest, loop, results=results)
    )
    return tuple(sorted(found, key=lambda loop: -abs(nest.operands[moves].stride(loop.name))))


_SCREENED = 24
"""Register blocks whose schedules are estimated in full: the best by their steps alone."""


@dataclass(frozen=True)
class RegisterModel:
    """What a block of ``rows`` x ``columns`` accumulators needs and costs.

    ``step(nest, machine, rows, columns)`` is what one reduction step of a block costs, on a nest
    with lanes in digits; ``largest`` bounds either side; ``product`` is the one whose time it
    takes. ``rows`` and ``columns`` are the loops whose points make a block, by falling distance in
    memory. ``streams``: loads can leave the nearest cache as it is
    (:attr:`~cpembed.codegen.plan.Knobs.non_temporal`).
    """

    fits: Callable[[int, int], bool]
    step: Callable[[Nest, Calibration, int, int], BlockStep]
    largest: int
    product: str
    rows: Callable[[Nest], tuple[TileLoop, ...]] = row_loops
    columns: Callable[[Nest], tuple[TileLoop, ...]] = column_loops
    streams: bool = False
    prefetched: frozenset[Prefetch] = frozenset({Prefetch.C})

    def non_temporal(self, nest: Nest, knobs: Knobs) -> int | None:
        """The factor, by number, that is loaded past the nearest cache: the one that the innermost
        loop over blocks moves."""
        if not knobs.non_temporal:
            return None
        rows, columns = (
            any(loop.tiles_of(knobs.register_tiles.get(loop.origin, 1)) > 1 for loop in loops)
            for loops in (self.rows(nest), self.columns(nest))
        )
        return 0 if rows and (knobs.columns_outermost or not columns) else 1

    def sides(self, nest: Nest, knobs: Knobs) -> tuple[int, int]:
        """Rows and columns of accumulators in a register block."""
        rows, columns = (
            math.prod(knobs.register_tiles.get(loop.origin, 1) for loop in loops)
            for loops in (self.rows(nest), self.columns(nest))
        )
        return rows, columns


@dataclass(frozen=True)
class Schedules:
    """The schedules of a nest on a machine, by their estimates; ``unpadded``: the nest on the first
    factor as it came, where it can be read so."""

    nest: Nest
    model: RegisterModel
    machine: Calibration
    unpadded: Nest | None = None
    _kept: dict[object, tuple[Nest, Reuse]] = field(
        default_factory=dict[object, tuple[Nest, Reuse]], repr=False, compare=False
    )

    @property
    def threads(self) -> int:
        return self.nest.threads

    def ranked(self) -> list[tuple[Estimate, Knobs]]:
        """Schedules worth timing, the fastest by estimate first; the same for the same machine."""
        scored = [self._scored(knobs) for knobs in self._proposals()]
        return sorted(scored, key=lambda pair: pair[0].us)

    def _scored(self, knobs: Knobs) -> tuple[Estimate, Knobs]:
        """The schedule, streaming where that is faster."""
        usual = self.estimate(knobs), knobs
        if not self.model.streams:
            return usual
        streaming = replace(knobs, non_temporal=True)
        return min(usual, (self.estimate(streaming), streaming), key=lambda pair: pair[0].us)

    def best(self) -> Knobs:
        return self.ranked()[0][1]

    def estimate(self, knobs: Knobs, packed_bytes: int = 0) -> Estimate:
        """``packed_bytes``: what the kernel packs of its first factor at a time; 0 where that comes
        packed."""
        rows, columns = self.model.sides(self.nest, knobs)
        step = self.model.step(self.nest, self.machine, rows, columns)
        past = self.model.non_temporal(self.nest, knobs)
        nest, reuse = self._executed(knobs)
        found = estimate(nest, step, self.machine, self.threads, reuse, past, packed_bytes)
        if knobs.split_k == 1:
            return found
        more = split_k_sum_us(nest, self.machine, self.threads)
        return replace(found, us=found.us + more, overhead_us=found.overhead_us + more)

    def applied(self, knobs: Knobs) -> Nest:
        """The nest as it is executed; raises as :func:`apply_knobs`."""
        return self._executed(knobs)[0]

    def _executed(self, knobs: Knobs) -> tuple[Nest, Reuse]:
        """The same with and without streaming, and estimated for either and for whole calls."""
        blocks, panels = tuple(knobs.register_tiles.items()), tuple(knobs.cache_tiles.items())
        key = blocks, panels, knobs.loop_order, knobs.split_k
        if key not in self._kept or (knobs.non_temporal and not self.model.streams):
            nest = apply_knobs(self.nest, self.model, knobs)
            self._kept[key] = nest, Reuse(nest, self.threads)
        return self._kept[key]

    def scheduled(self, program: DerivedProgram, knobs: Knobs, *, whole: bool = False) -> Nest:
        """The nest that a back end writes down; raises as :func:`passes`.

        ``whole``: it takes the first factor as it comes, and reads it there or packs it, each
        thread for itself.
        """
        nest, reuse = self._executed(knobs)
        packing = self.packing(program, knobs) if whole else None
        original = self.on_original(knobs) if whole else None
        asks, second_level = self.model.prefetched, self.machine.cache_bytes[1]
        if Prefetch.C in asks:
            nest = prefetch_c(nest, reuse, second_level)
        if original is not None:
            nest = replace(original, prefetched=nest.prefetched)
            reuse = Reuse(nest, self.threads)
        # What a thread packs for itself lies near.
        if Prefetch.A in asks and packing is None:
            nest = prefetch_a(nest, reuse, second_level, model_constants().prefetch_a_share)
        if Prefetch.B in asks:
            nest = prefetch_b(nest, reuse, second_level, model_constants().prefetch_b_share)
        nest = replace(nest, non_temporal=self.model.non_temporal(self.nest, knobs))
        return nest if packing is None else pack_per_thread(nest, packing)

    def on_original(self, knobs: Knobs) -> Nest | None:
        """What whole calls execute on the first factor as it came; None where they have it packed.
        Raises as :func:`apply_knobs`."""
        if self.unpadded is None:
            return None
        nest = apply_knobs(self.unpadded, self.model, knobs)
        return nest if reads_no_padding(nest) else None

    def packing(self, program: DerivedProgram, knobs: Knobs) -> PerThreadPacking | None:
        """How the parts of a kernel pack the first factor; None where they do not, because it is
        read where it is or they share sums. Raises as :func:`apply_knobs`."""
        nest = self.applied(knobs)
        if knobs.split_k > 1 or self.on_original(knobs) is not None:
            return None
        shares, sizes = model_constants().packing_shares, self.machine.cache_bytes
        rooms = [share * size for share, size in zip(shares, sizes, strict=False)]
        return plan_packing(program, nest, rooms, model_constants().packed_in)

    def _proposals(self) -> Iterator[Knobs]:
        for blocks in self._blocks():
            orders: tuple[LoopOrder, ...] = get_args(LoopOrder)
            for order in orders:
                knobs = Knobs(blocks, order)
                yield knobs
                parts = self._parts(knobs)
                if parts > 1:
                    yield replace(knobs, split_k=parts)
                for panels in self._panels(knobs):
                    yield replace(knobs, cache_tiles=panels)

    def _blocks(self) -> list[dict[str, int]]:
        """Register blocks, those whose steps take least for what they compute first."""
        rows, columns = self.model.rows(self.nest), self.model.columns(self.nest)
        names = [loop.origin for loop in (*rows, *columns)]
        scored: list[tuple[float, tuple[int, ...]]] = []
        steps: dict[tuple[int, int], float] = {}
        for row_points, row_blocks, row_count in _choices(rows, self.model.largest):
            for column_points, column_blocks, column_count in _choices(columns, self.model.largest):
                side = row_points, column_points
                if not self.model.fits(*side):
                    continue
                if side not in steps:
                    step = self.model.step(self.nest, self.machine, *side)
                    steps[side] = max(step.products_ns, step.loads_ns)
                cost = steps[side] * row_count * column_count
                scored.append((cost, (*row_blocks, *column_blocks)))
        return [
            {name: size for name, size in zip(names, sizes, strict=True) if size > 1}
            for _, sizes in sorted(scored)[:_SCREENED]
        ]

    def _parts(self, knobs: Knobs) -> int:
        """As many parts of a reduction as give each thread a task, or nearly; 1 where tasks are
        enough, or sums are not shared."""
        tasks, epilogue = self.applied(knobs).task_count, self.nest.epilogue
        if tasks >= self.threads or (epilogue and not epilogue.is_of_sum_alone):
            return 1
        wanted = -(-self.threads // tasks)
        return next((n for n in range(wanted, 1, -1) if loop_to_split(self.nest, n)), 1)

    def _panels(self, knobs: Knobs) -> Iterator[dict[str, int]]:
        """Panels of the loops of either factor, where all data are more than the second-level
        cache holds, and such whose results stay in it until all columns of them are written."""
        room = self.machine.cache_bytes[1] * USED_SHARE / self.nest.line_bytes
        inner = {loop.name: loop.extent for loop in (*self.nest.reductions, *self.nest.inner)}
        everything = inner | {task.name: task.extent for task in self.nest.tasks}
        touched = partial(touched_lines, line_bytes=self.nest.line_bytes)
        first, second, output = self.nest.operands
        if sum(touched(o, everything) for o in self.nest.operands) <= room:
            return
        rows, columns = (
            [loop for loop in loops if loop.steps > 1][:1]
            for loops in (self.model.rows(self.nest), self.model.columns(self.nest))
        )
        shares = model_constants().cache_tile_shares
        filling = [*itertools.product(rows, (first,), shares)]
        filling += itertools.product(columns, (second,), shares)
        if knobs.columns_outermost and touched(output, everything) > room:
            filling += itertools.product(rows, (output,), shares[:1])
        found: set[tuple[str, int]] = set()
        for loop, operand, share in filling:
            each = max(1, touched(operand, everything | {loop.name: 1}))
            size = knobs.register_tiles.get(loop.origin, 1)
            points = size * max(1, int(room * share / each) // size)
            if size <= points < loop.steps and (loop.origin, points) not in found:
                found.add((loop.origin, points))
                yield {loop.origin: points}


def apply_knobs(nest: Nest, model: RegisterModel, knobs: Knobs) -> Nest:
    """The nest after :func:`passes`, which raises."""
    return nest.after(passes(nest, model, knobs))


def passes(nest: Nest, model: RegisterModel, knobs: Knobs) -> list[Pass]:
    """What makes the loops of a schedule, in order.

    Raises :class:`LoweringError` for a register tile that does not fit or names a loop that shares
    nothing.
    """
    rows, columns = model.rows(nest), model.columns(nest)
    by_origin = {loop.origin: loop for loop in (*rows, *columns)}
    strange = [
        name for name in (*knobs.register_tiles, *knobs.cache_tiles) if name not in by_origin
    ]
    if strange:
        raise LoweringError(f"loop {strange[0]} cannot be tiled: use one of {', '.join(by_origin)}")
    sides = model.sides(nest, knobs)
    if knobs.non_temporal and not model.streams:
        raise LoweringError("only loads of tiles can leave the nearest cache as it is")
    if not model.fits(*sides):
        raise LoweringError(f"a tile of {sides[0]} x {sides[1]} does not fit the registers")
    outer, inner = (columns, rows) if knobs.columns_outermost else (rows, columns)
    # What is inside stays in registers while it is used again and again: the shorter side.
    longer, shorter = (rows, columns) if sides[0] >= sides[1] else (columns, rows)
    names = [loop.origin for loop in (*longer, *shorter) if loop.origin in knobs.register_tiles]
    found: list[Pass] = [
        partial(order_tasks, outermost_first=[loop.name for loop in (*outer, *inner)]),
        partial(
            cache_tile, tiles={by_origin[n].name: size for n, size in knobs.cache_tiles.items()}
        ),
        partial(register_tile, tiles={by_origin[n].name: knobs.register_tiles[n] for n in names}),
        shorten_remainder,
        drop_unit_loops,
    ]
    return found if knobs.split_k == 1 else [*found, partial(split_k, parts=knobs.split_k)]


def _choices(loops: Sequence[TileLoop], largest: int) -> Iterator[tuple[int, tuple[int, ...], int]]:
    """``(points of a block, block size per loop, number of blocks)`` up to ``largest`` points."""
    if not loops:
        yield 1, (), 1
        return
    *outer, loop = loops
    for size in range(1, min(loop.steps, largest) + 1):
        for points, blocks, count in _choices(outer, largest // size):
            yield points * size, (*blocks, size), count * loop.tiles_of(size)
