"""Products as front ends write them: computations of convolutions and of products of matrices.

Weights are the second operand. As frameworks store them, ``[filters, channels of a group, taps]``,
they are a reshape of that operand, and images and results are reshapes of the others.

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
"""By the number of an image's axes: of each, the iterator of the output and that of the filter."""

Dtypes = tuple[str, str]
"""Element types of both operands."""
FLOATS: Dtypes = ("float32", "float32")


@dataclass(frozen=True)
class Form:
    """A computation, and the ``shape`` of its result: a reshape of the computation's output."""

    computation: Computation
    shape: tuple[int, ...]

    @property
    def product(self) -> Product:
        """The kind of such an operator, without an epilogue."""
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
    """A convolution of one to three image axes.

    ``image``: [n, channels, sizes]; ``weights``: [filters, channels of a group, taps]; the others
    have an element for each image axis, ``before`` and ``after`` being the padding. ``varying``:
    the weights are no constant.

    Raises :class:`WorkloadError` for sizes that do not fit each other.
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
    """A transposed convolution, whose first operand is the *spread* image: with ``stride - 1``
    zeros between its pixels (:func:`spread_shape`).

    ``image``: before it is spread; ``weights``: [channels, filters of a group, taps]; ``before``
    and ``after``: what is cut off the result's edges.
    """
    dilations = dilations or (1,) * len(strides)
    beyond = output_padding or (0,) * len(strides)
    filters = weights[1] * groups
    _check_convolution(image, [weights[0], weights[0] // groups], groups, filters)
    if image[1] != weights[0]:
        raise WorkloadError(f"an image of {image[1]} channels under a filter of {weights[0]}")
    axes: list[ImageAxis] = []
    for size, taps, low, high, stride, dilation, more in zip(
        image[2:], weights[2:], before, after, strides, dilations, beyond, strict=True
    ):
        reach = dilation * (taps - 1)
        spread = stride * (size - 1) + 1
        axes.append(
            ImageAxis(spread, taps, reach - low, reach - high + more, 1, dilation, True, stride)
        )
    return _convolution(image, weights, axes, groups, filters, dtypes, varying)


def spread_shape(image: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The shape of a spread image."""
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
    """The axes of a convolution that are none of the image, with their extents, and which of them
    index the result, the image and the filter."""

    family: str
    extents: dict[str, int]
    result: str
    image: str
    filter: str

    @classmethod
    def of(cls, images: int, groups: int, channels: int, filters: int, turned: bool) -> _Channels:
        """``channels`` and ``filters`` are those of a group."""
        if groups > 1 and channels == 1 and not turned:
            m = "m" if filters > 1 else ""
            extents = {"n": images, "c": groups, **({"m": filters} if m else {})}
            return cls("depthwise", extents, f"nc{m}", "nc", f"c{m}")
        g = "g" if groups > 1 else ""
        extents = {"n": images, **({"g": groups} if g else {}), "k": filters, "c": channels}
        order = "ck" if turned else "kc"
        family = "transposed_conv" if turned else "conv"
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
    """The statement of a convolution, whose ``axes`` say what each image axis is read at."""
    is_transposed = axes[0].flipped
    channels = _Channels.of(image[0], groups, image[1] // groups, filters // groups, is_transposed)
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
    apart = [*(1 for _ in channels.image), *(axis.pixel_step for axis in axes)]
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
        computation = spread_operand(computation, "I", apart)
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
    """``numpy.matmul`` of two shapes; ``transposed``: of the second, the last two axes exchanged.

    A second factor that is one matrix makes a ``gemm`` of all rows of the first; several make a
    ``batched_gemm``, whose axes of products are those that both have, and are b, or b0, b1 … where
    one of the factors is broadcast along some.

    Raises :class:`WorkloadError` for shapes that do not fit.
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
    """Axes of the products side by side with their extents; those of each factor."""
    padded = [[1] * (len(batch) - len(s)) + list(s) for s in (first, second)]
    if padded[0] == padded[1]:
        return {"b": math.prod(batch)}, ["b"], ["b"]
    # Neighbours along which both factors behave alike are one axis.
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
    of = [[name for name, (p, _) in zip(names, runs, strict=True) if p[side]] for side in (0, 1)]
    return axes, of[0], of[1]


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
