"""ONNX Runtime's attention of decoders, with its cache, beside ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from cpembed.errors import ModelError
from cpembed.graph.kinds import Attention
from cpembed.graph.passes import prepare
from tests.unit.frontends.onnx.referee import MICROSOFT, Array, both, loaded, single

RANDOM = np.random.default_rng(11)
HEADS, KEY_HEADS, DEPTH = 4, 2, 16
ANGLES = np.outer(np.arange(64), 1.0 / 100.0 ** (np.arange(DEPTH // 2) / (DEPTH // 2)))
COSINES, SINES = np.cos(ANGLES).astype(np.float32), np.sin(ANGLES).astype(np.float32)


def f(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def inputs_of(
    length: int,
    held: int,
    ends: list[int],
    *,
    total: int,
    packed: bool = False,
    rotary: bool = False,
) -> list[Array | None]:
    """The inputs of a call: ``ends`` are each batch's tokens with those of this call."""
    batch = len(ends)
    width = (HEADS + 2 * KEY_HEADS if packed else HEADS) * DEPTH
    sides: list[Array | None] = [f(batch, length, KEY_HEADS * DEPTH) for _ in range(2)]
    cache = [f(batch, KEY_HEADS, held, DEPTH) for _ in range(2)]
    return [
        f(batch, length, width),
        *([None, None] if packed else sides),
        *cache,
        np.array(ends, np.int32) - 1,
        np.array(total, np.int32),
        *([COSINES, SINES] if rotary else []),
    ]


def model_of(inputs: list[Array | None], **attributes: Any) -> Any:
    sizes = {"num_heads": HEADS, "kv_num_heads": KEY_HEADS, **attributes}
    return single("GroupQueryAttention", inputs, (6,), outputs=3, domain=MICROSOFT, **sizes)


def check(inputs: list[Array | None], ends: list[int], folder: Path, **attributes: Any) -> None:
    """Both agree on the results, and on the part of the cache that is in use."""
    feeds = {f"x{k}": a for k, a in enumerate(inputs) if a is not None and k != 6}
    rows = both(model_of(inputs, **attributes), feeds, folder)
    for number, (name, result, expected) in enumerate(rows):
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype), name
        for batch, end in enumerate(ends):
            used = (batch, slice(None), slice(end)) if number else (batch,)
            np.testing.assert_allclose(result[used], expected[used], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
def test_a_prompt_and_a_token_behind_it(packed: bool, rotary: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"packed": packed, "rotary": bool(rotary)}
    check(inputs_of(5, 0, [5, 5], total=5, **options), [5, 5], tmp_path, do_rotary=rotary)
    check(inputs_of(1, 7, [8, 8], total=8, **options), [8, 8], tmp_path, do_rotary=rotary)


def test_batches_of_different_lengths_in_a_cache_with_room(tmp_path: Path) -> None:
    inputs = inputs_of(1, 12, [4, 9], total=9, rotary=True)
    check(inputs, [4, 9], tmp_path, do_rotary=1, rotary_interleaved=1, scale=0.3)


@pytest.mark.parametrize("window", [1, 3, 20])
def test_a_window_of_the_last_tokens(window: int, tmp_path: Path) -> None:
    check(inputs_of(7, 0, [7], total=7), [7], tmp_path, local_window_size=window)
    check(inputs_of(1, 9, [10], total=10), [10], tmp_path, local_window_size=window)


def test_limited_scores_and_a_bias(tmp_path: Path) -> None:
    inputs = inputs_of(3, 0, [3, 3], total=3)
    check(inputs, [3, 3], tmp_path, softcap=1.5)
    biased = [*inputs, None, None, None, f(1, HEADS, 3, 3)]
    check(biased, [3, 3], tmp_path)


def test_is_one_operator_of_a_network(tmp_path: Path) -> None:
    graph = loaded(model_of(inputs_of(1, 7, [8], total=8, rotary=True), do_rotary=1), tmp_path)
    prepared = prepare(graph, attends=True)
    kinds = [o.kind for o in prepared.operators if isinstance(o.kind, Attention)]
    assert [kind.masked for kind in kinds] == [True]


def test_refused(tmp_path: Path) -> None:
    inputs = inputs_of(5, 0, [5], total=5)
    with pytest.raises(ModelError, match="5 tokens in a cache of 3"):
        loaded(model_of([*inputs[:6], np.array(3, np.int32)]), tmp_path)
    with pytest.raises(ModelError, match="kv_num_heads 0"):
        loaded(model_of(inputs, kv_num_heads=0), tmp_path)
    sizes: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": KEY_HEADS}
    varying = single("GroupQueryAttention", inputs, outputs=3, domain=MICROSOFT, **sizes)
    with pytest.raises(ModelError, match="total sequence length"):
        loaded(varying, tmp_path)
