"""Layouts of what the methods of a convolution read and write.

Packed operands are what an image, weights and an output are converted to, by the kernels that also
pack for products. :class:`TensorMemory` is memory as it is: transforms work on vectors of channels,
which have to be neighbours; the other dimensions may lie in any order, and an image or output may
be part of a larger buffer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cpembed.ir.index import IndexExpr, IndexTerm, row_major_strides
from cpembed.transform.methods.convolution import Convolution, Im2col, Window
from cpembed.transform.methods.winograd import Tiling, Winograd
from cpembed.transform.program import PackedDimension, PackedOperand


@dataclass(frozen=True)
class TensorMemory:
    """Position of an image or an output in a flat buffer.

    Attributes
    ----------
    elements : int
        Elements of the buffer, a halo included.
    sample, group : int
        Distances between neighbouring samples, and between the first channels of two groups.
    pixels : tuple of int
        Distance between neighbours along each window.
    offset : int
        Position of the tensor's first element.
    halo : tuple of int
        Pixels on both sides of each window that hold the padding and may be read; none if empty.
    block : int
        Channels per block, which are neighbours; 0 if all channels of a group are.
    block_stride : int
        Distance between blocks.
    """

    elements: int
    sample: int
    group: int
    pixels: tuple[int, ...]
    offset: int = 0
    halo: tuple[int, ...] = ()
    block: int = 0
    block_stride: int = 0

    @classmethod
    def channels_last(
        cls, groups: int, samples: int, pixels: Sequence[int], channels: int
    ) -> TensorMemory:
        """Return the memory of ``[g, n, pixels of each window, c]``.

        Parameters
        ----------
        groups, samples, channels : int
            Extents.
        pixels : sequence of int
            Extent of each window.
        """
        shape = groups, samples, *pixels, channels
        group, sample, *strides, _ = row_major_strides(shape)
        return cls(math.prod(shape), sample, group, tuple(strides))

    def channel(self, name: str) -> str:
        """Return the position of a channel of group g, relative to the first one of that group."""
        if not self.block:
            return name
        return f"{name} // {self.block} * {self.block_stride} + {name} % {self.block}"


@dataclass(frozen=True)
class ImageTiles:
    """Pixels that the tiles of an image read.

    Attributes
    ----------
    steps, first : tuple of int
        By window: pixels from one tile to the next, and the first pixel of the first tile, which is
        negative in padding.
    inside : tuple of (int, int)
        By window: pixels that exist, the second excluded.
    padding : int, default 0
        Value of the others.
    """

    memory: TensorMemory
    steps: tuple[int, ...]
    first: tuple[int, ...]
    inside: tuple[tuple[int, int], ...]
    padding: int = 0

    @classmethod
    def of_padded(cls, method: Winograd) -> ImageTiles:
        """Return those of an image that is padded for the method, in which no tile is special."""
        conv, tilings = method.convolution, method.tilings
        sizes = tuple(map(padded_pixels, tilings))
        groups, samples, channels = map(conv.size, (conv.groups, conv.samples, conv.channels))
        memory = TensorMemory.channels_last(groups, samples, sizes, channels)
        steps = tuple(tiling.form.outputs for tiling in tilings)
        return cls(memory, steps, (0,) * len(sizes), tuple((0, size) for size in sizes))

    @classmethod
    def in_place(cls, method: Winograd, memory: TensorMemory, padding: int = 0) -> ImageTiles:
        """Return those of an image where it lies.

        Parameters
        ----------
        method : Winograd
        memory : TensorMemory
            Memory of the image.
        padding : int, default 0
            Value of pixels that do not exist, those of the halo included.
        """
        windows = [tiling.window for tiling in method.tilings]
        halo = memory.halo or (0,) * len(windows)
        return cls(
            memory,
            steps=tuple(t.form.outputs * t.window.stride for t in method.tilings),
            first=tuple(window.first for window in windows),
            inside=tuple((-h, w.size + h) for h, w in zip(halo, windows, strict=True)),
            padding=padding,
        )


def padded_pixels(tiling: Tiling) -> int:
    """Return the number of pixels that all tiles of a window read."""
    # Of a window of one tap, only those that its outputs read: F(1, 1) has one multiplication.
    form = tiling.form
    last = (tiling.count - 1) * form.outputs + (tiling.pieces - 1) * form.taps
    return last + form.multiplications


# ---------------------------------------------------------------------------------- packed operands


def padded_image(method: Winograd) -> PackedOperand:
    """Return the image as its transform reads it: ``[g, n, pixels of each window, c]``."""
    conv = method.convolution
    index = {
        window.output: IndexExpr.sum(
            [IndexTerm(window.output, window.stride if window.taps == 1 else 1)], window.first
        )
        for window in conv.windows
    }
    extents = {t.window.output: padded_pixels(t) for t in method.tilings}
    names = [*conv.groups, *conv.samples, *extents, *conv.channels]
    return _image(conv, names, extents, index)


def window_matrix(method: Im2col) -> PackedOperand:
    """Return the layout of im2col's matrix V, which has the taps and channels of each window."""
    conv = method.convolution
    index = {window.output: _read(window) for window in conv.windows}
    outputs = [window.output for window in conv.windows]
    taps = {window.tap: window.taps for window in conv.windows if window.tap}
    columns = [*taps, *conv.channels] if method.orders.last else [*conv.channels, *taps]
    rows = [*outputs, *columns] if method.orders.last else [*columns, *outputs]
    return _image(conv, [*conv.groups, *conv.samples, *rows], taps, index)


def stacked_windows(conv: Convolution) -> PackedOperand:
    """Return the windows of an image side by side: ``[n, outputs, g, taps, c]``."""
    taps = {window.tap: window.taps for window in conv.windows if window.tap}
    outputs = [window.output for window in conv.windows]
    names = [*conv.samples, *outputs, *conv.groups, *taps, *conv.channels]
    return _image(conv, names, taps, {window.output: _read(window) for window in conv.windows})


def weights_layout(method: Winograd | Im2col) -> PackedOperand:
    """Return the weights as Winograd's transform reads them, or U of im2col.

    The former are ``[g, c, taps of each window, k]``, with zeros that fill the last piece.
    """
    conv = method.convolution
    taps = {window.tap: window.taps for window in conv.windows if window.tap}
    if isinstance(method, Winograd):
        taps = {t.window.tap: t.pieces * t.form.taps for t in method.tilings if t.window.tap}
        names = [*conv.groups, *conv.channels, *taps, *conv.filters]
    elif method.orders.last:
        names = [*conv.groups, *taps, *conv.channels, *conv.filters]
    else:
        names = [*conv.groups, *conv.filters, *conv.channels, *taps]
    source = conv.workload.access(conv.weights.name).index
    return _operand(conv, conv.weights.name, names, taps, source)


def result_layout(conv: Convolution, *, channels_last: bool) -> PackedOperand:
    """Return the output as a method leaves it.

    It is ``[g, n, outputs of each window, k]``, or has k before the outputs.
    """
    outputs = [window.output for window in conv.windows]
    last = [*outputs, *conv.filters] if channels_last else [*conv.filters, *outputs]
    names = [*conv.groups, *conv.samples, *last]
    source = conv.workload.access(conv.output.name).index
    return _operand(conv, conv.output.name, names, {}, source)


def _read(window: Window) -> IndexExpr:
    terms = [IndexTerm(window.output, window.stride)]
    terms += [IndexTerm(window.tap, window.dilation)] if window.tap else []
    return IndexExpr.sum(terms, window.first)


def _image(
    conv: Convolution,
    names: Sequence[str],
    extents: Mapping[str, int],
    index: Mapping[str, IndexExpr],
) -> PackedOperand:
    """Return a layout of the image; ``index`` has those of the windows by their outputs."""
    source = [
        next((windowed for name, windowed in index.items() if name in access.iterators), access)
        for access in conv.workload.access(conv.image.name).index
    ]
    return _operand(conv, conv.image.name, names, extents, source)


def _operand(
    conv: Convolution,
    name: str,
    names: Sequence[str],
    extents: Mapping[str, int],
    source: Sequence[IndexExpr],
) -> PackedOperand:
    operand, extent_of = conv.workload.operand(name), {**conv.workload.extents, **extents}
    return PackedOperand(
        name=name,
        dtype=operand.dtype,
        original_shape=operand.shape,
        dimensions=tuple(PackedDimension(axis, extent_of[axis]) for axis in names),
        source=tuple(source),
        access=tuple(map(IndexExpr.iterator, names)),
    )
