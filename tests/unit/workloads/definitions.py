"""Definitions of operators by loops over numpy arrays, and the comparison with them."""

import itertools

import numpy as np

from cpembed.ir.interpreter import interpret
from cpembed.ir.reference import random_inputs, reference


def check(computation, expected):
    """``expected`` maps the inputs, in order, to the result by loops over numpy arrays."""
    inputs = random_inputs(computation, 11)
    wide = {name: array.astype(np.int64) for name, array in inputs.items()}
    result = expected(*wide.values())
    assert result.shape == computation.output.shape
    np.testing.assert_array_equal(interpret(computation, inputs), result)
    np.testing.assert_array_equal(reference(computation, inputs), result)


def convolve(image, weights, pad, stride, dilation):
    """One image [c, *spatial] with one filter [c, *taps]: slide over the padded image."""
    spatial = image.ndim - 1
    padded = np.pad(image, [(0, 0), *((p, p) for p in pad)])
    taps = weights.shape[1:]
    reach = [d * (t - 1) + 1 for d, t in zip(dilation, taps, strict=True)]
    positions = [
        range(0, size - r + 1, s)
        for size, r, s in zip(padded.shape[1:], reach, stride, strict=True)
    ]
    result = np.zeros([len(p) for p in positions], np.int64)
    for place in itertools.product(*(enumerate(p) for p in positions)):
        window = tuple(
            slice(place[i][1], place[i][1] + reach[i], dilation[i]) for i in range(spatial)
        )
        target = tuple(position for position, _ in place)
        result[target] = (padded[(slice(None), *window)] * weights).sum()
    return result


def convolution(image, weights, pad, stride, dilation):
    """Images [n, c, ...] with filters [k, c, ...]."""
    return np.stack(
        [
            np.stack([convolve(one, filter_, pad, stride, dilation) for filter_ in weights])
            for one in image
        ]
    )


CONV_CASES = [
    {},
    {"pad": 1},
    {"stride": 2},
    {"pad": (2, 1), "stride": (1, 2)},
    {"dilation": (2, 1), "pad": 1},
    {"pad": (0, 2), "stride": (3, 2), "dilation": (1, 2)},
]


def per_axis(case, axes):
    def spread(value):
        return (value,) * axes if isinstance(value, int) else value

    return tuple(spread(case.get(k, d)) for k, d in (("pad", 0), ("stride", 1), ("dilation", 1)))
