"""Kernels of chains, executed: their results are those of the definition, in any order of warps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpembed.driver.named import hardware_spec
from cpembed.errors import LoweringError
from cpembed.targets.cuda.chains.pairs import find_pairs
from cpembed.targets.cuda.chains.plan import ChainPlan, ChainSchedule, check
from cpembed.targets.cuda.chains.saving import chain_cases
from cpembed.targets.cuda.emulator.executor import Order
from cpembed.workloads.chains import LENGTHS, MASK
from tests.unit.targets.cuda.chains.generated import (
    SHARED_BYTES,
    AttentionSizes,
    chain_of,
    error_of,
    is_right,
    kernels_of,
    plan_of,
    random_attention,
    random_functions,
)
from tests.unit.targets.cuda.emulator.running import needs_compiler

pytestmark = needs_compiler

ORDERS: tuple[Order | int, ...] = (Order.FORWARD, Order.REVERSE, 11)


SIZES = AttentionSizes(70, 90, (16, 24, 33, 40, 64), (16, 48, 72))


def random_kernel(seed: int) -> tuple[str, ChainSchedule, int]:
    """Sizes, masks, layout, schedule and pair."""
    random = np.random.default_rng(seed)
    words = random_attention(random, SIZES)
    chain = chain_of(words)
    depth = chain.second.extents["e"]
    rows = int(random.integers(1, 3))
    schedule = ChainSchedule(
        "registers",
        (int(random.choice([1, 2, 4])), 1),
        rows,
        int(random.choice([1, 2, 4] if rows == 1 else [1, 2])),
        -(-depth // 8),
        int(random.integers(2, 4)),
    )
    return words, schedule, int(random.integers(6))


def split(plan: ChainPlan, random: np.random.Generator) -> ChainPlan:
    """The chunks of the plan's blocks shared among some, where there are enough."""
    splits = min(plan.chunks, int(random.choice([1, 1, 2, 3, 5])))
    return replace(plan, schedule=replace(plan.schedule, splits=splits))


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(60))
def test_attention_of_random_sizes_and_masks(seed: int) -> None:
    words, schedule, number = random_kernel(seed)
    plan = split(plan_of(chain_of(words), schedule, number), np.random.default_rng(seed))
    assert is_right(kernels_of(plan), seed, ORDERS[seed % 3]), (words, plan.schedule)


def random_layers(seed: int) -> tuple[str, ChainSchedule]:
    random = np.random.default_rng(seed)
    words = random_functions(random)
    if random.integers(3):
        sizes = [int(n) for n in random.integers((1, 1, 1, 1), (70, 200, 130, 100))]
        words = "mlp m={} k={} n={} p={} ".format(*sizes) + words
        columns = -(-sizes[3] // 8)
    else:
        c, h, k, m = (int(n) for n in random.integers((1, 4, 1, 1), (40, 10, 70, 60)))
        words = f"conv_pointwise n=2 c={c} h={h} w=7 k={k} r=3 s=2 m={m} pad=1 " + words
        words += f" stride={random.integers(1, 3)}"
        columns = -(-m // 8)
    if random.integers(2) and columns >= 2:
        schedule = ChainSchedule("shared memory", (2, 2), 1, 2, columns)
    else:
        schedule = ChainSchedule("registers", (2, 1), int(random.integers(1, 3)), 1, columns, 3)
    return words, schedule


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(60))
def test_pairs_of_layers_of_random_sizes(seed: int) -> None:
    """Integers bit for bit, through either place of the operand between."""
    words, schedule = random_layers(seed)
    plan = split(plan_of(chain_of(words), schedule, seed), np.random.default_rng(seed))
    assert is_right(kernels_of(plan), seed, ORDERS[seed % 3]), (words, plan.schedule)


@pytest.mark.quick(1)
@pytest.mark.parametrize("depth", [16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256])
def test_heads_of_every_depth(depth: int) -> None:
    chain = chain_of(f"attention b=1 h=2 kv=1 q=40 k=50 d={depth} causal")
    schedule = ChainSchedule("registers", (2, 1), 1, 1 if depth > 128 else 2, depth // 8)
    assert is_right(kernels_of(plan_of(chain, schedule)), depth)


SMALL = ChainSchedule("registers", (2, 1), 1, 2, 2)


def test_rows_without_keys_are_zero() -> None:
    """By lengths, by a causal mask that begins late, and by addends of -inf."""
    chain = chain_of("attention b=2 h=1 q=20 k=30 d=16 causal offset=-4 lengths mask")
    kernels = kernels_of(plan_of(chain, SMALL))
    inputs = chain.random_inputs(0)
    inputs[LENGTHS] = np.array([0, 30], np.int32)
    inputs[MASK][12] = -np.inf
    output = kernels.run(inputs)
    assert error_of(kernels, inputs) <= 2e-3
    assert (output[0] == 0).all()
    assert (output[1, 0, 0, :4] == 0).all()
    assert (output[1, 0, 0, 12] == 0).all()
    assert (output[1, 0, 0, 5] != 0).any()


def test_keys_beyond_the_length_are_not_looked_at() -> None:
    """They may be anything, NaN included: blocks end before them, or mask them."""
    chain = chain_of("attention b=1 h=1 q=20 k=64 d=16 lengths")
    kernels = kernels_of(plan_of(chain, SMALL))
    inputs = chain.random_inputs(0) | {LENGTHS: np.array([32], np.int32)}
    expected = kernels.run(inputs)
    inputs["K"][:, :, 32:] = np.nan
    inputs["V"][:, :, 32:] = np.nan
    np.testing.assert_array_equal(kernels.run(inputs), expected)


@pytest.mark.parametrize("keys", [1, 7, 9])
def test_chunks_longer_than_all_keys_have_them_once(keys: int) -> None:
    """A single tile of columns has no loop, whose steps would tell the next tile apart."""
    chain = chain_of(f"attention b=1 h=1 q=20 k={keys} d=16")
    assert is_right(kernels_of(plan_of(chain, replace(SMALL, chunk=4))), 2)


def test_large_scores_do_not_overflow() -> None:
    chain = chain_of("attention b=1 h=1 q=16 k=64 d=16 scale=50")
    kernels = kernels_of(plan_of(chain, SMALL))
    inputs = chain.random_inputs(3)
    assert np.abs(inputs["Q"][0, 0, 0].astype(float) @ inputs["K"][0, 0].T).max() * 50 > 128
    assert error_of(kernels, inputs) <= 2e-3


def test_blocks_of_several_parts_of_the_result_compute_the_first_product_each() -> None:
    chain = chain_of("mlp m=40 k=32 n=64 p=200 dtype=int8")
    schedule = ChainSchedule("registers", (2, 1), 1, 2, 8)
    plan = plan_of(chain, schedule)
    assert plan.blocks[:2] == (2, 4)
    assert is_right(kernels_of(plan), 1)


@pytest.mark.parametrize(
    "words, schedule",
    [
        ("attention b=2 h=1 q=20 k=30 d=16 causal lengths mask", SMALL),
        ("mlp m=20 k=64 n=64 p=16 act=relu bias dtype=int8", SMALL),
    ],
)
def test_saved_inputs_have_the_saved_result(words: str, schedule: ChainSchedule) -> None:
    """And results that say something: floats that are not all the same, integers that saturate."""
    chain = chain_of(words)
    cases = chain_cases(chain)
    assert [case.name for case in cases] == ["numbers", "large"][: 1 + ("attention" in words)]
    for case in cases:
        inputs = {name: case.drawings[name].array(case.shapes[name]) for name in chain.inputs}
        output = kernels_of(plan_of(chain, schedule)).run(inputs)
        (expected,) = case.results.values()
        assert output.dtype == expected.array.dtype
        error = np.abs(output.astype(np.float64) - expected.array.astype(np.float64)).max()
        assert error <= expected.absolute
        assert (expected.absolute == 0) == (chain.factors == "int8")
        assert len(np.unique(expected.array)) > 3


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"warps": (2, 2)}, "a warp has the operand between the products to itself"),
        ({"via": "shared memory"}, "softmax of rows needs each row in one warp"),
        ({"stages": 1}, "at least 2 stages"),
        ({"warps": (64, 1)}, "at most 1024 threads"),
        ({"chunk": 256, "rows": 2}, "registers of sums of 32|bytes of shared memory"),
    ],
)
def test_what_has_no_kernel_is_refused(changes: dict[str, object], problem: str) -> None:
    chain = chain_of("attention b=1 h=1 q=20 k=30 d=16")
    with pytest.raises(LoweringError, match=problem):
        plan_of(chain, replace(SMALL, **changes))  # pyright: ignore[reportArgumentType]


def test_pairs_without_a_coupling_need_shared_memory() -> None:
    chain = chain_of("mlp m=32 k=32 n=32 p=32")
    pairs = find_pairs(chain, hardware_spec("mma_f16"))
    swapped = next(pair for pair in pairs.pairs if pair.first.swapped)
    plan = ChainPlan(chain, swapped, ChainSchedule("registers", (2, 1), 1, 2, 4))
    with pytest.raises(LoweringError, match="transposed products"):
        check(plan, SHARED_BYTES)
