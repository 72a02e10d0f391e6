"""Computations of convolutions and of matrix products, from the shapes that frameworks give.

Weights are the second operand: a reshape of the framework's ``[filters, channels of a group,
taps]``. Images and results are reshapes of the other operands.

>>> window = Window(
...     taps=(3, 3), strides=(2, 2), dilations=(1, 1), before=(0, 0), after=(1, 1)
... )
>>> c = convolution((1, 4, 8, 8), (6, 2, 3, 3), window, groups=2)
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
from dataclasses import dataclass, replace

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.graph.kinds import Pool, Product
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


@dataclass(frozen=True, kw_only=True)
class Window:
    """A window of a convolution or of pooling that moves over an image.

    For each image axis it has a size in taps, a step, the distance of its taps, and the padding of
    the image.
    """

    taps: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    before: Sequence[int]
    after: Sequence[int]

    def reach(self, axis: int) -> int:
        """Number of pixels from the first tap to the last."""
        return self.dilations[axis] * (self.taps[axis] - 1) + 1

    def counts(self, image: Sequence[int]) -> tuple[int, ...]:
        """Return the number of windows along each axis of an image."""
        padded = map(sum, zip(image, self.before, self.after, strict=True))
        return tuple((size - self.reach(k)) // self.strides[k] + 1 for k, size in enumerate(padded))

    def rounded_up(self, image: Sequence[int]) -> Window:
        """Add padding after the image, so that the number of windows is rounded up."""
        after: list[int] = []
        for axis, size in enumerate(image):
            stride = self.strides[axis]
            padded = size + self.before[axis] + self.after[axis]
            outputs = -(-(padded - self.reach(axis)) // stride) + 1
            # A last window must begin in the image or in the padding before it.
            if (outputs - 1) * stride >= size + self.before[axis]:
                outputs -= 1
            missing = (outputs - 1) * stride + self.reach(axis) - padded
            after.append(self.after[axis] + max(0, missing))
        return replace(self, after=tuple(after))

    def pool(self, operation: str, *, counts_padding: bool = False) -> Pool:
        """Return the kind that pools with this window."""
        taps, strides, dilations = tuple(self.taps), tuple(self.strides), tuple(self.dilations)
        before, after = tuple(self.before), tuple(self.after)
        return Pool(operation, taps, strides, before, after, dilations, counts_padding)


def convolution(
    image: Sequence[int],
    weights: Sequence[int],
    window: Window,
    *,
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
    window : Window
        The window of the filters.
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
    _check_convolution(image, weights, groups, weights[0])
    w = window
    axes = [
        ImageAxis(*numbers)
        for numbers in zip(
            image[2:], weights[2:], w.before, w.after, w.strides, w.dilations, strict=True
        )
    ]
    return _convolution(image, weights, axes, groups, weights[0], dtypes, varying)


def transposed_convolution(
    image: Sequence[int],
    weights: Sequence[int],
    window: Window,
    *,
    output_padding: Sequence[int] | None = None,
    groups: int = 1,
    dtypes: Dtypes = FLOATS,
    varying: bool = False,
) -> Form:
    """Return a transposed convolution, as a convolution of the *spread* image of stride 1.

    The spread image has ``stride - 1`` zeros between its pixels (:func:`spread_shape`).

    Parameters
    ----------
    image : sequence of int
        Shape of the image before it is spread, [n, channels, sizes].
    weights : sequence of int
        Shape [channels, filters of a group, taps].
    window : Window
        The window of the filters; its padding is the number of pixels cropped from the result.
    output_padding : sequence of int, optional
        Pixels added after the result, 0 by default.
    groups, dtypes, varying
        As for :func:`convolution`.

    Raises
    ------
    WorkloadError
        For sizes that do not fit each other.
    """
    filters = weights[1] * groups
    _check_convolution(image, [weights[0], weights[0] // groups], groups, filters)
    if image[1] != weights[0]:
        raise WorkloadError(f"an image of {image[1]} channels under a filter of {weights[0]}")
    axes: list[ImageAxis] = []
    extras = output_padding or (0,) * len(window.strides)
    for k, (size, taps, extra) in enumerate(zip(image[2:], weights[2:], extras, strict=True)):
        stride, dilation = window.strides[k], window.dilations[k]
        # Pixels of the result before and after the image, which `padding` crops.
        reach = dilation * (taps - 1)
        before, after = reach - window.before[k], reach - window.after[k] + extra
        spread = stride * (size - 1) + 1
        axes.append(ImageAxis(spread, taps, before, after, 1, dilation, True, stride))
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
    # Each filter of a depthwise convolution reads one channel: there is none to sum over.
    multiplier, depth = filters // groups, image[1] // groups
    if groups > 1 and depth == 1 and not is_transposed:
        m = "m" if multiplier > 1 else ""
        family, letters = "depthwise", (f"nc{m}", "nc", f"c{m}")
        channels = {"n": image[0], "c": groups, "m": multiplier}
    else:
        g = "g" if groups > 1 else ""
        family = f"{'transposed_' if is_transposed else ''}conv"
        letters = (f"n{g}k", f"n{g}c", f"{g}{'ck' if is_transposed else 'kc'}")
        channels = {"n": image[0], "g": groups, "k": multiplier, "c": depth}
    # Letters of the axes besides those of the image, which index the result, image and filter.
    result, read, taps = map(list, letters)
    extents = {name: channels[name] for name in result}
    reduced = {name: channels[name] for name in read if name not in extents}
    sizes = [channels[name] for name in read]
    pixel_steps = [*(1 for _ in read), *(axis.pixel_step for axis in axes)]
    for (output, tap), axis in zip(_AXES[len(axes)], axes, strict=True):
        if axis.output_extent < 1:
            raise WorkloadError(
                f"a filter of {list(weights[2:])} does not fit an image of {list(image[2:])}"
            )
        extents[output], reduced[tap] = axis.output_extent, axis.taps
        result.append(output)
        read.append(axis.index(output, tap))
        # A transposed convolution reads its filter backwards.
        taps.append(f"{axis.taps - 1} - {tap}" if axis.flipped else tap)
        sizes.append(axis.extent)
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
    # As numpy does: a vector is a row on the left and a column on the right, for the product only.
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
    # Of a single second matrix, the rows of all batches are rows of one product.
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
    # Shapes are aligned at their last axes.
    padded = [[1] * (len(batch) - len(s)) + list(s) for s in (first, second)]
    # Where neither factor is broadcast, all batch axes are one.
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
