"""Registers and immediates that hold an element of a constant, another one in each iteration.

An immediate takes one number of a table. The instruction that reads it, or the register that it was
written to, claims that it is an element of a constant. That holds if the place in the table is the
row-major number of the claimed element in every execution, and the numbers are the constant's.
"""

from __future__ import annotations

import islpy as isl

from cpembed.accelerator.program import Address
from cpembed.accelerator.proof.relations import IssueRelations, box
from cpembed.accelerator.proof.result import UndecidedError
from cpembed.accelerator.proof.terms import Number, stored_number
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr, row_major_strides


def check_immediates(issue: IssueRelations) -> None:
    """Check the immediates of an instruction that are claimed to hold elements of constants.

    Raises
    ------
    UndecidedError
        If one is not shown to hold its element in every execution.
    """
    facts = issue.facts
    for read in facts.element_reads:
        if facts.is_immediate(read.operand):
            address = facts.issue.operands[read.operand]
            executed = isl.Set(f"{{ {issue.tuple_text('R')} : {issue.loops_text} }}")
            check_element(issue, read, issue, address, executed.identity())


def check_element(
    reader: IssueRelations,
    read: Access,
    writer: IssueRelations,
    value: Address | Number,
    dependence: isl.Map,
) -> None:
    """Check that what a register or an immediate holds is the element that a reader claims.

    Parameters
    ----------
    reader : IssueRelations
    read : Access
        Read of the register or immediate.
    writer : IssueRelations
        Instruction whose immediate the number is.
    value : Address or number
        The immediate of several numbers, or the only number.
    dependence : isl.Map
        Iterations of the writer to those of the reader.

    Raises
    ------
    UndecidedError
        If it is not shown.
    """
    facts = reader.facts
    content = facts.content(read.operand)
    assert content is not None
    tensors = facts.tensors
    shape = tensors.shape(content.tensor)
    text = f"{facts.text}: {read.operand} is claimed to hold elements of {content.tensor}"
    space = dependence.get_tuple_name(isl.dim_type.out)
    names = ", ".join(map(reader.text, content.index))
    claims = isl.Map(f"{{ {reader.tuple_text(space)} -> C[{names}] }}")
    executed = isl.Set(f"{{ {reader.tuple_text(space)} : {reader.loops_text} }}")
    claims = claims.intersect_domain(executed)
    if not claims.range().is_subset(box("C", shape)):
        raise UndecidedError(f"{text} and names others")
    flat = IndexExpr()
    for position, stride in zip(content.index, row_major_strides(shape), strict=True):
        flat += position.times(stride)
    place = f"{{ {reader.tuple_text(space)} -> N[{reader.text(flat)}] }}"
    claimed = isl.Map(place).intersect_domain(executed)
    dtype = facts.dtype(read.operand)
    numbers = tensors.specification.constants[content.tensor].reshape(-1).tolist()
    if not isinstance(value, Address):
        single = claimed.range()
        at = single.lexmin().sample_point() if single.is_singleton() else None
        number = None if at is None else numbers[_coordinate(at)]
        if number is None or value != number or stored_number(number, dtype) != number:
            raise UndecidedError(f"{text} and holds {value}")
        return
    source = dependence.get_tuple_name(isl.dim_type.in_)
    place = f"{{ {writer.tuple_text(source)} -> N[{writer.text(value.base)}] }}"
    places = dependence.reverse().apply_range(isl.Map(place))
    if not claimed.intersect_domain(places.domain()).is_equal(places):
        raise UndecidedError(f"{text} and holds numbers of other places")
    immediate = writer.facts.assignment.value if writer is not reader else read
    dtypes = {dtype, writer.facts.dtype(immediate.operand) if isinstance(immediate, Access) else ""}
    is_exact = all(stored_number(n, kind) == n for n in numbers for kind in dtypes if kind)
    if not is_exact or list(value.table[: len(numbers)]) != numbers:
        raise UndecidedError(f"{text} and holds numbers of another table")


def _coordinate(point: isl.Point) -> int:
    return int(point.get_coordinate_val(isl.dim_type.set, 0).to_python())
