"""Chains for warp groups of Hopper, executed: in any order of warps, and what nvcc says of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cpembed.errors import LoweringError
from cpembed.targets.cuda.chains.group_plan import GroupPlan
from cpembed.targets.cuda.chains.plan import ChainSchedule
from cpembed.targets.cuda.emulator.executor import Order
from tests.unit.targets.cuda.chains.generated import (
    AttentionSizes,
    chain_of,
    group_plan_of,
    is_right,
    kernels_of,
    random_attention,
    random_functions,
)
from tests.unit.targets.cuda.emulator.running import needs_compiler, needs_nvcc

ORDERS: tuple[Order | int, ...] = (Order.FORWARD, Order.REVERSE, 11)


def random_schedule(random: np.random.Generator, columns: int) -> ChainSchedule:
    return ChainSchedule(
        "registers",
        (int(random.integers(1, 4)), 1),
        1,
        int(random.choice([1, 2, 3, 4, 6, 8])),
        columns,
        int(random.integers(2, 4)),
        int(random.choice([1, 1, 2, 3])),
    )


def fitting(words: str, random: np.random.Generator) -> GroupPlan:
    """A plan of a chain with a schedule at random that has a kernel."""
    chain = chain_of(words)
    for _ in range(100):
        try:
            return group_plan_of(chain, random, random_schedule)
        except LoweringError:
            continue
    raise AssertionError(f"no schedule fits {words}")


SIZES = AttentionSizes(200, 300, (16, 33, 40, 64, 80, 96, 128), (16, 72, 128, 256))


def random_layers(random: np.random.Generator) -> str:
    words = f" {random_functions(random)}"
    if random.integers(3):
        # TMA loads no weights of a single column where they are.
        sizes = [int(n) for n in random.integers((1, 1, 2, 1), (200, 200, 230, 200))]
        return "mlp m={} k={} n={} p={}".format(*sizes) + words
    c, h, k, m = (int(n) for n in random.integers((1, 4, 1, 1), (40, 12, 70, 60)))
    stride = random.integers(1, 3)
    return f"conv_pointwise n=2 c={c} h={h} w=9 k={k} r=3 s=2 m={m} pad=1 stride={stride}" + words


@needs_compiler
@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(60))
def test_attention_of_random_sizes_and_masks(seed: int) -> None:
    random = np.random.default_rng(seed)
    words = random_attention(random, SIZES)
    plan = fitting(words, random)
    kernels = kernels_of(plan)
    assert all(is_right(kernels, seed, order) for order in ORDERS), (words, plan.schedule)


@needs_compiler
@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(60))
def test_pairs_of_layers_of_random_sizes(seed: int) -> None:
    """Integers bit for bit."""
    random = np.random.default_rng(seed)
    words = random_layers(random)
    plan = fitting(words, random)
    kernels = kernels_of(plan)
    assert all(is_right(kernels, seed, order) for order in ORDERS), (words, plan.schedule)


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("seed", range(60))
def test_nvcc_compiles_kernels_without_a_warning(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    words = random_attention(random, SIZES) if seed % 3 else random_layers(random)
    plan = fitting(words, random)
    text = tmp_path / "kernel.cu"
    text.write_text(kernels_of(plan).text.source)
    options = ["-cubin", "-arch=sm_90a", "-std=c++17", "-O3", "-Xptxas", "-v"]
    done = subprocess.run(
        ["nvcc", *options, "-o", str(tmp_path / "kernel.cubin"), str(text)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    warnings = [line for line in done.stderr.splitlines() if "warning #" in line]
    unused = [line for line in warnings if "was declared but never referenced" in line]
    assert warnings == unused, (words, plan.schedule)
    # C7508, C7510 and their like: registers that are not passed on, products that wait. Of a single
    # chunk that masks by position and by length ptxas reports C7511, by any number of registers;
    # its products have nothing to overlap with.
    if plan.chunks > 1 or not {"causal", "lengths"} <= set(words.split()):
        assert "Potential Performance Loss" not in done.stderr, (words, plan.schedule)
    assert not re.search(r"[1-9]\d* bytes (stack|spill)", done.stderr), (words, plan.schedule)
