"""Attention: the standard's operators, and ONNX Runtime's with several heads or grouped queries."""

from __future__ import annotations

import itertools
import math

import numpy as np

from cpembed.frontends.attention import Scores, attention
from cpembed.frontends.expressions import X, Y, add, less, sub, where
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.frontends.onnx.operators.contributed import rotated_pairs
from cpembed.graph.kinds import CacheUpdate, Gather
from cpembed.ir.scalars import apply


def split_heads(call: Call, x: str, count: int) -> str:
    """Return a tensor [batch, rows, width] as [batch, rows, heads, depth].

    Parameters
    ----------
    call : Call
    x : str
    count : int
        Number of heads.
    """
    batch, rows, width = call.shape(x)
    if count < 1 or width % count:
        call.reject(f"{count} heads of {width} features: give a divisor")
    return call.reshaped(x, (batch, rows, count, width // count))


def _heads(call: Call, x: str, count: int) -> str:
    """Return a tensor [batch, rows, width] as [batch, heads, rows, depth]."""
    return call.transposed(split_heads(call, x, count), (0, 2, 1, 3))


def merged_heads(call: Call, x: str) -> str:
    """Return a tensor [batch, heads, rows, depth] as [batch, rows, width]."""
    batch, heads, rows, depth = call.shape(x)
    return call.reshaped(call.transposed(x, (0, 2, 1, 3)), (batch, rows, heads * depth))


def _with_past(call: Call, x: str, k: int) -> str:
    """Return keys or values behind those of an earlier call, which input ``k`` has."""
    past = call.optional(k)
    return x if past is None else call.joined((past, x), 2)


def _attention(call: Call) -> tuple[str, ...]:
    """Emit the standard's attention, with a cache as inputs and outputs."""
    query, key, value = (call.input(k) for k in range(3))
    is_flat = call.rank(0) == 3
    if is_flat:
        query = _heads(call, query, call.integer("q_num_heads", 0))
        count = call.integer("kv_num_heads", 0)
        key, value = _heads(call, key, count), _heads(call, value, count)
    before = call.shape(key)[2]
    key, value = _with_past(call, key, 4), _with_past(call, value, 5)
    mask = call.optional(3)
    softcap = call.number("softcap", 0.0)
    if mask is not None and call.shape(mask)[-1] not in (1, call.shape(key)[2]):
        call.leave_to_definition("a mask of fewer keys than there are: give one of all")
    if any(call.is_read[3:4]):
        call.leave_to_definition("the scores of attention as an output: leave it out")
    call.attribute("qk_matmul_output_mode")
    call.attribute("softmax_precision")
    scale = call.number("scale", 1 / math.sqrt(call.shape(query)[-1]))
    causal = call.shape(key)[2] - before if call.flag("is_causal") else None
    scores = Scores(scale, causal=causal, mask=mask, softcap=softcap)
    # Without a mask, every row has a key.
    result = attention(call, query, key, value, scores, zero_rows=mask is not None)
    return merged_heads(call, result) if is_flat else result, key, value


def _multi_head_attention(call: Call) -> tuple[str, ...]:
    """Emit ONNX Runtime's attention of queries, keys and values that come apart."""
    count = call.integer("num_heads", 0)
    query, bias = call.input(0), call.optional(3)
    key, value = call.optional(1), call.optional(2)
    if call.rank(0) != 3 or key is None or value is None:
        call.reject("packed queries, keys and values are not known: give each of them")
    if call.optional(4) is not None:
        call.reject("key_padding_mask is not known: give attention_bias")
    sizes = [call.shape(tensor)[-1] for tensor in (query, key, value)]
    tensors = [query, key, value]
    if bias is not None:
        ends = [sum(sizes[: k + 1]) for k in range(3)]
        parts = [call.part(bias, 0, end - size, end) for end, size in zip(ends, sizes, strict=True)]
        tensors = [
            call.elementwise(add(X, Y), tensor, part) if len(call.shape(tensor)) == 3 else tensor
            for tensor, part in zip(tensors, parts, strict=True)
        ]
    # Keys and values of another sequence may come with their heads apart already.
    query, key, value = (_heads(call, x, count) if len(call.shape(x)) == 3 else x for x in tensors)
    before = call.shape(key)[2]
    key, value = _with_past(call, key, 6), _with_past(call, value, 7)
    scale = call.number("scale", 0.0) or 1 / math.sqrt(call.shape(query)[-1])
    causal = call.shape(key)[2] - before if call.flag("unidirectional") else None
    call.attribute("mask_filter_value")
    scores = Scores(scale, causal=causal, mask=call.optional(5))
    return merged_heads(call, attention(call, query, key, value, scores)), key, value


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


TABLE: dict[str, Translation] = {
    "Attention": _attention,
    "com.microsoft.GroupQueryAttention": _grouped_query_attention,
    "com.microsoft.MultiHeadAttention": _multi_head_attention,
    "TensorScatter": _tensor_scatter,
}
