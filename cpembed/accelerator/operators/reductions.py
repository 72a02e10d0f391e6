"""Pooling, reductions, softmax and normalizations as statements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpembed.accelerator.operators.forms import FormBuilder, Forms, NoForm, OperatorForm, number
from cpembed.accelerator.operators.logical import dimension_order
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import LayerNorm, Pool, Product, Reduce, Softmax, Table
from cpembed.graph.kinds.base import TensorType, axis_of
from cpembed.ir.dtypes import is_integer

_FLOATS = "units in the last place of float32, in which each operation is rounded"


def pool_forms(operator: Operator, graph: Graph) -> Forms:
    """Return the forms of a pooling."""
    kind = operator.kind
    assert isinstance(kind, Pool)
    name = operator.inputs[0]
    source = graph.types[name]
    pads = any((*kind.before, *kind.after))
    if kind.operation == "max":
        forms = [_max_pool_by_taps(operator, graph, kind)] if pads else []
        if not pads or is_never_negative(name, graph):
            # Padding reads as 0, which is above negative elements.
            forms.insert(0, _max_pool(operator, graph, kind))
        return tuple(form for form in forms if form is not None) or NoForm(
            f"{operator.name}: no tap of its windows is inside of the image everywhere"
        )
    if not is_integer(source.dtype) and source.dtype != "float32":
        return NoForm(f"{operator.name}: the mean of {source.dtype}")
    if kind.zero_point or kind.stored_zero_point:
        return NoForm(
            f"{operator.name}: the mean of numbers around the zero point {kind.zero_point}"
        )
    return (_mean_pool(operator, graph, kind),)


def is_never_negative(name: str, graph: Graph) -> bool:
    """True if no element of a tensor is negative, as far as the operator that writes it says."""
    if graph.types[name].dtype.startswith("uint"):
        return True
    producer = graph.producers.get(name)
    if producer is None:
        return False
    kind = producer.kind
    if isinstance(kind, Product):
        epilogue = kind.epilogue
        if epilogue is None or epilogue.chain is not None:
            return False
        if epilogue.residual is not None:
            clip = epilogue.residual.clip
            return epilogue.residual.relu or (clip is not None and clip[0] >= 0)
        return epilogue.relu or (epilogue.clip is not None and epilogue.clip[0] >= 0)
    if isinstance(kind, Table):
        return min(kind.entries) >= 0
    # A mean or maximum of such numbers is one again, and so is what is moved.
    moved = type(kind).__name__ in ("Pool", "Reshape", "Transpose", "Slice", "Concat", "Expand")
    return moved and all(is_never_negative(n, graph) for n in producer.inputs)


def _windows(
    builder: FormBuilder, kind: Pool
) -> tuple[dict[str, int], dict[str, int], str, str, dict[str, str]]:
    """Add input and output; return the axes, those of the windows, both indices and the names."""
    operator = builder.operator
    name = operator.inputs[0]
    order = dimension_order(builder.graph, name)
    source, output = builder.tensor(name, order), builder.tensor(operator.output, order)
    rank, taps = len(order), len(kind.window)
    axes = {f"i{k}": size for k, size in enumerate(builder.shapes[output])}
    window = {f"r{k}": size for k, size in enumerate(kind.window)}
    index: list[str] = []
    for place, dimension in enumerate(order):
        k = dimension - (rank - taps)
        if k < 0:
            index.append(f"i{place}")
            continue
        text = f"{kind.strides[k]}*i{place} + {kind.dilation[k]}*r{k}"
        index.append(f"{text} - {kind.before[k]}" if kind.before[k] else text)
    return axes, window, ",".join(axes), ",".join(index), {"X": source, "Y": output}


def _max_pool(operator: Operator, graph: Graph, kind: Pool) -> OperatorForm:
    builder = FormBuilder(operator, graph)
    axes, window, index, read, names = _windows(builder, kind)
    outside = ("X",) if any((*kind.before, *kind.after)) else ()
    builder.add(f"Y[{index}] max= X[{read}]", axes | window, names, outside=outside)
    return builder.form("")


@dataclass(frozen=True)
class _Taps:
    """Consecutive taps along one dimension, and the results whose windows have them inside."""

    first: int
    count: int
    results: range


def _max_pool_by_taps(operator: Operator, graph: Graph, kind: Pool) -> OperatorForm | None:
    """Return the form in which each tap reads the image only where it is inside of it.

    A maximum is that over any parts of its window which cover it. The first part are the taps that
    are inside for every result; None if there are none.
    """
    builder = FormBuilder(operator, graph)
    axes, _, _, _, names = _windows(builder, kind)
    order = dimension_order(graph, operator.inputs[0])
    rank, taps = len(order), len(kind.window)
    shape = graph.types[operator.inputs[0]].shape
    outputs = graph.types[operator.output].shape
    parts: list[list[_Taps]] = []
    for k in range(taps):
        d = rank - taps + k
        groups = _tap_groups(kind, k, shape[d], outputs[d])
        # Those of all results come first.
        groups.sort(key=lambda group: -len(group.results))
        if not groups or len(groups[0].results) < outputs[d]:
            return None
        parts.append(groups)
    for position, groups in enumerate(itertools.product(*parts)):
        extents, store, read = dict(axes), list(axes), list(axes)
        for k, group in enumerate(groups):
            place = order.index(rank - taps + k)
            axis, first = f"i{place}", group.results.start
            extents |= {axis: len(group.results), f"r{k}": group.count}
            store[place] = f"{axis} + {first}" if first else axis
            offset = kind.strides[k] * first + kind.dilation[k] * group.first - kind.before[k]
            read[place] = f"{kind.strides[k]}*{axis} + {kind.dilation[k]}*r{k} + {offset}"
        text = f"Y[{','.join(store)}] max= X[{','.join(read)}]"
        builder.add(text, extents, names, accumulates=position > 0)
    return builder.form("each tap where it is inside of the image")


def _tap_groups(kind: Pool, k: int, size: int, results: int) -> list[_Taps]:
    """Return the taps along one dimension with the results that they are inside of the image for.

    Neighbours that are inside for the same results are together; those of no result are left out.
    """
    groups: list[_Taps] = []
    stride, dilation, before = kind.strides[k], kind.dilation[k], kind.before[k]
    for tap in range(kind.window[k]):
        offset = dilation * tap - before
        first = max(0, -(offset // stride))
        last = min(results, -((offset - size) // stride))
        if first >= last:
            continue
        previous = groups[-1] if groups else None
        if previous is not None and previous.results == range(first, last):
            groups[-1] = replace(previous, count=tap + 1 - previous.first)
        else:
            groups.append(_Taps(tap, 1, range(first, last)))
    return groups


def _mean_pool(operator: Operator, graph: Graph, kind: Pool) -> OperatorForm:
    builder = FormBuilder(operator, graph)
    axes, window, index, read, names = _windows(builder, kind)
    dtype = graph.types[operator.inputs[0]].dtype
    integers = is_integer(dtype)
    shape = builder.shapes[names["Y"]]
    names["S"] = builder.temporary("sums", shape, "int32" if integers else "float32")
    outside = ("X",) if any((*kind.before, *kind.after)) else ()
    builder.add(f"S[{index}] += X[{read}]", axes | window, names, outside=outside)
    factor = _mean_factor(builder, kind, names)
    text = f"S[{index}] * {factor}"
    builder.add(
        f"Y[{index}] = {dtype}({text})" if integers else f"Y[{index}] = {text}", axes, names
    )
    return builder.form("", "" if integers else _FLOATS)


def _mean_factor(builder: FormBuilder, kind: Pool, names: dict[str, str]) -> str:
    """Return the text of what a sum is multiplied by: a number, or one per pixel."""
    graph, name = builder.graph, builder.operator.inputs[0]
    source = graph.types[name]
    counts = _counts(kind, source.shape)
    if kind.ratio is not None:
        factors = (kind.ratio / counts).astype(np.float32)
    elif is_integer(source.dtype):
        factors = np.float32(1) / counts.astype(np.float32)
    else:
        factors = (1.0 / counts).astype(np.float32)
    if np.all(factors == factors.flat[0]):
        return number(float(factors.flat[0]))
    names["F"] = builder.constant("factors", factors)
    order = dimension_order(graph, name)
    rank, taps = len(order), len(kind.window)
    places = [order.index(rank - taps + k) for k in range(taps)]
    return f"F[{','.join(f'i{place}' for place in places)}]"


def _counts(kind: Pool, shape: Sequence[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return how many elements each mean is of."""
    (result,) = kind.types([TensorType(tuple(shape), "int8")])
    taps = len(kind.window)
    sizes = result.shape[-taps:]
    if kind.counts_padding:
        return np.full(sizes, float(math.prod(kind.window)))
    counts = np.ones(sizes, np.float64)
    for k, size in enumerate(sizes):
        at = np.arange(size)[:, None] * kind.strides[k] - kind.before[k]
        at = at + np.arange(kind.window[k])[None] * kind.dilation[k]
        inside = np.sum((at >= 0) & (at < shape[len(shape) - taps + k]), axis=1)
        counts = counts * inside.reshape([-1 if d == k else 1 for d in range(taps)])
    return counts


# -- reductions along axes -------------------------------------------------------------------------


def reduce_forms(operator: Operator, graph: Graph) -> Forms:
    """Return the form of a reduction along axes."""
    kind = operator.kind
    assert isinstance(kind, Reduce)
    if kind.is_index or kind.operation == "prod":
        return NoForm(f"{operator.name}: {kind.operation} is no statement")
    source = graph.types[operator.inputs[0]]
    integers = is_integer(source.dtype)
    if not integers and source.dtype != "float32":
        return NoForm(f"{operator.name}: {kind.operation} of {source.dtype}")
    rank = len(source.shape)
    axes = {axis_of(axis, rank) for axis in kind.axes}
    builder = FormBuilder(operator, graph)
    names = {"X": builder.tensor(operator.inputs[0]), "Y": builder.tensor(operator.output)}
    extents = {f"i{d}": size for d, size in enumerate(source.shape)}
    read = ",".join(extents)
    stored = [f"i{d}" if d not in axes else "0" for d in range(rank) if d not in axes or kind.keeps]
    store = ",".join(stored)
    results = {f"i{d}": size for d, size in enumerate(source.shape) if d not in axes}
    if kind.operation in ("max", "min"):
        builder.add(f"Y[{store}] {kind.operation}= X[{read}]", extents, names)
        return (builder.form(""),)
    if kind.operation == "sum":
        builder.add(f"Y[{store}] += X[{read}]", extents, names)
        return (builder.form("", "" if integers else _FLOATS),)
    count = math.prod(source.shape[axis] for axis in axes)
    names["S"] = builder.temporary(
        "sums", builder.shapes[names["Y"]], "int32" if integers else "float32"
    )
    builder.add(f"S[{store}] += X[{read}]", extents, names)
    text = f"S[{store}] * {number(float(np.float32(1 / count)))}"
    text = f"{source.dtype}({text})" if integers else text
    builder.add(f"Y[{store}] = {text}", results, names)
    # Means of integers are rounded from float64 in the operator.
    return (builder.form("", "at most 1 quantum" if integers else _FLOATS),)


# -- softmax and normalizations --------------------------------------------------------------------


def softmax_forms(operator: Operator, graph: Graph) -> Forms:
    """Return the forms of a softmax: with the maximum subtracted, and without."""
    kind = operator.kind
    assert isinstance(kind, Softmax)
    source = graph.types[operator.inputs[0]]
    if kind.log or source.dtype != "float32":
        subject = "a logarithm" if kind.log else source.dtype
        return NoForm(f"{operator.name}: softmax of {subject} is no statement")
    axis = axis_of(kind.axis, len(source.shape))
    return tuple(_softmax(operator, graph, axis, subtracts=s) for s in (True, False))


def _softmax(operator: Operator, graph: Graph, axis: int, *, subtracts: bool) -> OperatorForm:
    builder = FormBuilder(operator, graph)
    names = {"X": builder.tensor(operator.inputs[0]), "Y": builder.tensor(operator.output)}
    shape = builder.shapes[names["X"]]
    extents = {f"i{d}": size for d, size in enumerate(shape)}
    rows = [size for d, size in enumerate(shape) if d != axis]
    names["M"] = builder.temporary("maximum", rows, "float32")
    names["E"] = builder.temporary("powers", shape, "float32")
    names["T"] = builder.temporary("total", rows, "float32")
    index, row = ",".join(extents), ",".join(f"i{d}" for d in range(len(shape)) if d != axis)
    if subtracts:
        builder.add(f"M[{row}] max= X[{index}]", extents, names)
    shifted = f"X[{index}] - M[{row}]" if subtracts else f"X[{index}]"
    builder.add(f"E[{index}] = exp({shifted})", extents, names)
    builder.add(f"T[{row}] += E[{index}]", extents, names)
    builder.add(f"Y[{index}] = E[{index}] / T[{row}]", extents, names)
    if subtracts:
        return builder.form("the maximum subtracted", _FLOATS)
    return builder.form("plain", f"{_FLOATS}; inputs beyond 88 overflow")


def layer_norm_forms(operator: Operator, graph: Graph) -> Forms:
    """Return the form of a layer normalization, or of a root mean square normalization."""
    kind = operator.kind
    assert isinstance(kind, LayerNorm)
    source = graph.types[operator.inputs[0]]
    if source.dtype != "float32":
        return NoForm(f"{operator.name}: a normalization of {source.dtype}")
    axis = axis_of(kind.axis, len(source.shape))
    builder = FormBuilder(operator, graph)
    names = {"X": builder.tensor(operator.inputs[0]), "Y": builder.tensor(operator.output)}
    names["G"], names["B"] = (builder.tensor(n) for n in operator.inputs[1:3])
    extents = {f"i{d}": size for d, size in enumerate(source.shape)}
    rows = {f"i{d}": size for d, size in enumerate(source.shape[:axis])}
    index, row = ",".join(extents), ",".join(rows)
    inner = _aligned(builder.shapes[names["G"]], source.shape)
    factor = number(float(np.float32(1 / math.prod(source.shape[axis:]))))
    for name, suffix in (("S", "sums"), ("V", "squares")):
        names[name] = builder.temporary(suffix, tuple(rows.values()), "float32")
    centred = f"X[{index}]"
    if kind.centres:
        names["D"] = builder.temporary("centred", source.shape, "float32")
        builder.add(f"S[{row}] += X[{index}]", extents, names)
        builder.add(f"D[{index}] = X[{index}] - S[{row}] * {factor}", extents, names)
        centred = f"D[{index}]"
    builder.add(f"V[{row}] += {centred} * {centred}", extents, names)
    names["R"] = builder.temporary("reciprocal", tuple(rows.values()), "float32")
    epsilon = number(float(np.float32(kind.epsilon)))
    builder.add(f"R[{row}] = rsqrt(V[{row}] * {factor} + {epsilon})", rows, names)
    text = f"{centred} * R[{row}] * G[{inner}] + B[{inner}]"
    builder.add(f"Y[{index}] = {text}", extents, names)
    return (builder.form("", _FLOATS),)


def _aligned(shape: Sequence[int], target: Sequence[int]) -> str:
    """Return the index of a tensor that broadcasts to another one."""
    first = len(target) - len(shape)
    return ",".join(
        f"i{first + d}" if size == target[first + d] else "0" for d, size in enumerate(shape)
    )
