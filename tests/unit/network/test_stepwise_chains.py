"""Chains that stand for attention in networks are defined as attention is."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.errors import LoweringError
from cpembed.graph.kinds import Attention, TensorType
from cpembed.graph.kinds.attention import AXES
from cpembed.network.stepwise_chains import FusedAttention, attention_chain, with_undefined_rows
from cpembed.targets.chains import ChainCandidate

Array = NDArray[Any]

CANDIDATE = ChainCandidate(
    products=(),
    via="",
    schedule="",
    estimated_us=1.0,
    bound_by="",
    plan=None,
)


def case(seed: int) -> tuple[Attention, list[Array]]:
    """A random attention, of any orders of axes, with or without masks, and its inputs."""
    draw, data = random.Random(seed), np.random.default_rng(seed)
    heads, group, depth = draw.randint(1, 2), draw.randint(1, 3), draw.choice([8, 16])
    batch, rows = draw.randint(1, 2), draw.randint(1, 6)
    keys, values = draw.randint(2, 7), draw.choice([8, 24])

    def tensor(axes: str, count: int, length: int, columns: int) -> Array:
        sizes = {"b": batch, "h": count, "s": length, "d": columns}
        return data.standard_normal([sizes[axis] for axis in axes]).astype(np.float16)

    orders = [draw.choice(["bhsd", "bshd", "hbsd"]) for _ in range(4)]
    inputs = [
        tensor(orders[0], heads * group, rows, depth),
        tensor(orders[1], heads, keys, depth),
        tensor(orders[2], heads, keys, values),
    ]
    masked = draw.random() < 0.7
    if masked:
        shape = [draw.choice([1, size]) for size in (batch, heads * group, rows)] + [keys]
        # Leading dimensions of one element may be missing.
        leading = next((n for n, size in enumerate(shape) if size != 1), 3)
        shape = shape[draw.randint(0, leading) :]
        mask = data.random(shape) < 0.7
        added = np.where(mask, data.standard_normal(shape), -np.inf).astype(np.float32)
        inputs.append(mask if draw.random() < 0.5 else added)
    kind = Attention(
        scale=draw.choice([0.25, 1.0]),
        axes=tuple(orders),
        masked=masked,
        causal=draw.choice([None, 0, keys - 1]),
        softcap=draw.choice([0.0, 0.0, 5.0]),
        zero_rows=draw.random() < 0.5,
        factors="float16",
    )
    return kind, inputs


@pytest.mark.parametrize("seed", range(60))
def test_a_chain_is_defined_as_its_attention(seed: int) -> None:
    kind, inputs = case(seed)
    types = [TensorType.of_array(array) for array in inputs]
    chain = attention_chain(kind, types)
    fused = FusedAttention(kind, chain, CANDIDATE)
    result = chain.evaluate(fused.inputs(inputs)).astype(np.float32)
    (expected,) = kind.evaluate(inputs)
    result = with_undefined_rows(kind, inputs, result.reshape(expected.shape))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_rows_without_keys_are_nan_unless_they_are_zeros() -> None:
    ones = [np.ones((1, 1, 2, 8), np.float16)] * 3
    mask = np.array([[True, True], [False, False]])[:, [0, 1]]
    kind = Attention(1.0, masked=True, factors="float16")
    zeros = np.zeros((1, 1, 2, 8), np.float32)
    result = with_undefined_rows(kind, [*ones, mask], zeros)
    assert np.isnan(result).all(axis=3).tolist() == [[[False, True]]]
    zeroed = Attention(1.0, masked=True, zero_rows=True, factors="float16")
    assert with_undefined_rows(zeroed, [*ones, mask], zeros) is zeros


def test_scores_that_a_mask_replaces_by_a_number_have_no_chain() -> None:
    types = [TensorType((1, 2, 4, 8), "float16")] * 3
    kind = Attention(1.0, axes=(AXES,) * 4, masked=True, excluded=-100.0, factors="float16")
    with pytest.raises(LoweringError, match="keys that a mask excludes have a score of -100"):
        attention_chain(kind, [*types, TensorType((4, 4), "bool")])
