"""Operators along lines and at indices: sorting, extrema with places, scattering, windows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from cpembed.frontends.expressions import X, Y, Z, add, differ, div, equal, less, sub, where
from cpembed.frontends.indexed import (
    scattered_at,
    scattered_elements,
    scattered_rows,
    sorted_along,
)
from cpembed.frontends.torch.call import Call, Handler, Results, table
from cpembed.graph.kinds import Gather, Reduce
from cpembed.ir.dtypes import is_integer
from cpembed.ir.scalars import apply

_LARGEST_COMPARISON = 1 << 26
"""Maximum number of comparisons of a search, all of which are made."""


def _as_line(call: Call, x: str) -> str:
    """Return a scalar as a line of one element."""
    return x if call.shape(x) else call.reshaped(x, (1,))


def _shaped(call: Call, *results: str) -> Results:
    """Return results in the shapes that the call has."""
    shaped = tuple(
        result if kind is None else call.reshaped(call.cast(result, kind.dtype), kind.shape)
        for result, kind in zip(results, call.results, strict=False)
    )
    first, *rest = shaped
    return shaped if rest else first


# -- sorting --------------------------------------------------------------------------------------


def _sort(call: Call) -> Results:
    return _shaped(call, *_sorted(call, -1))


def _argsort(call: Call) -> Results:
    return _shaped(call, _sorted(call, -1)[1])


def _first_axis_sorted(call: Call) -> Results:
    return _shaped(call, _sorted(call, 0)[0])


def _sorted(call: Call, axis: int) -> tuple[str, str]:
    """Emit the sorted lines along the axis ``dim``, by default another one."""
    x = _as_line(call, call["self"])
    axis = call.axis(x, axis if call.get("dim") is None else call["dim"])
    # Elements that are equal keep their order, whether the call wants that or not.
    call.without_effect("stable")
    size, descending = call.shape(x)[axis], bool(call.get("descending"))
    return sorted_along(call, x, axis, size, descending=descending)


def _topk(call: Call) -> Results:
    x = _as_line(call, call["self"])
    axis = call.axis(x, call["dim"])
    call.without_effect("sorted", "k")
    count = call.result.shape[axis] if call.result.shape else 1
    return _shaped(call, *sorted_along(call, x, axis, count, descending=bool(call["largest"])))


def _kth(call: Call) -> Results:
    x, k = _as_line(call, call["self"]), call["k"]
    axis = call.axis(x, call["dim"])
    parts = sorted_along(call, x, axis, k, descending=False)
    return _shaped(call, *(call.part(part, axis, k - 1, k) for part in parts))


def _median(call: Call, *, ignores_nan: bool = False) -> Results:
    """Emit the lower median; one NaN makes it NaN, unless it is ignored."""
    x = _as_line(call, call["self"])
    if call.get("dim") is None:
        x, axis = call.reshaped(x, (math.prod(call.shape(x)),)), 0
    else:
        axis = call.axis(x, call["dim"])
    size = call.shape(x)[axis]
    values, indices = sorted_along(call, x, axis, size, descending=False)
    middle = (size - 1) // 2
    if is_integer(call.dtype(x)):
        return _shaped(call, *(call.part(t, axis, middle, middle + 1) for t in (values, indices)))
    # NaNs are the last elements: the last one says whether there are any.
    is_nan = call.cast(call.elementwise(differ(X, X), values, dtype="bool"), "int64")
    if ignores_nan:
        count = call.emit(Reduce("sum", (axis,), True), is_nan)
        place = call.elementwise(apply("max", div(sub(size - 1, X), 2), 0), count, dtype="int64")
    else:
        last = call.part(is_nan, axis, size - 1, size)
        first_nan = call.emit(Reduce("argmax", (axis,), True), is_nan)
        place = call.elementwise(where(equal(X, 0), middle, Y), last, first_nan, dtype="int64")
    parts = (call.gathered_elements(t, place, axis) for t in (values, indices))
    return _shaped(call, *parts)


def _extremum_with_index(call: Call, operation: str) -> Results:
    x = _as_line(call, call["self"])
    axis = call.axis(x, call["dim"])
    as_numbers = call.cast(x, "uint8") if call.dtype(x) == "bool" else x
    value = call.emit(Reduce(operation, (axis,), True), as_numbers)
    index = call.emit(Reduce(f"arg{operation}", (axis,), True), as_numbers)
    return _shaped(call, value, index)


def _arg_extremum(call: Call, operation: str) -> Results:
    x = _as_line(call, call["self"])
    if call["dim"] is None:
        x, axis = call.reshaped(x, (math.prod(call.shape(x)),)), 0
    else:
        axis = call.axis(x, call["dim"])
    return _shaped(call, call.emit(Reduce(operation, (axis,), True), x))


def _search(call: Call, values: str, boundaries: str) -> Results:
    """Emit the number of boundaries below each value: all of them are compared."""
    x, edges = call[values], call[boundaries]
    right = bool(call["right"]) or call.get("side") == "right"
    call.without_effect("out_int32")
    if (order := call.get("sorter")) is not None:
        edges = call.gathered_elements(edges, order, call.rank(edges) - 1)
    x = x if isinstance(x, str) else call.tensor(x, call.dtype(edges))
    count = call.shape(edges)[-1]
    if math.prod(call.shape(x)) * count > _LARGEST_COMPARISON:
        call.reject(f"{call.type_of(x)} searched in {count} boundaries: that many comparisons")
    shape = (*call.shape(x), 1)
    rank = len(call.shape(edges))
    edges = call.reshaped(
        edges, (*call.shape(edges)[: rank - 1], *((1,) if rank > 1 else ()), count)
    )
    # A NaN comes after every boundary.
    below = apply("less_equal", Y, X) if right else less(Y, X)
    is_below = apply("or", below, differ(X, X))
    flags = call.elementwise(is_below, call.reshaped(x, shape), edges, dtype="bool")
    total = call.emit(
        Reduce("sum", (len(call.shape(flags)) - 1,), False), call.cast(flags, "int32")
    )
    return _shaped(call, total)


# -- running results ------------------------------------------------------------------------------


def _cumulated(call: Call, operation: str) -> Results:
    x = call.cast(call["self"], call.result.dtype)
    if not call.shape(x):
        return x
    return call.cumulated(operation, x, call.axis(x, call["dim"]))


def _running_extremum(call: Call, operation: str) -> Results:
    """Emit a running extremum, and the last index where each was met."""
    x = _as_line(call, call["self"])
    axis = call.axis(x, call["dim"])
    if call.dtype(x) == "bool":
        x = call.cast(x, "uint8")
    values = call.cumulated(operation, x, axis)
    shape = [-1 if k == axis else 1 for k in range(len(call.shape(x)))]
    steps = call.tensor(np.arange(call.shape(x)[axis]).reshape(shape))
    # A NaN stays the extremum, and is met again by each further one.
    meets = apply("or", equal(X, Y), differ(X, X))
    places = call.elementwise(where(meets, Z, 0), x, values, steps, dtype="int64")
    return _shaped(call, values, call.cumulated("max", places, axis))


# -- scattering -----------------------------------------------------------------------------------

_REDUCTIONS = {
    "sum": "add",
    "add": "add",
    "prod": "mul",
    "multiply": "mul",
    "amax": "max",
    "amin": "min",
    "mean": "add",
}
"""Operations of scattering by PyTorch's names."""
_NEUTRAL = {"add": 0, "mul": 1, "max": -math.inf, "min": math.inf}


def _updates(call: Call, index: str) -> str:
    """Emit the part of the source that the indices have, or a number in their shape."""
    shape, dtype = call.shape(index), call.result.dtype
    value = call.get("src")
    if value is None:
        value = call["value"]
    if not isinstance(value, str):
        ones = np.full((1,) * len(shape), value)
        return call.expanded(call.cast(call.tensor(ones), dtype), shape)
    if call.shape(value) == () and shape != ():
        return call.expanded(call.reshaped(value, (1,) * len(shape)), shape)
    for axis, size in enumerate(shape):
        value = call.part(value, axis, 0, size)
    return call.cast(value, dtype)


def _scatter(call: Call, reduce: str | None = None) -> Results:
    x, index = _as_line(call, call["self"]), _as_line(call, call["index"])
    axis = call.axis(x, call["dim"])
    name = call.get("reduce") or reduce
    updates = _updates(call, index)
    if not name:
        return _shaped(call, scattered_elements(call, x, index, updates, axis))
    if call.get("include_self") is False:
        x = _without_itself(call, x, index, updates, axis, _REDUCTIONS[name])
    result = scattered_elements(call, x, index, updates, axis, _REDUCTIONS[name])
    if name == "mean":
        result = _mean(call, result, index, updates, axis, call["include_self"])
    return _shaped(call, result)


def _without_itself(call: Call, x: str, index: str, updates: str, axis: int, operation: str) -> str:
    """Replace the elements that updates meet by the neutral one of their operation."""
    neutral = _NEUTRAL[operation]
    dtype = call.dtype(x)
    if is_integer(dtype) and math.isinf(neutral):
        if dtype == "bool":
            neutral = operation == "min"
        else:
            limits = np.iinfo(dtype)
            neutral = limits.min if operation == "max" else limits.max
    start = call.cast(call.tensor(np.asarray(neutral)), dtype)
    shape = call.shape(updates)
    start = call.expanded(call.reshaped(start, (1,) * len(shape)), shape)
    return scattered_elements(call, x, index, start, axis)


def _mean(call: Call, total: str, index: str, updates: str, axis: int, includes: bool) -> str:
    """Divide sums by the number of their terms."""
    ones = call.tensor(np.ones((1,) * len(call.shape(updates)), np.int64))
    ones = call.expanded(ones, call.shape(updates))
    start = call.tensor(np.full((1,) * len(call.shape(total)), int(includes), np.int64))
    start = call.expanded(start, call.shape(total))
    count = scattered_elements(call, start, index, ones, axis, "add")
    dtype = call.dtype(total)
    if not is_integer(dtype):
        return call.elementwise(div(X, apply("max", Y, 1.0)), total, call.cast(count, dtype))
    count = call.elementwise(apply("max", X, 1), count)
    quotient, rest = div(X, Y), apply("rem", X, Y)
    floored = where(apply("and", differ(rest, 0), less(X, 0)), sub(quotient, 1), quotient)
    return call.elementwise(floored, total, count)


def _rows(call: Call, *, reduce: str | None = None) -> Results:
    """Emit a scattering of the parts of an axis."""
    x, index = _as_line(call, call["self"]), call["index"]
    axis = call.axis(x, call["dim"])
    shape = call.shape(x)
    index = call.reshaped(index, (math.prod(call.shape(index)),))
    count = call.shape(index)[0]
    source = call.get("source")
    name = call.get("reduce") or reduce
    if source is None:
        value = call["value"]
        value = value if isinstance(value, str) else call.tensor(np.asarray(value))
        value = call.reshaped(call.cast(value, call.dtype(x)), (1,) * len(shape))
        source = call.expanded(value, (*shape[:axis], count, *shape[axis + 1 :]))
    source = call.reshaped(
        call.cast(source, call.dtype(x)), (*shape[:axis], count, *shape[axis + 1 :])
    )
    alpha = call.get("alpha")
    if alpha is not None and alpha != 1:
        source = call.elementwise(apply("mul", X, alpha), source)
    # Indices in the shape of the source: one kind of scattering serves all.
    spread = call.reshaped(index, [count if k == axis else 1 for k in range(len(shape))])
    spread = call.expanded(spread, call.shape(source))
    if name and call.get("include_self") is False:
        x = _without_itself(call, x, spread, source, axis, _REDUCTIONS[name])
    operation = _REDUCTIONS[name] if name else "set"
    lines, updates = call.moved(x, axis, 0), call.moved(source, axis, 0)
    result = call.moved(scattered_rows(call, lines, index, updates, operation), 0, axis)
    if name == "mean":
        result = _mean(call, result, spread, source, axis, call["include_self"])
    return _shaped(call, result)


def _index_put(call: Call) -> Results:
    """Emit advanced indexing on the left side of an assignment."""
    x, indices, values = call["self"], call["indices"], call["values"]
    call.without_effect("unsafe")
    indexed = [axis for axis, index in enumerate(indices) if index is not None]
    if any(call.dtype(indices[axis]) in ("bool", "uint8") for axis in indexed):
        return _masked_put(call, x, indices, indexed, values)
    shape = call.shape(x)
    order = [*indexed, *(axis for axis in range(len(shape)) if axis not in indexed)]
    columns = [indices[axis] for axis in indexed]
    common = np.broadcast_shapes(*(call.shape(column) for column in columns))
    columns = [call.expanded(column, common) for column in columns]
    tail = [shape[axis] for axis in order[len(indexed) :]]
    values = call.cast(values, call.dtype(x))
    adjacent = indexed == list(range(indexed[0], indexed[0] + len(indexed)))
    first = indexed[0] if adjacent else 0
    # In the result of indexing, the indices' axes stand where the first indexed axis was.
    lead, rest = tail[:first], tail[first:]
    values = call.expanded(values, (*lead, *common, *rest))
    moved = [*range(first, first + len(common)), *range(first),
             *range(first + len(common), len(common) + len(tail))]  # fmt: skip
    values = call.transposed(values, moved)
    operation = "add" if call.get("accumulate") else "set"
    result = scattered_at(call, call.transposed(x, order), columns, values, operation)
    return call.transposed(result, [order.index(k) for k in range(len(shape))])


def _masked_put(
    call: Call, x: str, indices: Sequence[str | None], indexed: Sequence[int], values: str
) -> str:
    """Emit an assignment of one or of successive values to the elements that a mask selects."""
    shape, mask = call.shape(x), indices[indexed[0]]
    if len(indexed) > 1 or indexed[0] or mask is None or call.dtype(mask) != "bool":
        call.reject("a mask beside indices, or of bytes, is not known: use where")
    rank = len(call.shape(mask))
    count, tail = math.prod(call.shape(mask)), shape[rank:]
    values = call.cast(values, call.dtype(x))
    if len(call.shape(values)) <= len(tail) or call.shape(values)[0] == 1:
        new = call.expanded(values, (1, *tail))
    else:
        # The k-th row of the values belongs to the k-th place that the mask picks.
        flags = call.cast(call.reshaped(mask, (count,)), "int64")
        place = call.cumulated("sum", flags, 0, exclusive=True)
        last = call.shape(values)[0] - 1
        new = call.emit(Gather(0), values, call.elementwise(apply("min", X, last), place))
    rows = call.reshaped(x, (count, *tail))
    mask = call.reshaped(mask, (count, *(1,) * len(tail)))
    assigned = add(Y, Z) if call.get("accumulate") else Z
    result = call.elementwise(where(X, assigned, Y), mask, rows, new, dtype=call.dtype(x))
    return call.reshaped(result, shape)


def _masked_scatter(call: Call) -> str:
    """Replace the elements that a mask picks by those of the source, one after the other."""
    mask, source, shape = call["mask"], call["source"], call.result.shape
    x = call.expanded(call["self"], shape)
    mask = call.expanded(mask, shape)
    flags = call.reshaped(call.cast(mask, "int64"), (math.prod(shape),))
    place = call.reshaped(call.cumulated("sum", flags, 0, exclusive=True), shape)
    last = math.prod(call.shape(source)) - 1
    gathered = call.flat_gather(source, call.elementwise(apply("min", X, last), place))
    return call.elementwise(where(X, Y, Z), mask, gathered, x, dtype=call.dtype(x))


def _put_at_numbers(call: Call) -> str:
    """Emit a scattering at numbers in row-major order."""
    x, index = call["self"], call["index"]
    size = math.prod(call.shape(x))
    flat, places = call.reshaped(x, (size,)), call.reshaped(index, (math.prod(call.shape(index)),))
    source = call.reshaped(call["source"], call.shape(places))
    operation = "add" if call["accumulate"] else "set"
    return call.reshaped(scattered_rows(call, flat, places, source, operation), call.shape(x))


def _unfold(call: Call) -> Results:
    """Emit the windows along an axis, as a last axis."""
    x = _as_line(call, call["self"])
    axis = call.axis(x, call["dimension"])
    size, step = int(call["size"]), int(call["step"])
    return _shaped(call, call.moved(call.windows(x, axis, size, step), axis + 1, -1))


def _embedding_bag(call: Call) -> Results:
    """Emit sums, means or maxima of rows in bags, each of which begins at an offset."""
    weight, indices, offsets = call["weight"], call["indices"], call["offsets"]
    operation = ("add", "mean", "max")[int(call["mode"])]
    if call.get("padding_idx") not in (None, -1):
        call.reject("a row that bags leave out is not known: mask it")
    count, width = call.shape(indices)[0], call.shape(weight)[1]
    if call.get("include_last_offset"):
        offsets = call.part(offsets, 0, 0, call.shape(offsets)[0] - 1)
    bags = call.shape(offsets)[0]
    rows = call.emit(Gather(0), weight, indices)
    if call.get("per_sample_weights") is not None:
        factors = call.reshaped(call["per_sample_weights"], (count, 1))
        rows = call.elementwise(apply("mul", X, Y), rows, factors)
    # The bag of a row is the last one that does not begin after it.
    places = call.tensor(np.arange(count)[:, None])
    begun = call.elementwise(apply("less_equal", Y, X), places, call.reshaped(offsets, (1, bags)),
                             dtype="bool")  # fmt: skip
    number = call.emit(Reduce("sum", (1,), False), call.cast(begun, "int64"))
    number = call.elementwise(sub(X, 1), number)

    def scattered(rows: str, width: int, start: float, operation: str) -> str:
        data = call.cast(call.tensor(np.full((1, 1), start)), call.dtype(weight))
        return scattered_rows(call, call.expanded(data, (bags, width)), number, rows, operation)

    if operation == "add":
        return call.first_of(scattered(rows, width, 0.0, "add"))
    ones = call.expanded(call.cast(call.tensor(np.ones((1, 1))), call.dtype(weight)), (count, 1))
    sizes = scattered(ones, 1, 0.0, "add")
    if operation == "mean":
        total = scattered(rows, width, 0.0, "add")
        return call.first_of(call.elementwise(div(X, apply("max", Y, 1.0)), total, sizes))
    largest = scattered(rows, width, -math.inf, "max")
    return call.first_of(call.elementwise(where(equal(Y, 0), 0.0, X), largest, sizes))


HANDLERS: Mapping[str, Handler] = table(
    {
        "sort.default|stable": _sort,
        "msort": _first_axis_sorted,
        "argsort.default|stable": _argsort,
        "topk": _topk,
        "kthvalue": _kth,
        "median.default|dim": _median,
        "nanmedian.default|dim": partial(_median, ignores_nan=True),
        "max.dim": partial(_extremum_with_index, operation="max"),
        "min.dim": partial(_extremum_with_index, operation="min"),
        "argmax": partial(_arg_extremum, operation="argmax"),
        "argmin": partial(_arg_extremum, operation="argmin"),
        "bucketize.Tensor|Scalar": partial(_search, values="self", boundaries="boundaries"),
        "searchsorted.Tensor|Scalar": partial(_search, values="self", boundaries="sorted_sequence"),
        "cumsum": partial(_cumulated, operation="sum"),
        "cumprod": partial(_cumulated, operation="prod"),
        "cummax": partial(_running_extremum, operation="max"),
        "cummin": partial(_running_extremum, operation="min"),
        "scatter.src|value": _scatter,
        "scatter.reduce|value_reduce scatter_reduce.two": _scatter,
        "scatter_add": partial(_scatter, reduce="sum"),
        "index_add": partial(_rows, reduce="sum"),
        "index_copy index_fill.int_Scalar|int_Tensor": _rows,
        "index_reduce": _rows,
        "index_put _unsafe_index_put": _index_put,
        "masked_scatter": _masked_scatter,
        "put": _put_at_numbers,
        "unfold unfold_copy": _unfold,
        "_embedding_bag _embedding_bag_forward_only": _embedding_bag,
    }
)
