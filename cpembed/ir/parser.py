"""Computations from text and extents: :func:`parse_computation`.

The grammar is in :mod:`cpembed.ir.grammar`. This module gives the iterators extents, the operands
shapes and element types, and decides which axes are reductions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Assignment, Axis, AxisKind, Computation, Operand
from cpembed.ir.dtypes import DEFAULT_DTYPE, accumulator, dtype_info, is_integer
from cpembed.ir.expression import Access, Cast, Operation, walk, yields_float
from cpembed.ir.grammar import ParsedBody, ParsedStatement, located_error, parse_body

AxisOrder = Literal["extents", "appearance"]
"""Loop order: the order of the extents, or of first appearance (in the output, then the reads)."""


def parse_computation(
    text: str,
    extents: Mapping[str, int],
    *,
    name: str = "expression",
    dtypes: Mapping[str, str] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    zero_outside: Collection[str] = (),
    varying: Collection[str] = (),
    axis_order: AxisOrder = "extents",
    takes_constants: bool = False,
) -> Computation:
    """Parse statements at fixed extents.

    An axis that indexes the output is spatial, any other a reduction.

    >>> c = parse_computation("C[x,y] += A[x,z] * B[z,y]", {"x": 4, "y": 2, "z": 8})
    >>> [(a.name, a.kind.value) for a in c.axes], c.operand("A").shape, c.output.dtype
    ([('x', 'spatial'), ('y', 'spatial'), ('z', 'reduction')], (4, 8), 'int32')

    Parameters
    ----------
    text : str
        One statement or several, separated by semicolons; see :mod:`cpembed.ir.grammar`.
    extents : mapping of str to int
        Extent of every iterator.
    name : str
        Name of the computation.
    dtypes : mapping of str to str, optional
        Element types by operand. The default is int8 for inputs and, for an output, the accumulator
        of its inputs, or their type if nothing is multiplied or added.
    shapes : mapping of str to sequence of int, optional
        Shapes by operand. The default is the largest index of each dimension plus one.
    zero_outside : collection of str
        Operands that read as zero outside their shape, which then has to be given.
    varying : collection of str
        Inputs that could be weights but are computed anew for every call.
    axis_order : {"extents", "appearance"}
        Loop order: the order of ``extents``, or of first appearance.
    takes_constants : bool
        True to allow values without operands, such as ``D[x] = 0``, which only instructions have.

    Raises
    ------
    WorkloadError
        In one line: what is wrong, where, and the remedy.
    """
    body = parse_body(text)
    order = _axis_names(body, extents, axis_order)
    spatial = {name for statement in body.statements for name in statement.store.iterators}
    axes = tuple(
        Axis(axis, extents[axis], AxisKind.SPATIAL if axis in spatial else AxisKind.REDUCTION)
        for axis in order
    )
    # Checked here before the computation checks itself, because columns are known only here.
    for statement in body.statements:
        _check_statement(statement, body, axes, takes_constants=takes_constants)
    types = _operand_dtypes(body, dtypes or {})
    for statement in body.statements:
        _check_shifts(statement, types)
    operands = {
        operand: Operand(
            operand, shape, types[operand], operand in zero_outside, varies=operand in varying
        )
        for operand, shape in _operand_shapes(body, extents, shapes or {}, zero_outside).items()
    }
    return Computation(
        name=name,
        axes=axes,
        inputs=tuple(operands[name] for name in body.inputs),
        outputs=tuple(operands[name] for name in body.outputs),
        statements=tuple(Assignment(s.store, s.value, s.reduction) for s in body.statements),
    )


def _located_accesses(body: ParsedBody) -> Iterator[tuple[Access, int]]:
    """Yield the reads in written order, then the stores, each with its column."""
    for statement in body.statements:
        yield from zip(statement.reads, statement.columns[1:], strict=True)
    for statement in body.statements:
        yield statement.store, statement.columns[0]


def _axis_names(
    body: ParsedBody, extents: Mapping[str, int], axis_order: AxisOrder
) -> tuple[str, ...]:
    first_use = dict(body.iterators)
    for axis, column in first_use.items():
        if axis not in extents:
            raise located_error(column, repr(axis), f"has no extent; add {axis}=SIZE")
    for axis, extent in extents.items():
        if axis not in first_use:
            axes = " ".join(first_use) or "none"
            raise WorkloadError(
                f"expression: extent {axis}={extent} is for an axis that does not occur; "
                f"the axes are {axes}"
            )
        # A bool is an int: `True` would pass silently as extent 1.
        if isinstance(extent, bool) or not isinstance(extent, int) or extent < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WorkloadError(
                f"expression: extent {axis}={extent!r} is not a size; "
                "write an integer of at least 1"
            )
    return tuple(extents) if axis_order == "extents" else tuple(first_use)


def _check_statement(
    statement: ParsedStatement,
    body: ParsedBody,
    axes: Sequence[Axis],
    *,
    takes_constants: bool,
) -> None:
    output = statement.store.operand
    for access, column in zip(statement.reads, statement.columns[1:], strict=True):
        if access.operand in body.outputs:
            raise located_error(
                column,
                repr(access.operand),
                "the output is read; combine with += max= or min= instead",
            )
    if not statement.reads and not takes_constants:
        raise located_error(
            statement.columns[0], repr(output), "the value reads no operand; use one as NAME[...]"
        )
    reductions = [axis.name for axis in axes if axis.kind is AxisKind.REDUCTION]
    if reductions and statement.reduction is None:
        column = dict(body.iterators)[reductions[0]]
        raise located_error(
            column,
            repr(reductions[0]),
            f"is not an index of {output}, so {output} is written repeatedly; "
            "use += max= or min= in place of =",
        )


def _operand_dtypes(body: ParsedBody, dtypes: Mapping[str, str]) -> dict[str, str]:
    """Return the type of every operand: inputs in the order of first read, then outputs."""
    for operand, dtype in dtypes.items():
        dtype_info(dtype)
        if operand not in body.operands:
            raise WorkloadError(
                f"expression: dtype {dtype} is for operand {operand}, which does not occur; "
                f"the operands are {' '.join(body.operands)}"
            )
    types = {operand: dtypes.get(operand, DEFAULT_DTYPE) for operand in body.inputs}
    for statement in body.statements:
        output = statement.store.operand
        types.setdefault(output, dtypes.get(output, _default_output(statement, types)))
    return types


def _default_output(statement: ParsedStatement, types: Mapping[str, str]) -> str:
    """Return the type of an output that holds every value of its statement."""
    value = statement.value
    if isinstance(value, Cast) and statement.reduction != "add":
        return value.dtype
    sums = statement.reduction == "add" or any(
        isinstance(node, Operation) and node.op in ("add", "sub", "mul") for node in walk(value)
    )
    # Of a value without operands there is nothing that its type could follow from.
    distinct = {types[read.operand] for read in statement.reads} or {DEFAULT_DTYPE}
    # A maximum, or a copy, of values of one type has that type.
    widened = accumulator(*distinct) if sums or len(distinct) > 1 else distinct.pop()
    if yields_float(value, types) and is_integer(widened):
        return "float32"
    return widened


def _check_shifts(statement: ParsedStatement, dtypes: Mapping[str, str]) -> None:
    """Check that only integers are shifted, by integers."""
    for node in walk(statement.value):
        if isinstance(node, Operation) and node.op == "shr":
            floats = [arg for arg in node.args if yields_float(arg, dtypes)]
            if floats:
                raise WorkloadError(
                    f"expression: '>>' shifts integers and {floats[0]} is a float; divide with / "
                    "or convert it with int32(...)"
                )


def _operand_shapes(
    body: ParsedBody,
    extents: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    zero_outside: Collection[str],
) -> dict[str, tuple[int, ...]]:
    """Return the shape of every operand, in the order of the first access (the stores last)."""
    reach: dict[str, tuple[int, ...]] = {}
    for access, column in _located_accesses(body):
        size: list[int] = []
        for dimension, index in enumerate(access.index):
            low, high = index.bounds(extents)
            # Without a shape the largest index decides it; a negative one has no such remedy.
            if low < 0 and access.operand not in zero_outside:
                raise located_error(
                    column,
                    repr(str(access)),
                    f"index {dimension} reaches {low}; add {-low} to the index, "
                    "or name an operator that takes pad=",
                )
            size.append(max(high + 1, 1))
        before = reach.get(access.operand, (1,) * len(size))
        reach[access.operand] = tuple(max(a, b) for a, b in zip(before, size, strict=True))
    for operand in (*shapes, *zero_outside):
        if operand not in reach:
            raise WorkloadError(
                f"expression: operand {operand} has a shape and does not occur; "
                f"the operands are {' '.join(reach)}"
            )
    for operand in zero_outside:
        if operand not in shapes:
            raise WorkloadError(
                f"expression: operand {operand} is zero outside its shape; give its shape"
            )
    return {operand: tuple(shapes.get(operand, size)) for operand, size in reach.items()}
