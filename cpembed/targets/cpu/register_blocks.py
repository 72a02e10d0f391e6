"""The choice of a schedule: how many points of which loops a task computes, in which order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from cpembed.errors import LoweringError
from cpembed.kernel.blocking import (
    block,
    cut_panels,
    cut_sums,
    drop_unit_loops,
    loop_in_parts,
    order_tasks,
)
from cpembed.kernel.margins import reads_no_padding
from cpembed.kernel.nest import Nest, TaskLoop
from cpembed.kernel.plan import Knobs
from cpembed.kernel.private_packing import PrivatePacking
from cpembed.kernel.shared_sums import SUMS, SharedSums
from cpembed.kernel.traffic import LINE_BYTES, USED_SHARE, Reuse, touched_lines
from cpembed.targets.cpu.calibration import Calibration
from cpembed.targets.cpu.estimate import BlockStep, Estimate, adding_us, estimate
from cpembed.targets.cpu.fetched_columns import fetches_columns
from cpembed.targets.cpu.fetched_results import fetches_results
from cpembed.targets.cpu.fetched_rows import fetches_rows
from cpembed.targets.cpu.roles import column_loops, row_loops
from cpembed.transform.program import DerivedProgram

_SCREENED = 24
"""Register blocks whose schedules are estimated in full: the best by their steps alone."""

_PANELS = (0.25, 0.5)
"""Shares of the second-level cache that a panel of a factor may be made to fill."""


@dataclass(frozen=True)
class RegisterModel:
    """What a block of ``rows`` x ``columns`` accumulators needs and costs.

    ``step(nest, machine, rows, columns)`` is what one reduction step of a block costs, on a nest
    with lanes in digits; ``largest`` bounds either side; ``product`` is the one whose time it
    takes. ``rows`` and ``columns`` are the loops whose points make a block, by falling distance in
    memory. ``streams``: loads can leave the nearest cache as it is
    (:attr:`~cpembed.kernel.plan.Knobs.streams`).
    """

    fits: Callable[[int, int], bool]
    step: Callable[[Nest, Calibration, int, int], BlockStep]
    largest: int
    product: str
    rows: Callable[[Nest], tuple[TaskLoop, ...]] = row_loops
    columns: Callable[[Nest], tuple[TaskLoop, ...]] = column_loops
    streams: bool = False

    def streamed(self, nest: Nest, knobs: Knobs) -> int | None:
        """The factor, by number, that is loaded past the nearest cache: the one that the innermost
        loop over blocks moves."""
        if not knobs.streams:
            return None
        rows, columns = (
            any(loop.blocks_of(knobs.blocks.get(loop.origin, 1)) > 1 for loop in loops)
            for loops in (self.rows(nest), self.columns(nest))
        )
        return 0 if rows and (knobs.columns_outermost or not columns) else 1

    def sides(self, nest: Nest, knobs: Knobs) -> tuple[int, int]:
        """Rows and columns of accumulators in a register block."""
        rows, columns = (
            math.prod(knobs.blocks.get(loop.origin, 1) for loop in loops)
            for loops in (self.rows(nest), self.columns(nest))
        )
        return rows, columns


@dataclass(frozen=True)
class Scheduled:
    """A nest as a kernel executes it on so many threads; with ``packing`` on the parts' own copies
    of the first factor; with ``shared`` it stores parts of sums. ``streamed``: see
    :meth:`RegisterModel.streamed`; ``fetches_results``,
    ``fetches_rows`` and ``fetches_columns``: see
    :func:`~cpembed.targets.cpu.fetched_results.fetches_results`,
    :func:`~cpembed.targets.cpu.fetched_rows.fetches_rows` and
    :func:`~cpembed.targets.cpu.fetched_columns.fetches_columns`."""

    nest: Nest
    threads: int
    streamed: int | None
    packing: PrivatePacking | None
    fetches_results: bool
    fetches_rows: bool
    fetches_columns: bool
    shared: SharedSums | None = None

    @property
    def copies(self) -> int:
        """Elements of the parts' copies."""
        return 0 if self.packing is None else self.nest.operands[0].elements


@dataclass(frozen=True)
class Schedules:
    """The schedules of a nest on a machine, by their estimates; ``unpadded``: the nest on the first
    factor as it came, where it can be read so."""

    nest: Nest
    model: RegisterModel
    machine: Calibration
    threads: int
    unpadded: Nest | None = None
    _kept: dict[object, tuple[Nest, Reuse]] = field(
        default_factory=dict[object, tuple[Nest, Reuse]], repr=False, compare=False
    )

    def ranked(self) -> list[tuple[Estimate, Knobs]]:
        """Schedules worth timing, the fastest by estimate first; the same for the same machine."""
        scored = [self._scored(knobs) for knobs in self._proposals()]
        return sorted(scored, key=lambda pair: pair[0].us)

    def _scored(self, knobs: Knobs) -> tuple[Estimate, Knobs]:
        """The schedule, streaming where that is faster."""
        usual = self.estimate(knobs), knobs
        if not self.model.streams:
            return usual
        streaming = replace(knobs, streams=True)
        return min(usual, (self.estimate(streaming), streaming), key=lambda pair: pair[0].us)

    def best(self) -> Knobs:
        return self.ranked()[0][1]

    def estimate(self, knobs: Knobs, packed_bytes: int = 0) -> Estimate:
        """``packed_bytes``: what the kernel packs of its first factor at a time; 0 where that comes
        packed."""
        rows, columns = self.model.sides(self.nest, knobs)
        step = self.model.step(self.nest, self.machine, rows, columns)
        streamed = self.model.streamed(self.nest, knobs)
        nest, reuse = self._executed(knobs)
        found = estimate(nest, step, self.machine, self.threads, reuse, streamed, packed_bytes)
        if knobs.parts == 1:
            return found
        more = adding_us(nest.operands[2], self.machine, self.threads)
        return replace(found, us=found.us + more, overhead_us=found.overhead_us + more)

    def applied(self, knobs: Knobs) -> Nest:
        """The nest as it is executed; raises as :func:`apply_knobs`."""
        return self._executed(knobs)[0]

    def _executed(self, knobs: Knobs) -> tuple[Nest, Reuse]:
        """The same with and without streaming, and estimated for either and for whole calls."""
        blocks, panels = tuple(knobs.blocks.items()), tuple(knobs.panels.items())
        key = blocks, panels, knobs.columns_outermost, knobs.parts
        if key not in self._kept or (knobs.streams and not self.model.streams):
            nest = apply_knobs(self.nest, self.model, knobs)
            self._kept[key] = nest, Reuse(nest, self.threads)
        return self._kept[key]

    def scheduled(self, program: DerivedProgram, knobs: Knobs, *, whole: bool = False) -> Scheduled:
        """What a back end writes down; raises as :func:`apply_knobs`.

        ``whole``: it takes the first factor as it comes, and reads it there or packs it, each part
        for itself.
        """
        (nest, reuse), streamed = self._executed(knobs), self.model.streamed(self.nest, knobs)
        results = fetches_results(nest, reuse, self.machine)
        shared = SharedSums.of(self.nest, knobs.parts) if knobs.parts > 1 else None
        packing = self.packing(program, knobs) if whole else None
        original = self.on_original(knobs) if whole else None
        if original is not None:
            nest, reuse = original, Reuse(original, self.threads)
        # What a part packs for itself lies near.
        rows = packing is None and fetches_rows(nest, reuse, self.machine)
        columns = fetches_columns(nest, reuse, self.machine)
        nest = nest if packing is None else packing.contraction
        return Scheduled(nest, self.threads, streamed, packing, results, rows, columns, shared)

    def on_original(self, knobs: Knobs) -> Nest | None:
        """What whole calls execute on the first factor as it came; None where they have it packed.
        Raises as :func:`apply_knobs`."""
        if self.unpadded is None:
            return None
        nest = apply_knobs(self.unpadded, self.model, knobs)
        return nest if reads_no_padding(nest) else None

    def packing(self, program: DerivedProgram, knobs: Knobs) -> PrivatePacking | None:
        """How the parts of a kernel pack the first factor; None where they do not, because it is
        read where it is or they share sums. Raises as :func:`apply_knobs`."""
        nest = self.applied(knobs)
        if knobs.parts > 1 or self.on_original(knobs) is not None:
            return None
        return PrivatePacking.of(program, nest, self.threads, self.machine.cache_bytes[:2])

    def _proposals(self) -> Iterator[Knobs]:
        for blocks in self._blocks():
            for columns_outermost in (True, False):
                knobs = Knobs(blocks, columns_outermost)
                yield knobs
                parts = self._parts(knobs)
                if parts > 1:
                    yield replace(knobs, parts=parts)
                for panels in self._panels(knobs):
                    yield replace(knobs, panels=panels)

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
        tasks = self.applied(knobs).task_count
        if tasks >= self.threads or (self.nest.epilogue and self.nest.epilogue.vectors):
            return 1
        wanted = -(-self.threads // tasks)
        return next((n for n in range(wanted, 1, -1) if loop_in_parts(self.nest, n)), 1)

    def _panels(self, knobs: Knobs) -> Iterator[dict[str, int]]:
        """Panels of the loops of either factor, where all data are more than the second-level
        cache holds, and such whose results stay in it until all columns of them are written."""
        room = self.machine.cache_bytes[1] * USED_SHARE / LINE_BYTES
        inner = {loop.name: loop.extent for loop in (*self.nest.reductions, *self.nest.inner)}
        everything = inner | {task.name: task.extent for task in self.nest.tasks}
        first, second, output = self.nest.operands
        if sum(touched_lines(o, everything) for o in self.nest.operands) <= room:
            return
        rows, columns = (
            [loop for loop in loops if loop.steps > 1][:1]
            for loops in (self.model.rows(self.nest), self.model.columns(self.nest))
        )
        filling = [*itertools.product(rows, (first,), _PANELS)]
        filling += itertools.product(columns, (second,), _PANELS)
        if knobs.columns_outermost and touched_lines(output, everything) > room:
            filling += itertools.product(rows, (output,), _PANELS[:1])
        found: set[tuple[str, int]] = set()
        for loop, operand, share in filling:
            each = max(1, touched_lines(operand, everything | {loop.name: 1}))
            size = knobs.blocks.get(loop.origin, 1)
            points = size * max(1, int(room * share / each) // size)
            if size <= points < loop.steps and (loop.origin, points) not in found:
                found.add((loop.origin, points))
                yield {loop.origin: points}


def apply_knobs(nest: Nest, model: RegisterModel, knobs: Knobs) -> Nest:
    """Order, block and cut the tasks.

    Raises :class:`LoweringError` for a block that does not fit the registers or names a loop that
    shares nothing.
    """
    rows, columns = model.rows(nest), model.columns(nest)
    by_origin = {loop.origin: loop for loop in (*rows, *columns)}
    strange = [name for name in (*knobs.blocks, *knobs.panels) if name not in by_origin]
    if strange:
        raise LoweringError(
            f"loop {strange[0]} cannot be blocked: use one of {', '.join(by_origin)}"
        )
    block_sides = model.sides(nest, knobs)
    if knobs.streams and not model.streams:
        raise LoweringError("only loads of tiles can leave the nearest cache as it is")
    if not model.fits(*block_sides):
        raise LoweringError(
            f"a block of {block_sides[0]} x {block_sides[1]} does not fit the registers"
        )
    outer, inner = (columns, rows) if knobs.columns_outermost else (rows, columns)
    nest = order_tasks(nest, [loop.name for loop in (*outer, *inner)])
    nest = cut_panels(nest, {by_origin[name].name: size for name, size in knobs.panels.items()})
    # What is inside stays in registers while it is used again and again: the shorter side.
    sides = (rows, columns) if block_sides[0] >= block_sides[1] else (columns, rows)
    names = [loop.origin for side in sides for loop in side if loop.origin in knobs.blocks]
    blocks = {by_origin[name].name: knobs.blocks[name] for name in names}
    nest = drop_unit_loops(block(nest, blocks))
    if knobs.parts == 1:
        return nest
    return drop_unit_loops(cut_sums(nest, knobs.parts, SUMS))


def _choices(loops: Sequence[TaskLoop], largest: int) -> Iterator[tuple[int, tuple[int, ...], int]]:
    """``(points of a block, block size per loop, number of blocks)`` up to ``largest`` points."""
    if not loops:
        yield 1, (), 1
        return
    *outer, loop = loops
    for size in range(1, min(loop.steps, largest) + 1):
        for points, blocks, count in _choices(outer, largest // size):
            yield points * size, (*blocks, size), count * loop.blocks_of(size)
