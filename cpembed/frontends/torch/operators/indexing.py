"""Elements at indices: embeddings, gathers, advanced indexing."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cpembed.frontends import expressions as ex
from cpembed.frontends.expressions import X, Y
from cpembed.frontends.movements import from_front, gathered_elements
from cpembed.frontends.torch.call import Call, Handler
from cpembed.graph.kinds import Gather


def _embedding(call: Call) -> str:
    return call.emit(Gather(0), call["weight"], call["indices"])


def _index_select(call: Call) -> str:
    x = call["self"]
    return call.emit(Gather(call.axis(x, call["dim"])), x, call["index"])


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
        return call.emit(Gather(indexed[0]), x, indices[indexed[0]])
    first = indexed[0]
    if indexed != list(range(first, first + len(indexed))):
        order = [*indexed, *(axis for axis in range(len(shape)) if axis not in indexed)]
        x, first = call.transposed(x, order), 0
    sizes = [shape[axis] for axis in indexed]
    place = ""
    for k, axis in enumerate(indexed):
        index = from_front(call, indices[axis], shape[axis])
        step = math.prod(sizes[k + 1 :])
        if not place:
            place = call.elementwise(ex.mul(X, step), index)
        else:
            place = call.elementwise(ex.add(X, ex.mul(Y, step)), place, index)
    moved = call.shape(x)
    whole = (*moved[:first], math.prod(sizes), *moved[first + len(sizes) :])
    return call.emit(Gather(first), call.reshaped(x, whole), place)


def _gather(call: Call) -> str:
    x, index = call["self"], call["index"]
    if not call.shape(x):
        return call.reshaped(x, call.shape(index))
    return gathered_elements(call, x, index, call.axis(x, call["dim"]))


OPERATORS: Mapping[str, Handler] = {
    "aten.embedding.default": _embedding,
    "aten.index_select.default": _index_select,
    "aten.index.Tensor": _index,
    "aten._unsafe_index.Tensor": _index,
    "aten.gather.default": _gather,
}
