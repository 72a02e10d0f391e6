"""What moves elements: views, permutations, parts and joints of tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cpembed.frontends.movements import repeated
from cpembed.frontends.torch.call import Call, Handler, Results, per_axis
from cpembed.graph.kinds import Concat, Slice


def _same(call: Call) -> str:
    return call["self"]


def _dropout(call: Call) -> Results:
    share = call["p"]
    # native_dropout trains where it does not say.
    if call["train"] is not False and share:
        raise call.error("elements are dropped at random: call model.eval() before the export")
    return call.first_of(call["input"])


def _view(call: Call) -> str:
    call.in_result("start_dim", "end_dim", "dim", "other")
    return call.reshaped(call["self"], call.result.shape)


def _permute(call: Call) -> str:
    x = call["self"]
    return call.transposed(x, [call.axis(x, axis) for axis in call["dims"]])


def _exchange(call: Call, first: int, second: int) -> str:
    x = call["self"]
    order = list(range(len(call.shape(x))))
    if order:
        a, b = call.axis(x, first), call.axis(x, second)
        order[a], order[b] = order[b], order[a]
    return call.transposed(x, order)


def _transpose(call: Call) -> str:
    names = ("dim0", "dim1") if call.get("dim0") is not None else ("axis0", "axis1")
    return _exchange(call, call[names[0]], call[names[1]])


def _matrix_transpose(call: Call) -> str:
    return _exchange(call, -2, -1) if len(call.shape(call["self"])) > 1 else call["self"]


def _reversed_axes(call: Call) -> str:
    return call.transposed(call["self"], range(len(call.shape(call["self"])))[::-1])


def _move_axes(call: Call) -> str:
    x = call["self"]
    pairs = [per_axis(call[name], 1) for name in ("source", "destination")]
    source, destination = ([call.axis(x, axis) for axis in axes] for axes in pairs)
    rest = [axis for axis in range(len(call.shape(x))) if axis not in source]
    order = [
        source[destination.index(place)] if place in destination else rest.pop(0)
        for place in range(len(call.shape(x)))
    ]
    return call.transposed(x, order)


def _expand(call: Call) -> str:
    x, shape = call["self"], call.result.shape
    call.in_result("other")
    return call.expanded(x, shape)


def _repeat(call: Call) -> str:
    counts = call.get("dims") if call.get("repeats") is None else call["repeats"]
    return repeated(call, call["self"], counts)


def _repeat_each(call: Call) -> str:
    x, count, axis = call["self"], call["repeats"], call["dim"]
    if axis is None:
        x, axis = call.reshaped(x, (math.prod(call.shape(x)),)), 0
    axis, shape = call.axis(x, axis), list(call.shape(x))
    apart = [*shape[: axis + 1], 1, *shape[axis + 1 :]]
    whole = [*shape[: axis + 1], count, *shape[axis + 1 :]]
    return call.reshaped(call.expanded(call.reshaped(x, apart), whole), call.result.shape)


def _limits(call: Call, x: str, axis: int) -> tuple[int, int]:
    """``start`` and ``end`` of a slice, within the axis."""
    size = call.shape(x)[axis]
    start = call["start"] or 0
    stop = size if call["end"] is None else call["end"]
    low, high = (min(max(v + size if v < 0 else v, 0), size) for v in (start, stop))
    return low, max(low, high)


def _slice(call: Call) -> str:
    x = call["self"]
    axis = call.axis(x, call["dim"])
    start, stop = _limits(call, x, axis)
    return call.part(x, axis, start, stop, call["step"])


def _copy(call: Call) -> str:
    """The source in the shape and the type of what it is stored in."""
    source = call.cast(call["src"], call.result.dtype)
    call.in_result("self")
    return call.expanded(source, call.result.shape)


def _slice_scatter(call: Call) -> str:
    """The source in the place of a slice."""
    x, source = call["self"], call["src"]
    axis = call.axis(x, call["dim"])
    start, stop = _limits(call, x, axis)
    if call["step"] != 1:
        raise call.error("elements are stored with gaps between them: store whole ranges")
    return _replaced(call, x, source, axis, start, stop)


def _select_scatter(call: Call) -> str:
    x, source = call["self"], call["src"]
    axis = call.axis(x, call["dim"])
    index = call["index"] % call.shape(x)[axis]
    shape = [1 if k == axis else size for k, size in enumerate(call.shape(x))]
    return _replaced(call, x, call.reshaped(source, shape), axis, index, index + 1)


def _replaced(call: Call, x: str, source: str, axis: int, start: int, stop: int) -> str:
    size = call.shape(x)[axis]
    parts = [call.cast(source, call.dtype(x))]
    if start:
        parts.insert(0, call.part(x, axis, 0, start))
    if stop < size:
        parts.append(call.part(x, axis, stop, size))
    return parts[0] if len(parts) == 1 else call.emit(Concat(axis), *parts)


def _select(call: Call) -> str:
    x = call["self"]
    axis = call.axis(x, call["dim"])
    index = call["index"] % call.shape(x)[axis]
    return call.reshaped(call.part(x, axis, index, index + 1), call.result.shape)


def _narrow(call: Call) -> str:
    x = call["self"]
    axis = call.axis(x, call["dim"])
    start = call["start"] % call.shape(x)[axis]
    return call.part(x, axis, start, start + call["length"])


def _split(call: Call) -> tuple[str, ...]:
    """Parts of the sizes that the results have."""
    x = call["self"]
    call.in_result("indices")
    axis = call.axis(x, call["dim"])
    parts: list[str] = []
    start = 0
    for result in call.results:
        if result is None:
            raise call.error("a part of a tensor is no tensor")
        stop = start + result.shape[axis]
        parts.append(call.part(x, axis, start, stop))
        start = stop
    return tuple(parts)


def _unbind(call: Call) -> tuple[str, ...]:
    x = call["self"]
    axis = call.axis(x, call["dim"])
    shape = call.result.shape
    return tuple(
        call.reshaped(call.part(x, axis, k, k + 1), shape) for k in range(call.shape(x)[axis])
    )


def _cat(call: Call) -> str:
    # An empty vector is taken whatever the rank of the others.
    tensors = [x for x in call["tensors"] if call.shape(x) != (0,)]
    tensors = [call.cast(x, call.result.dtype) for x in tensors]
    axis = call.axis(tensors[0], call["dim"])
    return tensors[0] if len(tensors) == 1 else call.emit(Concat(axis), *tensors)


def _stack(call: Call) -> str:
    tensors = [call.cast(x, call.result.dtype) for x in call["tensors"]]
    axis = call["dim"] % len(call.result.shape)
    shape = list(call.result.shape)
    shape[axis] = 1
    return call.emit(Concat(axis), *(call.reshaped(x, shape) for x in tensors))


def _flip(call: Call) -> str:
    x = call["self"]
    axes, shape = call.axes(x, call["dims"]), call.shape(x)
    if not call["dims"]:
        return x
    ranges = [(size - 1, -1, -1) if k in axes else (0, size, 1) for k, size in enumerate(shape)]
    starts, stops, steps = zip(*ranges, strict=True)
    return call.emit(Slice(starts, stops, steps), x)


def _roll(call: Call) -> str:
    x, axes = call["self"], call["dims"]
    shape = call.shape(x)
    if not axes:
        x, axes = call.reshaped(x, (math.prod(shape),)), [0]
    for shift, given in zip(call["shifts"], axes, strict=True):
        axis = call.axis(x, given)
        size = call.shape(x)[axis]
        place = -shift % size if size else 0
        if place:
            ends = call.part(x, axis, place, size), call.part(x, axis, 0, place)
            x = call.emit(Concat(axis), *ends)
    return call.reshaped(x, shape)


_SAME = (
    *("clone", "contiguous", "alias", "detach", "lift", "positive", "resolve_conj", "resolve_neg"),
)
_VIEWS = (
    *("view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints"),
    *("unflatten.int", "view_as.default", "reshape_as.default", "ravel.default"),
    *("unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "view_copy.default"),
    *("atleast_1d.default", "atleast_2d.default", "_reshape_alias.default"),
)

OPERATORS: Mapping[str, Handler] = {
    **{f"aten.{name}.default": _same for name in _SAME},
    **{f"aten.{name}": _view for name in _VIEWS},
    **{
        f"aten.{name}dropout.default": _dropout
        for name in ("", "alpha_", "feature_", "feature_alpha_", "native_")
    },
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose,
    "aten.swapaxes.default": _transpose,
    "aten.swapdims.default": _transpose,
    "aten.t.default": _matrix_transpose,
    "aten.mT.default": _matrix_transpose,
    "aten.numpy_T.default": _reversed_axes,
    "aten.movedim.intlist": _move_axes,
    "aten.movedim.int": _move_axes,
    "aten.expand.default": _expand,
    "aten.expand_as.default": _expand,
    "aten.broadcast_to.default": _expand,
    "aten.repeat.default": _repeat,
    "aten.tile.default": _repeat,
    "aten.repeat_interleave.self_int": _repeat_each,
    "aten.copy.default": _copy,
    "aten.slice.Tensor": _slice,
    "aten.slice_scatter.default": _slice_scatter,
    "aten.select.int": _select,
    "aten.select_scatter.default": _select_scatter,
    "aten.narrow.default": _narrow,
    "aten.split.Tensor": _split,
    "aten.split.sizes": _split,
    "aten.split_with_sizes.default": _split,
    "aten.chunk.default": _split,
    "aten.tensor_split.sections": _split,
    "aten.tensor_split.indices": _split,
    "aten.unbind.int": _unbind,
    "aten.cat.default": _cat,
    "aten.concat.default": _cat,
    "aten.stack.default": _stack,
    "aten.flip.default": _flip,
    "aten.roll.default": _roll,
}
