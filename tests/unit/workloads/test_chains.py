"""Chains of products: their names, and their definition against other implementations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from cpembed.errors import WorkloadError
from cpembed.graph.kinds import Attention
from cpembed.ir.reference import reference
from cpembed.workloads.chain_families import (
    attention,
    conv_pointwise,
    mlp,
    names_chain,
    parse_chain,
)
from cpembed.workloads.chains import ACTIVATIONS, LENGTHS, MASK, SINKS, Pointwise, RowSoftmax


@pytest.mark.parametrize("causal, offset", [(False, None), (True, None), (True, 0), (True, -3)])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_that_of_networks(causal: bool, offset: int | None, masked: bool) -> None:
    """The operator of networks, whose definition is another one; it has no lengths of keys."""
    chain = attention(b=2, h=6, kv=2, q=5, k=9, d=8, e=4, causal=causal, offset=offset, mask=masked)
    inputs = chain.random_inputs(0)
    function = chain.function
    assert isinstance(function, RowSoftmax)
    kind = Attention(1 / math.sqrt(8), masked=masked, causal=function.causal, zero_rows=True)
    query, key, value = (inputs[name].astype(np.float32) for name in "QKV")
    operands = [query.reshape(2, 6, 5, 8), key, value]
    if masked:
        operands.append(inputs[MASK])
    (expected,) = kind.evaluate(operands)
    result = chain.evaluate(inputs).reshape(2, 6, 5, 4)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_lengths_are_keys_that_are_left_out() -> None:
    chain = attention(b=3, h=1, q=4, k=7, d=8, lengths=True)
    inputs = chain.random_inputs(1) | {LENGTHS: np.array([7, 3, 0], np.int32)}
    result = chain.evaluate(inputs)
    shorter = attention(b=3, h=1, q=4, k=3, d=8)
    cut = {name: inputs[name][:, :, :3] if name in "KV" else inputs[name] for name in "QKV"}
    np.testing.assert_allclose(result[1], shorter.evaluate(cut)[1])
    assert (result[2] == 0).all()


def test_layouts_of_attention_differ_in_the_order_of_axes_alone() -> None:
    first = attention(b=2, h=4, kv=2, q=3, k=5, d=8, causal=True)
    second = attention(b=2, h=4, kv=2, q=3, k=5, d=8, causal=True, layout="BSHD")
    inputs = first.random_inputs(2)
    moved = {
        "Q": inputs["Q"].transpose(0, 3, 1, 2, 4),
        "K": inputs["K"].transpose(0, 2, 1, 3),
        "V": inputs["V"].transpose(0, 2, 1, 3),
    }
    result = second.evaluate(moved).transpose(0, 2, 3, 1, 4)
    np.testing.assert_allclose(result, first.evaluate(inputs))


def test_integers_are_rounded_and_saturated_between_the_products() -> None:
    chain = mlp(m=3, k=8, n=5, p=4, act="relu", bias=True, dtype="int8")
    inputs = chain.random_inputs(3)
    sums = inputs["X"].astype(np.int64) @ inputs["W1"] + inputs["MiddleBias"]
    scaled = np.maximum(sums.astype(np.float32) * inputs["MiddleScale"], 0)
    between = np.clip(np.rint(scaled), -128, 127)
    expected = between.astype(np.int64) @ inputs["W2"]
    result = chain.evaluate(inputs)
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("stride, pad", [(1, 1), (2, 1), (1, 0)])
def test_convolutions_are_those_of_the_reference(stride: int, pad: int) -> None:
    chain = conv_pointwise(
        n=2, c=3, h=7, w=6, k=5, r=3, s=3, m=4, stride=stride, pad=pad, dtype="int8"
    )
    inputs = chain.random_inputs(4)
    sums = reference(chain.first, {name: inputs[name] for name in ("I", "W")})
    between = np.rint(sums.astype(np.float32) * inputs["MiddleScale"]).clip(-128, 127)
    expected = between.astype(np.int64) @ inputs["W2"].astype(np.int64).T
    np.testing.assert_array_equal(chain.evaluate(inputs), expected)


@pytest.mark.parametrize("name", ["gelu", "silu", "tanh", "relu", "none"])
def test_activations_are_applied_to_sums(name: str) -> None:
    chain = mlp(m=2, k=4, n=3, p=2, act=name)
    inputs = chain.random_inputs(5)
    x = inputs["X"].astype(np.float64) @ inputs["W1"].astype(np.float64)
    definitions = {
        "gelu": x * np.vectorize(lambda v: (1 + math.erf(v / math.sqrt(2))) / 2)(x),
        "silu": x / (1 + np.exp(-x)),
        "tanh": np.tanh(x),
        "relu": np.where(x > 0, x, 0),
        "none": x,
    }
    expected = definitions[name] @ inputs["W2"].astype(np.float64)
    np.testing.assert_allclose(chain.evaluate(inputs), expected)


@pytest.mark.parametrize("layers", ["mlp m=3 k=4 n=5 p=6", "conv_pointwise n=1 c=4 h=3 w=2 k=5"])
def test_the_result_has_a_function_of_its_own(layers: str) -> None:
    """A bias of each column and a residual are added before the activation."""
    layers += " r=1 s=1 m=6" if "conv" in layers else ""
    chain = parse_chain([layers, "end_act=relu end_bias residual"])
    plain = parse_chain([layers])
    inputs = chain.random_inputs(6)
    assert {name for name in inputs if name not in plain.inputs} == {"EndBias", "EndResidual"}
    sums = plain.evaluate({name: inputs[name] for name in plain.inputs})
    expected = np.maximum(sums + inputs["EndBias"] + inputs["EndResidual"], 0)
    np.testing.assert_allclose(chain.evaluate(inputs), expected)


def test_words_name_chains_and_their_flags() -> None:
    assert names_chain(["attention", "b=1"])
    assert names_chain(["mlp m=1"])
    assert not names_chain(["gemm", "m=1"])
    chain = parse_chain(["attention b=1 h=8 kv=2 q=16 k=20 d=64 causal"])
    assert chain.function == RowSoftmax(0.125, causal=4)
    assert chain.first.extents == {"b": 1, "g": 2, "r": 4, "q": 16, "k": 20, "d": 64}
    assert parse_chain(["mlp m=1 k=2 n=3 p=4 bias act=silu"]).function == Pointwise(
        bias=True, expression=ACTIVATIONS["silu"]
    )


@pytest.mark.parametrize(
    "words, problem",
    [
        ("attention b=1 h=6 kv=4 q=1 k=1 d=16", "h=6 is no multiple of kv=4"),
        ("attention b=1 h=1 q=1 k=1 d=16 offset=3", "offset is of causal=1"),
        ("attention b=1 h=1 q=1 k=1 d=16 scale=wide", "scale=wide is not a number"),
        ("attention b=1 h=1 q=1 k=1 d=16 scale=inf", "not a finite number"),
        ("attention b=1 h=1 q=1 k=1", "missing d"),
        ("mlp m=1 k=1 n=1 p=1 act=step", "act=step is none of none relu"),
        ("mlp m=1 k=1 n=1 p=1 output=int32", "output=int32 of factors of float16"),
        ("mlp m=1 k=1 n=1 p=1 dtype=int8 residual", "residual are of floats, not of int8"),
        ("mlp m=1 k=1 n=1 p=0", "p=0 is less than 1"),
        ("mlp m=1 k=1 n=1 p=1 p=1", "p is set twice"),
        ("mlp m=1 k=1 n=1 p=1 q", "'q' is not a setting"),
        ("conv_pointwise n=1 c=1 h=1 w=1 k=1 r=1 s=1 m=1 dtype=float32", "dtype=float32 is none"),
    ],
)
def test_wrong_words_are_refused(words: str, problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem):
        parse_chain(words.split())


def test_masks_of_any_dimensions_windows_caps_and_sinks() -> None:
    """Beside a softmax that is written out for each row."""
    words = "attention b=2 h=4 kv=2 q=5 k=7 d=3 e=2 causal offset=3 window=4 lengths cap=2 sinks"
    random = np.random.default_rng(1)
    for dimensions in ("k", "qk", "hqk", "bk", "bqk", "bhqk", "hk"):
        for dtype in ("float32", "uint8"):
            chain = parse_chain([*words.split(), f"mask={dimensions}", f"mask_type={dtype}"])
            arrays = chain.random_inputs(int(random.integers(100)))
            output = chain.evaluate(arrays)
            for b, h, q in itertools.product(range(2), range(4), range(5)):
                expected = one_row(arrays, dimensions, (b, h, q))
                np.testing.assert_allclose(output[b, h // 2, h % 2, q], expected, atol=1e-12)


def one_row(
    arrays: Mapping[str, Any], dimensions: str, place: tuple[int, int, int]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Attention of a query: keys one after the other."""
    b, h, q = place
    total, sums = math.exp(float(arrays[SINKS][h])), np.zeros(2)
    for k in range(7):
        score = float(
            arrays["Q"][b, h // 2, h % 2, q].astype(float) @ arrays["K"][b, h // 2, k].astype(float)
        )
        score = 2 * math.tanh(score / math.sqrt(3) / 2)
        numbers = {"b": b, "h": h, "q": q, "k": k}
        mask = arrays[MASK][tuple(numbers[name] for name in dimensions)]
        if mask.dtype == np.uint8:
            score += 0.0 if mask else -math.inf
        else:
            score += float(mask)
        if not q + 3 - 4 < k <= q + 3 or k >= arrays[LENGTHS][b]:
            score = -math.inf
        total += math.exp(score)
        sums += math.exp(score) * arrays["V"][b, h // 2, k].astype(float)
    return sums / total


@pytest.mark.parametrize(
    "words, problem",
    [
        ("mask=kq", "mask=kq is none of"),
        ("mask=hq", "mask=hq is none of"),
        ("mask mask_type=float64", "mask_type=float64 is none of"),
        ("mask_type=uint8", "mask_type=uint8 is of a mask"),
        ("window=3", "window is of causal=1"),
        ("cap=-1", "cap=-1 is not positive"),
        ("cap=nan", "cap=nan is not a finite number"),
    ],
)
def test_masks_that_mean_nothing_are_refused(words: str, problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem):
        parse_chain(f"attention b=1 h=1 q=2 k=2 d=2 {words}".split())
