"""What a computation refuses, and what equality of index expressions means."""

from dataclasses import replace

import pytest

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation
from cpembed.ir.expression import Operation
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.ir.parser import parse_computation


def product() -> Computation:
    return parse_computation("C[x] += A[x,z] * B[z]", {"x": 4, "z": 8}, name="product")


def test_reduction_axes_need_a_reduction() -> None:
    with pytest.raises(
        WorkloadError, match="product: z is a reduction axis and there is no reduction: C is writ"
    ):
        replace(product(), reduction=None)
    copied = parse_computation("C[x] = A[x]", {"x": 4})
    assert copied.reduction is None
    assert replace(product(), reduction="max").reduction == "max"


def test_the_output_is_not_read() -> None:
    computation = product()
    value = Operation("mul", (computation.value, computation.store))
    with pytest.raises(WorkloadError, match="product: the output C is also read"):
        replace(computation, value=value)


def test_index_terms_keep_the_order_of_their_first_appearance() -> None:
    p, r = IndexTerm("p", 2), IndexTerm("r")
    assert str(IndexExpr.of([p, r, IndexTerm("p", 3)], 1)) == "5*p + r + 1"
    assert str(IndexExpr.of([r, p])) == "r + 2*p"
    assert IndexExpr.of([r, p]) != IndexExpr.of([p, r])
    assert IndexExpr.of([p, IndexTerm("p", -2), r]) == IndexExpr.of([r])
