"""Convolutions as parts around a product of matrices, and im2col, the rewrite that suits all.

A computation is read as a convolution (:func:`as_convolution`): its windows and the roles of its
axes.

>>> from cpembed.workloads.convolutions import conv2d
>>> conv = as_convolution(conv2d(n=2, c=3, h=8, w=9, k=4, r=3, s=3, pad=1, layout="NHWC"))
>>> conv.samples, conv.channels, conv.filters, [w.taps for w in conv.windows]
(('n',), ('c',), ('k',), [3, 3])

A method rewrites a convolution ``O += I * W`` into three parts around a product of matrices:

    V = image part of I      U = weights part of W (ahead of all calls)
    M = product of V and U   (a computation that is embedded like any other)
    O = output part of M
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation, Operand
from cpembed.ir.expression import Access, Operation
from cpembed.ir.index import IndexExpr
from cpembed.ir.parser import parse_computation

Array = NDArray[Any]

V, U, M = "V", "U", "M"
"""Names of every product's operands: from the image, from the weights, and the result."""


@dataclass(frozen=True)
class Window:
    """Dimension of the image that is read at ``stride * output + dilation * tap + first``.

    Parameters
    ----------
    output, tap : str
        Axes of the computation; ``tap`` is empty if there is only one.
    outputs, taps : int
        Their extents.
    stride, dilation : int
        Elements of the image from one output or tap to the next.
    first : int
        Element read by the first output under the first tap, below 0 with padding.
    size : int
        Elements of the image.
    turned : bool
        The filter has its last tap first.
    """

    output: str
    tap: str
    outputs: int
    taps: int
    stride: int
    dilation: int
    first: int
    size: int
    turned: bool = False

    @property
    def is_dense(self) -> bool:
        """True if neighbouring outputs and taps read neighbouring elements."""
        return self.stride == 1 and (self.dilation == 1 or self.taps == 1)


@dataclass(frozen=True)
class Convolution:
    """Computation ``O += I * W`` whose image I is read by windows.

    ``channels`` are summed over. Axes of each role are in the order of the computation's.
    """

    workload: Computation
    image: Operand
    weights: Operand
    output: Operand
    # By the operands that have the axis: all three, I and O, I and W, W and O.
    groups: tuple[str, ...]
    samples: tuple[str, ...]
    channels: tuple[str, ...]
    filters: tuple[str, ...]
    windows: tuple[Window, ...]

    def size(self, axes: Sequence[str]) -> int:
        """Return the number of points of some axes."""
        return math.prod(self.workload.extents[axis] for axis in axes)

    @property
    def channels_last(self) -> bool:
        """True if the image's fastest dimension is of channels.

        The lanes of a transform are then channels, else pixels.
        """
        last = self.workload.access(self.image.name).index[-1]
        return last.single_iterator in self.channels

    # ------------------------------------------------- arrays in one order of axes, and back again

    def image_array(self, image: Array) -> Array:
        """Return the image as ``[groups, samples, channels, one dimension a window ...]``."""
        order = [*self.groups, *self.samples, *self.channels, *self._outputs]
        sizes = [self.size(part) for part in (self.groups, self.samples, self.channels)]
        moved = image.transpose(_order(self._access(self.image), order))
        return moved.reshape(*sizes, *(w.size for w in self.windows))

    def weights_array(self, weights: Array) -> Array:
        """Return the weights as ``[groups, filters, channels, taps of each window ...]``.

        Turned filters are turned back.
        """
        access = self._access(self.weights)
        order = [*self.groups, *self.filters, *self.channels]
        order += [window.tap for window in self.windows if window.tap]
        moved = weights.transpose(_order(access, order))
        sizes = [self.size(part) for part in (self.groups, self.filters, self.channels)]
        taps = moved.reshape(*sizes, *(window.taps for window in self.windows))
        turned = [slice(None, None, -1 if window.turned else 1) for window in self.windows]
        return taps[(..., *turned)]

    def output_array(self, array: Array) -> Array:
        """Return ``[groups, samples, filters, outputs ...]`` in the layout of the computation."""
        order = [*self.groups, *self.samples, *self.filters, *self._outputs]
        array = array.reshape([self.workload.extents[axis] for axis in order])
        places = _order(self._access(self.output), order)
        return array.transpose([places.index(n) for n in range(len(places))])

    @property
    def _outputs(self) -> list[str]:
        return [window.output for window in self.windows]

    def _access(self, operand: Operand) -> Access:
        return self.workload.access(operand.name)


def _order(access: Access, axes: Sequence[str]) -> list[int]:
    """Return the dimension of each axis in an access."""
    return [next(n for n, i in enumerate(access.index) if axis in i.iterators) for axis in axes]


def as_convolution(workload: Computation) -> Convolution:
    """Return a computation as a convolution.

    Raises
    ------
    WorkloadError
        It has several statements, is no plain product-sum, or reads no operand by windows.
    """

    def rejected(reason: str) -> WorkloadError:
        return WorkloadError(f"{workload.name} is no convolution: {reason}")

    image, weights, output = _operands(workload, rejected)
    iterators = {name: workload.access(name).iterators for name in (image, weights, output)}
    windows = _windows(workload, image, weights, rejected)
    windowed = {name for window in windows for name in (window.output, window.tap)}
    # By the initials of the operands that have the axis.
    parts: dict[str, list[str]] = {"iwo": [], "io": [], "iw": [], "wo": []}
    letters = {image: "i", weights: "w", output: "o"}
    for axis in workload.extents:
        operands = "".join(letter for name, letter in letters.items() if axis in iterators[name])
        if axis in windowed:
            continue
        if operands not in parts:
            raise rejected(f"axis {axis} is in one operand only")
        parts[operands].append(axis)
    return Convolution(
        workload,
        workload.operand(image),
        workload.operand(weights),
        workload.operand(output),
        groups=tuple(parts["iwo"]),
        samples=tuple(parts["io"]),
        channels=tuple(parts["iw"]),
        filters=tuple(parts["wo"]),
        windows=windows,
    )


def _operands(
    workload: Computation, rejected: Callable[[str], WorkloadError]
) -> tuple[str, str, str]:
    """Return the names of the image, the weights and the output."""
    if len(workload.statements) != 1:
        raise rejected("it has several statements")
    statement = workload.statement
    value, reads = statement.value, statement.reads
    factors = value.args if isinstance(value, Operation) and value.op == "mul" else ()
    plain = len(factors) == 2 and all(isinstance(factor, Access) for factor in factors)
    if not plain or statement.reduction != "add" or reads[0].operand == reads[1].operand:
        raise rejected("it is not a sum of products of two operands")
    stored = workload.access(statement.store.operand).iterators
    images = [read for read in reads if any(_is_window(index, stored) for index in read.index)]
    if len(images) != 1:
        raise rejected("no operand, or more than one, is read by windows such as p + r")
    weights = reads[1] if images[0] is reads[0] else reads[0]
    return images[0].operand, weights.operand, statement.store.operand


def _is_window(index: IndexExpr, stored: Collection[str]) -> bool:
    """Return True if an index is more than an axis, and moves with an axis of the output."""
    return index.single_iterator is None and any(name in stored for name in index.iterators)


def _windows(
    workload: Computation, image: str, weights: str, rejected: Callable[[str], WorkloadError]
) -> tuple[Window, ...]:
    """Return the windows of the image, in the order of its dimensions."""
    stored = workload.access(workload.output.name).iterators
    filters = workload.access(weights).index
    windows: list[Window] = []
    for size, index in zip(
        workload.operand(image).shape, workload.access(image).index, strict=True
    ):
        if not _is_window(index, stored):
            if index.single_iterator is None:
                raise rejected(f"the index {index} of {image} has no output")
            continue
        outputs = [t for t in index.terms if t.iterator in stored]
        taps = [t for t in index.terms if t.iterator not in stored]
        if not index.is_affine or len(outputs) != 1 or len(taps) > 1:
            raise rejected(f"the index {index} of {image} is not of one output and one tap")
        tap = taps[0].iterator if taps else ""
        number = workload.extents[tap] if tap else 1
        turned = False
        for place in (i for i in filters if tap and tap in i.iterators):
            # Transposed convolutions index W by R-1-r: a filter rotated by 180 degrees.
            turned = place.coefficient(tap) == -1 and place.constant == number - 1
            if not turned and place.single_iterator != tap:
                raise rejected(f"the index {place} of {weights} is no tap")
        output = outputs[0]
        step = taps[0].coefficient if taps else 1
        if output.coefficient < 1 or step < 1:
            raise rejected(f"the index {index} of {image} goes backwards")
        windows.append(
            Window(
                output=output.iterator,
                tap=tap,
                outputs=workload.extents[output.iterator],
                taps=number,
                stride=output.coefficient,
                dilation=step,
                first=index.constant,
                size=size,
                turned=turned,
            )
        )
    return tuple(windows)


def with_zeros(array: Array, axis: int, before: int, extent: int) -> Array:
    """Return a range of an axis, extended by zeros where there are no elements.

    Parameters
    ----------
    array : array
        Array of any shape.
    axis : int
        Axis to cut.
    before : int
        Elements of the result before the axis's first; negative to skip some.
    extent : int
        Elements of the result.
    """
    # Not np.pad, because a window may also begin or end inside the array.
    place = np.arange(extent) - before
    inside = (place >= 0) & (place < array.shape[axis])
    elements = np.take(array, np.clip(place, 0, array.shape[axis] - 1), axis)
    shape = [1] * array.ndim
    shape[axis] = extent
    return np.where(inside.reshape(shape), elements, np.zeros((), array.dtype))


# ---------------------------------------------------------------------------------------- rewrites


@dataclass(frozen=True)
class Orders:
    """Index order of the product's operands.

    If ``last``, channels and filters are the fastest: image [.., x, c], weights [.., c, k], result
    [.., x, k]. Else pixels are: [.., c, x], [.., k, c], [.., k, x].
    """

    last: bool

    def statement(self, image: str, weights: str) -> str:
        """Return the product with leading indices, such as ``e,``, of the image and the weights."""
        if self.last:
            return f"M[{image}x,k] += V[{image}x,c] * U[{weights}c,k]"
        return f"M[{image}k,x] += U[{weights}k,c] * V[{image}c,x]"

    def image(self, array: Array) -> Array:
        """Return V from ``[.., x, c]``."""
        return array if self.last else array.swapaxes(-1, -2)

    def weights(self, array: Array) -> Array:
        """Return U from ``[.., k, c]``."""
        return array.swapaxes(-1, -2) if self.last else array

    def result(self, array: Array) -> Array:
        """Return ``[.., x, k]`` from M."""
        return array if self.last else array.swapaxes(-1, -2)


class Rewritten(ABC):
    """Convolution as parts around a product; every part maps arrays in their own layouts."""

    convolution: Convolution
    product: Computation
    orders: Orders

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the method as users request it."""

    @abstractmethod
    def image_part(self, image: Array) -> Array:
        """Return V from I."""

    @abstractmethod
    def weights_part(self, weights: Array) -> Array:
        """Return U from W: weights do not change between calls."""

    @abstractmethod
    def output_part(self, result: Array) -> Array:
        """Return O from M, in the layout and the element type of the workload."""

    @property
    def relative_multiplications(self) -> float:
        """Multiplications relative to the convolution's, padding of tiles included."""
        return self.product.macs / self.convolution.workload.macs

    def computed(
        self, inputs: Mapping[str, Array], multiply: Callable[[Array, Array], Array]
    ) -> Array:
        """Return O from the workload's inputs by name; ``multiply`` computes M from V and U."""
        image = inputs[self.convolution.image.name]
        weights = inputs[self.convolution.weights.name]
        return self.output_part(multiply(self.image_part(image), self.weights_part(weights)))

    def multiplied(self, image: Array, weights: Array) -> Array:
        """Return M from V and U in numpy, in the arrays' arithmetic."""
        if image.ndim > weights.ndim:
            # V has an index of samples, which share the weights.
            weights = np.expand_dims(weights, -3)
        return image @ weights if self.orders.last else weights @ image


def product(
    statement: str, extents: Mapping[str, int], name: str, types: Mapping[str, str]
) -> Computation:
    """Return a product's computation, whose axes are the result's indices, then the reduction.

    Parameters
    ----------
    statement : str
        Product (:meth:`Orders.statement`).
    extents : mapping of str to int
        Extents by axis.
    name : str
        Name of the computation.
    types : mapping of str to str
        Element types by operand.
    """
    result = statement[2 : statement.index("]")].split(",")
    order = {axis: extents[axis] for axis in (*result, "c")}
    # V changes with every call, also where it is the second operand.
    return parse_computation(statement, order, name=name, dtypes=types, varying=(V,))


@dataclass(frozen=True)
class Im2col(Rewritten):
    """Convolution as a product of matrices, with an index c over taps and channels.

    With channels last, V is [g, x, c] with x over samples and outputs, and c over taps, then
    channels. Else V is [g, n, c, x] with c over channels, then taps, so that weights and output
    stay as they are. Indices of one group or one sample are left out.
    """

    convolution: Convolution
    product: Computation
    orders: Orders

    @property
    def name(self) -> str:
        return "explicit"

    def image_part(self, image: Array) -> Array:
        conv = self.convolution
        aligned = conv.image_array(image)
        rows: list[Array] = []
        for tap in itertools.product(*(range(window.taps) for window in conv.windows)):
            row = aligned
            # Dimensions 0 to 2 are g, n and c.
            for axis, (window, number) in enumerate(zip(conv.windows, tap, strict=True)):
                row = _read(row, 3 + axis, window, number)
            rows.append(row)
        # The rows are [taps, g, n, c, outputs], V is [g, n, outputs, taps, c] or [g, n, c, taps,
        # outputs].
        g, n, c = rows[0].shape[:3]
        stacked = np.stack(rows).reshape(len(rows), g, n, c, -1)
        order = (1, 2, 4, 0, 3) if self.orders.last else (1, 2, 3, 0, 4)
        return stacked.transpose(order).reshape(self.product.operand("V").shape)

    def weights_part(self, weights: Array) -> Array:
        aligned = self.convolution.weights_array(weights)
        g, k, c = aligned.shape[:3]
        rows = aligned.reshape(g, k, c, -1)
        if self.orders.last:
            rows = rows.transpose(0, 1, 3, 2)
        u = self.orders.weights(rows.reshape(g, k, -1))
        return u.reshape(self.product.operand("U").shape)

    def output_part(self, result: Array) -> Array:
        conv = self.convolution
        g, n, k = (conv.size(part) for part in (conv.groups, conv.samples, conv.filters))
        last = self.orders.last
        array = result.reshape(g, n, -1, k).swapaxes(2, 3) if last else result.reshape(g, n, k, -1)
        return conv.output_array(array.reshape(g, n, k, *(w.outputs for w in conv.windows)))


def explicit(workload: Computation, *, channels_last: bool | None = None) -> Im2col:
    """Return the explicit method: every window becomes a row of a matrix, then one product follows.

    Chellapilla, Puri and Simard, "High performance convolutional neural networks for document
    processing" (2006). It suits any convolution: strides, dilations, groups, any number of windows.
    ``channels_last`` defaults to the order of the image.

    >>> import numpy as np
    >>> from cpembed.ir.reference import reference
    >>> from cpembed.workloads.convolutions import conv2d
    >>> layer = conv2d(n=1, c=3, h=6, w=7, k=4, r=3, s=3, pad=1, stride=2)
    >>> method = explicit(layer)
    >>> str(method.product)
    'M[k, x] += (U[k, c] * V[c, x])'
    >>> I = np.arange(126, dtype=np.int8).reshape(1, 3, 6, 7)
    >>> W = np.ones((4, 3, 3, 3), np.int8)
    >>> O = method.computed({"I": I, "W": W}, lambda v, u: u.astype(np.int32) @ v)
    >>> bool((O == reference(layer, {"I": I, "W": W})).all())
    True

    Raises
    ------
    WorkloadError
        The workload is no convolution.
    """
    conv = as_convolution(workload)
    orders = Orders(conv.channels_last if channels_last is None else channels_last)
    outputs = math.prod(window.outputs for window in conv.windows)
    taps = math.prod(window.taps for window in conv.windows)
    groups, samples = conv.size(conv.groups), conv.size(conv.samples)
    group = "g," if groups > 1 else ""
    # With channels last, samples and pixels are neighbours and become one index x. With channels
    # first, c lies between them, so the product is batched over samples instead.
    sample = "n," if samples > 1 and not orders.last else ""
    x = outputs * (samples if orders.last else 1)
    k, c = conv.size(conv.filters), conv.size(conv.channels) * taps
    extents = {"g": groups, "n": samples, "x": x, "k": k, "c": c}
    types = {"V": conv.image.dtype, "U": conv.weights.dtype, "M": conv.output.dtype}
    statement = orders.statement(group + sample, group)
    return Im2col(conv, product(statement, extents, f"{workload.name}_im2col", types), orders)


def _read(image: Array, axis: int, window: Window, tap: int) -> Array:
    """Return the elements that the outputs of a window read under a tap."""
    first = window.first + window.dilation * tap
    reach = window.stride * (window.outputs - 1) + 1
    padded = with_zeros(image, axis, -first, reach)
    return padded[(slice(None),) * axis + (slice(None, None, window.stride),)]
