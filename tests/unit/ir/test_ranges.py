"""Ranges of values against all combinations of small integers."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpembed.ir.arithmetic import evaluate
from cpembed.ir.dtypes import DTYPES
from cpembed.ir.parser import parse_computation
from cpembed.ir.ranges import overflowing, result_range, value_range
from cpembed.workloads.convolutions import conv2d
from cpembed.workloads.einsum import gemm


@st.composite
def values(draw, names=("A", "B")):
    """Expressions that read each operand once, so that the range is attained, and constants."""
    if len(names) == 1:
        text = f"{names[0]}[]"
        wrappers = ["{}", "abs({})", "neg({})", "{} >> 1", "int4({})", "cast({}, uint4)", "{} * 3"]
        wrappers += ["max({}, 2)", "min({}, -1)", "uint8({} * 5 - 20)"]
        return draw(st.sampled_from(wrappers)).format(text)
    left, right = draw(values(names[:1])), draw(values(names[1:]))
    form = draw(st.sampled_from(["({}) * ({})", "({}) + ({})", "({}) - ({})", "max({}, {})"]))
    return form.format(left, right)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(values(), st.sampled_from(["int4", "uint4"]), st.sampled_from(["int4", "uint4"]))
def test_ranges_are_those_of_all_values(text, first, second):
    types = {"A": first, "B": second, "C": "int64"}
    computation = parse_computation(f"C[] = {text}", {}, dtypes=types)
    grids = np.array(
        list(itertools.product(*(range(*half_open(types[name])) for name in "AB"))), np.int64
    ).T
    read = dict(zip("AB", grids, strict=True))
    results = evaluate(computation.statement.value, lambda a: read[a.operand], wide=False)
    low, high = value_range(computation, computation.statement)
    assert low <= results.min()
    assert high >= results.max()
    # Conversions that wrap around, and inner extremes, may not be attained; products and sums are.
    if not any(word in text for word in ("cast", "min", "max", ">>", "abs", "uint8", "int4(")):
        assert (low, high) == (results.min(), results.max())


def half_open(dtype):
    low, high = DTYPES[dtype].integer_range
    return low, high + 1


@pytest.mark.parametrize(
    "k, dtype, overflows",
    [
        (131_071, "int8", False),
        (131_072, "int8", True),
        (66_051, "uint8,uint8,int32", True),
        (33_025, "uint8,uint8,int32", False),
        (1, "int8,int8,int16", False),
        (2, "int8,int8,int16", True),
        (1, "int16", False),
        (2, "int16", True),
        (10**6, "int4,int4,int32", False),
        (1, "int32,int32,int64", False),
        (2**30, "int8,int8,int64", False),
        (10**6, "float32", False),
    ],
)
def test_sums_that_can_overflow_do(k, dtype, overflows):
    """The largest sum is reached where all elements are extreme: one product more does not fit."""
    workload = gemm(m=1, n=1, k=k, dtype=dtype)
    assert bool(overflowing(workload)) == overflows
    if not overflows or k > 10**6:
        return
    operands = [DTYPES[o.dtype].integer_range for o in workload.operands]
    extreme = max(abs(a * b) for a, b in itertools.product(*operands[:2]))
    assert k * extreme > operands[2][1]


def test_padding_adds_zero_and_zeros_between_elements_have_no_one_number():
    layer = conv2d(n=1, c=3, h=5, w=5, k=1, r=3, s=3, pad=1, dtype="uint8,int8,int32")
    low, high = result_range(layer, layer.statement)
    assert (low, high) == (27 * 255 * -128, 27 * 255 * 127)
    stretched = layer.with_operands(
        lambda o: o if o.name != "I" else type(o)(**{**vars(o), "spread": (1, 1, 2, 2)})
    )
    assert result_range(stretched, stretched.statement) is None


def test_a_requantization_never_overflows_and_a_plain_store_may():
    types = {"A": "int32", "S": "float32", "C": "int8"}
    scaled = parse_computation("C[x] = int8(A[x] * S[])", {"x": 4}, dtypes=types)
    assert not overflowing(scaled)
    plain = parse_computation("C[x] = A[x] >> 8", {"x": 4}, dtypes={"A": "int32", "C": "int8"})
    ((_, results),) = overflowing(plain)
    assert results == (-(2**23), 2**23 - 1)
