"""Elements at indices: embeddings, gathers, advanced indexing."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from cpembed.frontends import expressions as ex
from cpembed.frontends.expressions import X, Y
from cpembed.frontends.torch.call import Call, Handler
from cpembed.graph.kinds import Gather


def _embedding(call: Call) -> str:
    return call.add(Gather(0), call["weight"], call["indices"])


def _index_select(call: Call) -> str:
    x = call["self"]
    return call.add(Gather(call.axis(x, call["dim"])), x, call["index"])


def _from_front(call: Call, index: str, size: int) -> str:
    """Indices of an axis, those below 0 counted from its end."""
    return call.elementwise(ex.where(ex.less(X, 0), ex.add(X, size), X), index, dtype="int64")


def _index(call: Call) -> str:
    """Tensors of indices for some of the axes. Their axes come first where those are no
    neighbours, as in numpy."""
    x, indices = call["self"], call["indices"]
    shape = call.shape(x)
    indexed = [axis for axis, index in enumerate(indices) if index is not None]
    if any(call.dtype(indices[axis]) in ("bool", "uint8") for axis in indexed):
        raise call.error(
            "a mask picks elements, so that their number is not known: multiply by it, or use where"
        )
    if len(indexed) == 1:
        return call.add(Gather(indexed[0]), x, indices[indexed[0]])
    first = indexed[0]
    if indexed != list(range(first, first + len(indexed))):
        order = [*indexed, *(axis for axis in range(len(shape)) if axis not in indexed)]
        x, first = call.transpose(x, order), 0
    sizes = [shape[axis] for axis in indexed]
    place = ""
    for k, axis in enumerate(indexed):
        part = _from_front(call, indices[axis], shape[axis])
        step = math.prod(sizes[k + 1 :])
        if not place:
            place = call.elementwise(ex.mul(X, step), part)
        else:
            place = call.elementwise(ex.add(X, ex.mul(Y, step)), place, part)
    moved = call.shape(x)
    whole = (*moved[:first], math.prod(sizes), *moved[first + len(sizes) :])
    return call.add(Gather(first), call.reshape(x, whole), place)


def _gather(call: Call) -> str:
    """An index an element: places in the tensor as one row of elements."""
    x, index = call["self"], call["index"]
    shape, taken = call.shape(x), call.shape(index)
    if not shape:
        return call.reshape(x, taken)
    axis = call.axis(x, call["dim"])
    steps = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    rest = np.zeros(taken, np.int64)
    for k, places in enumerate(np.indices(taken)):
        if k != axis:
            rest += places * steps[k]
    place = call.elementwise(
        ex.add(ex.mul(X, steps[axis]), Y), index, call.constant(rest), dtype="int64"
    )
    return call.add(Gather(0), call.reshape(x, (math.prod(shape),)), place)


OPERATORS: Mapping[str, Handler] = {
    "aten.embedding.default": _embedding,
    "aten.index_select.default": _index_select,
    "aten.index.Tensor": _index,
    "aten._unsafe_index.Tensor": _index,
    "aten.gather.default": _gather,
}
