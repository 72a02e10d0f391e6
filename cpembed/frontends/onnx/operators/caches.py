"""Caches that a model takes and returns: their update by new elements."""

from __future__ import annotations

import numpy as np

from cpembed.frontends.onnx.call import Call, Translation
from cpembed.graph.kinds import CacheUpdate


def _tensor_scatter(call: Call) -> str:
    cache, rank = call.input(0), call.rank(0)
    mode = call.text("mode", "linear", ("linear", "circular"))
    first = call.optional(2)
    if first is None:
        first = call.tensor(np.zeros(call.shape(cache)[0]), "int64")
    axis = call.axis(-2, rank)
    if not axis:
        call.reject("axis 0 of a cache has its batches: give the axis of the positions")
    return call.emit(CacheUpdate(axis, mode == "circular"), cache, call.input(1), first)


TABLE: dict[str, Translation] = {"TensorScatter": _tensor_scatter}
