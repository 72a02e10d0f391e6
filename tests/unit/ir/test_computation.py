"""What a computation refuses, and what equality of index expressions means."""

from dataclasses import replace
from typing import Any

import pytest

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation
from cpembed.ir.expression import Operation
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.ir.parser import parse_computation


def product() -> Computation:
    return parse_computation("C[x] += A[x,z] * B[z]", {"x": 4, "z": 8}, name="product")


def changed(computation: Computation, **fields: Any) -> Computation:
    return replace(computation, statements=(replace(computation.statement, **fields),))


def test_reduction_axes_need_a_reduction() -> None:
    with pytest.raises(
        WorkloadError, match="product: z is a reduction axis and there is no reduction: C is writ"
    ):
        changed(product(), reduction=None)
    copied = parse_computation("C[x] = A[x]", {"x": 4})
    assert copied.statement.reduction is None
    assert changed(product(), reduction="max").statement.reduction == "max"


def test_the_output_is_not_read() -> None:
    statement = product().statement
    value = Operation("mul", (statement.value, statement.store))
    with pytest.raises(WorkloadError, match="product: the output C is also read"):
        changed(product(), value=value)


@pytest.mark.parametrize(
    "text, fault",
    [
        ("S[x] += A[x,z]; S[x] += B[x,z]", "S\\[x\\] and S\\[x\\] may write the same element"),
        ("S[x] += A[x,z]; S[2*x+2] += B[x,z]", "may write the same element"),
        ("S[x] += A[x,z]; T[z] += A[x,z]", "does not depend on the same axes"),
        ("S[x] += A[x,z]; T[x] = A[x,z]", "z.*is not an index of T, so T is written repeatedly"),
        ("S[x] += A[x,z]; T[x] += S[x]", "'S': the output is read"),
    ],
)
def test_statements_have_results_of_their_own(text: str, fault: str) -> None:
    with pytest.raises(WorkloadError, match=fault):
        parse_computation(text, {"x": 4, "z": 8})


def test_statements_write_different_elements_of_one_operand() -> None:
    computation = parse_computation("S[2*x] += A[x,z]; S[2*x+1] += B[x,z]", {"x": 4, "z": 8})
    assert [o.name for o in computation.operands] == ["A", "B", "S"]
    assert computation.operand("S").shape == (8,)
    assert str(parse_computation(str(computation), {"x": 4, "z": 8})) == str(computation)


def test_index_terms_keep_the_order_of_their_first_appearance() -> None:
    p, r = IndexTerm("p", 2), IndexTerm("r")
    assert str(IndexExpr.sum([p, r, IndexTerm("p", 3)], 1)) == "5*p + r + 1"
    assert str(IndexExpr.sum([r, p])) == "r + 2*p"
    assert IndexExpr.sum([r, p]) != IndexExpr.sum([p, r])
    assert IndexExpr.sum([p, IndexTerm("p", -2), r]) == IndexExpr.sum([r])
