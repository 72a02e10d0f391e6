"""Kinds of operators by their definitions, beside results written out."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from cpembed.errors import WorkloadError
from cpembed.graph.kinds import (
    Apply,
    Concat,
    Elementwise,
    Expand,
    Gather,
    Input,
    Kind,
    LayerNorm,
    Number,
    Pad,
    Pool,
    Reduce,
    Reshape,
    Resize,
    Scan,
    Scatter,
    Slice,
    Softmax,
    Sort,
    TensorType,
    Transpose,
)
from cpembed.graph.kinds.base import Array
from cpembed.graph.kinds.elementwise import computing_dtype
from cpembed.ir.scalars import OF_BITS, OPERATIONS, converted

X, Y = Input(0), Input(1)
RANDOM = np.random.default_rng(0)


def of(kind: Kind, *inputs: Array) -> Array:
    """The only result, whose type is the one that the kind says."""
    (result,) = kind.evaluate(inputs)
    assert kind.types([TensorType.of_array(i) for i in inputs]) == (TensorType.of_array(result),)
    return result


def test_integers_are_divided_towards_zero() -> None:
    a = np.arange(-12, 13, dtype=np.int32)
    for divisor in (-5, -3, -1, 1, 2, 7):
        b = np.full_like(a, divisor)
        quotient = of(Elementwise(Apply("div", (X, Y)), "int32"), a, b)
        rest = of(Elementwise(Apply("rem", (X, Y)), "int32"), a, b)
        assert quotient.tolist() == [math.trunc(Fraction(int(v), divisor)) for v in a]
        assert rest.tolist() == [int(math.fmod(int(v), divisor)) for v in a]
        assert np.array_equal(quotient * b + rest, a)


def test_the_rest_of_floats_has_the_dividend_s_sign() -> None:
    a, b = np.float32([5.5, -5.5, 5.5, -5.5]), np.float32([2, 2, -2, -2])
    assert of(Elementwise(Apply("rem", (X, Y)), "float32"), a, b).tolist() == [1.5, -1.5, 1.5, -1.5]


@pytest.mark.parametrize("dtypes, expected", [
    (["int8", "uint8"], "int32"), (["int32", "int64"], "int64"), (["uint32"], "int64"),
    (["int8", "float32"], "float32"), (["float16"], "float32"), (["float64", "int8"], "float64"),
])  # fmt: skip
def test_the_type_of_the_arithmetic(dtypes: list[str], expected: str) -> None:
    assert computing_dtype(dtypes) == expected


def test_floats_saturate_on_the_way_to_integers() -> None:
    values = np.float64([-1e30, -129, -0.5, 0.5, 1.5, 2.5, 127.6, 1e30, np.nan, np.inf])
    assert converted(values, "int8").tolist() == [-128, -128, 0, 0, 2, 2, 127, 127, 0, 127]
    wide = converted(np.float64([1e30, -1e30]), "int64").tolist()
    assert wide == [2**63 - 1024, -(2**63)]


def test_integers_wrap_on_the_way_to_fewer_bits() -> None:
    values = np.int32([255, 256, -1, 128])
    assert converted(values, "uint8").tolist() == [255, 0, 255, 128]
    assert converted(values, "int8").tolist() == [-1, 0, -1, -128]


def test_every_operation_takes_as_many_arguments_as_it_says() -> None:
    for name, (count, definition) in OPERATIONS.items():
        boolean = name in ("and", "or", "not", "where")
        first = np.asarray([True, False]) if boolean else np.float32([0.25, 0.5])
        rest = [np.float32([0.25, 0.75])] * (count - 1)
        if name in OF_BITS:
            first, rest = np.int32([6, -6]), [np.int32([3, 40])] * (count - 1)
        assert definition(first, *rest).shape == (2,), name


def test_an_expression_of_inputs_that_broadcast() -> None:
    a, b = RANDOM.standard_normal((3, 1)), RANDOM.standard_normal(4)
    a, b = a.astype(np.float32), b.astype(np.float32)
    kind = Elementwise(Apply("mul", (Apply("add", (X, Y)), Number(2.0))), "float32")
    assert np.array_equal(of(kind, a, b), (a + b) * np.float32(2))
    with pytest.raises(WorkloadError, match="do not broadcast"):
        kind.types([TensorType((3,), "float32"), TensorType((4,), "float32")])


@pytest.mark.parametrize("what", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("keeps", [True, False])
def test_reductions(what: str, keeps: bool) -> None:
    x = RANDOM.uniform(0.5, 1.5, (2, 3, 4)).astype(np.float32)
    found = of(Reduce(what, (0, 2), keeps), x)
    columns = [[float(x[i, j, k]) for i in range(2) for k in range(4)] for j in range(3)]
    expected = {
        "sum": [math.fsum(c) for c in columns],
        "mean": [math.fsum(c) / 8 for c in columns],
        "max": [max(c) for c in columns],
        "min": [min(c) for c in columns],
        "prod": [math.prod(c) for c in columns],
    }[what]
    assert found.shape == ((1, 3, 1) if keeps else (3,))
    np.testing.assert_allclose(found.reshape(-1), expected, 1e-6)


def test_the_index_of_the_first_largest_and_smallest() -> None:
    x = np.int32([[3, 7, 7, 1], [2, 0, 2, 0]])
    assert of(Reduce("argmax", (1,), False), x).tolist() == [1, 0]
    assert of(Reduce("argmin", (1,), True), x).tolist() == [[3], [1]]
    assert of(Reduce("argmax", (0,), False), x).dtype == np.int64
    with pytest.raises(WorkloadError, match="along 2 axes"):
        Reduce("argmax", (0, 1), False).types([TensorType.of_array(x)])


def test_lines_in_order_with_nans_last_and_equal_elements_in_their_order() -> None:
    x = np.float32([[3, np.nan, -1, 3, -np.inf, 0], [0, -0.0, 5, np.nan, 5, np.nan]])
    values, indices = Sort(1, 6).evaluate([x])
    assert indices.tolist() == [[4, 2, 5, 0, 3, 1], [0, 1, 2, 4, 3, 5]]
    values, indices = Sort(1, 3, descending=True).evaluate([x])
    assert indices.tolist() == [[1, 0, 3], [3, 5, 2]]
    np.testing.assert_array_equal(values, np.take_along_axis(x, indices, 1))
    with pytest.raises(WorkloadError, match="7 elements of an axis of 6"):
        Sort(1, 7).types([TensorType.of_array(x)])


@pytest.mark.parametrize("operation, expected", [
    ("sum", [2, 5, 4, 8]), ("prod", [2, 6, -6, -24]), ("max", [2, 3, 3, 4]), ("min", [2, 2, -1, -1])
])  # fmt: skip
def test_running_results(operation: str, expected: list[int]) -> None:
    x = np.int32([2, 3, -1, 4])
    assert of(Scan(operation, 0), x).tolist() == expected
    neutral = {"sum": 0, "prod": 1, "max": -(2**31), "min": 2**31 - 1}[operation]
    assert of(Scan(operation, 0, exclusive=True), x).tolist() == [neutral, *expected[:-1]]
    backwards = of(Scan(operation, -1), x[::-1].copy()).tolist()
    assert of(Scan(operation, 0, reverse=True), x).tolist() == backwards[::-1]


@pytest.mark.parametrize("operation, expected", [
    ("set", [10, 7, 5, 40]), ("add", [11, 10, 14, 52]), ("mul", [10, 14, 90, 1280]),
    ("max", [10, 7, 6, 40]), ("min", [1, 1, 3, 4]),
])  # fmt: skip
def test_scattered_rows(operation: str, expected: list[int]) -> None:
    data, rows = np.int32([1, 2, 3, 4]), np.int32([10, 8, 1, 7, 6, 5, 40])
    indices = np.int64([0, 3, 1, 1, 2, 2, -1])
    assert of(Scatter(operation), data, indices, rows).tolist() == expected
    beyond = of(Scatter(operation), data, np.int64([4, -5]), np.int32([9, 9]))
    assert beyond.tolist() == data.tolist()


def test_bits_are_shifted_by_any_number() -> None:
    a, b = np.int32([-8, -8, 5, 5, 5]), np.int32([1, 40, 2, -1, 31])
    assert of(Elementwise(Apply("shift_right", (X, Y)), "int32"), a, b).tolist() == [
        -4,
        -1,
        1,
        0,
        0,
    ]
    left = of(Elementwise(Apply("shift_left", (X, Y)), "int32"), a, b).tolist()
    assert left == [-16, 0, 20, 0, -(2**31)]


def test_softmax_and_its_logarithm() -> None:
    x = np.float32([[1, 2, 3], [1000, 1000, -1000]])
    rows = [[math.exp(v - max(r)) for v in r] for r in x.tolist()]
    expected = [[v / sum(r) for v in r] for r in rows]
    np.testing.assert_allclose(of(Softmax(1), x), expected, 1e-6)
    logs = of(Softmax(1, log=True), x)
    assert np.isfinite(logs).all()
    np.testing.assert_allclose(np.exp(logs), expected, 1e-6)


def test_rows_that_are_normalized_have_mean_0_and_variance_1() -> None:
    x = RANDOM.standard_normal((5, 4, 6)).astype(np.float32) * 3 + 2
    scale, bias = np.ones((4, 6), np.float32), np.zeros((4, 6), np.float32)
    found = of(LayerNorm(1, 0.0), x, scale, bias).reshape(5, -1)
    np.testing.assert_allclose(found.mean(1), 0, atol=1e-6)
    np.testing.assert_allclose(found.var(1), 1, 1e-5)


def test_moves_by_indices() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    found = of(Transpose((2, 0, 1)), x)
    assert all(
        found[k, i, j] == x[i, j, k] for i in range(2) for j in range(3) for k in range(4)
    )  # fmt: skip
    assert of(Reshape((4, 6)), x).reshape(-1).tolist() == list(range(24))
    assert of(Slice((1, 2, 3), (2, -1, 0), (1, -1, -2)), x).tolist() == [
        [[23, 21], [19, 17], [15, 13]]
    ]
    assert of(Gather(1), x, np.asarray([2, -3])).tolist() == x[:, [2, 0]].tolist()
    assert of(Concat(2), x, x[:, :, :1]).shape == (2, 3, 5)
    assert of(Expand((2, 3, 4)), x[:1, :, :1]).tolist() == np.tile(x[:1, :, :1], (2, 1, 4)).tolist()


@pytest.mark.parametrize("mode, expected", [
    ("constant", [9, 9, 0, 1, 2, 9]), ("edge", [0, 0, 0, 1, 2, 2]), ("reflect", [2, 1, 0, 1, 2, 1]),
])  # fmt: skip
def test_padding(mode: str, expected: list[int]) -> None:
    assert of(Pad((2,), (1,), 9, mode), np.arange(3)).tolist() == expected


@pytest.mark.parametrize("kind, given", [
    (Reshape((5,)), (2, 3)), (Transpose((0, 0)), (2, 3)), (Slice((0,), (4,), (1,)), (3,)),
    (Softmax(2), (2, 3)), (Reduce("sum", (4,), True), (2, 3)), (Pad((1,), (1,)), (2, 3)),
    (Expand((3, 2)), (2, 3)), (Pool("max", (4,), (1,), (0,), (0,), (1,)), (2, 3)),
])  # fmt: skip
def test_inputs_that_do_not_fit_are_refused(kind: Kind, given: tuple[int, ...]) -> None:
    with pytest.raises(WorkloadError):
        kind.types([TensorType(given, "float32")])


@pytest.mark.parametrize("what", ["max", "mean"])
@pytest.mark.parametrize("counts", [False, True])
def test_pooling_window_by_window(what: str, counts: bool) -> None:
    x = RANDOM.standard_normal((2, 7, 6)).astype(np.float32)
    kind = Pool(what, (3, 2), (2, 3), (1, 0), (2, 1), (1, 2), counts)
    found = of(kind, x)
    for n, p, q in np.ndindex(*found.shape):
        rows = [2 * p + r - 1 for r in range(3)]
        columns = [3 * q + 2 * s for s in range(2)]
        inside = [
            float(x[n, h, w]) for h in rows for w in columns if 0 <= h < 7 and 0 <= w < 6
        ]  # fmt: skip
        expected = max(inside) if what == "max" else sum(inside) / (6 if counts else len(inside))
        assert found[n, p, q] == pytest.approx(expected, rel=1e-5)


def test_a_larger_image() -> None:
    x = np.float32([[0, 1, 2]])
    nearest = of(Resize((6,), "nearest", "asymmetric", "floor"), x)
    assert nearest.tolist() == [[0, 0, 1, 1, 2, 2]]
    linear = of(Resize((5,), "linear", "align_corners"), x)
    np.testing.assert_allclose(linear, [[0, 0.5, 1, 1.5, 2]])
    half = of(Resize((6,), "linear", "half_pixel"), x)
    np.testing.assert_allclose(half, [[0, 0.25, 0.75, 1.25, 1.75, 2]])
