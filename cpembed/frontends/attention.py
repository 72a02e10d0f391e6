"""Attention as products of matrices around a softmax, as both front ends write it.

:func:`~cpembed.graph.passes.attention.recognize_attention` makes one operator of it, for targets
that have its kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cpembed.frontends.composites import Composites
from cpembed.frontends.expressions import X, Y, add, div, equal, mul, where
from cpembed.graph.kinds import Elementwise, Reduce, Softmax
from cpembed.ir.scalars import apply

_LARGEST_MASK = 1 << 26
"""Maximum number of elements of a causal mask, which is a constant."""


@dataclass(frozen=True)
class Scores:
    """Scale, limit and masks of the products of query and key before the softmax.

    Attributes
    ----------
    causal : int, optional
        Number of keys before the first row's own, if later keys have no weight.
    mask : str, optional
        Tensor that is added, or a Boolean one that selects.
    excluded : float
        Score of what a Boolean mask leaves out.
    softcap : float
        Limit c of the scores before the masks, ``c tanh(score / c)``; 0 for none.
    """

    scale: float
    causal: int | None = None
    mask: str | None = None
    excluded: float = -math.inf
    softcap: float = 0.0


def attention(
    call: Composites, query: str, key: str, value: str, scores: Scores, *, zero_rows: bool = False
) -> str:
    """Emit attention of heads, the third axis from the end.

    Parameters
    ----------
    call : Composites
    query, key, value : str
        Tensors [..., heads, rows, depth], of which key and value may have fewer heads.
    scores : Scores
    zero_rows : bool
        Rows without any score above -inf are zeros, not NaN.
    """
    if call.shape(query)[-3:-2] != call.shape(key)[-3:-2]:
        heads = call.shape(query)[-3]
        key, value = _shared(call, key, heads), _shared(call, value, heads)
    products = call.matmul(query, key, transposed=True)
    masked = _masked(call, call.elementwise(mul(X, scores.scale), products), scores)
    last = len(call.shape(masked)) - 1
    weights = call.emit(Softmax(last), masked)
    if zero_rows:
        largest = call.emit(Reduce("max", (last,), True), masked)
        zeroed = where(equal(X, -math.inf), 0.0, Y)
        weights = call.emit(Elementwise(zeroed, call.dtype(weights)), largest, weights)
    return call.matmul(weights, value)


def _shared(call: Composites, x: str, heads: int) -> str:
    """Repeat keys or values that several heads of queries share."""
    *lead, groups, length, depth = call.shape(x)
    if heads % groups:
        call.reject(f"{heads} heads of queries for {groups} of keys: give a multiple")
    x = call.reshaped(x, (*lead, groups, 1, length, depth))
    x = call.expanded(x, (*lead, groups, heads // groups, length, depth))
    return call.reshaped(x, (*lead, heads, length, depth))


def _masked(call: Composites, x: str, scores: Scores) -> str:
    """Emit the limit and the masks of scaled scores."""
    if scores.softcap:
        capped = mul(apply("tanh", div(X, scores.softcap)), scores.softcap)
        x = call.elementwise(capped, x)
    if scores.causal is not None:
        rows, columns = call.shape(x)[-2:]
        if rows * columns > _LARGEST_MASK:
            call.reject(f"a causal mask of {rows} by {columns} is too large a constant")
        # Minus infinity above the diagonal: positions that come later have no weight.
        later = np.triu(np.full((rows, columns), -np.inf, np.float32), scores.causal + 1)
        x = call.elementwise(add(X, Y), x, call.tensor(later))
    mask = scores.mask
    if mask is None:
        return x
    if call.dtype(mask) == "bool":
        dtype = call.dtype(x)
        return call.elementwise(where(X, Y, scores.excluded), mask, x, dtype=dtype)
    return call.elementwise(add(X, Y), x, mask)
