"""Layers as libraries know them: a convolution of an image with channels, or a matrix product."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cpembed.ir.computation import Computation
from cpembed.runtime.baselines import Arrays, NotCovered, Subject
from cpembed.workloads.convolutions import block_of

Array = NDArray[Any]
Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Convolution:
    """Two or three image axes (one axis is two, the first of extent 1), outermost first.

    ``channels`` and ``filters`` are those of one group, ``pad`` is on either side; ``blocks``
    are the numbers of channels in a block of the image and of the output, 1 where there are none.
    """

    workload: Computation
    batch: int
    groups: int
    channels: int
    filters: int
    image: Numbers
    window: Numbers
    pad: Numbers
    stride: Numbers
    dilation: Numbers
    channels_last: bool
    blocks: tuple[int, int] = (1, 1)

    def images(self, inputs: Arrays) -> Array:
        """The image, channels last and contiguous: ``[n, *image, groups * channels]``."""
        channels = self.groups * self.channels
        if self.channels_last:
            return np.ascontiguousarray(inputs["I"].reshape(self.batch, *self.image, channels))
        blocked = inputs["I"].reshape(self.batch, -1, *self.image, self.blocks[0])
        found = np.moveaxis(blocked, 1, -2).reshape(self.batch, *self.image, channels)
        return np.ascontiguousarray(found)

    def weights(self, inputs: Arrays) -> Array:
        """``[groups * filters, channels, *window]``."""
        filters = self.groups * self.filters
        if not self.channels_last:
            return inputs["W"].reshape(filters, self.channels, *self.window)
        last = inputs["W"].reshape(filters, *self.window, self.channels)
        return np.ascontiguousarray(np.moveaxis(last, -1, 1))

    def result(self, found: Array) -> Array:
        """``[n, groups * filters, *output]`` as the workload's output."""
        if self.channels_last:
            found = np.moveaxis(found, 1, -1)
        elif self.blocks[1] > 1:
            batch, _, *image = found.shape
            found = np.moveaxis(found.reshape(batch, -1, self.blocks[1], *image), 2, -1)
        return found.reshape(self.workload.output.shape)


@dataclass(frozen=True)
class BatchedProduct:
    """``[b,m,n] += [b,m,k] * [b,k,n]``; a transposed factor is stored with its last two axes
    exchanged.
    """

    workload: Computation
    left_transposed: bool
    right_transposed: bool

    def result(self, found: Array) -> Array:
        return found.reshape(self.workload.output.shape)


@dataclass(frozen=True)
class Product:
    """``[m,n] += [m,k] * [k,n]``."""

    workload: Computation
    m: int
    n: int
    k: int
    left_transposed: bool
    right_transposed: bool

    def left(self, inputs: Arrays) -> Array:
        """``[m,k]``, contiguous."""
        if not self.left_transposed:
            return inputs["A"].reshape(self.m, self.k)
        return np.ascontiguousarray(inputs["A"].reshape(self.k, self.m).T)

    def right(self, inputs: Arrays) -> Array:
        """``[k,n]``, contiguous."""
        if not self.right_transposed:
            return inputs["B"].reshape(self.k, self.n)
        return np.ascontiguousarray(inputs["B"].reshape(self.n, self.k).T)

    def result(self, found: Array) -> Array:
        return found.reshape(self.workload.output.shape)


Problem = Convolution | Product | BatchedProduct


def problem_of(subject: Subject) -> Problem | NotCovered:
    """The problem, of the operators that are one."""
    make = _PROBLEMS.get(subject.operator)
    return NotCovered(f"no form of {subject.operator}") if make is None else make(subject)


def _convolution(subject: Subject, image: str, window: str) -> Convolution:
    """``image`` and ``window`` name the sizes of the image axes, outermost first."""
    sizes = subject.settings
    axes = len(image)
    one_axis = axes == 1

    def each(name: str, absent: int) -> Numbers:
        """One number per image axis; ``absent`` for the axis that a row of pixels lacks."""
        value = sizes[name]
        numbers = (value,) * axes if isinstance(value, int) else cast(Numbers, value)
        return (absent, *numbers) if one_axis else numbers

    def extents(names: str) -> Numbers:
        numbers = tuple(_size(subject, name) for name in names)
        return (1, *numbers) if one_axis else numbers

    depthwise, layout = subject.operator == "depthwise", str(sizes.get("layout"))
    block = block_of(layout)
    more = _size(subject, "m") if depthwise else 1
    return Convolution(
        subject.workload,
        batch=_size(subject, "n"),
        groups=_size(subject, "c") if depthwise else _size(subject, "groups", 1),
        channels=1 if depthwise else _size(subject, "c"),
        filters=_size(subject, "m" if depthwise else "k"),
        image=extents(image),
        window=extents(window),
        pad=each("pad", 0),
        stride=each("stride", 1),
        dilation=each("dilation", 1),
        channels_last=layout.endswith("C"),
        blocks=(block, block * more if block > 1 else 1),
    )


def _product(subject: Subject) -> Product:
    """Of gemm, and of gemv as one with a single column."""
    flags = subject.settings
    return Product(
        subject.workload,
        m=_size(subject, "m"),
        n=_size(subject, "n", 1),
        k=_size(subject, "k"),
        left_transposed=bool(flags["trans_a"]),
        right_transposed=bool(flags.get("trans_b", False)),
    )


def _batched(subject: Subject) -> BatchedProduct:
    flags = subject.settings
    return BatchedProduct(
        subject.workload,
        left_transposed=bool(flags["trans_a"]),
        right_transposed=bool(flags["trans_b"]),
    )


def _size(subject: Subject, name: str, default: int | None = None) -> int:
    value = subject.settings.get(name, default)
    if not isinstance(value, int):
        raise TypeError(f"{subject.operator}: {name} is {value!r}")
    return value


_PROBLEMS: Mapping[str, Callable[[Subject], Problem]] = {
    "conv1d": lambda subject: _convolution(subject, "w", "s"),
    "conv2d": lambda subject: _convolution(subject, "hw", "rs"),
    "conv3d": lambda subject: _convolution(subject, "dhw", "trs"),
    "depthwise": lambda subject: _convolution(subject, "hw", "rs"),
    "gemm": _product,
    "gemv": _product,
    "batched_gemm": _batched,
}
