"""Lowered programs compute what numpy computes, in every result form, whatever the schedule."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest

from cpembed.api.solve import solve, workload
from cpembed.backends.vta.checker import violations
from cpembed.backends.vta.config import VtaConfig
from cpembed.backends.vta.lower import LoweredVta, lower
from cpembed.backends.vta.order import POLICIES
from cpembed.backends.vta.schedule import Schedule, occupancy
from cpembed.backends.vta.simulator import simulate
from cpembed.backends.vta.tail import Exact, Requantized, Truncated
from cpembed.backends.vta.tiles import TileNest
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.reference import random_inputs, reference
from cpembed.transform.program import DerivedProgram

CONFIGS = {"vta_1x16x16": VtaConfig(), "vta_8x8x8": VtaConfig(log_batch=3, log_block=3)}
TAILS = (Requantized(9), Exact(), Truncated())


def check(lowered: LoweredVta, layer: Computation, seed: int = 0) -> None:
    """A lowered program on random inputs against numpy."""
    inputs = random_inputs(layer, seed)
    exact = reference(layer, inputs)
    expected = lowered.tail.reference(exact)
    if lowered.nest.bias is not None:
        bias = lowered.nest.bias.packed
        spread = np.random.default_rng(seed).integers(-(2**16), 2**16, bias.original_shape)
        inputs[bias.name] = spread.astype(np.int32)
        expected = lowered.tail.reference(exact, inputs[bias.name])
    image = lowered.build(inputs)
    assert not violations(image)
    for policy in POLICIES:
        dram = simulate(image, policy=policy, seed=seed, checked=False)
        result = lowered.unpack(lowered.combine(image, dram))
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)


@cache
def best_program(words: str, target: str, constraints: str) -> DerivedProgram:
    layer = workload(words, target=target)
    return solve(layer, target, constraints=constraints, top=1).embeddings[0].candidate.program


def random_schedule(nest: TileNest, rng: random.Random) -> Schedule:
    """Any legal schedule; tiles shrink until they fit."""
    spatial = [loop.name for loop in nest.loops if loop.kind is AxisKind.SPATIAL]
    reduction = [loop.name for loop in nest.loops if loop.kind is AxisKind.REDUCTION]
    rng.shuffle(spatial)
    rng.shuffle(reduction)
    threads = rng.choice([1, 2])
    over = rng.choice([None, *spatial]) if threads == 2 else None
    tiles = {name: rng.randint(1, extent) for name, extent in nest.extents.items()}
    slots = (rng.randint(1, 3), rng.randint(1, 3))
    while True:
        schedule = Schedule(tiles, (*spatial, *reduction), threads, over, slots)
        if all(need <= have for need, have in occupancy(nest, schedule).values()):
            return schedule
        name = max(tiles, key=lambda name: tiles[name])
        tiles = tiles | {name: -(-tiles[name] // 2)}


FIRST = [
    ("gemm m=20 n=30 k=40", "vta_1x16x16", "strict_padded"),
    ("conv2d n=1 c=32 h=8 w=8 k=32 r=3 s=3 pad=1", "vta_1x16x16", "strict"),
    ("conv2d n=3 c=20 h=13 w=14 k=32 r=3 s=3 pad=1 stride=2", "vta_8x8x8", "strict_padded"),
]


@pytest.mark.parametrize("tail", TAILS, ids=lambda tail: type(tail).__name__)
@pytest.mark.parametrize("words, target, constraints", FIRST)
def test_the_default_schedule_computes_the_layer(words, target, constraints, tail) -> None:
    program = best_program(words, target, constraints)
    check(lower(program, CONFIGS[target], tail=tail), program.workload)
