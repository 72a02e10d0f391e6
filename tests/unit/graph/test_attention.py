"""The definition of attention, beside loops over its rows and beside PyTorch."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cpembed.errors import WorkloadError
from cpembed.graph.kinds import Attention, TensorType
from cpembed.graph.kinds.base import Array

RANDOM = np.random.default_rng(3)


def f(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def by_rows(kind: Attention, query: Array, key: Array, value: Array, mask: Array) -> Array:
    """All in the order of ``bhsd``; the mask is added."""
    batches, heads, rows, _ = query.shape
    group = heads // key.shape[1]
    result = np.zeros((batches, heads, rows, value.shape[3]))
    for b, h, i in np.ndindex(batches, heads, rows):
        count = key.shape[2] if kind.causal is None else min(key.shape[2], i + kind.causal + 1)
        products = key[b, h // group, :count].astype(float) @ query[b, h, i].astype(float)
        scores = products * kind.scale
        if kind.softcap:
            scores = kind.softcap * np.tanh(scores / kind.softcap)
        scores = (
            scores + np.broadcast_to(mask, (batches, heads, rows, key.shape[2]))[b, h, i, :count]
        )
        if kind.zero_rows and (scores == -np.inf).all():
            continue
        powers = np.exp(scores - scores.max())
        result[b, h, i] = powers / powers.sum() @ value[b, h // group, :count]
    return result.astype(np.float32)


@pytest.mark.parametrize("seed", range(12))
def test_each_row(seed: int) -> None:
    random = np.random.default_rng(seed)
    b, g, h, rows, keys, k, d = (int(random.integers(1, 4)) for _ in range(7))
    keys += rows
    orders = [["bhsd", "bshd", "bhds", "sbhd"][int(random.integers(4))] for _ in range(3)]
    tensors = {"q": (b, g * h, rows, k), "k": (b, h, keys, k), "v": (b, h, keys, d)}
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in tensors.values()]
    mask = random.standard_normal((b, 1, 1, keys)).astype(np.float32)
    kind = Attention(
        0.3,
        (orders[0], orders[1], orders[2], "bshd"),
        masked=True,
        causal=int(random.integers(0, 3)) if seed % 2 else None,
        softcap=2.0 if seed % 3 == 0 else 0.0,
    )
    ordered = [
        np.ascontiguousarray(array.transpose(["bhsd".index(axis) for axis in order]))
        for array, order in zip(arrays, orders, strict=True)
    ]
    (result,) = kind.evaluate([*ordered, mask])
    assert result.shape == (b, rows, g * h, d)
    expected = by_rows(kind, arrays[0], arrays[1], arrays[2], mask)
    np.testing.assert_allclose(result.transpose(0, 2, 1, 3), expected, atol=2e-6)


def test_a_boolean_mask_selects() -> None:
    query, key, value = f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4)
    chosen = RANDOM.random((1, 1, 3, 5)) < 0.6
    chosen[..., 0] = True
    added = np.where(chosen, np.float32(0), np.float32(-np.inf))
    (selected,) = Attention(0.5, masked=True).evaluate([query, key, value, chosen])
    (by_sum,) = Attention(0.5, masked=True).evaluate([query, key, value, added])
    np.testing.assert_array_equal(selected, by_sum)


@pytest.mark.parametrize("zero_rows, expected", [(True, 0.0), (False, math.nan)])
def test_a_row_without_keys(zero_rows: bool, expected: float) -> None:
    mask = np.zeros((1, 1, 3, 5), np.bool_)
    mask[0, 0, 1] = True
    kind = Attention(0.5, masked=True, zero_rows=zero_rows)
    (result,) = kind.evaluate([f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4), mask])
    assert np.isfinite(result[0, :, 1]).all()
    np.testing.assert_array_equal(result[0, :, 0], np.full((2, 4), expected, np.float32))


def test_an_excluded_score_that_is_finite_leaves_a_mean() -> None:
    value = f(1, 1, 5, 4)
    kind = Attention(0.5, masked=True, excluded=-1e4)
    mask = np.zeros((1, 1, 1, 5), np.bool_)
    (result,) = kind.evaluate([f(1, 1, 3, 4), f(1, 1, 5, 4), value, mask])
    np.testing.assert_allclose(result[0, 0, 2], value[0, 0].mean(axis=0), atol=1e-6)


def test_values_of_later_keys_do_not_count() -> None:
    value = f(1, 1, 4, 2)
    value[0, 0, 2] = np.nan
    (result,) = Attention(0.5, causal=0).evaluate([f(1, 1, 4, 3), f(1, 1, 4, 3), value])
    assert np.isfinite(result[0, 0, :2]).all()
    assert np.isnan(result[0, 0, 2:]).all()


@pytest.mark.parametrize(
    "shapes, message",
    [
        (((1, 3, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)), "attention of query, key and value"),
        (((1, 2, 4, 8), (1, 2, 4, 6), (1, 2, 4, 8)), "attention of query, key and value"),
        (((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 4, 8)), "attention of query, key and value"),
        (((2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)), "the query of attention"),
        (((1, 2, 4, 8),) * 3 + ((1, 1, 4, 5),), "a mask of"),
    ],
)
def test_shapes_that_do_not_fit(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    kind = Attention(1.0, masked=len(shapes) > 3)
    with pytest.raises(WorkloadError, match=message):
        kind.types([TensorType(shape, "float32") for shape in shapes])


@pytest.mark.parametrize("causal", [False, True])
def test_as_pytorch(causal: bool) -> None:
    torch = pytest.importorskip("torch")
    query, key, value = f(2, 4, 6, 8), f(2, 2, 6, 8), f(2, 2, 6, 8)
    kind = Attention(1 / math.sqrt(8), causal=0 if causal else None)
    (result,) = kind.evaluate([query, key, value])
    expected = torch.nn.functional.scaled_dot_product_attention(
        *map(torch.from_numpy, (query, key, value)), is_causal=causal, enable_gqa=True
    )
    np.testing.assert_allclose(result, expected.numpy(), atol=2e-6)


@pytest.mark.parametrize("boolean", [True, False])
def test_keys_that_a_mask_excludes_do_not_count(boolean: bool) -> None:
    """Not even if they are NaN, unlike keys that are excluded by a finite score."""
    arrays = [f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4)]
    selected = np.ones((3, 5), bool)
    selected[:, 3:] = False
    mask = selected if boolean else np.where(selected, 0.5, -np.inf).astype(np.float32)
    (expected,) = Attention(0.5).evaluate([arrays[0], arrays[1][:, :, :3], arrays[2][:, :, :3]])
    arrays[1][:, :, 3:], arrays[2][:, :, 3:] = np.nan, np.inf
    (result,) = Attention(0.5, masked=True).evaluate([*arrays, mask])
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
    if boolean:
        (result,) = Attention(0.5, masked=True, excluded=-1e4).evaluate([*arrays, mask])
        assert np.isnan(result).all()
