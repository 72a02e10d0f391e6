"""Computations that front ends make, beside sums written out."""

import itertools
import math

import numpy as np
import pytest

from cpembed.errors import WorkloadError
from cpembed.frontends.products import (
    Window,
    convolution,
    matrix_product,
    spread_shape,
    transposed_convolution,
)
from cpembed.graph.kinds.base import Array

RANDOM = np.random.default_rng(0)
PLAIN = Window(taps=(3,), strides=(1,), dilations=(1,), before=(0,), after=(0,))


def integers(*shape: int) -> Array:
    return RANDOM.integers(-9, 10, shape).astype(np.float32)


def convolved(
    image: Array, weights: Array, strides: tuple[int, ...], before: tuple[int, ...],
    after: tuple[int, ...], dilations: tuple[int, ...], groups: int,
) -> Array:  # fmt: skip
    """The definition, element by element."""
    padded = np.pad(image, [(0, 0), (0, 0), *zip(before, after, strict=True)])
    filters, channels, *taps = weights.shape
    sizes = [
        (size - (t - 1) * d - 1) // s + 1
        for size, t, d, s in zip(padded.shape[2:], taps, dilations, strides, strict=True)
    ]
    result = np.zeros((image.shape[0], filters, *sizes), np.float32)
    for n, k, *place in itertools.product(*map(range, result.shape)):
        first = k // (filters // groups) * channels
        for c, *tap in itertools.product(range(channels), *map(range, taps)):
            at = [p * s + t * d for p, s, t, d in zip(place, strides, tap, dilations, strict=True)]
            result[(n, k, *place)] += padded[(n, first + c, *at)] * weights[(k, c, *tap)]
    return result


@pytest.mark.parametrize(
    "image, weights, strides, before, after, dilations, groups, name",
    [
        ((2, 3, 5, 6), (4, 3, 3, 2), (1, 1), (0, 0), (0, 0), (1, 1), 1, "conv2d"),
        ((1, 3, 5, 6), (4, 3, 3, 2), (2, 1), (1, 0), (0, 2), (1, 2), 1, "conv2d"),
        ((1, 4, 5, 6), (6, 2, 2, 2), (2, 2), (0, 0), (1, 1), (1, 1), 2, "conv2d"),
        ((1, 4, 5, 5), (4, 1, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 4, "depthwise"),
        ((1, 3, 5, 5), (6, 1, 3, 3), (2, 1), (1, 1), (1, 1), (1, 1), 3, "depthwise"),
        ((2, 3, 9), (4, 3, 3), (2,), (2,), (1,), (2,), 1, "conv1d"),
        ((1, 2, 3, 4, 5), (3, 2, 2, 3, 2), (1, 2, 1), (1, 0, 0), (0, 0, 1), (1, 1, 1), 1, "conv3d"),
    ],
)  # fmt: skip
def test_a_convolution(
    image: tuple[int, ...], weights: tuple[int, ...], strides: tuple[int, ...],
    before: tuple[int, ...], after: tuple[int, ...], dilations: tuple[int, ...], groups: int,
    name: str,
) -> None:  # fmt: skip
    window = Window(
        taps=weights[2:], strides=strides, dilations=dilations, before=before, after=after
    )
    form = convolution(image, weights, window, groups=groups)
    assert form.computation.name == name
    x, w = integers(*image), integers(*weights)
    wanted = convolved(x, w, strides, before, after, dilations, groups)
    (found,) = form.product.evaluate([x, w])
    assert np.array_equal(found, wanted)


def test_an_image_is_padded_exactly_where_padding_is_read() -> None:
    def is_padded(size: int, after: int) -> bool:
        window = Window(taps=(3,), strides=(2,), dilations=(1,), before=(0,), after=(after,))
        form = convolution((1, 1, size), (1, 1, 3), window)
        return form.computation.operand("I").zero_outside

    # Three taps at 0, 2, 4 and 6 reach 8: of an image of 9 no padding is read, of 8 one element.
    assert not is_padded(9, 1)
    assert is_padded(8, 1)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "strides, dilations, beyond",
    [
        ((1, 1), (1, 1), (0, 0)),
        ((2, 3), (1, 1), (0, 0)),
        ((2, 3), (1, 1), (1, 2)),
        ((2, 1), (2, 3), (1, 2)),
    ],
)
def test_a_transposed_convolution(
    groups: int, strides: tuple[int, int], dilations: tuple[int, int], beyond: tuple[int, int]
) -> None:
    before, after = (1, 0), (1, 2)
    x, w = integers(1, 4, 3, 4), integers(4, 3, 3, 3)
    window = Window(taps=(3, 3), strides=strides, dilations=dilations, before=before, after=after)
    form = transposed_convolution(x.shape, w.shape, window, output_padding=beyond, groups=groups)
    shape = spread_shape(x.shape, strides)
    spread = np.zeros(shape, np.float32)
    spread[:, :, :: strides[0], :: strides[1]] = x
    # Every pixel adds its multiple of the filter.
    sizes = [
        (size - 1) * s + d * (t - 1) + 1 + max(0, more)
        for size, s, d, t, more in zip(
            x.shape[2:], strides, dilations, w.shape[2:], beyond, strict=True
        )
    ]
    whole = np.zeros((1, 3 * groups, *sizes), np.float32)
    per_group = 4 // groups
    for c, k, i, j, r, s in itertools.product(
        range(4), range(3), range(3), range(4), range(3), range(3)
    ):
        place = i * strides[0] + r * dilations[0], j * strides[1] + s * dilations[1]
        whole[(0, c // per_group * 3 + k, *place)] += x[0, c, i, j] * w[c, k, r, s]
    cut = whole[:, :, before[0] : sizes[0] - after[0], before[1] : sizes[1] - after[1]]
    (found,) = form.product.evaluate([spread, w])
    assert np.array_equal(found, cut)


@pytest.mark.parametrize(
    "first, second, name, axes",
    [
        ((3, 4), (4, 5), "gemm", "mnk"),
        ((2, 3, 4), (4, 5), "gemm", "mnk"),
        ((4,), (4, 5), "gemm", "mnk"),
        ((3, 4), (4,), "gemm", "mnk"),
        ((4,), (4,), "gemm", "mnk"),
        ((2, 3, 4), (1, 4, 5), "gemm", "mnk"),
        ((2, 3, 4), (2, 4, 5), "batched_gemm", "bmnk"),
        ((2, 6, 3, 4), (2, 6, 4, 5), "batched_gemm", "bmnk"),
        ((3, 4), (2, 4, 5), "batched_gemm", "bmnk"),
        ((2, 1, 3, 4), (1, 6, 4, 5), "batched_gemm", ("b0", "b1", "m", "n", "k")),
        ((2, 7, 3, 4), (7, 4, 5), "batched_gemm", ("b0", "b1", "m", "n", "k")),
        ((4,), (2, 4, 5), "batched_gemm", "bmnk"),
    ],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_of_matrices(
    first: tuple[int, ...], second: tuple[int, ...], name: str, axes: str, transposed: bool
) -> None:
    a, b = integers(*first), integers(*second)
    wanted = np.matmul(a, b)
    given = b.swapaxes(-1, -2) if transposed and b.ndim > 1 else b
    form = matrix_product(a.shape, given.shape, transposed=transposed)
    assert form.computation.name == name
    assert tuple(form.computation.extents) == tuple(axes)
    (found,) = form.product.evaluate([a, np.ascontiguousarray(given)])
    assert np.array_equal(found, wanted)


def test_element_types_and_what_varies() -> None:
    form = matrix_product((3, 4), (4, 5), dtypes=("uint8", "int8"), varying=True)
    assert [o.dtype for o in form.computation.operands] == ["uint8", "int8", "int32"]
    assert form.computation.operand("B").varies
    assert math.prod(form.shape) == form.computation.output.elements


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: matrix_product((3, 4), (5, 6)), "4 columns, 5 rows"),
        (lambda: matrix_product((2, 3, 4), (3, 4, 5)), "products of"),
        (lambda: matrix_product((), (4,)), "of a scalar"),
        (
            lambda: convolution((1, 3, 5), (4, 2, 3), PLAIN),
            "3 channels under filters of 2",
        ),
        (
            lambda: convolution((1, 3, 2), (4, 3, 3), PLAIN),
            "does not fit",
        ),
        (
            lambda: convolution((1, 3), (4, 3), PLAIN),
            "1 to 3 axes",
        ),
        (
            lambda: convolution((1, 4, 5), (5, 2, 3), PLAIN, groups=2),
            "4 channels and 5 filters in 2 groups",
        ),
    ],
)
def test_sizes_that_do_not_fit(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(WorkloadError, match=message):
        make()
