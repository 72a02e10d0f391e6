"""Chains as kernels of their own: the same numbers, and which of both is built."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.driver.chains import ChainRun, named_chain, run_chain, solve_chain
from cpembed.driver.named import hardware_spec
from cpembed.targets.cuda.chains.apart import plan_apart
from cpembed.targets.cuda.chains.build import ChainKernels, chain_text
from cpembed.targets.cuda.chains.pairs import find_pairs
from cpembed.targets.cuda.emulator.executor import Order
from cpembed.targets.cuda.model import gpu
from cpembed.workloads.chains import LENGTHS
from tests.unit.targets.cuda.chains.generated import (
    AttentionSizes,
    chain_of,
    error_of,
    is_right,
    random_attention,
    random_functions,
)
from tests.unit.targets.cuda.emulator.running import needs_compiler

FAMILIES = ("mma", "wmma", "wgmma")
SHORT = {"float16": "f16", "bfloat16": "bf16", "int8": "s8"}


def kernels_apart(words: str, family: str) -> ChainKernels:
    chain = chain_of(words)
    spec = hardware_spec(f"{family}_{SHORT[chain.factors]}")
    pair = next(pair for pair in find_pairs(chain, spec).pairs if not pair.is_swapped)
    described = gpu(spec)
    plan = plan_apart(chain, pair, described)
    return ChainKernels(plan, chain_text(plan, described.architecture))


def random_chain(random: np.random.Generator) -> str:
    """Attention with any masks, or a pair of layers."""
    if random.integers(2):
        return random_attention(random, AttentionSizes(60, 90, (16, 33, 64), (16, 48)))
    sizes = [int(n) for n in random.integers((1, 1, 1, 1), (70, 90, 100, 80))]
    return "mlp m={} k={} n={} p={} ".format(*sizes) + random_functions(random)


@needs_compiler
@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(30))
def test_kernels_apart_compute_the_chain(seed: int) -> None:
    random = np.random.default_rng(seed)
    words, family = random_chain(random), FAMILIES[seed % 3]
    kernels = kernels_apart(words, family)
    assert all(is_right(kernels, seed, order) for order in (Order.FORWARD, Order.REVERSE)), words


@needs_compiler
def test_rows_without_keys_are_zero() -> None:
    kernels = kernels_apart("attention b=3 h=1 q=20 k=30 d=16 causal offset=-4 lengths", "mma")
    inputs = kernels.plan.chain.random_inputs(0) | {LENGTHS: np.array([-5, 30, 99], np.int32)}
    output = kernels.run(inputs)
    assert error_of(kernels, inputs) <= 2e-3
    assert (output[0] == 0).all()
    assert (output[1:, 0, 0, :4] == 0).all()


WIDE = "mlp m=512 k=256 n=1024 p=256 act=gelu"


@needs_compiler
def test_what_is_faster_by_the_estimate_is_built() -> None:
    chain = named_chain(WIDE, "mma_f16")
    choice = solve_chain(chain, "mma_f16").choice
    assert not choice.fuses
    runs = {fuse: run_chain(chain, "mma_f16", fuse=fuse, seed=1) for fuse in (None, True, False)}
    documents = {}
    for fuse, run in runs.items():
        assert isinstance(run, ChainRun)
        documents[fuse] = run.to_json()
    assert not documents[None]["fused"]
    assert documents[None]["executed"]["via"] == "global memory"
    assert documents[True]["fused"]
    assert documents[False]["executed"] == documents[None]["executed"]


@needs_compiler
def test_targets_without_a_kernel_of_the_chain_compute_it_apart() -> None:
    chain = named_chain("attention b=1 h=2 q=20 k=30 d=16", "wmma_f16")
    run = run_chain(chain, "wmma_f16", seed=1)
    assert isinstance(run, ChainRun)
    assert run.candidate is run.solved.choice.unfused
    assert not isinstance(run_chain(chain, "wmma_f16", fuse=True, seed=1), ChainRun)
