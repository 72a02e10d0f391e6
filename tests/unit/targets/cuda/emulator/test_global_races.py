"""Blocks that hand results to each other: what orders them, and what is missing where it is not."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cpembed.errors import ExecutionFault
from cpembed.targets.cuda.emulator.executor import Launch, Order, compile_text
from tests.unit.targets.cuda.emulator.running import ORDERS, needs_compiler, text

pytestmark = needs_compiler

BLOCKS, THREADS = 5, 64
KERNELS = ("by_one_fence", "by_fences", "by_order")
RACE = "data race in global memory: a load of .* reads what a thread of another block wrote at"
WRONG = "wrong"


def outcome(source: str, kernel: str, order: Order | int) -> str:
    parts = np.full(BLOCKS * THREADS, np.nan, np.float32)
    counter, out = np.zeros(1, np.uint32), np.zeros(THREADS, np.float32)
    blocks = 1 if kernel == "within_a_block" else BLOCKS
    launch = Launch(kernel, (blocks, 1, 1), (THREADS, 1, 1))
    expected = np.arange(THREADS)[::-1] if blocks == 1 else 10 + BLOCKS * np.arange(THREADS)
    try:
        compile_text(source).run(launch, [parts, counter, out], order=order)
    except ExecutionFault as fault:
        return str(fault)
    return "right" if np.array_equal(out, expected) else WRONG


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("kernel", [*KERNELS, "within_a_block"])
def test_what_is_ordered_is_no_fault(kernel: str, order: Order | int) -> None:
    assert outcome(text("parts.cu"), kernel, order) == "right"


MUTANTS = {
    "no fence before the atomic": (
        "by_one_fence",
        "    __threadfence();\n    before",
        "    before",
        RACE,
    ),
    "no fence after the atomic": (
        "by_one_fence",
        "    __threadfence();\n  }\n  __syncthreads();\n  if (before",
        "  }\n  __syncthreads();\n  if (before",
        RACE,
    ),
    "no barrier before one fence": (
        "by_one_fence",
        "  __syncthreads();\n  if (threadIdx.x == 0) {\n    __threadfence();",
        "  if (threadIdx.x == 0) {\n    __threadfence();",
        RACE,
    ),
    "no fences of the threads": ("by_fences", "  __threadfence();  // Each thread.\n", "", RACE),
    "no fences of the readers": (
        "by_fences",
        "return;\n  __threadfence();\n",
        "return;\n",
        RACE,
    ),
    "fences of the block": (
        "by_fences",
        "  __threadfence();  // Each thread.",
        "  __threadfence_block();",
        RACE,
    ),
    "a relaxed order": ("by_order", "atom.add.acq_rel.gpu", "atom.add.relaxed.gpu", RACE),
    "an order that only acquires": (
        "by_order",
        "atom.add.acq_rel.gpu",
        "atom.add.acquire.gpu",
        RACE,
    ),
    "an order that only releases": (
        "by_order",
        "atom.add.acq_rel.gpu",
        "atom.add.release.gpu",
        RACE,
    ),
    "an order among the threads of a block": ("by_order", "acq_rel.gpu", "acq_rel.cta", RACE),
    "a counter that is no atomic": (
        "by_order",
        "before = next(counter)",
        "before = (*counter)++",
        "data race in global memory: a (load|store) of thread 0 at line .* of another block wrote",
    ),
    "a part too early": (
        "by_order",
        "before != gridDim.x - 1",
        "before != gridDim.x - 2",
        f"{RACE}|wrong|overwrites what a thread of another block read",
    ),
    "the part of another thread": (
        "within_a_block",
        "  __syncthreads();\n  out[threadIdx.x] = parts[63",
        "  out[threadIdx.x] = parts[63",
        "data race in global memory: a (load|store) of thread",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_not_ordered_is_a_race(name: str) -> None:
    kernel, old, new, said = MUTANTS[name]
    whole = text("parts.cu")
    assert old in whole
    for order in ORDERS:
        line = outcome(whole.replace(old, new), kernel, order)
        assert re.search(said, line), line
