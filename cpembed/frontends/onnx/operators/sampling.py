"""Images sampled between their pixels, windows with places, and Fourier transforms."""

from __future__ import annotations

import math

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.expressions import X, Y, mul
from cpembed.frontends.indexed import overlapped, unpooled
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.frontends.onnx.operators.elementwise import element_type
from cpembed.frontends.onnx.operators.indices import CUT_OR_RUN
from cpembed.frontends.onnx.operators.products import pooling_window, window_of
from cpembed.frontends.sampling import (
    Regions,
    conjugated,
    deformed_columns,
    fourier,
    grid_sampled,
    region_aligned,
)
from cpembed.graph.kinds import Reduce, Scalar
from cpembed.graph.kinds.base import Array, axis_of
from cpembed.ir.scalars import apply

_LARGEST_TABLE = 1 << 24
"""Maximum number of elements of a matrix that a model has computed."""


def _grid_sample(call: Call) -> str:
    mode = call.text("mode", "linear", ("linear", "nearest", "cubic", "bilinear", "bicubic"))
    padding = call.text("padding_mode", "zeros", ("zeros", "border", "reflection"))
    aligned = call.flag("align_corners")
    return grid_sampled(call, call.input(0), call.input(1), mode, padding, aligned)


def _roi_align(call: Call) -> str:
    half = call.version >= 16
    samples = call.integer("sampling_ratio", 0)
    if half:
        name = "coordinate_transformation_mode"
        half = call.text(name, "half_pixel", ("half_pixel", "output_half_pixel")) == "half_pixel"
    if samples < 1:
        call.reject(
            f"sampling_ratio {samples} lets the size of a region decide on the number of samples: "
            f"give it, or {CUT_OR_RUN}"
        )
    mode = call.text("mode", "avg", ("avg", "max"))
    sizes = call.integer("output_height", 1), call.integer("output_width", 1)
    scale = call.number("spatial_scale", 1.0)
    regions = Regions(sizes, samples, scale, half, "mean" if mode == "avg" else "max")
    return region_aligned(call, call.input(0), call.input(1), call.input(2), regions)


def _deform_conv(call: Call) -> str:
    image, weights, offsets = call.input(0), call.input(1), call.input(2)
    taps, groups = call.shape(weights)[2:], call.integer("group", 1)
    if len(taps) != 2:
        call.reject(f"filters of {len(taps)} axes are deformed: only images of two axes are read")
    if call.list_of("kernel_shape", taps) != taps:
        call.reject(f"kernel_shape is not that of the weights, {list(taps)}")
    window = window_of(call, taps, call.shape(image)[2:])
    shape, count = call.shape(weights), math.prod(taps)
    offset_groups = call.integer("offset_group", 1)
    columns = deformed_columns(call, image, offsets, call.optional(4), window, offset_groups)
    n, c, _, points = call.shape(columns)
    # A product for each group of channels.
    rows = call.reshaped(weights, (groups, shape[0] // groups, shape[1] * count))
    columns = call.reshaped(columns, (n, groups, (c // groups) * count, points))
    result = call.matmul(rows, columns)
    result = call.reshaped(result, (n, shape[0], *call.shape(offsets)[2:]))
    if call.optional(3) is None:
        return result
    return call.elementwise(apply("add", X, Y), result, call.channels(call.input(3), 4))


def _max_unpool(call: Call) -> str:
    n, c, *image = call.type().shape
    window, axes = window_of(call, call.list_of("kernel_shape"), image), len(image)
    sizes = [
        (size - 1) * window.strides[k] + window.taps[k] - window.before[k] - window.after[k]
        for k, size in enumerate(image)
    ]
    # Numbers count over the tensor of those sizes, whatever the output's shape is.
    pixels, channels = math.prod(sizes), n * c
    first = np.arange(channels).reshape(n, c, *(1,) * axes) * pixels
    places = call.elementwise(apply("sub", X, Y), call.input(1), call.tensor(first))
    result = unpooled(call, call.input(0), places, sizes)
    if call.optional(2) is None:
        return result
    shape = call.integers(2, "the shape")
    if len(shape) != axes + 2 or any(a < b for a, b in zip(shape[2:], sizes, strict=True)):
        raise WorkloadError(f"an image of {sizes} unpooled to {list(shape)}")
    after = [0, 0, *(a - b for a, b in zip(shape[2:], sizes, strict=True))]
    return call.padded(result, [0] * len(shape), after)


def _lp_pool(call: Call) -> str:
    """Emit the root of a sum of powers in each window."""
    p, window = call.number("p", 2), pooling_window(call)
    if call.flag("ceil_mode"):
        window = window.rounded_up(call.type().shape[2:])
    powers = call.elementwise(_power_of(p), call.input())
    # The sum is the mean of all taps, padding included, times their number.
    means = call.emit(window.pool("mean", counts_padding=True), powers)
    total = mul(X, float(math.prod(window.taps)))
    return call.elementwise(_root(total, p), means)


def _global_lp_pool(call: Call) -> str:
    p = call.number("p", 2)
    powers = call.elementwise(_power_of(p), call.input())
    total = call.emit(Reduce("sum", tuple(range(2, call.rank())), True), powers)
    return call.elementwise(_root(X, p), total)


def _power_of(p: float) -> Scalar:
    size = apply("abs", X)
    if p == 1:
        return size
    return mul(X, X) if p == 2 else apply("pow", size, float(p))


def _root(x: Scalar, p: float) -> Scalar:
    if p == 1:
        return x
    return apply("sqrt", x) if p == 2 else apply("pow", x, 1.0 / p)


def _col2im(call: Call) -> str:
    sizes, taps = call.integers(1, "the image's shape"), call.integers(2, "the block's shape")
    return overlapped(call, call.input(), sizes, window_of(call, taps, sizes))


# -- Fourier transforms ---------------------------------------------------------------------------


def _resized_line(call: Call, x: str, size: int) -> str:
    """Cut lines [n, size, parts], or pad them with zeros."""
    return call.padded(x, (0, 0, 0), (0, size - call.shape(x)[1], 0))


def _complex(call: Call, x: str) -> str:
    """Add imaginary parts of 0 to real numbers, whose last axis is of size 1."""
    return x if call.shape(x)[-1] == 2 else call.padded(x, (0, 0, 0), (0, 0, 1))


def _dft(call: Call) -> str:
    x, shape = call.input(), call.type().shape
    axis = call.integer("axis", 1) if call.version < 20 else -2
    if call.version >= 20 and call.optional(2) is not None:
        axis = call.integers(2, "the axis")[0]
    axis = axis_of(axis, len(shape))
    inverse, one_sided = call.flag("inverse"), call.flag("onesided")
    size = None if call.optional(1) is None else call.integers(1, "the length")[0]
    order = [*(k for k in range(len(shape) - 1) if k != axis), axis, len(shape) - 1]
    lead = [shape[k] for k in order[:-2]]
    lines = call.transposed(x, order)
    lines = call.reshaped(lines, (math.prod(lead), shape[axis], shape[-1]))
    if inverse and one_sided:
        size = 2 * (shape[axis] - 1) if size is None else size
        lines = conjugated(call, _resized_line(call, _complex(call, lines), size // 2 + 1), size)
    else:
        size = shape[axis] if size is None else size
        lines = _complex(call, _resized_line(call, lines, size))
    result = fourier(call, lines, inverse=inverse)
    parts = 2
    if one_sided and inverse:
        result, parts = call.part(result, 2, 0, 1), 1
    elif one_sided:
        result = call.part(result, 1, 0, size // 2 + 1)
    result = call.reshaped(result, (*lead, call.shape(result)[1], parts))
    return call.transposed(result, [order.index(k) for k in range(len(order))])


def _stft(call: Call) -> str:
    signal, shape = call.input(0), call.type().shape
    step = call.integers(1, "the step of frames")[0]
    window = call.optional(2)
    size = None if call.optional(3) is None else call.integers(3, "the length of frames")[0]
    if size is None:
        size = call.shape(window)[0] if window else shape[1]
    if step < 1 or not 0 < size <= shape[1]:
        raise WorkloadError(f"frames of {size} every {step} of a signal of {shape[1]}")
    batches, parts = shape[0], shape[2] if call.rank() > 2 else 1
    frames = call.windows(call.reshaped(signal, (*shape[:2], parts)), 1, size, step)
    count = call.shape(frames)[1]
    if window is not None:
        frames = call.elementwise(mul(X, Y), frames, call.reshaped(window, (size, 1)))
    frames = call.reshaped(frames, (batches * count, size, parts))
    result = fourier(call, _complex(call, frames))
    if call.flag("onesided", True):
        result = call.part(result, 1, 0, size // 2 + 1)
    return call.reshaped(result, (batches, count, *call.shape(result)[1:]))


def _mel_weights(call: Call) -> str:
    """Emit the constant matrix from the bins of a spectrum to the bands of the mel scale."""
    bands, length, rate = (call.integers(k, "a size")[0] for k in range(3))
    low, high = (float(call.constant(k, "a frequency").reshape(-1)[0]) for k in (3, 4))
    bins = length // 2 + 1
    if bands < 1 or rate < 1 or length < 1 or bands * bins > _LARGEST_TABLE:
        raise WorkloadError(f"{bands} bands of {bins} bins at a rate of {rate}")
    matrix = mel_matrix(bands, length, rate, low, high)
    return call.tensor(matrix, element_type(call, "output_datatype", "float32"))


def mel_matrix(bands: int, length: int, rate: int, low: float, high: float) -> Array:
    """Return triangles over the bins of a spectrum, equally wide on the mel scale.

    Parameters
    ----------
    bands, length, rate : int
        Number of triangles, length of the transform, and samples per second.
    low, high : float
        Lowest and highest frequency.
    """
    ends = 2595 * np.log10(1 + np.asarray([low, high]) / 700)
    step = (ends[1] - ends[0]) / (bands + 2)
    edges = 700 * (10 ** ((np.arange(bands + 2) * step + ends[0]) / 2595) - 1)
    places = [int(place) for place in (length + 1) * edges // rate]
    matrix = np.zeros((length // 2 + 1, bands), np.float64)
    for band, (first, middle, last) in enumerate(
        zip(places[:-2], places[1:-1], places[2:], strict=True)
    ):
        if middle == first:
            matrix[middle, band] = 1
        else:
            rising = np.arange(first, middle + 1)
            matrix[rising, band] = (rising - first) / (middle - first)
        if last > middle:
            falling = np.arange(middle, last)
            matrix[falling, band] = (last - falling) / (last - middle)
    return matrix


TABLE: dict[str, Translation] = {
    "GridSample": _grid_sample,
    "com.microsoft.GridSample": _grid_sample,
    "RoiAlign": _roi_align,
    "DeformConv": _deform_conv,
    "MaxUnpool": _max_unpool,
    "LpPool": _lp_pool,
    "GlobalLpPool": _global_lp_pool,
    "Col2Im": _col2im,
    "DFT": _dft,
    "STFT": _stft,
    "MelWeightMatrix": _mel_weights,
}
