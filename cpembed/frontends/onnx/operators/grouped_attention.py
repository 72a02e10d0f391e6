"""ONNX Runtime's attention of decoders: rotated heads, shared keys, a cache, a window."""

from __future__ import annotations

import itertools
import math

import numpy as np

from cpembed.frontends.attention import Scores, attention
from cpembed.frontends.expressions import X, Y, add, apply, less, sub, where
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.frontends.onnx.operators.attention import merged_heads, split_heads
from cpembed.frontends.onnx.operators.contributed import rotated_pairs
from cpembed.graph.kinds import CacheUpdate, Gather


def _grouped_query_attention(call: Call) -> tuple[str, ...]:
    """Emit attention of the tokens of a call to all tokens so far, whose keys the cache has.

    Tokens of each batch lie behind those of earlier calls, whose number the model passes.
    """
    if call.optional(11) is not None or call.flag("smooth_softmax"):
        call.reject("a sink among the scores is not read: export without head_sink")
    query, key, value = _projections(call)
    length = call.shape(query)[1]
    lengths = call.cast(call.input(5), "int32")
    batch = call.shape(query)[0]
    before = call.reshaped(
        call.elementwise(apply("max", sub(X, length - 1), 0), lengths), (batch, 1, 1, 1)
    )
    if call.flag("do_rotary"):
        query, key = _rotated(call, [query, key], before)
    query, key, value = (call.transposed(x, (0, 2, 1, 3)) for x in (query, key, value))
    key, value = (_in_cache(call, x, 3 + k, before) for k, x in enumerate((key, value)))
    scale = call.number("scale", 0.0) or 1 / math.sqrt(call.shape(query)[-1])
    mask = _mask(call, before, length, call.shape(key)[2])
    scores = Scores(scale, mask=mask, softcap=call.number("softcap", 0.0))
    return merged_heads(call, attention(call, query, key, value, scores)), key, value


def _projections(call: Call) -> list[str]:
    """Return queries, keys and values as [batch, tokens, heads, depth]."""
    heads, key_heads = call.integer("num_heads", 0), call.integer("kv_num_heads", 0)
    if heads < 1 or key_heads < 1:
        call.reject(f"num_heads {heads}, kv_num_heads {key_heads}: give positive numbers")
    query, key, value = call.input(0), call.optional(1), call.optional(2)
    if key is not None and value is not None:
        return [
            split_heads(call, x, count)
            for x, count in ((query, heads), (key, key_heads), (value, key_heads))
        ]
    packed = split_heads(call, query, heads + 2 * key_heads)
    ends = (0, heads, heads + key_heads, heads + 2 * key_heads)
    return [call.part(packed, 2, *bounds) for bounds in itertools.pairwise(ends)]


def _rotated(call: Call, tensors: list[str], before: str) -> list[str]:
    """Rotate each head by the angles of its token's position."""
    batch, length = call.shape(tensors[0])[:2]
    positions = call.optional(9)
    if positions is None:
        steps = call.tensor(np.arange(length)[None], "int32")
        first = call.reshaped(before, (batch, 1))
        positions = call.elementwise(add(X, Y), steps, first)
    else:
        positions = call.reshaped(positions, (batch, length))
    half = call.shape(call.input(7))[1]
    cosine, sine = (
        call.reshaped(call.emit(Gather(0), call.input(k), positions), (batch, length, 1, half))
        for k in (7, 8)
    )
    is_interleaved = call.flag("rotary_interleaved")
    return [rotated_pairs(call, x, cosine, sine, 2 * half, is_interleaved) for x in tensors]


def _in_cache(call: Call, x: str, k: int, before: str) -> str:
    """Return the cache that input ``k`` has, with keys or values [batch, heads, tokens, depth]."""
    batch, heads, length, depth = call.shape(x)
    past = call.optional(k)
    filled = 0 if past is None else call.shape(past)[2]
    total = int(call.constant(6, "the total sequence length").reshape(()))
    size = max(filled, total)
    if size < length:
        call.reject(f"{length} tokens in a cache of {size}: give a larger total_sequence_length")
    if past is None and size == length:
        return x
    blank = call.tensor(np.zeros((batch, heads, size - filled, depth), np.float32), call.dtype(x))
    tensors = ([] if past is None else [past]) + ([blank] if size > filled else [])
    return call.emit(CacheUpdate(2), call.joined(tensors, 2), x, call.reshaped(before, (batch,)))


def _mask(call: Call, before: str, length: int, keys: int) -> str:
    """Return the keys of each row: not later than its own, and inside the window."""
    later = np.arange(keys)[None] - np.arange(length)[:, None]
    distance = call.tensor(later[None, None], "int32")
    visible = call.elementwise(less(X, add(Y, 1)), distance, before, dtype="bool")
    window = call.integer("local_window_size", -1)
    if window > 0:
        inside = call.elementwise(less(sub(Y, window), X), distance, before, dtype="bool")
        visible = call.elementwise(apply("and", X, Y), visible, inside, dtype="bool")
    bias = call.optional(10)
    if bias is None:
        return visible
    if call.shape(bias)[-1] != keys:
        call.reject(f"attention_bias of {call.shape(bias)[-1]} keys of {keys}: give one of all")
    return call.elementwise(where(X, Y, -math.inf), visible, bias, dtype=call.dtype(bias))


TABLE: dict[str, Translation] = {"com.microsoft.GroupQueryAttention": _grouped_query_attention}
