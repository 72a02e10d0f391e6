"""The operators of AMOS and HASCO beside gemm and the convolutions, against their definitions."""

import itertools

import numpy as np
import pytest

from cpembed.ir.interpreter import interpret
from cpembed.ir.reference import reference
from cpembed.workloads.convolutions import batched_conv2d, capsule_conv2d, transposed_conv2d
from cpembed.workloads.einsum import (
    axpy,
    dot,
    gemv,
    grouped_fc,
    mean,
    mttkrp,
    row_sum,
    scan,
    ttm,
    variance,
)
from tests.unit.workloads.definitions import CONV_CASES, check, convolution, per_axis


@pytest.mark.parametrize("trans_a", [False, True])
def test_gemv(trans_a):
    computation = gemv(m=4, k=6, trans_a=trans_a)
    assert "".join(computation.extents) == "mk"
    check(computation, lambda a, b: (a.T if trans_a else a) @ b)


@pytest.mark.parametrize("operator", [gemv, mean, variance])
def test_vectors_as_matrices_of_one_column(operator):
    computation = operator(m=4, k=6, column=True)
    assert "".join(computation.extents) == "mnk"
    assert [operand.shape for operand in computation.operands] == [(4, 6), (6, 1), (4, 1)]
    check(computation, lambda a, b: a @ b)


def test_dot():
    check(dot(k=7), lambda a, b: np.asarray(a @ b))


def test_axpy():
    computation = axpy(m=5)
    assert computation.operand("A").shape == ()
    check(computation, lambda a, b: int(a) * b)


@pytest.mark.parametrize("case", CONV_CASES, ids=str)
def test_batched_conv2d(case):
    computation = batched_conv2d(n=3, c=2, h=7, w=6, k=4, r=3, s=2, **case)
    assert "".join(computation.extents) == "nkpqcrs"

    def expected(image, weights):
        settings = per_axis(case, 2)
        images = [convolution(image[[n]], weights[n], *settings) for n in range(3)]
        return np.concatenate(images)

    check(computation, expected)


@pytest.mark.parametrize("case", CONV_CASES, ids=str)
def test_capsule_conv2d(case):
    computation = capsule_conv2d(n=2, c=3, h=7, w=6, k=2, r=3, s=2, u=4, **case)
    assert "".join(computation.extents) == "nkpqucrs"

    def expected(image, weights):
        settings = per_axis(case, 2)
        parts = [convolution(image, weights[..., u], *settings) for u in range(4)]
        return np.stack(parts, axis=-1)

    check(computation, expected)


def scatter(image, weights, pad, stride, dilation, output_pad):
    """The definition: every pixel adds its multiple of the filter, then the edges are cut off."""
    n, _, h, w = image.shape
    _, k, r, s = weights.shape
    whole = [
        stride[i] * (size - 1) + dilation[i] * (taps - 1) + 1 + output_pad[i]
        for i, (size, taps) in enumerate(((h, r), (w, s)))
    ]
    result = np.zeros((n, k, *whole), np.int64)
    for y, x, i, j in itertools.product(range(h), range(w), range(r), range(s)):
        row, column = stride[0] * y + dilation[0] * i, stride[1] * x + dilation[1] * j
        result[:, :, row, column] += image[:, :, y, x] @ weights[:, :, i, j]
    return result[:, :, pad[0] : whole[0] - pad[0], pad[1] : whole[1] - pad[1]]


TRANSPOSED = [
    {},
    {"pad": 1},
    {"stride": (3, 2)},
    {"pad": (2, 1), "stride": (2, 3), "output_pad": (1, 2)},
    {"dilation": (2, 1), "stride": (1, 2), "pad": (1, 0), "output_pad": (1, 0)},
    # More is cut off than the filter reaches: the image is never left.
    {"pad": 3, "stride": 4},
]


@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
def test_transposed_conv2d(case):
    computation = transposed_conv2d(n=2, c=3, h=4, w=5, k=2, r=3, s=2, **case)
    assert "".join(computation.extents) == "nkpqcrs"
    assert computation.operand("W").shape == (3, 2, 3, 2)
    rng = np.random.default_rng(3)
    image = rng.integers(-128, 128, (2, 3, 4, 5))
    weights = rng.integers(-128, 128, (3, 2, 3, 2))
    rows, columns = per_axis(case, 2)[1]
    spread = np.zeros(computation.operand("I").shape, np.int8)
    spread[:, :, ::rows, ::columns] = image
    inputs = {"I": spread, "W": weights.astype(np.int8)}
    extra = case.get("output_pad", (0, 0))
    expected = scatter(image, weights, *per_axis(case, 2), extra)
    np.testing.assert_array_equal(interpret(computation, inputs), expected)
    np.testing.assert_array_equal(reference(computation, inputs), expected)


def test_the_spread_image_is_zero_outside_only_where_it_is_left():
    sizes = {"n": 1, "c": 1, "h": 3, "w": 3, "k": 1, "r": 3, "s": 3}
    assert transposed_conv2d(**sizes).operand("I").zero_outside
    assert not transposed_conv2d(**sizes, pad=2).operand("I").zero_outside
    assert transposed_conv2d(**sizes, pad=2, stride=2, output_pad=1).operand("I").zero_outside


def test_grouped_fc():
    computation = grouped_fc(n=2, g=3, c=4, k=5)
    assert "".join(computation.extents) == "ngkc"

    def expected(image, weights):
        # Each group by itself, on the flat features of the usual layout.
        flat = image.reshape(2, 12)
        groups = [flat[:, 4 * g : 4 * g + 4] @ weights[g].T for g in range(3)]
        return np.concatenate(groups, axis=1).reshape(2, 3, 5)

    check(computation, expected)


def test_mean_with_its_weights():
    computation = mean(m=3, k=8, dtype="float32")
    rows = np.random.default_rng(5).uniform(-1, 1, (3, 8)).astype(np.float32)
    result = reference(computation, {"A": rows, "W": np.full(8, 1 / 8, np.float32)})
    np.testing.assert_allclose(result, rows.mean(axis=1), rtol=1e-6)
    check(mean(m=3, k=8), lambda a, w: (a * w).sum(axis=1))


def test_variance_with_its_operands():
    computation = variance(m=3, k=8, dtype="float64")
    rows = np.random.default_rng(6).uniform(-1, 1, (3, 8))
    squares = (rows - rows.mean(axis=1, keepdims=True)) ** 2
    result = reference(computation, {"D": squares, "W": np.full(8, 1 / 8)})
    np.testing.assert_allclose(result, rows.var(axis=1), rtol=1e-12)
    check(variance(m=3, k=8), lambda d, w: (d * w).sum(axis=1))


def test_row_sum():
    check(row_sum(m=3, k=8), lambda a: a.sum(axis=1))


@pytest.mark.parametrize("n", [4, 6, 9])
def test_scan_with_its_triangle(n):
    computation = scan(m=3, n=n, k=6)
    rows = np.random.default_rng(7).integers(-128, 128, (3, 6)).astype(np.int8)
    triangle = (np.arange(6)[:, None] <= np.arange(n)).astype(np.int8)
    sums = np.cumsum(rows, axis=1, dtype=np.int64)
    expected = np.pad(sums, ((0, 0), (0, max(0, n - 6))), mode="edge")[:, :n]
    np.testing.assert_array_equal(reference(computation, {"A": rows, "B": triangle}), expected)
    check(computation, lambda a, b: a @ b)


def test_ttm():
    computation = ttm(i=2, j=3, k=4, l=5)
    assert "".join(computation.extents) == "ijkl"
    check(computation, lambda a, b: np.stack([one @ b for one in a]))


def test_mttkrp():
    computation = mttkrp(i=2, j=3, k=4, l=5)
    assert "".join(computation.extents) == "ijkl"

    def expected(a, b, c):
        # Column j of the Khatri-Rao product is the Kronecker product of the factors' columns.
        khatri_rao = np.stack([np.kron(c[:, j], b[:, j]) for j in range(3)], axis=1)
        return a.reshape(2, 20) @ khatri_rao

    check(computation, expected)
