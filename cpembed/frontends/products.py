"""Computations of convolutions and of matrix products, from the shapes that frameworks give.

Weights are the second operand: a reshape of the framework's ``[filters, channels of a group,
taps]``. Images and results are reshapes of the other operands.

>>> padding = {"before": (0, 0), "after": (1, 1)}
>>> c = convolution((1, 4, 8, 8), (6, 2, 3, 3), strides=(2, 2), groups=2, **padding)
>>> str(c.computation)
'O[n, g, k, p, q] += (I[n, g, c, 2*p + r, 2*q + s] * W[g, k, c, r, s])'
>>> c.shape, c.computation.operand("W").shape, c.computation.operand("I").zero_outside
((1, 6, 4, 4), (2, 3, 2, 3, 3), True)
>>> str(matrix_product((2, 5, 7), (7, 3)).computation), matrix_product((2, 5, 7), (7, 3)).shape
('C[m, n] += (A[m, k] * B[k, n])', (2, 5, 3))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.graph.kinds.product import Product
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import accumulator
from cpembed.ir.parser import parse_computation
from cpembed.workloads.convolutions import ImageAxis, spread_operand

_AXES = {1: (("q", "s"),), 2: (("p", "r"), ("q", "s")), 3: (("o", "t"), ("p", "r"), ("q", "s"))}
"""Iterators of the output and of the filter for each image axis, by the number of image axes."""

Dtypes = tuple[str, str]
"""Element types of both operands."""
FLOATS: Dtypes = ("float32", "float32")


@dataclass(frozen=True)
class Form:
    """A computation and the ``shape`` of its result, a reshape of the computation's output."""

    computation: Computation
    shape: tuple[int, ...]

    @property
    def product(self) -> Product:
        """The kind of an operator with this computation, without an epilogue."""
        return Product(self.computation, self.shape)


def convolution(
    image: Sequence[int],
    weights: Sequence[int],
    *,
    strides: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
    dilations: Sequence[int] | None = None,
    groups: int = 1,
    dtypes: Dtypes = FLOATS,
    varying: bool = False,
) -> Form:
    """Return a convolution of one to three image axes.

    Parameters
    ----------
    image : sequence of int
        Shape [n, channels, sizes].
    weights : sequence of int
        Shape [filters, channels of a group, taps].
    strides, dilations : sequence of int
        Step of the window and distance of its taps, one an image axis; dilations are 1 by default.
    before, after : sequence of int
        Padding, one an image axis.
    groups : int
        Number of groups of channels.
    dtypes : tuple of str
        Element types of image and weights, float32 by default.
    varying : bool
        Whether the weights are no constant.

    Raises
    ------
    WorkloadError
        For sizes that do not fit each other.
    """
    dilations = dilations or (1,) * len(strides)
    _check_convolution(image, weights, groups, weights[0])
    axes = [
        ImageAxis(*numbers)
        for numbers in zip(image[2:], weights[2:], before, after, strides, dilations, strict=True)
    ]
    return _convolution(image, weights, axes, groups, weights[0], dtypes, varying)


def transposed_convolution(
    image: Sequence[int],
    weights: Sequence[int],
    *,
    strides: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
    dilations: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    groups: int = 1,
    dtypes: Dtypes = FLOATS,
    varying: bool = False,
) -> Form:
    """Return a transposed convolution, whose first operand is the *spread* image: with
    ``stride - 1`` zeros between its pixels (:func:`spread_shape`).

    Parameters
    ----------
    image : sequence of int
        Shape of the image before it is spread, [n, channels, sizes].
    weights : sequence of int
        Shape [channels, filters of a group, taps].
    strides, dilations : sequence of int
        Zeros between pixels plus 1, and distance of taps; dilations are 1 by default.
    before, after : sequence of int
        Pixels cropped from the result, one an image axis.
    output_padding : sequence of int, optional
        Pixels added after the result, 0 by default.
    groups, dtypes, varying
        As for :func:`convolution`.

    Raises
    ------
    WorkloadError
        For sizes that do not fit each other.
    """
    dilations = dilations or (1,) * len(strides)
    output_padding = output_padding or (0,) * len(strides)
    filters = weights[1] * groups
    _check_convolution(image, [weights[0], weights[0] // groups], groups, filters)
    if image[1] != weights[0]:
        raise WorkloadError(f"an image of {image[1]} channels under a filter of {weights[0]}")
    axes: list[ImageAxis] = []
    for size, taps, low, high, stride, dilation, extra in zip(
        image[2:], weights[2:], before, after, strides, dilations, output_padding, strict=True
    ):
        reach = dilation * (taps - 1)
        spread = stride * (size - 1) + 1
        axes.append(
            ImageAxis(spread, taps, reach - low, reach - high + extra, 1, dilation, True, stride)
        )
    return _convolution(image, weights, axes, groups, filters, dtypes, varying)


def spread_shape(image: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a spread image."""
    sizes = (stride * (size - 1) + 1 for size, stride in zip(image[2:], strides, strict=True))
    return (*image[:2], *sizes)


def _check_convolution(
    image: Sequence[int], weights: Sequence[int], groups: int, filters: int
) -> None:
    if len(image) - 2 not in _AXES:
        raise WorkloadError(f"a convolution of {list(image)}: it takes images of 1 to 3 axes")
    if groups < 1 or image[1] % groups or filters % groups:
        raise WorkloadError(f"{image[1]} channels and {filters} filters in {groups} groups")
    if weights[1] * groups != image[1]:
        raise WorkloadError(
            f"an image of {image[1]} channels under filters of {weights[1]} in {groups} groups"
        )


@dataclass(frozen=True)
class _Channels:
    """Axes of a convolution besides those of the image.

    Attributes
    ----------
    family : str
        Name of the workload without its number of image axes.
    extents : dict
        Extents by the axes' letters.
    result, image, filter : str
        Letters that index each operand.
    """

    family: str
    extents: dict[str, int]
    result: str
    image: str
    filter: str

    @classmethod
    def grouped(
        cls, images: int, groups: int, channels: int, filters: int, is_transposed: bool
    ) -> _Channels:
        """``channels`` and ``filters`` are those of a group."""
        if groups > 1 and channels == 1 and not is_transposed:
            m = "m" if filters > 1 else ""
            extents = {"n": images, "c": groups, **({"m": filters} if m else {})}
            return cls("depthwise", extents, f"nc{m}", "nc", f"c{m}")
        g = "g" if groups > 1 else ""
        extents = {"n": images, **({"g": groups} if g else {}), "k": filters, "c": channels}
        order = "ck" if is_transposed else "kc"
        family = "transposed_conv" if is_transposed else "conv"
        return cls(family, extents, f"n{g}k", f"n{g}c", f"{g}{order}")


def _convolution(
    image: Sequence[int],
    weights: Sequence[int],
    axes: Sequence[ImageAxis],
    groups: int,
    filters: int,
    dtypes: Dtypes,
    varying: bool,
) -> Form:
    """Write the statement of a convolution; ``axes`` give the index of each image axis."""
    is_transposed = axes[0].flipped
    channels = _Channels.grouped(
        image[0], groups, image[1] // groups, filters // groups, is_transposed
    )
    result, read, taps = [*channels.result], [*channels.image], [*channels.filter]
    extents = {name: channels.extents[name] for name in channels.result}
    reduced = {name: size for name, size in channels.extents.items() if name not in extents}
    sizes = [channels.extents[name] for name in channels.image]
    for (output, tap), axis in zip(_AXES[len(axes)], axes, strict=True):
        if axis.output_extent < 1:
            raise WorkloadError(
                f"a filter of {list(weights[2:])} does not fit an image of {list(image[2:])}"
            )
        extents[output], reduced[tap] = axis.output_extent, axis.taps
        result.append(output)
        read.append(axis.index(output, tap))
        taps.append(f"{axis.taps - 1} - {tap}" if axis.flipped else tap)
        sizes.append(axis.extent)
    pixel_steps = [*(1 for _ in channels.image), *(axis.pixel_step for axis in axes)]
    family = channels.family
    computation = parse_computation(
        f"O[{', '.join(result)}] += I[{', '.join(read)}] * W[{', '.join(taps)}]",
        extents | reduced,
        name=family if family == "depthwise" else f"{family}{len(axes)}d",
        dtypes=dict(zip("IWO", (*dtypes, accumulator(*dtypes)), strict=True)),
        shapes={"I": tuple(sizes)},
        zero_outside=("I",) if any(_reads_outside(axis) for axis in axes) else (),
        varying=("W",) if varying else (),
    )
    if is_transposed:
        computation = spread_operand(computation, "I", pixel_steps)
    return Form(computation, (image[0], filters, *(axis.output_extent for axis in axes)))


def _reads_outside(axis: ImageAxis) -> bool:
    last = (axis.output_extent - 1) * axis.stride + (axis.taps - 1) * axis.dilation - axis.before
    return axis.before > 0 or last >= axis.extent


def matrix_product(
    first: Sequence[int],
    second: Sequence[int],
    *,
    transposed: bool = False,
    dtypes: Dtypes = FLOATS,
    varying: bool = False,
) -> Form:
    """Return ``numpy.matmul`` of two shapes.

    If the second factor is a single matrix, the computation is a ``gemm`` of all rows of the first.
    Otherwise it is a ``batched_gemm`` with the batch axis b, or b0, b1 … where a factor is
    broadcast along some of them.

    Parameters
    ----------
    first, second : sequence of int
        Shapes of the factors.
    transposed : bool
        Whether the last two axes of the second are exchanged.
    dtypes : tuple of str
        Element types of the factors, float32 by default.
    varying : bool
        Whether the second factor is no constant.

    Raises
    ------
    WorkloadError
        For shapes that do not fit each other.
    """
    a, b = list(first), list(second)
    if not a or not b:
        raise WorkloadError("a product of matrices of a scalar: give at least one dimension")
    row, column = len(a) == 1, len(b) == 1
    a = [1, *a] if row else a
    b = [*b, 1] if column and not transposed else [1, *b] if column else b
    (m, k), (n, depth) = a[-2:], b[-2:] if transposed else b[:-3:-1]
    try:
        batch = np.broadcast_shapes(tuple(a[:-2]), tuple(b[:-2]))
    except ValueError:
        raise WorkloadError(f"products of {list(first)} and {list(second)}") from None
    if k != depth:
        raise WorkloadError(
            f"a product of {list(first)} and {list(second)}: {k} columns, {depth} rows"
        )
    shape = (*batch, *([] if row else [m]), *([] if column else [n]))
    matrix = "n, k" if transposed else "k, n"
    if math.prod(b[:-2]) == 1:
        text, extents = f"C[m, n] += A[m, k] * B[{matrix}]", {"m": math.prod(a[:-2]) * m}
        return _product(text, "gemm", {**extents, "n": n, "k": k}, shape, dtypes, varying)
    axes, a_axes, b_axes = _batch_axes(a[:-2], b[:-2], batch)
    text = (
        f"C[{', '.join([*axes, 'm, n'])}] += A[{', '.join([*a_axes, 'm, k'])}] "
        f"* B[{', '.join([*b_axes, matrix])}]"
    )
    extents = {**axes, "m": m, "n": n, "k": k}
    return _product(text, "batched_gemm", extents, shape, dtypes, varying)


def _batch_axes(
    first: Sequence[int], second: Sequence[int], batch: Sequence[int]
) -> tuple[dict[str, int], list[str], list[str]]:
    """Return the batch axes with their extents, and those that index each factor."""
    padded = [[1] * (len(batch) - len(s)) + list(s) for s in (first, second)]
    if padded[0] == padded[1]:
        return {"b": math.prod(batch)}, ["b"], ["b"]
    # Neighbouring axes along which the same factors are broadcast are one axis.
    runs: list[tuple[tuple[bool, bool], int]] = []
    for x, y, size in zip(*padded, batch, strict=True):
        present = (x == size, y == size)
        if size == 1:
            continue
        if runs and runs[-1][0] == present:
            runs[-1] = (present, runs[-1][1] * size)
        else:
            runs.append((present, size))
    names = [f"b{k}" for k in range(len(runs))] if len(runs) > 1 else ["b"]
    axes = {name: size for name, (_, size) in zip(names, runs, strict=True)}
    a, b = (
        [name for name, (present, _) in zip(names, runs, strict=True) if present[side]]
        for side in (0, 1)
    )
    return axes, a, b


def _product(
    text: str,
    name: str,
    extents: dict[str, int],
    shape: tuple[int, ...],
    dtypes: Dtypes,
    varying: bool,
) -> Form:
    computation = parse_computation(
        text,
        extents,
        name=name,
        dtypes=dict(zip("ABC", (*dtypes, accumulator(*dtypes)), strict=True)),
        varying=("B",) if varying else (),
    )
    return Form(computation, shape)
