"""Register blocks of a kernel: which points of which loops a task computes.

The axes of a matrix instruction have roles (:class:`LaneRoles`), by which the loops around it are
rows or columns. A register block is a number of rows and columns of accumulators;
:class:`RegisterModel` tells what it costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cpembed.codegen.nest import Nest, Prefetch, TileLoop
from cpembed.codegen.passes import (
    can_tile,
)
from cpembed.codegen.plan import Knobs
from cpembed.codegen.program_nest import lane_name
from cpembed.errors import LoweringError
from cpembed.targets.cpu.calibration import Calibration
from cpembed.targets.cpu.estimate import BlockStep
from cpembed.transform.program import DerivedProgram, Loop


@dataclass(frozen=True)
class LaneRoles:
    """Names of a kernel's lanes: ``C[row, column] += A[row, depth] * B[depth, column]``.

    ``row`` is None for an instruction whose first factor has one row, ``depth`` for one that adds a
    single product to a sum.
    """

    row: str | None
    column: str
    depth: str | None


def lane_roles(program: DerivedProgram) -> LaneRoles:
    """Determine the roles of the axes from the accesses of the instruction's computation.

    Raises :class:`LoweringError` if it is no matrix product.
    """
    computation = program.instruction.computation
    iterators = [
        {name for index in computation.access(operand.name).index for name in index.iterators}
        for operand in computation.operands
    ]
    if len(iterators) != 3:
        raise LoweringError(f"{program.instruction.name} is not a product of two operands")
    first, second, output = iterators
    rows = sorted((first & output) - second)
    columns = sorted((second & output) - first)
    depths = sorted((first & second) - output)
    if len(rows) > 1 or len(columns) != 1 or len(depths) > 1:
        raise LoweringError(f"{program.instruction.name} is not a matrix product")
    row, depth = (lane_name(names[0]) if names else None for names in (rows, depths))
    return LaneRoles(row, lane_name(columns[0]), depth)


def useful_depth(program: DerivedProgram, roles: LaneRoles, group: int) -> int:
    """Return the number of steps of the depth lane that can add to a sum.

    Parameters
    ----------
    program : DerivedProgram
        Program of the kernel.
    roles : LaneRoles
        Roles of its lanes.
    group : int
        Number of steps that an instruction cannot separate; the result is a multiple of it.
    """
    lane = next(o for o in program.instruction_axes if lane_name(o.name) == roles.depth)
    lane_digits = program.embedding.digits.get(lane.name, ())
    # An axis that is shorter than the lane and feeds it alone leaves the other steps to padding, in
    # which one factor is zero.
    if len(lane_digits) != 1 or lane_digits[0].stride != 1:
        return lane.extent
    return min(lane.extent, -(-program.workload.extents[lane_digits[0].axis] // group) * group)


def lane_extent(nest: Nest, lane: str | None) -> int:
    """Return the extent of a lane; 1 if the nest does not have it."""
    return nest.inner_loop(lane).extent if lane in {loop.name for loop in nest.inner} else 1


def digits(nest: Nest, lane: str | None) -> tuple[Loop, ...]:
    """Return the inner loops that a lane was split into, outermost first."""
    if lane is None:
        return ()
    return tuple(
        loop for loop in nest.inner if loop.name == lane or loop.name.startswith(f"{lane}_")
    )


def row_loops(nest: Nest, *, results: bool = False) -> tuple[TileLoop, ...]:
    """Return task loops that move the first factor and keep the second.

    They are sorted by decreasing distance between their points. With ``results``, only loops that
    move the results by a constant.
    """
    return _blockable(nest, moves=0, keeps=1, results=results)


def column_loops(nest: Nest, *, results: bool = False) -> tuple[TileLoop, ...]:
    """Return task loops that move the second factor and keep the first; see :func:`row_loops`."""
    return _blockable(nest, moves=1, keeps=0, results=results)


def _blockable(nest: Nest, *, moves: int, keeps: int, results: bool) -> tuple[TileLoop, ...]:
    def walks(number: int, loop: TileLoop) -> bool:
        return loop.name in nest.operands[number].access.iterators

    loops = (
        loop
        for loop in nest.tasks
        if walks(moves, loop) and not walks(keeps, loop) and can_tile(nest, loop, results=results)
    )
    return tuple(sorted(loops, key=lambda loop: -abs(nest.operands[moves].stride(loop.name))))


@dataclass(frozen=True)
class RegisterModel:
    """Requirements and costs of a block of rows x columns of accumulators."""

    fits: Callable[[int, int], bool]
    """True if so many rows and columns fit the registers."""
    step: Callable[[Nest, Calibration, int, int], BlockStep]
    """Cost of a reduction step: ``step(nest, machine, rows, columns)``, on a nest with lanes in
    digits."""
    largest: int
    """Maximum number of rows, and of columns."""
    product: str
    """Product of a calibration whose time the instruction takes."""
    rows: Callable[[Nest], tuple[TileLoop, ...]] = row_loops
    columns: Callable[[Nest], tuple[TileLoop, ...]] = column_loops
    """Loops of a nest whose points form a block, by decreasing distance in memory."""
    streams: bool = False
    """True if loads can bypass the nearest cache
    (:attr:`~cpembed.codegen.plan.Knobs.non_temporal`)."""
    prefetched: frozenset[Prefetch] = frozenset({Prefetch.C})
    """Operands that are prefetched by software."""

    def non_temporal(self, nest: Nest, knobs: Knobs) -> int | None:
        """Return the number of the factor whose loads bypass the nearest cache, if any."""
        if not knobs.non_temporal:
            return None
        rows, columns = (
            any(loop.tiles_of(knobs.register_tiles.get(loop.origin, 1)) > 1 for loop in side)
            for side in self.loops(nest)
        )
        # The one that the innermost loop over blocks moves, which leaves the cache to the other.
        return 0 if rows and (knobs.columns_outermost or not columns) else 1

    def loops(self, nest: Nest) -> BlockLoops:
        """Return the loops whose points form a block: those of rows and those of columns."""
        return self.rows(nest), self.columns(nest)

    def sides(self, nest: Nest, knobs: Knobs) -> tuple[int, int]:
        """Return the rows and columns of accumulators in a register block."""
        return block_sides(self.loops(nest), knobs)


BlockLoops = tuple[tuple[TileLoop, ...], tuple[TileLoop, ...]]
"""Loops of rows and loops of columns."""


def block_sides(loops: BlockLoops, knobs: Knobs) -> tuple[int, int]:
    """Return the rows and columns of accumulators in a register block."""
    rows, columns = (
        math.prod(knobs.register_tiles.get(loop.origin, 1) for loop in side) for side in loops
    )
    return rows, columns
