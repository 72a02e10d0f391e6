"""Bounds of the offsets that kernels compute: in 32 bits, of elements.

Positions of padded tiles are computed too, before a condition discards them, so they are bounded
like those inside an operand. Addresses are 64-bit: an offset is scaled to bytes by the compiler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cpembed.errors import LoweringError
from cpembed.ir.index import IndexExpr
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.lower import GlobalOperand, TiledProduct
from cpembed.transform.program import Loop

if TYPE_CHECKING:
    from cpembed.targets.cuda.multistage.schedule import Plan

MAX_OFFSET = 2**31 - 1
"""Maximum of a signed 32-bit integer."""

_SMALL = 2**24
"""Number of elements below which no padding of a tile reaches :data:`MAX_OFFSET`: a block has at
most 64 tiles of rows or columns, and a step of the outermost loop moves at most all elements."""


def largest_magnitude(index: IndexExpr, largest: Mapping[str, int]) -> int:
    """Return an upper bound of an index and of every intermediate result of computing it.

    Parameters
    ----------
    index : IndexExpr
        Index over iterators.
    largest : mapping of str to int
        Largest value of each iterator; none is negative.
    """
    total, bound = abs(index.constant), 0
    for term in index.terms:
        if term.inner is None:
            value = largest[term.iterator]
        else:
            value = largest_magnitude(term.inner, largest)
        bound = max(bound, value)
        # Quotients round down, so that of a small negative number is -1.
        value = value // term.divisor + (term.inner is not None and term.divisor > 1)
        if term.modulus is not None:
            value = term.modulus - 1 if term.inner is not None else min(value, term.modulus - 1)
            bound = max(bound, term.modulus)
        total += abs(term.coefficient) * value
    return max(total, bound)


def check_offsets(plan: Plan) -> None:
    """Refuse a plan whose kernels would compute an offset of more than 32 bits.

    Raises
    ------
    LoweringError
        If one of them would.
    """
    product = plan.product
    operands = (plan.first, plan.second, product.output)
    elements = [
        max(operand.layout.elements, math.prod(operand.layout.original_shape))
        for operand in operands
    ]
    splits = plan.schedule.splits
    if max(*elements, splits * elements[2]) < _SMALL:
        return
    require_parts(product, splits)
    for operand, largest in zip(operands, _largest_values(plan), strict=True):
        bounds = [access_bound(operand, largest)]
        if operand.needs_packing:
            bounds.append(packing_bound(operand))
        require_offsets(operand, bounds)


def require_parts(product: TiledProduct, splits: int) -> None:
    """Raise :class:`LoweringError` if parts of the sums have more elements than 32 bits count."""
    elements = product.output.layout.elements
    if splits * elements > MAX_OFFSET:
        raise LoweringError(
            f"{splits} parts of {elements:,} sums are indexed by more than 32 bits: split the "
            "reduction among fewer blocks"
        )


def require_offsets(operand: GlobalOperand, bounds: Sequence[int]) -> None:
    """Raise :class:`LoweringError` if one of an operand's bounds is beyond 32 bits."""
    if max(bounds, default=0) > MAX_OFFSET:
        raise LoweringError(
            f"offsets in operand {operand.layout.name} reach {max(bounds):,}, padded tiles "
            "included, which 32 bits do not hold: run a part of the workload"
        )


def access_bound(operand: GlobalOperand, largest: Mapping[str, int]) -> int:
    """Return an upper bound of an operand's addresses, and of its coordinates that are checked.

    ``largest`` is the largest value of each iterator.
    """
    checked = (operand.layout.access[place] for place in operand.checked)
    return max(largest_magnitude(index, largest) for index in (operand.address, *checked))


def packing_bound(operand: GlobalOperand) -> int:
    """Return an upper bound of the offsets in an original from which an operand is packed."""
    layout = operand.layout
    largest = {dimension.name: dimension.extent - 1 for dimension in layout.dimensions}
    total, stride = 0, 1
    for index, extent in reversed(list(zip(layout.source, layout.original_shape, strict=True))):
        total += largest_magnitude(index, largest) * stride
        stride *= extent
    return total


def _largest_values(plan: Plan) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Return the largest values of iterators where the factors and the result are accessed."""
    product, schedule = plan.product, plan.schedule
    rows, columns, batch, splits = plan.blocks
    common = {loop.name: 0 for loop in product.program.loops}
    common |= {axis.name: axis.extent - 1 for axis in product.program.instruction_axes}
    common |= largest_digits(batch - 1, product.batch)
    depth = largest_digits(splits * plan.steps * schedule.depth - 1, product.depth)
    last_row, extra_tiles = _beyond_strip(plan)
    result = common | {product.axes[0]: last_row}
    factors: list[dict[str, int]] = []
    for number, (blocks, loops, extent) in enumerate(
        (
            (rows, product.rows, product.instruction.m),
            (columns, product.columns, product.instruction.n),
        )
    ):
        tile = plan.shared_tiles[number]
        size = schedule.block[number]
        # A last turn of copies may begin rows behind the tile.
        last = max(size - 1, (tile.copies - 1) // tile.row_vectors // extent)
        factors.append(common | depth | largest_digits((blocks - 1) * size + last, loops))
        result |= largest_digits(blocks * size - 1 + number * extra_tiles, loops)
    return factors[0], factors[1], result


def _beyond_strip(plan: Plan) -> tuple[int, int]:
    """Return the last row of a strip, and the number of tiles of columns beyond it.

    The last turn of a warp's lanes may have slots behind those of the strip.
    """
    product, staging = plan.product, plan.staging
    output, instruction = product.output, product.instruction
    slots = staging.columns * instruction.m // output.length
    last_slot = -(-slots // LANES) * LANES - 1
    if output.along == product.axes[1]:
        return last_slot // (staging.columns // output.length), 0
    last_column = last_slot // (instruction.m // output.length)
    return instruction.m - 1, max(0, last_column - staging.columns + 1)


def largest_digits(number: int, loops: Sequence[Loop]) -> dict[str, int]:
    """Return the largest values of loops, outermost first, where steps are counted to a number."""
    inner = math.prod(loop.extent for loop in loops[1:])
    return {
        loop.name: loop.extent - 1 if place else max(loop.extent - 1, number // inner)
        for place, loop in enumerate(loops)
    }
