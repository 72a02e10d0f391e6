"""Products of warp groups with schedules at random, for tests."""

from __future__ import annotations

import random
from functools import cache

import pytest

from cpembed.codegen.epilogue import Epilogue
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.ir.computation import Computation
from cpembed.targets.cuda.lower import lower
from cpembed.targets.cuda.warp_specialized.device import column_counts
from cpembed.targets.cuda.warp_specialized.limits import check
from cpembed.targets.cuda.warp_specialized.schedule import (
    Load,
    SpecializedPlan,
    SpecializedProduct,
    SpecializedSchedule,
)

SHARED_BYTES = 232_448
"""Of a block on sm_90: CUDA C++ Programming Guide, technical specifications."""

SHARED_BYTES_SM_120 = 101_376
"""Of a block on sm_120: the same."""

CLUSTERS = ((2, 1), (1, 2), (2, 2), (1, 4))


@cache
def lowered(
    words: str, target: str, constraints: str, number: int = 0, epilogue: Epilogue | None = None
) -> tuple[Computation, SpecializedProduct]:
    """Those of a candidate; skips where nothing embeds."""
    spec = hardware_spec(target)
    operator = workload(words, target=spec)
    embeddings = solve(operator, spec, constraints=constraints, top=number + 1).embeddings
    if not embeddings:
        pytest.skip(f"{words} has no embedding of {target} under {constraints}")
    program = embeddings[min(number, len(embeddings) - 1)].candidate.program
    return operator, SpecializedProduct(lower(program, spec, epilogue))


def loads(rng: random.Random, product: SpecializedProduct, block: tuple[int, int], depth: int) -> (
    tuple[tuple[Load, Load], tuple[int, int]]
):  # fmt: skip
    """One of the ways in which each factor reaches shared memory."""
    chosen: list[tuple[Load, int]] = []
    by_threads = product.tiled.instruction.kind == "wgmma"
    for number, factors in enumerate((product.tiled.first, product.tiled.second)):
        ways: list[tuple[Load, int]] = [("bulk", 0)]
        ways += [("threads", n) for n in range(len(factors)) if by_threads]
        # Twice, since this is what TMA is for.
        ways += 2 * [("tensor", n) for n in range(len(product.views(number, block[number], depth)))]
        chosen.append(rng.choice(ways))
    (first, a), (second, b) = chosen
    return (first, second), (a, b)


def buffers(rng: random.Random, product: SpecializedProduct, tile: tuple[int, int]) -> int:
    """Buffers of results of a warp, more often than not where TMA can store them."""
    try:
        product.store(tile[1])
    except LoweringError:
        return 0
    return rng.choice((0, 1, 1, 2))


def random_plan(rng: random.Random, product: SpecializedProduct) -> SpecializedPlan:
    """A plan that fits, with any choice of a schedule."""
    of_groups = product.tiled.instruction.kind == "wgmma"
    for _ in range(200):
        schedule = random_groups(rng, product) if of_groups else random_warps(rng, product)
        plan = SpecializedPlan(product, schedule)
        try:
            check(plan, SHARED_BYTES if of_groups else SHARED_BYTES_SM_120)
        except LoweringError:
            continue
        return plan
    raise AssertionError("no schedule fits")


def random_groups(rng: random.Random, product: SpecializedProduct) -> SpecializedSchedule:
    instruction = product.tiled.instruction
    columns = [count // instruction.n for count in column_counts(instruction)]
    groups, depth = rng.choice((1, 2, 2, 3)), rng.choice((1, 2, 4))
    tile = rng.choice((1, 1, 2)), rng.choice([n for n in columns if n <= 12] + [16, 32])
    ways, layouts = loads(rng, product, (groups * tile[0], tile[1]), depth)
    return SpecializedSchedule(
        groups, tile, depth, rng.choice((2, 3, 5)), ways,
        group=rng.choice((1, 2)), splits=rng.choice((1, 1, 2, 3)),
        blocks=rng.choice((0, 0, 1, 2, 5)), in_registers=rng.random() < 0.2, layouts=layouts,
        alternating=rng.random() < 0.3, streamed=rng.random() < 0.3,
        cluster=rng.choice(((1, 1), (1, 1), *CLUSTERS)), store_buffers=buffers(rng, product, tile),
    )  # fmt: skip


def random_warps(rng: random.Random, product: SpecializedProduct) -> SpecializedSchedule:
    warps = rng.choice(((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4)))
    tile, depth = (rng.choice((1, 2, 4)), rng.choice((1, 2, 3, 4, 6, 8))), rng.choice((1, 2, 4))
    ways, layouts = loads(rng, product, (warps[0] * tile[0], warps[1] * tile[1]), depth)
    return SpecializedSchedule(
        1, tile, depth, rng.choice((2, 3, 5)), ways,
        group=rng.choice((1, 2)), splits=rng.choice((1, 1, 2, 3)),
        blocks=rng.choice((0, 0, 1, 2, 5)), layouts=layouts, streamed=rng.random() < 0.3,
        warps=warps, store_buffers=buffers(rng, product, tile),
    )  # fmt: skip
