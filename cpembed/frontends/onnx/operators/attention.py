"""Attention: the standard's operator, and ONNX Runtime's with several heads."""

from __future__ import annotations

import math

from cpembed.frontends.attention import Scores, attention
from cpembed.frontends.expressions import X, Y, add
from cpembed.frontends.onnx.call import Call, Translation


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
    # The kind limits scores before it adds a mask.
    if softcap and mask is not None:
        call.leave_to_definition("attention with a mask and a softcap: leave one of them out")
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


TABLE: dict[str, Translation] = {
    "Attention": _attention,
    "com.microsoft.MultiHeadAttention": _multi_head_attention,
}
