"""Kernels of chains that tests share: plans by their words, and results in several orders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.driver.chains import largest_error
from cpembed.driver.named import hardware_spec
from cpembed.targets.cuda.chains.build import ChainKernels, chain_text
from cpembed.targets.cuda.chains.group_plan import GroupPlan, legal_columns
from cpembed.targets.cuda.chains.pairs import find_pairs
from cpembed.targets.cuda.chains.plan import ChainPlan, ChainSchedule, check
from cpembed.targets.cuda.chains.space import has_kernel
from cpembed.targets.cuda.emulator.executor import Order
from cpembed.workloads.chain_families import parse_chain
from cpembed.workloads.chains import MASK_DTYPES, TOLERANCES, ProductChain, definition

Array = NDArray[Any]

SHARED_BYTES = 166_912
"""Of a block on sm_80: CUDA C++ Programming Guide, technical specifications."""

HOPPER_SHARED_BYTES = 232_448
"""Of a block on sm_90."""

TARGETS = {"float16": "mma_f16", "bfloat16": "mma_bf16", "int8": "mma_s8"}


def chain_of(words: str) -> ProductChain:
    return parse_chain(words.split())


@dataclass(frozen=True)
class AttentionSizes:
    """Bounds of queries and keys, and depths of rows and of values, of random attentions."""

    queries: int
    keys: int
    depths: tuple[int, ...]
    values: tuple[int, ...]


def random_attention(random: np.random.Generator, sizes: AttentionSizes) -> str:
    """Words of an attention of any sizes, layout, types and masks."""
    heads, group = int(random.integers(1, 3)), int(random.choice([1, 1, 2, 4]))
    words = [
        f"attention b={random.integers(1, 3)} h={heads * group} kv={heads}",
        f"q={random.integers(1, sizes.queries)} k={random.integers(1, sizes.keys)}",
        f"d={random.choice(sizes.depths)}",
        f"layout={random.choice(['BHSD', 'BSHD'])}",
        f"dtype={random.choice(['float16', 'bfloat16'])}",
    ]
    words += [f"e={random.choice(sizes.values)}"] * bool(random.integers(2))
    if random.integers(2):
        words.append("causal")
        words += [f"offset={random.integers(-5, 20)}"] * bool(random.integers(2))
        words += [f"window={random.integers(1, 60)}"] * bool(random.integers(2))
    words += ["lengths"] * bool(random.integers(2)) + ["cap=3"] * (random.random() < 0.2)
    words += ["sinks"] * (random.random() < 0.2)
    # Powers grow beyond their bound only if scores differ much.
    words += [f"scale={random.choice([0.5, 2, 4])}"] * (random.random() < 0.4)
    if random.random() < 0.4:
        dimensions = random.choice(["1", "k", "qk", "hqk", "bk", "bqk", "bhqk", "hk"])
        words.append(f"mask={dimensions} mask_type={random.choice(MASK_DTYPES)}")
    words += ["output=float32"] * (random.random() < 0.3)
    return " ".join(words)


def random_functions(random: np.random.Generator) -> str:
    """Words of the element type of layers, and of the functions of both products."""
    dtype = str(random.choice(["float16", "bfloat16", "int8"]))
    if dtype == "int8":
        return "dtype=int8 act=relu" + " bias" * int(random.integers(2))
    acts = random.choice(["none", "relu", "gelu", "silu", "tanh"], 2)
    words = f"dtype={dtype} act={acts[0]} end_act={acts[1]}"
    for flag in ("bias", "end_bias", "residual"):
        words += f" {flag}" * int(random.integers(2))
    return words


def plan_of(chain: ProductChain, schedule: ChainSchedule, number: int = 0) -> ChainPlan:
    """A plan of one of the pairs that have kernels."""
    pairs = find_pairs(chain, hardware_spec(TARGETS[chain.factors]))
    usable = [p for p in pairs.pairs if has_kernel(p) and schedule.via in p.via]
    plan = ChainPlan(chain, usable[number % len(usable)], schedule)
    check(plan, SHARED_BYTES)
    return plan


def group_plan_of(
    chain: ProductChain,
    random: np.random.Generator,
    schedule: Callable[[np.random.Generator, int], ChainSchedule],
    number: int | None = None,
) -> GroupPlan:
    """A plan of warp groups, of any pair that has kernels; LoweringError if it does not fit."""
    pairs = find_pairs(chain, hardware_spec(f"wg{TARGETS[chain.factors]}"))
    usable = [p for p in pairs.pairs if has_kernel(p) and "registers" in p.via]
    pair = usable[int(random.integers(min(6, len(usable)))) if number is None else number]
    product = pair.second.product
    # Values that are deeper than an instruction has columns are divided among blocks.
    columns = min(product.tiles[2], int(random.choice([8, 32])))
    columns = legal_columns(product.instruction, columns)
    plan = GroupPlan(chain, pair, schedule(random, columns))
    check(plan, HOPPER_SHARED_BYTES)
    return plan


def kernels_of(plan: ChainPlan) -> ChainKernels:
    return ChainKernels(plan, chain_text(plan, "sm_90" if isinstance(plan, GroupPlan) else "sm_80"))


def error_of(
    kernels: ChainKernels, inputs: dict[str, Array], order: Order | int = Order.FORWARD
) -> float:
    """Of a run, relative to the largest sum or result, or the number of integers that differ."""
    chain = kernels.plan.chain
    return largest_error(kernels.run(inputs, order), definition(chain, inputs))


def is_right(kernels: ChainKernels, seed: int, order: Order | int = Order.FORWARD) -> bool:
    chain = kernels.plan.chain
    error = error_of(kernels, chain.random_inputs(seed), order)
    return bool(np.isfinite(error) and error <= TOLERANCES.get(chain.factors, 0.0))
