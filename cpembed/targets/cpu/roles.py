"""Which axis of a matrix instruction is which: rows, columns, depth."""

from __future__ import annotations

from dataclasses import dataclass

from cpembed.codegen.nest import Nest, TileLoop
from cpembed.codegen.passes import can_tile
from cpembed.codegen.program_nest import lane_name
from cpembed.errors import LoweringError
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
