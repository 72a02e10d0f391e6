"""Operators that both front ends compose of several kinds: products, windows, sums, norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.emitter import Emitter
from cpembed.frontends.expressions import X, Y, Z, add, less, mul, sub, where
from cpembed.frontends.products import (
    Form,
    Window,
    convolution,
    matrix_product,
    spread_shape,
    transposed_convolution,
)
from cpembed.graph.kinds import LayerNorm, Pad, Reduce, Scan, Slice
from cpembed.graph.kinds.base import Array
from cpembed.ir.scalars import apply


class Composites(Emitter):
    """Operators that both front ends compose of several kinds."""

    def product(self, form: Callable[..., Form], first: str, second: str, **options: Any) -> str:
        """Emit a product of two tensors in the element type of the first.

        Parameters
        ----------
        form : callable
            Returns the computation of two shapes, such as :func:`matrix_product`.
        first, second : str
            The factors. One without elements makes a result without any, or of zeros.
        **options
            Keywords of ``form``.

        Raises
        ------
        WorkloadError
            For shapes and element types that cannot be multiplied.
        """
        shapes = self.shape(first), self.shape(second)
        if 0 in (*shapes[0], *shapes[1]):
            shape = shape_without_elements(form, *shapes, **options)
            return self.tensor(np.zeros(shape), self.dtype(first))
        product = self.form_of(form, first, second, **options).product
        return self.cast(self.emit(product, first, second), self.dtype(first))

    def form_of(self, form: Callable[..., Form], first: str, second: str, **options: Any) -> Form:
        """Return the computation of a :meth:`product` of two tensors."""
        return form(
            self.shape(first),
            self.shape(second),
            dtypes=(self.dtype(first), self.dtype(second)),
            varying=not self.builder.is_constant(second),
            **options,
        )

    def matmul(self, a: str, b: str, *, transposed: bool = False) -> str:
        """Emit ``numpy.matmul`` of ``a`` and ``b``, whose last two axes may be transposed first."""
        is_constant, rank = self.builder.is_constant, len(self.shape(b))
        turns = is_constant(a) and not is_constant(b) and not transposed
        if turns and len(self.shape(a)) == 2 and rank >= 2:
            # Only second factors are packed ahead: W x is written as the transpose of x^T W^T.
            order = (*range(rank - 2), rank - 1, rank - 2)
            turned = self.matmul(self.transposed(b, order), a, transposed=True)
            return self.transposed(turned, order)
        return self.product(matrix_product, a, b, transposed=transposed)

    def convolved(
        self,
        image: str,
        weights: str,
        bias: str | None,
        window: Window,
        *,
        transposed: bool = False,
        shape: Sequence[int] | None = None,
        **options: Any,
    ) -> str:
        """Emit a convolution, whose channels a later normalization can scale.

        Parameters
        ----------
        image : str
            Tensor [n, channels, sizes].
        weights : str
            Tensor [filters, channels of a group, taps], the first two exchanged if ``transposed``.
        bias : str or None
            Tensor [filters].
        window : Window
            The window of the filters.
        transposed : bool
            Whether it is a transposed convolution.
        shape : sequence of int, optional
            Shape of the result.
        **options
            Keywords of :func:`convolution` or :func:`transposed_convolution`.
        """

        def write(weights: str, bias: str | None) -> str:
            if transposed:
                result = self._transposed_convolution(image, weights, window, **options)
            else:
                result = self.product(convolution, image, weights, window=window, **options)
            if bias is not None:
                vector = self.channels(bias, len(self.shape(result)))
                result = self.elementwise(add(X, Y), result, vector)
            return result if shape is None else self.reshaped(result, shape)

        if transposed:
            return self.scalable(weights, bias, write, axis=1, groups=options["groups"])
        return self.scalable(weights, bias, write)

    def _transposed_convolution(
        self, image: str, weights: str, window: Window, **options: Any
    ) -> str:
        channels = self.shape(image)[1:]

        def form(spread: Sequence[int], weights: Sequence[int], **options: Any) -> Form:
            return transposed_convolution((spread[0], *channels), weights, window, **options)

        return self.product(form, self._spread(image, window.strides), weights, **options)

    def _spread(self, image: str, strides: Sequence[int]) -> str:
        """Insert ``stride - 1`` zeros between the pixels of an image."""
        if all(stride == 1 for stride in strides):
            return image
        n, c, *sizes = self.shape(image)
        # Each pixel becomes an axis of its own, which is padded to the stride; the zeros after the
        # last pixel are cut off.
        zeros = [count for stride in strides for count in (0, stride - 1)]
        x = self.reshaped(image, (n, c, *(extent for size in sizes for extent in (size, 1))))
        x = self.emit(Pad((0,) * (2 + len(zeros)), (0, 0, *zeros)), x)
        padded = [size * stride for size, stride in zip(sizes, strides, strict=True)]
        stops = spread_shape((n, c, *sizes), strides)
        kind = Slice((0,) * len(stops), stops, (1,) * len(stops))
        return self.emit(kind, self.reshaped(x, (n, c, *padded)))

    def scalable(
        self,
        weights: str,
        bias: str | None,
        write: Callable[[str, str | None], str],
        *,
        axis: int = 0,
        groups: int = 1,
    ) -> str:
        """Emit a product whose channels a later normalization can scale by rewriting its weights.

        Parameters
        ----------
        weights, bias : str, str or None
            The second factor and the bias. Only constants of floats can be rewritten.
        write : callable
            Emits the product of weights and a bias.
        axis : int
            Axis of the channels in the weights.
        groups : int
            Number of parts of the first axis of the weights, each with channels of its own.
        """
        result = write(weights, bias)
        builder = self.builder
        w, b = builder.value(weights), None if bias is None else builder.value(bias)
        if w is None or builder.is_quantized(weights) or (bias is not None and b is None):
            return result
        factors = [1] * (w.ndim + 1)
        factors[0], factors[axis + 1] = groups, -1

        def scaled(scale: Array, shift: Array) -> str:
            # scale * (W x + b) + shift is the product by W * scale with the bias b * scale + shift.
            grouped = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
            product = (grouped * scale.reshape(factors)).reshape(w.shape)
            moved = shift if b is None else shift + b.reshape(-1) * scale
            return write(self.tensor(product.astype(w.dtype)), self.tensor(moved.astype(w.dtype)))

        self.scaling[result] = scaled
        return result

    def scaled_channels(self, x: str, scale: Array, shift: Array, is_only: bool) -> str:
        """Scale and shift the channels of an image, in the weights of its product where possible.

        Parameters
        ----------
        x : str
            Tensor [n, c, …].
        scale, shift : array of float64
            Vectors [c].
        is_only : bool
            Whether this operator alone reads ``x``, so that its product may be rewritten.
        """
        rewritten = self.scaling.get(x) if is_only else None
        if rewritten is not None:
            return rewritten(scale, shift)
        dtype, rank = self.dtype(x), len(self.shape(x))
        # Compiled code rounds this once; in float32 the definition does too.
        total = apply("fma", X, Y, Z) if dtype == "float32" else add(mul(X, Y), Z)
        # Vectors of float32 keep their digits where the image has less than that.
        vector_type = "float64" if dtype == "float64" else "float32"
        vectors = (self.channels(self.tensor(v, vector_type), rank) for v in (scale, shift))
        return self.elementwise(total, x, *vectors)

    def pooled(
        self,
        operation: str,
        x: str,
        window: Window,
        *,
        ceil_mode: bool = False,
        counts_padding: bool = False,
    ) -> str:
        """Emit the pooling of the last axes of a tensor.

        Parameters
        ----------
        operation : str
            ``max`` or ``mean``.
        x : str
            The tensor.
        window : Window
            One number for each of the pooled axes.
        ceil_mode : bool
            Whether the number of windows is rounded up (:meth:`Window.rounded_up`).
        counts_padding : bool
            Whether a mean counts the elements of the padding.
        """
        axes, shape = len(window.taps), self.shape(x)
        moving = window.rounded_up(shape[-axes:]) if ceil_mode else window
        if counts_padding and moving != window:
            # The model's own padding counts, what rounding up adds to it does not.
            none, lead = (0,) * axes, (0,) * (len(shape) - axes)
            x = self.emit(Pad((*lead, *window.before), (*lead, *window.after)), x)
            after = tuple(a - b for a, b in zip(moving.after, window.after, strict=True))
            moving, counts_padding = replace(window, before=none, after=after), False
        kind = moving.pool(operation, counts_padding=counts_padding)
        return self.emit(kind, x)

    def log_sum_exp(self, x: str, axes: Sequence[int], shape: Sequence[int]) -> str:
        """Emit the logarithm of a sum of exponentials over axes, in a shape, without overflow."""
        if not axes:
            return x
        # log sum exp(x) = m + log sum exp(x - m), in which no power exceeds 1.
        largest = self.emit(Reduce("max", tuple(axes), True), x)
        # An infinite maximum is not subtracted: the difference of infinities would be NaN.
        finite = less(apply("abs", X), math.inf)
        largest = self.elementwise(where(finite, X, 0.0), largest)
        powers = self.elementwise(apply("exp", sub(X, Y)), x, largest)
        total = self.emit(Reduce("sum", tuple(axes), True), powers)
        result = self.elementwise(add(apply("log", X), Y), total, largest)
        return self.reshaped(result, shape)

    def cumulated(
        self, operation: str, x: str, axis: int, *, exclusive: bool = False, reverse: bool = False
    ) -> str:
        """Emit running sums, products, maxima or minima.

        Parameters
        ----------
        operation : str
            An operation of :class:`Scan`.
        x : str
            The tensor.
        axis : int
            Axis along which it runs.
        exclusive, reverse : bool
            Whether a result leaves out its last element, and whether it runs from the end.
        """
        return self.emit(Scan(operation, axis, exclusive, reverse), x)

    def group_normalized(
        self, x: str, groups: int, epsilon: float, scale: str | None, bias: str | None
    ) -> str:
        """Normalize each group of channels of each image, then scale and shift the channels.

        Parameters
        ----------
        x : str
            Tensor [n, c, …].
        groups : int
            Number of groups.
        epsilon : float
            Added to the variance.
        scale, bias : str or None
            Tensors [c]; None leaves the step out.

        Raises
        ------
        WorkloadError
            For a number of groups that does not divide the channels.
        """
        shape = self.shape(x)
        if 0 in shape:
            return x
        if groups < 1 or shape[1] % groups:
            raise WorkloadError(f"{shape[1]} channels in {groups} groups: choose a divisor")
        # A layer normalization of each group's elements as a row, whose own factors are neutral.
        size = math.prod(shape[1:]) // groups
        ones, zeros = (self.tensor(np.full(size, value, np.float32)) for value in (1, 0))
        rows = self.reshaped(x, (shape[0], groups, size))
        x = self.reshaped(self.emit(LayerNorm(2, epsilon), rows, ones, zeros), shape)
        for operation, vector in ((mul, scale), (add, bias)):
            if vector is not None:
                x = self.elementwise(operation(X, Y), x, self.channels(vector, len(shape)))
        return x


def shape_without_elements(
    form: Callable[..., Form], first: Sequence[int], second: Sequence[int], **options: Any
) -> tuple[int, ...]:
    """Return the shape of a product one of whose factors has no elements.

    Parameters
    ----------
    form : callable
        Returns the computation of two shapes.
    first, second : sequence of int
        Shapes of the factors.
    **options
        Keywords of ``form``.
    """
    if form is matrix_product:
        b = np.zeros(second, np.int8)
        b = np.swapaxes(b, -1, -2) if options.get("transposed") and b.ndim > 1 else b
        try:
            return np.matmul(np.zeros(first, np.int8), b).shape
        except ValueError:
            raise WorkloadError(f"a product of {list(first)} and {list(second)}") from None
    if 0 in (*first[1:], *second):
        raise WorkloadError(f"images {list(first)} under filters {list(second)} without elements")
    return (0, *form((1, *first[1:]), second, **options).shape[1:])
