"""Attention, as two products of matrices around a softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from cpembed.frontends import expressions as ex
from cpembed.frontends.convolutions import matmul
from cpembed.frontends.expressions import X, Y, apply
from cpembed.frontends.torch.call import Call, Handler, Results
from cpembed.graph.kinds import Elementwise, Input, Reduce, Softmax

_LARGEST_MASK = 1 << 26
"""Elements."""


def _shared(call: Call, x: str, heads: int) -> str:
    """Keys or values that several heads of queries share, repeated for each."""
    *lead, own, length, depth = call.shape(x)
    if own == heads:
        return x
    apart = call.reshaped(x, (*lead, own, 1, length, depth))
    whole = call.expanded(apart, (*lead, own, heads // own, length, depth))
    return call.reshaped(whole, (*lead, heads, length, depth))


def _masked(call: Call, scores: str, mask: str | None, causal: bool) -> str:
    if causal:
        rows, columns = call.shape(scores)[-2:]
        if rows * columns > _LARGEST_MASK:
            raise call.error(f"a causal mask of {rows} by {columns} is too large a constant")
        later = np.triu(np.full((rows, columns), -np.inf, np.float32), 1)
        scores = call.elementwise(ex.add(X, Y), scores, call.tensor(later))
    if mask is None:
        return scores
    if call.dtype(mask) == "bool":
        where = ex.where(X, Input(1), -math.inf)
        return call.emit(Elementwise(where, call.dtype(scores)), mask, scores)
    return call.elementwise(ex.add(X, Y), scores, mask)


def _without_masked_rows(call: Call, scores: str, weights: str) -> str:
    """Zeros where a mask leaves nothing of a row, as PyTorch has it."""
    largest = call.emit(Reduce("max", (len(call.shape(scores)) - 1,), True), scores)
    is_masked = apply("equal", X, -math.inf)
    chosen = ex.where(is_masked, 0.0, Y)
    return call.emit(Elementwise(chosen, call.dtype(weights)), largest, weights)


def _attention(call: Call) -> Results:
    query, key, value = call["query"], call["key"], call["value"]
    if call["dropout_p"]:
        raise call.error("weights are dropped at random: call model.eval() before the export")
    if call.get("enable_gqa"):
        heads = call.shape(query)[-3]
        key, value = _shared(call, key, heads), _shared(call, value, heads)
    scale = call["scale"]
    scale = 1 / math.sqrt(call.shape(query)[-1]) if scale is None else scale
    scores = matmul(call, query, key, transposed=True)
    scores = call.elementwise(ex.mul(X, scale), scores)
    mask = call.get("attn_mask")
    scores = _masked(call, scores, mask, bool(call.get("is_causal")))
    weights = call.emit(Softmax(len(call.shape(scores)) - 1), scores)
    if mask is not None:
        weights = _without_masked_rows(call, scores, weights)
    result = matmul(call, weights, value)
    return call.first_of(result)


OPERATORS: Mapping[str, Handler] = {
    "aten.scaled_dot_product_attention.default": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
}
