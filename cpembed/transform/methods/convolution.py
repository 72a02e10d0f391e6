"""What a computation is as a convolution: its windows, and the parts that its other axes play.

>>> from cpembed.workloads.convolutions import conv2d
>>> found = as_convolution(conv2d(n=2, c=3, h=8, w=9, k=4, r=3, s=3, pad=1, layout="NHWC"))
>>> found.samples, found.channels, found.filters, [w.taps for w in found.windows]
(('n',), ('c',), ('k',), [3, 3])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation, Operand
from cpembed.ir.expression import Access, Operation
from cpembed.ir.index import IndexExpr

Array = NDArray[Any]


@dataclass(frozen=True)
class Window:
    """A dimension of the image that is read at ``stride * output + dilation * tap + first``.

    ``output`` and ``tap`` are axes (``tap`` empty where there is none: one tap), ``outputs`` and
    ``taps`` their extents, ``size`` the elements of the image; ``first`` is below 0 with padding. A
    ``turned`` filter has its last tap first.
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
        """Whether neighbouring outputs and taps read neighbouring elements."""
        return self.stride == 1 and (self.dilation == 1 or self.taps == 1)


@dataclass(frozen=True)
class Convolution:
    """A computation ``O += I * W`` whose image I is read by windows.

    The other axes by where they are: ``groups`` in all three operands, ``samples`` in I and O,
    ``filters`` in W and O, ``channels`` in I and W (they are summed over). Each is in the order of
    the computation's axes; ``image``, ``weights`` and ``output`` are the operands.
    """

    workload: Computation
    image: Operand
    weights: Operand
    output: Operand
    groups: tuple[str, ...]
    samples: tuple[str, ...]
    channels: tuple[str, ...]
    filters: tuple[str, ...]
    windows: tuple[Window, ...]

    def size(self, axes: Sequence[str]) -> int:
        """Points of some axes together."""
        return math.prod(self.workload.extents[axis] for axis in axes)

    @property
    def channels_last(self) -> bool:
        """Whether the image's fastest dimension is of channels: a transform's lanes are then
        channels, else pixels."""
        last = self.workload.access(self.image.name).index[-1]
        return last.single_iterator in self.channels

    # ------------------------------------------------- arrays in one order of axes, and back again

    def image_array(self, image: Array) -> Array:
        """The image as ``[groups, samples, channels, one dimension a window ...]``."""
        order = [*self.groups, *self.samples, *self.channels, *self._outputs]
        sizes = [self.size(part) for part in (self.groups, self.samples, self.channels)]
        moved = image.transpose(_order(self._access(self.image), order))
        return moved.reshape(*sizes, *(w.size for w in self.windows))

    def weights_array(self, weights: Array) -> Array:
        """The weights as ``[groups, filters, channels, taps of each window ...]``, turned filters
        turned back."""
        access = self._access(self.weights)
        order = [*self.groups, *self.filters, *self.channels]
        order += [window.tap for window in self.windows if window.tap]
        moved = weights.transpose(_order(access, order))
        sizes = [self.size(part) for part in (self.groups, self.filters, self.channels)]
        whole = moved.reshape(*sizes, *(window.taps for window in self.windows))
        turned = [slice(None, None, -1 if window.turned else 1) for window in self.windows]
        return whole[(..., *turned)]

    def output_array(self, found: Array) -> Array:
        """An output given as ``[groups, samples, filters, outputs of each window ...]`` in the
        layout of the computation."""
        order = [*self.groups, *self.samples, *self.filters, *self._outputs]
        whole = found.reshape([self.workload.extents[axis] for axis in order])
        places = _order(self._access(self.output), order)
        return whole.transpose([places.index(n) for n in range(len(places))])

    @property
    def _outputs(self) -> list[str]:
        return [window.output for window in self.windows]

    def _access(self, operand: Operand) -> Access:
        return self.workload.access(operand.name)


def _order(access: Access, axes: Sequence[str]) -> list[int]:
    """The dimension of each axis in an access."""
    return [next(n for n, i in enumerate(access.index) if axis in i.iterators) for axis in axes]


def as_convolution(workload: Computation) -> Convolution:
    """The parts of a computation as a convolution.

    Raises :class:`WorkloadError`, in one line, where it is none: several statements, no plain
    product-sum, or no operand that is read by windows.
    """

    def refuse(why: str) -> WorkloadError:
        return WorkloadError(f"{workload.name} is no convolution: {why}")

    image, weights, output = _operands(workload, refuse)
    seen = {name: _iterators(workload, name) for name in (image, weights, output)}
    windows = _windows(workload, image, weights, refuse)
    taken = {name for window in windows for name in (window.output, window.tap)}
    parts: dict[str, list[str]] = {"iwo": [], "io": [], "iw": [], "wo": []}
    letters = {image: "i", weights: "w", output: "o"}
    for axis in workload.extents:
        where = "".join(letter for name, letter in letters.items() if axis in seen[name])
        if axis in taken:
            continue
        if where not in parts:
            raise refuse(f"axis {axis} is in one operand only")
        parts[where].append(axis)
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
    workload: Computation, refuse: Callable[[str], WorkloadError]
) -> tuple[str, str, str]:
    """Names of the image, the weights and the output."""
    if len(workload.statements) != 1:
        raise refuse("it has several statements")
    statement = workload.statement
    value, reads = statement.value, statement.reads
    factors = value.args if isinstance(value, Operation) and value.op == "mul" else ()
    plain = len(factors) == 2 and all(isinstance(factor, Access) for factor in factors)
    if not plain or statement.reduction != "add" or reads[0].operand == reads[1].operand:
        raise refuse("it is not a sum of products of two operands")
    stored = _iterators(workload, statement.store.operand)
    images = [read for read in reads if any(_is_window(index, stored) for index in read.index)]
    if len(images) != 1:
        raise refuse("no operand, or more than one, is read by windows such as p + r")
    other = reads[1] if images[0] is reads[0] else reads[0]
    return images[0].operand, other.operand, statement.store.operand


def _iterators(workload: Computation, operand: str) -> set[str]:
    return {name for index in workload.access(operand).index for name in index.iterators}


def _is_window(index: IndexExpr, stored: Collection[str]) -> bool:
    """Whether an index is more than an axis, and moves with an axis of the output."""
    return index.single_iterator is None and any(name in stored for name in index.iterators)


def _windows(
    workload: Computation, image: str, weights: str, refuse: Callable[[str], WorkloadError]
) -> tuple[Window, ...]:
    """The windows of the image, in the order of its dimensions."""
    stored = _iterators(workload, workload.output.name)
    filters = workload.access(weights).index
    found: list[Window] = []
    for size, index in zip(
        workload.operand(image).shape, workload.access(image).index, strict=True
    ):
        if not _is_window(index, stored):
            if index.single_iterator is None:
                raise refuse(f"the index {index} of {image} has no output")
            continue
        outputs = [t for t in index.terms if t.iterator in stored]
        taps = [t for t in index.terms if t.iterator not in stored]
        if not index.is_affine or len(outputs) != 1 or len(taps) > 1:
            raise refuse(f"the index {index} of {image} is not of one output and one tap")
        tap = taps[0].iterator if taps else ""
        number = workload.extents[tap] if tap else 1
        turned = False
        for place in (i for i in filters if tap and tap in i.iterators):
            turned = place.coefficient(tap) == -1 and place.constant == number - 1
            if not turned and place.single_iterator != tap:
                raise refuse(f"the index {place} of {weights} is no tap")
        output = outputs[0]
        step = taps[0].coefficient if taps else 1
        if output.coefficient < 1 or step < 1:
            raise refuse(f"the index {index} of {image} goes backwards")
        found.append(
            Window(
                output.iterator,
                tap,
                workload.extents[output.iterator],
                number,
                output.coefficient,
                step,
                index.constant,
                size,
                turned,
            )
        )
    return tuple(found)


def with_zeros(array: Array, axis: int, before: int, extent: int) -> Array:
    """``extent`` elements of an axis from ``before`` elements ahead of its first: zeros where there
    are none, and cut off where ``before`` is below 0."""
    place = np.arange(extent) - before
    inside = (place >= 0) & (place < array.shape[axis])
    taken = np.take(array, np.clip(place, 0, array.shape[axis] - 1), axis)
    shape = [1] * array.ndim
    shape[axis] = extent
    return np.where(inside.reshape(shape), taken, np.zeros((), array.dtype))
