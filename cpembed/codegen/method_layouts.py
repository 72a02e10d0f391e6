"""The layouts between which a method's conversions move: images padded and with channels last,
windows as rows of a matrix, results as the product leaves them.

They are packed operands, so that whatever packs for a kernel converts for a method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cpembed.codegen.tile_transforms import pixels
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.methods.convolution import Convolution, Window
from cpembed.transform.methods.im2col import Im2col
from cpembed.transform.methods.winograd import Winograd
from cpembed.transform.program import PackedDimension, PackedOperand


def padded_image(method: Winograd) -> PackedOperand:
    """The image as its transform reads it: ``[g, n, pixels of each window, c]``, zeros around."""
    conv = method.convolution
    index = {
        window.output: IndexExpr.of([IndexTerm(window.output, window.stride)], window.first)
        if window.taps == 1
        else IndexExpr.of([IndexTerm(window.output)], window.first)
        for window in conv.windows
    }
    extents = {t.window.output: pixels(t) for t in method.tilings}
    names = [*conv.groups, *conv.samples, *extents, *conv.channels]
    return _image(conv, names, extents, index)


def window_matrix(method: Im2col) -> PackedOperand:
    """V of im2col."""
    conv = method.convolution
    index = {window.output: _read(window) for window in conv.windows}
    outputs = [window.output for window in conv.windows]
    taps = {window.tap: window.taps for window in conv.windows if window.tap}
    columns = [*taps, *conv.channels] if method.orders.last else [*conv.channels, *taps]
    rows = [*outputs, *columns] if method.orders.last else [*columns, *outputs]
    return _image(conv, [*conv.groups, *conv.samples, *rows], taps, index)


def weights(method: Winograd | Im2col) -> PackedOperand:
    """The weights as their transform reads them, ``[g, c, taps of each window, k]``, with zeros
    that fill the last piece; or U of im2col."""
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


def result(conv: Convolution, *, channels_last: bool) -> PackedOperand:
    """The output as a method leaves it: ``[g, n, outputs of each window, k]``, or with k before
    the outputs."""
    outputs = [window.output for window in conv.windows]
    last = [*outputs, *conv.filters] if channels_last else [*conv.filters, *outputs]
    names = [*conv.groups, *conv.samples, *last]
    source = conv.workload.access(conv.output.name).index
    return _operand(conv, conv.output.name, names, {}, source)


def _read(window: Window) -> IndexExpr:
    terms = [IndexTerm(window.output, window.stride)]
    terms += [IndexTerm(window.tap, window.dilation)] if window.tap else []
    return IndexExpr.of(terms, window.first)


def _image(
    conv: Convolution,
    names: Sequence[str],
    extents: Mapping[str, int],
    index: Mapping[str, IndexExpr],
) -> PackedOperand:
    """``index``: of the windows' dimensions, by their outputs."""
    access = conv.workload.access(conv.image.name).index
    source = [
        next((found for name, found in index.items() if name in given.iterators), given)
        for given in access
    ]
    return _operand(conv, conv.image.name, names, extents, source)


def _operand(
    conv: Convolution,
    name: str,
    names: Sequence[str],
    extents: Mapping[str, int],
    source: Sequence[IndexExpr],
) -> PackedOperand:
    operand, known = conv.workload.operand(name), {**conv.workload.extents, **extents}
    dimensions = tuple(PackedDimension(axis, known[axis]) for axis in names)
    access = tuple(IndexExpr.iterator(axis) for axis in names)
    return PackedOperand(name, operand.dtype, operand.shape, dimensions, tuple(source), access)
