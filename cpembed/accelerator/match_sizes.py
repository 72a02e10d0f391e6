"""Sizes of one execution: how many points of each axis of a statement an instruction takes.

The structure says which axes feed an axis of the instruction. The digits with the fewest executions
follow by counting: an axis of fixed size takes whole tiles, where padding changes no result; one
with a size at run time takes what is left at the end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache

from cpembed.accelerator.specification import Statement
from cpembed.accelerator.structures import Structure
from cpembed.embedding.embedding import Digit
from cpembed.hw.instruction import InstructionAxis
from cpembed.hw.isa import IsaInstruction
from cpembed.ir.accesses import is_neutral
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.dtypes import dtype_info, is_integer
from cpembed.ir.ranges import typed_range


def digit_choices(
    computation: Computation, instruction: IsaInstruction, structure: Structure
) -> Iterator[dict[str, tuple[Digit, ...]]]:
    """Yield choices of digits for the axes of a structure.

    Parameters
    ----------
    computation : Computation
        Computation of the statement.
    instruction : IsaInstruction
    structure : Structure
        Axes of the statement that feed each axis of the instruction.
    """
    options: list[list[tuple[Digit, ...]]] = []
    for name, members in structure.axes:
        axis = next(axis for axis in instruction.axes if axis.name == name)
        axis_options = list(_axis_digits(computation, axis, members))
        if not axis_options:
            return
        options.append(axis_options)
    names = [name for name, _ in structure.axes]
    for digits in itertools.product(*options):
        yield dict(zip(names, digits, strict=True))


def _axis_digits(
    computation: Computation, axis: InstructionAxis, members: tuple[str, ...]
) -> Iterator[tuple[Digit, ...]]:
    """Yield the digits with the fewest executions on one axis, and on two if they have fewer."""
    if not members:
        if axis.minimum == 1:
            yield ()
        return
    single = {name: _single(computation, axis, name) for name in members}
    first = single[members[0]]
    if first is not None:
        yield (first,) if first.count > 1 or axis.minimum > 1 else ()
    if len(members) == 2:
        inner, outer = members
        pair = _double(computation, axis, inner, outer)
        if pair is None:
            return
        count = _executions(computation, pair)
        singles = (
            _executions(computation, (digit,)) if digit is not None else math.inf
            for digit in single.values()
        )
        remaining = {inner: outer, outer: inner}
        totals = [
            single_count * computation.extents[remaining[name]]
            for name, single_count in zip(single, singles, strict=True)
        ]
        if all(count < total for total in totals):
            yield pair


def _executions(computation: Computation, digits: tuple[Digit, ...]) -> int:
    return math.prod(-(-computation.extents[digit.axis] // digit.count) for digit in digits)


def _single(computation: Computation, axis: InstructionAxis, name: str) -> Digit | None:
    """Return the digit on an axis with the fewest executions, None if every size is wrong."""
    extent = computation.extents[name]
    pads = _pads(computation, name)
    sizes = _sizes(axis, extent)
    for size in sizes:
        rest = extent % size
        if not rest or pads or (not axis.is_fixed and rest in _allowed(axis)):
            return Digit(name, size)
    return None


def _double(
    computation: Computation, axis: InstructionAxis, inner: str, outer: str
) -> tuple[Digit, Digit] | None:
    """Return digits on two axes with the fewest executions."""
    extents = computation.extents
    best: tuple[int, tuple[Digit, Digit]] | None = None
    for count in _inner_counts(axis, extents[inner]):
        if extents[inner] % count and not _pads(computation, inner):
            continue
        for size in _sizes(axis, count * extents[outer]):
            if size % count or size == count:
                continue
            rest = extents[outer] % (size // count)
            ends = not axis.is_fixed and rest * count in _allowed(axis)
            if rest and not ends and not _pads(computation, outer):
                continue
            pair = (Digit(inner, count), Digit(outer, size // count))
            executions = _executions(computation, pair)
            if best is None or executions < best[0]:
                best = executions, pair
            break
    return None if best is None else best[1]


def _inner_counts(axis: InstructionAxis, extent: int) -> list[int]:
    """Return the counts of an inner digit, the largest first: parts of the extent or the axis."""
    limit = min(extent, axis.maximum)
    counts = {n for n in range(2, min(limit, 256) + 1) if extent % n == 0 or axis.maximum % n == 0}
    return sorted(counts | ({extent} if 1 < extent <= axis.maximum else set()), reverse=True)


def _allowed(axis: InstructionAxis) -> range:
    return range(axis.minimum, axis.maximum + 1, axis.step)


def _sizes(axis: InstructionAxis, extent: int) -> Iterator[int]:
    """Yield the sizes of an axis, with the fewest executions for an extent first."""
    allowed = _allowed(axis)
    # The smallest size that holds all of it, then smaller ones.
    least = allowed[min(len(allowed) - 1, max(0, -(-(extent - axis.minimum) // axis.step)))]
    yield from itertools.islice(range(least, axis.minimum - 1, -axis.step), 4096)


@lru_cache(maxsize=4096)
def _pads(computation: Computation, axis: str) -> bool:
    return is_neutral(computation, axis)


def sum_conditions(statement: Statement, instruction: IsaInstruction) -> tuple[str, ...]:
    """Return what has to hold for the sums of an instruction to be those of the statement."""
    computation = statement.computation
    if computation.statement.reduction != "add" or not instruction.saturates:
        return ()
    dtypes = {operand.name: operand.dtype for operand in computation.operands}
    output = computation.output.dtype
    bounds = typed_range(computation.statement.value, dtypes)
    if not is_integer(output) or bounds is None:
        return ()
    reduced = [axis.extent for axis in computation.axes if axis.kind is AxisKind.REDUCTION]
    largest = math.prod(reduced) * max(-bounds[0], bounds[1])
    limit = dtype_info(output).integer_range[1]
    begun = "their initial value and " if statement.accumulates else ""
    if largest <= limit and not statement.accumulates:
        return ()
    return (f"{begun}sums of up to {largest:,.0f} stay within {output}, where it saturates",)
