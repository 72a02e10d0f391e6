"""Decompositions that PyTorch lacks, above all of its fused encoder layer and multi-head attention.

In evaluation ``torch.nn.TransformerEncoderLayer`` and ``MultiheadAttention`` call one operator for
all of their parts, which neither ``torch.export`` nor inductor takes apart.
"""
# pyright: basic

# What it imports is an extra, which a type checker need not find, and not this package.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from cpembed.frontends.torch.special_functions import special_functions


def _attention_weights(scores: Any, mask: Any, mask_type: int | None) -> Any:
    """Return the softmax of scores ``(batch, heads, rows, columns)``; a masked weight is 0."""
    if mask is None:
        return torch.softmax(scores, -1)
    # As PyTorch's kernel does: every element that is not zero masks, that of an added mask too.
    mask = mask.to(torch.bool)
    # A mask of type 0 is (rows, columns), of type 1 (batch, columns), of type 2 complete.
    shaped = mask[:, None, None, :] if mask_type == 1 else mask
    masked = scores.masked_fill(shaped, -math.inf)
    # A row without any column would be 0 / 0.
    return torch.softmax(masked, -1).masked_fill(shaped, 0.0)


def _multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose ``aten._native_multi_head_attention``, whose arguments it takes."""
    heads: list[torch.Tensor] = []
    for number, source in enumerate((query, key, value)):
        rows = slice(number * embed_dim, (number + 1) * embed_dim)
        projected = functional.linear(source, qkv_weight[rows], qkv_bias[rows])
        split = projected.reshape(*projected.shape[:2], num_head, embed_dim // num_head)
        heads.append(split.permute(0, 2, 1, 3))
    scores = torch.matmul(heads[0] / math.sqrt(embed_dim // num_head), heads[1].transpose(2, 3))
    weights = _attention_weights(scores, mask, mask_type)
    joined = torch.matmul(weights, heads[2]).permute(0, 2, 1, 3)
    result = functional.linear(joined.reshape(query.shape), proj_weight, proj_bias)
    if not need_weights:
        return result, result.new_empty(0)
    return result, weights.mean(1) if average_attn_weights else weights


def _encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Decompose ``aten._transformer_encoder_layer_fwd``, whose arguments it takes."""

    def first_norm(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attention(x: torch.Tensor) -> torch.Tensor:
        attended, _ = _multi_head_attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask,
            need_weights=False, mask_type=mask_type,
        )  # fmt: skip
        return attended

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        hidden = functional.linear(x, ffn_weight_1, ffn_bias_1)
        hidden = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
        return functional.linear(hidden, ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attention(first_norm(src))
        return x + feed_forward(second_norm(x))
    x = first_norm(src + attention(src))
    return second_norm(x + feed_forward(x))


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator."""
    aten = torch.ops.aten
    return {
        aten._native_multi_head_attention.default: _multi_head_attention,
        aten._transformer_encoder_layer_fwd.default: _encoder_layer,
        **special_functions(),
    }
