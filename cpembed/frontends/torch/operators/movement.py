"""Operators that move elements: views, permutations, parts, padding, resizing, diagonals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from cpembed.frontends.expressions import X, Y, add, mul
from cpembed.frontends.indexed import scattered_rows
from cpembed.frontends.sampling import along_axis
from cpembed.frontends.torch.call import Call, Handler, Results, per_axis, table
from cpembed.graph.kinds import Concat, Gather, Reduce, Resize, Slice
from cpembed.graph.kinds.base import Array
from cpembed.ir.dtypes import is_integer

# -- views and permutations -----------------------------------------------------------------------


def _dropout(call: Call) -> Results:
    ratio, train = call["p"], call["train"]
    # native_dropout trains where its argument is None.
    if ratio and train is not False:
        call.reject("elements are dropped at random: call model.eval() before the export")
    return call.first_of(call["input"])


def _view(call: Call) -> str:
    # All of these keep the elements in their order: only the shape of the result matters.
    call.without_effect("start_dim", "end_dim", "dim", "other")
    return call.reshaped(call["self"], call.result.shape)


def _permute(call: Call) -> str:
    x = call["self"]
    return call.transposed(x, [call.axis(x, axis) for axis in call["dims"]])


def _exchanged(call: Call, first: int, second: int) -> str:
    x = call["self"]
    order = list(range(call.rank(x)))
    if order:
        a, b = call.axis(x, first), call.axis(x, second)
        order[a], order[b] = order[b], order[a]
    return call.transposed(x, order)


def _transpose(call: Call) -> str:
    names = ("dim0", "dim1") if call.get("dim0") is not None else ("axis0", "axis1")
    return _exchanged(call, call[names[0]], call[names[1]])


def _matrix_transpose(call: Call) -> str:
    return _exchanged(call, -2, -1) if call.rank(call["self"]) > 1 else call["self"]


def _move_axes(call: Call) -> str:
    x = call["self"]
    pairs = [per_axis(call[name], 1) for name in ("source", "destination")]
    source, destination = ([call.axis(x, axis) for axis in axes] for axes in pairs)
    rest = [axis for axis in range(call.rank(x)) if axis not in source]
    order = [
        source[destination.index(place)] if place in destination else rest.pop(0)
        for place in range(call.rank(x))
    ]
    return call.transposed(x, order)


def _expand(call: Call) -> str:
    call.without_effect("other")
    return call.expanded(call["self"], call.result.shape)


def _repeat(call: Call) -> str:
    counts = call.get("dims") if call.get("repeats") is None else call["repeats"]
    return call.repeated(call["self"], counts)


def _repeat_each(call: Call) -> str:
    x, count, axis = call["self"], call["repeats"], call["dim"]
    if axis is None:
        x, axis = call.reshaped(x, (math.prod(call.shape(x)),)), 0
    # Each element is an axis of its own, which is expanded.
    axis, shape = call.axis(x, axis) + 1, call.shape(x)
    x = call.reshaped(x, (*shape[:axis], 1, *shape[axis:]))
    x = call.expanded(x, (*shape[:axis], count, *shape[axis:]))
    return call.reshaped(x, call.result.shape)


def _copy(call: Call) -> str:
    """Emit the source in the shape and the type of the tensor that it is stored in."""
    source = call.cast(call["src"], call.result.dtype)
    call.without_effect("self")
    return call.expanded(source, call.result.shape)


def _flip(call: Call) -> str:
    x = call["self"]
    axes, shape = call.axes(x, call["dims"]), call.shape(x)
    if not call["dims"]:
        return x
    # A slice that runs backwards ends before element 0, at -1.
    ranges = [(size - 1, -1, -1) if k in axes else (0, size, 1) for k, size in enumerate(shape)]
    starts, stops, steps = zip(*ranges, strict=True)
    return call.emit(Slice(starts, stops, steps), x)


def _roll(call: Call) -> str:
    x, axes = call["self"], call["dims"]
    shape = call.shape(x)
    if not axes:
        x, axes = call.reshaped(x, (math.prod(shape),)), [0]
    for shift, dim in zip(call["shifts"], axes, strict=True):
        axis = call.axis(x, dim)
        size = call.shape(x)[axis]
        place = -shift % size if size else 0
        if place:
            ends = call.part(x, axis, place, size), call.part(x, axis, 0, place)
            x = call.emit(Concat(axis), *ends)
    return call.reshaped(x, shape)


# -- parts and joints -----------------------------------------------------------------------------


def _limits(call: Call, x: str, axis: int) -> tuple[int, int]:
    """Return ``start`` and ``end`` of a slice within the axis."""
    size = call.shape(x)[axis]
    start = call["start"] or 0
    stop = size if call["end"] is None else call["end"]
    low, high = (min(max(v + size if v < 0 else v, 0), size) for v in (start, stop))
    return low, max(low, high)


def _slice(call: Call) -> str:
    x, axis = call.along_dim()
    return call.part(x, axis, *_limits(call, x, axis), call["step"])


def _slice_scatter(call: Call) -> str:
    x, axis = call.along_dim()
    start, stop = _limits(call, x, axis)
    if call["step"] != 1:
        call.reject("elements are stored with gaps between them: store whole ranges")
    return _replaced(call, call["src"], axis, start, stop)


def _select_scatter(call: Call) -> str:
    x, axis = call.along_dim()
    index = call["index"] % call.shape(x)[axis]
    shape = [1 if k == axis else size for k, size in enumerate(call.shape(x))]
    return _replaced(call, call.reshaped(call["src"], shape), axis, index, index + 1)


def _replaced(call: Call, source: str, axis: int, start: int, stop: int) -> str:
    """Emit ``self`` with the source in the place of a slice."""
    x = call["self"]
    size = call.shape(x)[axis]
    parts = [call.cast(source, call.dtype(x))]
    if start:
        parts.insert(0, call.part(x, axis, 0, start))
    if stop < size:
        parts.append(call.part(x, axis, stop, size))
    return call.joined(parts, axis)


def _select(call: Call) -> str:
    x, axis = call.along_dim()
    index = call["index"] % call.shape(x)[axis]
    return call.reshaped(call.part(x, axis, index, index + 1), call.result.shape)


def _narrow(call: Call) -> str:
    x, axis = call.along_dim()
    start = call["start"] % call.shape(x)[axis]
    return call.part(x, axis, start, start + call["length"])


def _split(call: Call) -> tuple[str, ...]:
    """Emit parts of the sizes that the results have."""
    x, axis = call.along_dim()
    call.without_effect("indices")
    parts: list[str] = []
    start = 0
    for result in call.results:
        if result is None:
            call.reject("a part of a tensor is no tensor")
        stop = start + result.shape[axis]
        parts.append(call.part(x, axis, start, stop))
        start = stop
    return tuple(parts)


def _split_at(call: Call) -> tuple[str, ...]:
    call.constant(call["tensor_indices_or_sections"], "where a tensor is split")
    return _split(call)


def _unbind(call: Call) -> tuple[str, ...]:
    x, axis = call.along_dim()
    parts = (call.part(x, axis, k, k + 1) for k in range(call.shape(x)[axis]))
    return tuple(call.reshaped(part, call.result.shape) for part in parts)


def _cat(call: Call) -> str:
    # An empty vector is accepted whatever the rank of the other tensors.
    tensors = [x for x in call["tensors"] if call.shape(x) != (0,)]
    tensors = [call.cast(x, call.result.dtype) for x in tensors]
    return call.joined(tensors, call.axis(tensors[0], call["dim"]))


def _stack(call: Call) -> str:
    tensors = [call.cast(x, call.result.dtype) for x in call["tensors"]]
    axis = call["dim"] % len(call.result.shape)
    shape = list(call.result.shape)
    shape[axis] = 1
    return call.emit(Concat(axis), *(call.reshaped(x, shape) for x in tensors))


# -- images ---------------------------------------------------------------------------------------


def _pad(mode: str, argument: str) -> Handler:
    return lambda call: _padded(call, mode, call[argument])


def _padded(call: Call, mode: str, widths: Sequence[int], value: float = 0) -> str:
    """Pad ``self``; the widths stand before and after each axis, the last axis first."""
    x = call["self"]
    zeros = [0] * (call.rank(x) - len(widths) // 2)
    before, after = ([*zeros, *widths[side::2][::-1]] for side in (0, 1))
    return call.padded(x, before, after, mode, value)


def _constant_pad(call: Call) -> str:
    return _padded(call, "constant", call["pad"], call["value"])


def _pad_by_mode(call: Call) -> str:
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    return _padded(call, modes[call["mode"]], call["pad"], call["value"] or 0)


def _channel_shuffle(call: Call) -> str:
    x, groups = call["self"], call["groups"]
    n, c, *image = call.shape(x)
    grouped = call.reshaped(x, (n, groups, c // groups, *image))
    order = (0, 2, 1, *range(3, 3 + len(image)))
    return call.reshaped(call.transposed(grouped, order), call.result.shape)


def _scales(call: Call, axes: int) -> list[float | None]:
    """Return the scale factor of each image axis; None where the size is given."""
    names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}
    scales = [call.get(name) for name in names[axes]]
    return scales if call.get("scale_factors") is None else list(call["scale_factors"])


def _linear(call: Call, axes: int) -> str:
    x = call.get("input") or call["self"]
    if is_integer(call.dtype(x)):
        call.reject(f"a linear interpolation of {call.dtype(x)}: convert it to float32")
    sizes = call.shape(x)[-axes:], call.result.shape[-axes:]
    aligned, scales = bool(call.get("align_corners")), _scales(call, axes)
    for scale, size, result in zip(scales, *sizes, strict=True):
        if not aligned and scale is not None and abs(size * scale - result) > 1e-6:
            call.reject(
                f"an axis of {size} is resized by {scale}, which is no whole size: give "
                "the size, or recompute_scale_factor=True"
            )
    coordinates = "align_corners" if aligned else "half_pixel"
    return call.emit(Resize(sizes[1], "linear", coordinates), x)


def _nearest(call: Call, axes: int, offset: float) -> str:
    """Emit the nearest pixel of each pixel's corner, or of its middle (an ``offset`` of 0.5)."""
    x = call.get("input") or call["self"]
    image, sizes = call.shape(x)[-axes:], call.result.shape[-axes:]
    tables: list[Array] = []
    for scale, size, result in zip(_scales(call, axes), image, sizes, strict=True):
        # In float32, as PyTorch computes: coordinates may meet the border of a pixel.
        step = 1 / scale if scale else size / result
        coordinates = np.arange(result, dtype=np.float32) + np.float32(offset)
        places = np.floor(coordinates * np.float32(step)).astype(np.int64)
        tables.append(np.minimum(places, size - 1))
    # The kind of the graph is taken where it picks the same pixels.
    plain = Resize(sizes, "nearest", "asymmetric", "floor")
    pairs = zip(image, sizes, tables, strict=True)
    if all(np.array_equal(plain.indices(size, result), t) for size, result, t in pairs):
        return call.emit(plain, x)
    for axis, places in enumerate(tables, call.rank(x) - axes):
        x = call.emit(Gather(axis), x, call.tensor(places))
    return x


def _antialiased(call: Call, *, cubic: bool) -> str:
    """Emit a resize whose filter is as much wider as the image shrinks: two constant matrices."""
    x, aligned = call.get("input") or call["self"], bool(call["align_corners"])
    for k, scale in enumerate(_scales(call, 2)):
        axis = call.rank(x) - 2 + k
        size, result = call.shape(x)[axis], call.result.shape[axis]
        x = along_axis(call, x, axis, _filters(size, result, scale, aligned, cubic=cubic))
    return x


def _filters(size: int, result: int, scale: float | None, aligned: bool, *, cubic: bool) -> Array:
    """Return the weights [result, size] of an antialiased resize of an axis."""
    step = 1 / scale if scale and not aligned else size / result
    if aligned:
        step = (size - 1) / (result - 1) if result > 1 else 0.0
    spread = max(step, 1.0)
    # Centres of the results, in units of the input, from the edge of its first element.
    centres = step * (np.arange(result) + 0.5)
    distances = np.abs(np.arange(size)[None] + 0.5 - centres[:, None]) / spread
    if cubic:
        # Keys 1981, with the coefficient that PyTorch takes against aliasing.
        a = -0.5
        near = ((a + 2) * distances - (a + 3)) * distances**2 + 1
        far = a * (((distances - 5) * distances + 8) * distances - 4)
        weights = np.where(distances < 1, near, np.where(distances < 2, far, 0))
    else:
        weights = np.maximum(0, 1 - distances)
    return weights / weights.sum(1, keepdims=True)


# -- indices --------------------------------------------------------------------------------------


def _index_select(call: Call) -> str:
    x, index, axis = call["self"], call["index"], call["dim"]
    if not call.shape(x):
        # A scalar counts as a vector of one element.
        return call.emit(Gather(0), call.reshaped(x, (1,)), call.reshaped(index, ()))
    return call.emit(Gather(call.axis(x, axis)), x, index)


def _index(call: Call) -> str:
    """Emit advanced indexing."""
    x, indices = call["self"], call["indices"]
    shape = call.shape(x)
    indexed = [axis for axis, index in enumerate(indices) if index is not None]
    if any(call.dtype(indices[axis]) in ("bool", "uint8") for axis in indexed):
        call.reject(
            "a mask picks elements, so that their number is not known: multiply by it, or use where"
        )
    if len(indexed) == 1:
        return call.emit(Gather(indexed[0]), x, indices[indexed[0]])
    # As in numpy, the axes of the indices come first where the indexed axes are no neighbours.
    first = indexed[0]
    if indexed != list(range(first, first + len(indexed))):
        order = [*indexed, *(axis for axis in range(len(shape)) if axis not in indexed)]
        x, first = call.transposed(x, order), 0
    # The indexed axes are merged into one, from which elements are gathered by their number.
    sizes = [shape[axis] for axis in indexed]
    place = ""
    for k, axis in enumerate(indexed):
        index = call.from_front(indices[axis], shape[axis])
        step = math.prod(sizes[k + 1 :])
        if not place:
            place = call.elementwise(mul(X, step), index)
        else:
            place = call.elementwise(add(X, mul(Y, step)), place, index)
    moved = call.shape(x)
    merged = (*moved[:first], math.prod(sizes), *moved[first + len(sizes) :])
    return call.emit(Gather(first), call.reshaped(x, merged), place)


def _gather(call: Call) -> str:
    x, index = call["self"], call["index"]
    if not call.shape(x):
        return call.reshaped(x, call.shape(index))
    return call.gathered_elements(x, index, call.axis(x, call["dim"]))


def _gathered_numbers(call: Call, x: str, numbers: Array) -> str:
    return call.flat_gather(x, call.tensor(numbers.astype(np.int64)))


def _replaced_numbers(call: Call, x: str, numbers: Array, source: str) -> str:
    size = math.prod(call.shape(x))
    rows = call.reshaped(call.cast(source, call.dtype(x)), (numbers.size,))
    flat = call.reshaped(x, (size,))
    places = call.tensor(numbers.reshape(-1).astype(np.int64))
    return call.reshaped(scattered_rows(call, flat, places, rows), call.shape(x))


def _strided_numbers(call: Call) -> Array:
    """Return the numbers in memory that a view of sizes and strides has."""
    call.without_effect("stride")
    offset = call.get("storage_offset") or 0
    numbers = np.full(tuple(call["size"]), offset, np.int64)
    for k, coordinates in enumerate(np.indices(numbers.shape, sparse=True)):
        numbers = numbers + coordinates * call["stride"][k]
    if numbers.size and numbers.max() >= math.prod(call.shape(call["self"])):
        call.reject("a view beyond the elements of a tensor that is stored row by row")
    return numbers


def _as_strided(call: Call) -> str:
    return _gathered_numbers(call, call["self"], _strided_numbers(call))


def _as_strided_scatter(call: Call) -> str:
    return _replaced_numbers(call, call["self"], _strided_numbers(call), call["src"])


def _diagonal_numbers(call: Call) -> Array:
    x = call["self"]
    shape = call.shape(x)
    numbers = np.arange(math.prod(shape)).reshape(shape)
    return np.diagonal(numbers, call["offset"], call["dim1"], call["dim2"])


def _diagonal(call: Call) -> str:
    return _gathered_numbers(call, call["self"], _diagonal_numbers(call))


def _diagonal_scatter(call: Call) -> str:
    return _replaced_numbers(call, call["self"], _diagonal_numbers(call), call["src"])


def _trace(call: Call) -> Results:
    x = call["self"]
    shape = call.shape(x)
    numbers = np.diagonal(np.arange(math.prod(shape)).reshape(shape))
    diagonal = call.cast(_gathered_numbers(call, x, numbers), call.result.dtype)
    return call.emit(Reduce("sum", (0,), False), diagonal)


HANDLERS: Mapping[str, Handler] = table(
    {
        "clone contiguous alias detach lift positive resolve_conj resolve_neg": lambda call: call[
            "self"
        ],
        "view reshape _unsafe_view flatten.using_ints unflatten.int view_as reshape_as ravel "
        "unsqueeze squeeze.default|dim|dims view_copy atleast_1d atleast_2d _reshape_alias": _view,
        "dropout alpha_dropout feature_dropout feature_alpha_dropout native_dropout": _dropout,
        "permute permute_copy": _permute,
        "transpose.int swapaxes swapdims": _transpose,
        "t mT": _matrix_transpose,
        "numpy_T": lambda call: call.transposed(call["self"], range(call.rank(call["self"]))[::-1]),
        "movedim.intlist|int": _move_axes,
        "expand expand_as broadcast_to expand_copy": _expand,
        "repeat tile": _repeat,
        "repeat_interleave.self_int": _repeat_each,
        "copy": _copy,
        "flip": _flip,
        "roll": _roll,
        "slice.Tensor": _slice,
        "slice_scatter": _slice_scatter,
        "select.int": _select,
        "select_scatter": _select_scatter,
        "narrow narrow_copy": _narrow,
        "split.Tensor|sizes split_with_sizes chunk tensor_split.sections|indices": _split,
        "tensor_split.tensor_indices_or_sections": _split_at,
        "unbind.int unbind_copy.int": _unbind,
        "cat concat": _cat,
        "stack": _stack,
        "constant_pad_nd": _constant_pad,
        "pad": _pad_by_mode,
        "reflection_pad1d reflection_pad2d reflection_pad3d": _pad("reflect", "padding"),
        "replication_pad1d replication_pad2d replication_pad3d": _pad("edge", "padding"),
        "pixel_shuffle": lambda call: call.blocks_to_pixels(call["self"], call["upscale_factor"]),
        "pixel_unshuffle": lambda call: call.pixels_to_blocks(
            call["self"], call["downscale_factor"]
        ),
        "channel_shuffle": _channel_shuffle,
        "upsample_linear1d.default|vec": partial(_linear, axes=1),
        "upsample_bilinear2d.default|vec": partial(_linear, axes=2),
        "upsample_trilinear3d.default|vec": partial(_linear, axes=3),
        "_upsample_bilinear2d_aa.default|vec": partial(_antialiased, cubic=False),
        "_upsample_bicubic2d_aa.default|vec": partial(_antialiased, cubic=True),
        **{
            f"upsample_nearest{n}d.default|vec": partial(_nearest, axes=n, offset=0.0)
            for n in (1, 2, 3)
        },
        **{
            f"_upsample_nearest_exact{n}d.default|vec": partial(_nearest, axes=n, offset=0.5)
            for n in (1, 2, 3)
        },
        "embedding": lambda call: call.emit(Gather(0), call["weight"], call["indices"]),
        "index_select": _index_select,
        "index.Tensor _unsafe_index.Tensor": _index,
        "gather": _gather,
        "as_strided as_strided_copy": _as_strided,
        "as_strided_scatter": _as_strided_scatter,
        "diagonal diagonal_copy": _diagonal,
        "diagonal_scatter": _diagonal_scatter,
        "trace": _trace,
    }
)
