"""Libraries that x86 kernels are compared with, and layers as such libraries describe them."""

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


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """Convolution of an image with two or three axes; with one axis, the first has extent 1.

    ``channels`` and ``filters`` are the numbers in one group. Sizes by axis are outermost first,
    ``pad`` is on either side. ``blocks`` are the channels in a block of the image and of the output
    in the layout of ``workload``, 1 without blocks.
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
        """Return the image as ``[n, *image, groups * channels]``, contiguous."""
        channels = self.groups * self.channels
        shape = (self.batch, *self.image, channels)
        if self.channels_last:
            return np.ascontiguousarray(inputs["I"].reshape(shape))
        blocked = inputs["I"].reshape(self.batch, -1, *self.image, self.blocks[0])
        return np.ascontiguousarray(np.moveaxis(blocked, 1, -2).reshape(shape))

    def weights(self, inputs: Arrays) -> Array:
        """Return the weights as ``[groups * filters, channels, *window]``."""
        filters = self.groups * self.filters
        if not self.channels_last:
            return inputs["W"].reshape(filters, self.channels, *self.window)
        last = inputs["W"].reshape(filters, *self.window, self.channels)
        return np.ascontiguousarray(np.moveaxis(last, -1, 1))

    def result(self, output: Array) -> Array:
        """Return ``[n, groups * filters, *output]`` as the workload's output."""
        if self.channels_last:
            output = np.moveaxis(output, 1, -1)
        elif self.blocks[1] > 1:
            # Blocks of channels are innermost: [n, channels / block, *output, block].
            batch, _, *image = output.shape
            output = np.moveaxis(output.reshape(batch, -1, self.blocks[1], *image), 2, -1)
        return output.reshape(self.workload.output.shape)


@dataclass(frozen=True)
class BatchedProduct:
    """Matrix products ``[b,m,n] += [b,m,k] * [b,k,n]``.

    The last two axes of a transposed factor are swapped in memory.
    """

    workload: Computation
    left_transposed: bool
    right_transposed: bool

    def result(self, output: Array) -> Array:
        """Return an output as the workload's."""
        return output.reshape(self.workload.output.shape)


@dataclass(frozen=True, kw_only=True)
class Product:
    """Matrix product ``[m,n] += [m,k] * [k,n]``; transposed factors as in a batched one."""

    workload: Computation
    m: int
    n: int
    k: int
    left_transposed: bool
    right_transposed: bool

    def left(self, inputs: Arrays) -> Array:
        """Return the first factor as ``[m,k]``, contiguous."""
        if not self.left_transposed:
            return inputs["A"].reshape(self.m, self.k)
        return np.ascontiguousarray(inputs["A"].reshape(self.k, self.m).T)

    def right(self, inputs: Arrays) -> Array:
        """Return the second factor as ``[k,n]``, contiguous."""
        # A vector of gemv gets its one column here.
        if not self.right_transposed:
            return inputs["B"].reshape(self.k, self.n)
        return np.ascontiguousarray(inputs["B"].reshape(self.n, self.k).T)

    def result(self, output: Array) -> Array:
        """Return an output as the workload's."""
        return output.reshape(self.workload.output.shape)


Problem = Convolution | Product | BatchedProduct


def problem_of(subject: Subject) -> Problem | NotCovered:
    """Return the problem of a layer, if libraries have its operator."""
    create = _PROBLEMS.get(subject.operator)
    return NotCovered(f"no form of {subject.operator}") if create is None else create(subject)


def _convolution(subject: Subject, image: str, window: str) -> Convolution:
    """Return a convolution; ``image`` and ``window`` name the sizes of the axes."""
    sizes = subject.settings
    axes = len(image)
    # Libraries are called on images of two axes: a signal is an image of one row.
    missing_axes = (1,) if axes == 1 else ()

    def per_axis(name: str, default: int) -> Numbers:
        value = sizes[name]
        numbers = (value,) * axes if isinstance(value, int) else cast(Numbers, value)
        return (*(default for _ in missing_axes), *numbers)

    def extents(names: str) -> Numbers:
        return (*missing_axes, *(_size(subject, name) for name in names))

    # A depthwise convolution has a group for each channel, with ``m`` filters each.
    depthwise, layout = subject.operator == "depthwise", str(sizes.get("layout"))
    block = block_of(layout)
    multiplier = _size(subject, "m") if depthwise else 1
    return Convolution(
        workload=subject.workload,
        batch=_size(subject, "n"),
        groups=_size(subject, "c") if depthwise else _size(subject, "groups", 1),
        channels=1 if depthwise else _size(subject, "c"),
        filters=_size(subject, "m" if depthwise else "k"),
        image=extents(image),
        window=extents(window),
        pad=per_axis("pad", 0),
        stride=per_axis("stride", 1),
        dilation=per_axis("dilation", 1),
        channels_last=layout.endswith("C"),
        blocks=(block, block * multiplier if block > 1 else 1),
    )


def _product(subject: Subject) -> Product:
    # gemv is a product with a single column, and has no trans_b.
    return Product(
        workload=subject.workload,
        m=_size(subject, "m"),
        n=_size(subject, "n", 1),
        k=_size(subject, "k"),
        left_transposed=bool(subject.settings["trans_a"]),
        right_transposed=bool(subject.settings.get("trans_b", False)),
    )


def _batched(subject: Subject) -> BatchedProduct:
    flags = subject.settings
    return BatchedProduct(subject.workload, bool(flags["trans_a"]), bool(flags["trans_b"]))


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
