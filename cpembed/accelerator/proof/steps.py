"""Effect of one instruction of the text on values: the part of the proof that needs no memory.

A :class:`Step` compares an instruction's expression with the statement that its
:class:`~cpembed.accelerator.program.Meaning` names. It is made once for each instruction of the
text and each set of constants that its registers and immediates hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from cpembed.accelerator.proof.facts import IssueFacts
from cpembed.accelerator.proof.result import ObligationError
from cpembed.accelerator.proof.terms import (
    Forms,
    Number,
    Pair,
    constant_value,
    matchings,
    same_indices,
    same_number,
    stored_number,
)
from cpembed.ir.arithmetic import sums_floats
from cpembed.ir.dtypes import dtype_info, holds, is_integer
from cpembed.ir.expression import Access, Constant, Expression, Operation


class Role(StrEnum):
    """Effect of an instruction on the tensors of the specification."""

    CONSTANT = "constant"
    """It writes a number."""
    MOVE = "move"
    """It writes what it reads."""
    COMPLETE = "complete"
    """It computes elements of a statement without reduction."""
    BEGIN = "begin"
    """It begins a reduction."""
    CONTINUE = "continue"
    """It goes on with a reduction."""
    SELECT = "select"
    """It writes one number of a table to a register."""
    OPAQUE = "opaque"
    """It writes what no claim describes."""


@dataclass(frozen=True)
class Step:
    """Comparison of an instruction with what it is claimed to compute.

    Attributes
    ----------
    pairs : tuple of (Access, Access)
        Reads of the instruction with the reads of the statement that they have to be.
    previous : Access, optional
        Read of the partial result that is gone on from, None if it is the output's old contents.
    is_identical : bool
        True if claims and statement are equal as expressions; otherwise their values have to be
        compared.
    """

    role: Role
    number: int | None = None
    pairs: tuple[Pair, ...] = ()
    previous: Access | None = None
    is_identical: bool = True
    value: Number = 0


def step(facts: IssueFacts, constants: Mapping[Access, Number]) -> Step:
    """Compare an instruction of the text with its claim.

    Parameters
    ----------
    facts : IssueFacts
        The instruction of the text.
    constants : mapping of Access to number
        Reads of registers and immediates, with the values that they have.

    Raises
    ------
    ObligationError
        If it does not compute what it is claimed to compute.
    """
    ranges = {
        operand: facts.tensors.ranges[content.tensor]
        for operand, content in facts.issue.contents.items()
        if content.tensor in facts.tensors.ranges
    }
    forms = Forms(facts.effective_dtypes, ranges, is_wide=facts.is_wide)
    value = forms.normal(facts.assignment.value, constants)
    if facts.issue.meaning is not None:
        return _computing(facts, forms, constants)
    # Nothing checks what is read for a number: it may be any value of the operands' types.
    number = folded(facts, constants)
    if facts.assignment.reduction is None and number is not None:
        return Step(Role.CONSTANT, value=stored_number(number, facts.dtype(facts.output)))
    if facts.selection() is not None:
        return Step(Role.SELECT)
    if facts.assignment.reduction is None and isinstance(value, Access):
        return _move(facts, value)
    content = facts.content(facts.output)
    if content is not None:
        raise ObligationError(
            f"{facts.text} computes {value} and has no meaning: nothing shows that "
            f"{facts.output} is {content.tensor}"
        )
    return Step(Role.OPAQUE)


def _move(facts: IssueFacts, read: Access) -> Step:
    source, target = facts.content(read.operand), facts.content(facts.output)
    if source is None or target is None:
        return Step(Role.OPAQUE)
    if source.tensor != target.tensor:
        raise ObligationError(
            f"{facts.text} moves {source.tensor}, and claims that {facts.output} is "
            f"{target.tensor} afterwards"
        )
    dtype = facts.tensors.dtype(source.tensor)
    if not holds(facts.dtype(facts.output), dtype):
        raise ObligationError(
            f"{facts.text}: {facts.output} is {facts.dtype(facts.output)}, which does "
            f"not hold all of {source.tensor}, {dtype}"
        )
    elements = facts.element(read), facts.element(facts.assignment.store)
    return Step(Role.MOVE, previous=read, is_identical=same_indices(*elements))


def _computing(facts: IssueFacts, forms: Forms, constants: Mapping[Access, Number]) -> Step:
    """Return the step of an instruction with a meaning."""
    meaning = facts.issue.meaning
    value = forms.normal(facts.assignment.value, constants)
    assert meaning is not None
    statement = facts.tensors.statement(meaning.statement)
    computation = statement.computation
    output = facts.content(facts.output)
    if output is None or output.tensor != statement.output.tensor:
        raise ObligationError(
            f"{facts.text} is claimed to compute {computation}, and its output "
            f"{facts.output} holds {output.tensor if output else 'nothing claimed'}"
        )
    dtypes = {operand.name: operand.dtype for operand in computation.operands}
    ranges = {
        operand.name: facts.tensors.ranges[operand.tensor]
        for operand in computation.inputs
        if operand.tensor in facts.tensors.ranges
    }
    is_wide = sums_floats(computation.statement, computation.output.dtype)
    target = Forms(dtypes, ranges, is_wide=is_wide)
    required = target.normal(computation.statement.value)
    _check_type(facts, target, required)
    stored = same_indices(
        facts.element(facts.assignment.store), facts.point_element(computation.statement.store)
    )
    reduction, performed = computation.statement.reduction, facts.assignment.reduction
    if performed is not None and performed != reduction:
        raise ObligationError(f"{facts.text} reduces by {performed}, and {computation} does not")
    if performed is None and reduction is not None:
        continued = _separate(facts, value, required)
        if continued is not None:
            previous, pairs, is_identical = continued
            return Step(Role.CONTINUE, meaning.statement, pairs, previous, is_identical and stored)
    pairs = _matching(facts, value, required)
    if pairs is None:
        pairs = _matching(facts, *_with_uniform_constants(facts, forms, target, constants))
    if pairs is None:
        raise ObligationError(
            f"{facts.text} computes {value}, which is not shown to be {required} of {computation}"
        )
    role = Role.COMPLETE if reduction is None else Role.BEGIN
    if performed is not None and facts.instruction.accumulates:
        role = Role.CONTINUE
    if role is Role.BEGIN and statement.accumulates:
        raise ObligationError(
            f"{facts.text} begins {computation} anew, which goes on from an earlier statement"
        )
    return Step(role, meaning.statement, pairs, None, _identical(facts, pairs) and stored)


def _check_type(facts: IssueFacts, forms: Forms, value: Expression) -> None:
    """Check that storing into the output's type changes no value of the statement's."""
    meaning = facts.issue.meaning
    assert meaning is not None
    computation = facts.tensors.statement(meaning.statement).computation
    wanted_dtype, dtype = computation.output.dtype, facts.dtype(facts.output)
    bounds = forms.range(value)
    reduction = computation.statement.reduction
    fits = bounds is not None and _fits(bounds, wanted_dtype) and _fits(bounds, dtype)
    if dtype != wanted_dtype and not (fits and reduction in (None, "max", "min")):
        raise ObligationError(
            f"{facts.text}: {facts.output} is {dtype}, and {computation.output.tensor} "
            f"is {wanted_dtype}"
        )
    if facts.instruction.saturates and reduction == "add" and facts.assignment.reduction:
        _check_saturation(facts, bounds, dtype)


def _check_saturation(facts: IssueFacts, bounds: tuple[int, int] | None, dtype: str) -> None:
    """Check that no partial sum leaves the accumulator's range."""
    meaning = facts.issue.meaning
    assert meaning is not None
    tensors, tensor = facts.tensors, facts.tensors.statement(meaning.statement).output.tensor
    low = high = 0
    for number in tensors.writers[tensor]:
        statement = tensors.statement(number)
        computation = statement.computation
        ranges = {
            o.name: tensors.ranges[o.tensor]
            for o in computation.inputs
            if o.tensor in tensors.ranges
        }
        forms = Forms({o.name: o.dtype for o in computation.operands}, ranges)
        bounds = forms.range(forms.normal(computation.statement.value))
        if bounds is None:
            break
        count = int(np.max(tensors.points_per_element(number)))
        low, high = low + count * min(bounds[0], 0), high + count * max(bounds[1], 0)
    if bounds is None or not (is_integer(dtype) and _fits((low, high), dtype)):
        raise ObligationError(
            f"{facts.text} saturates, and sums of {tensor} may leave {dtype}: shorten "
            "the sums, or accumulate in a wider type"
        )


def _fits(bounds: tuple[int, int], dtype: str) -> bool:
    if not is_integer(dtype):
        return False
    low, high = dtype_info(dtype).integer_range
    return low <= bounds[0] and bounds[1] <= high


def _separate(
    facts: IssueFacts, value: Expression, required: Expression
) -> tuple[Access, tuple[Pair, ...], bool] | None:
    """Separate ``previous (op) value`` into the read of a partial result and what is added."""
    meaning = facts.issue.meaning
    assert meaning is not None
    statement = facts.tensors.statement(meaning.statement)
    reduction = statement.computation.statement.reduction
    if not (isinstance(value, Operation) and value.op == reduction):
        return None
    store = facts.element(facts.assignment.store)
    for position, previous in enumerate(value.args):
        if not isinstance(previous, Access):
            continue
        content = facts.content(previous.operand)
        if content is None or content.tensor != statement.output.tensor:
            continue
        rest = value.args[:position] + value.args[position + 1 :]
        added = rest[0] if len(rest) == 1 else Operation(value.op, rest)
        pairs = _matching(facts, added, required)
        if pairs is not None:
            same = same_indices(facts.element(previous), store)
            return previous, pairs, _identical(facts, pairs) and same
    return None


def _matching(
    facts: IssueFacts, value: Expression, required: Expression
) -> tuple[Pair, ...] | None:
    """Return a matching of the expressions, one with equal indices if there is any."""
    meaning = facts.issue.meaning
    assert meaning is not None
    computation = facts.tensors.statement(meaning.statement).computation
    uniform = facts.tensors.uniform
    # Arithmetic in float64 tells numbers apart that are equal as float32.
    is_exact = sums_floats(computation.statement, computation.output.dtype) or any(
        operand.dtype == "float64" for operand in computation.operands
    )

    def number(leaf: Expression, tensor: str) -> Number | None:
        return leaf.value if isinstance(leaf, Constant) else uniform.get(tensor)

    def agree(leaf: Expression, required_leaf: Expression) -> bool:
        content = facts.content(leaf.operand) if isinstance(leaf, Access) else None
        tensor = "" if content is None else content.tensor
        required_tensor = ""
        if isinstance(required_leaf, Access):
            required_tensor = computation.operand(required_leaf.operand).tensor
        if isinstance(leaf, Access) and required_tensor:
            return tensor == required_tensor
        first, second = number(leaf, tensor), number(required_leaf, required_tensor)
        if first is None or second is None:
            return False
        return same_number(first, second, is_exact=is_exact)

    first_pairs: tuple[Pair, ...] | None = None
    for count, pairs in enumerate(matchings(value, required, agree)):
        if _identical(facts, pairs):
            return pairs
        first_pairs = pairs if first_pairs is None else first_pairs
        # Expressions of many equal terms have more matchings than are worth looking at.
        if count > 1000:
            break
    return first_pairs


def _with_uniform_constants(
    facts: IssueFacts, forms: Forms, target: Forms, constants: Mapping[Access, Number]
) -> tuple[Expression, Expression]:
    """Return both expressions with tensors of equal elements replaced by their number."""
    meaning = facts.issue.meaning
    assert meaning is not None
    computation = facts.tensors.statement(meaning.statement).computation
    uniform = facts.tensors.uniform
    numbers = dict(constants)
    for read in facts.assignment.reads:
        content = facts.content(read.operand)
        if content is not None and content.tensor in uniform:
            numbers[read] = uniform[content.tensor]
    value = forms.normal(facts.assignment.value, numbers)
    wanted_numbers = {
        read: uniform[tensor]
        for read in computation.reads
        if (tensor := computation.operand(read.operand).tensor) in uniform
        and not computation.operand(read.operand).zero_outside
    }
    return value, target.normal(computation.statement.value, wanted_numbers)


def _identical(facts: IssueFacts, pairs: tuple[Pair, ...]) -> bool:
    return all(same_indices(facts.element(read), facts.point_element(s)) for read, s in pairs)


def folded(facts: IssueFacts, constants: Mapping[Access, Number]) -> Number | None:
    """Return the instruction's value where these reads are numbers and the others anything."""
    dtypes = {name: place.dtype for name, place in facts.instruction.places.items()}
    forms = Forms(dtypes, is_wide=facts.is_wide)
    return constant_value(forms, facts.assignment.value, constants)
