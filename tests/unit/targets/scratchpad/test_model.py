"""The model beside what the executor counts: transactions (swATOP, equation 1) and executions
(equation 2)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from cpembed.driver.named import workload
from cpembed.targets.scratchpad.executor import Counters, program
from cpembed.targets.scratchpad.machine import Engine
from cpembed.targets.scratchpad.model import Pattern, Times, Work
from cpembed.targets.scratchpad.schedule import Plan
from tests.unit.targets.scratchpad.counting import executions, moved_boxes
from tests.unit.targets.scratchpad.executor.running import needs_compiler
from tests.unit.targets.scratchpad.plans import (
    TARGETS,
    machine,
    products,
    random_plan,
    random_plans,
    small_inputs,
    spec,
)

WHOLE = (
    # Of whole granules, without padding: nothing of a box is outside of its operand.
    "gemm m=64 n=64 k=32",
    "gemm m=64 n=32 k=64 trans_a=1",
    "gemm m=96 n=32 k=32 trans_b=1",
    "conv2d n=1 c=16 h=6 w=18 k=32 r=3 s=3 layout=NHWC",
    "conv2d n=1 c=16 h=6 w=18 k=32 r=3 s=3 layout=NCHW",
    "conv1d n=16 c=32 w=10 k=64 s=3",
    "conv1d n=32 c=16 w=34 k=32 s=3 layout=NWC",
)


def whole_plans(target: str, seed: int) -> Iterator[Plan]:
    rng = random.Random(seed)
    for words in WHOLE:
        found = products(workload(words, spec(target)), target, top=8)
        rng.shuffle(found)
        for product in found[:2]:
            if any(axis.extent % axis.granule for axis in product.axes.values()):
                continue
            plan = random_plan(rng, product)
            if plan is not None:
                yield plan


def modelled(plan: Plan) -> tuple[Work, Times]:
    work = Work(plan.form, {name: np.full(1, float(points)) for name, points in plan.tile.items()})
    return work, work.times(plan.schedule.order, plan.schedule.buffers)


def counted(plan: Plan) -> Counters:
    made = program(plan)
    made.run(small_inputs(plan.product.program.unfused, 1), 1)
    assert made.counters is not None
    return made.counters


def all_of_one_size(plan: Plan) -> bool:
    axes = plan.product.axes.values()
    return not any(axis.extent % min(plan.tile[axis.name], axis.extent) for axis in axes)


def check_transactions(plan: Plan, found: Counters) -> float:
    """Transactions that the executor counted, by those of the model."""
    bytes_ = plan.product.machine.engine.transaction_bytes * found.transactions
    ratio = bytes_ / float(modelled(plan)[1].moved_bytes[0])
    # Where blocks begin is an average; a last tile that is smaller counts as a share of a whole
    # one, though its blocks may be as many, and as many transactions.
    assert 0.98 < ratio < (1.2 if all_of_one_size(plan) else 1.6), plan.schedule
    return ratio


def check_transfers(plan: Plan, found: Counters) -> None:
    """Calls of DMA, and bytes, exactly."""
    unit, times = plan.product.machine, modelled(plan)[1]
    calls = times.transferring - times.moved_bytes / unit.engine.bytes_per_cycle
    transfers = sum(each.transfers for each in found.moved.values())
    latency = unit.engine.latency_cycles
    assert float(calls[0]) * unit.elements == pytest.approx(transfers * latency)
    assert found.bytes == sum(
        int(box.elements(tile.held)) * box.operand.element_bytes
        for number, box in enumerate(plan.form.boxes)
        for tile, _ in moved_boxes(plan, number)
    )


def check_moved(target: str, seeds: range) -> None:
    ratios: list[float] = []
    for plan in (plan for seed in seeds for plan in whole_plans(target, seed)):
        found = counted(plan)
        ratios.append(check_transactions(plan, found))
        if all_of_one_size(plan):
            check_transfers(plan, found)
    assert len(ratios) > 3
    assert np.median(ratios) < 1.05


@needs_compiler
def test_transfers_are_those_of_equation_1() -> None:
    check_moved("sw26010", range(1))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_many_transfers_are_those_of_equation_1(target: str) -> None:
    check_moved(target, range(1, 8))


@pytest.mark.parametrize(
    "block, stride, blocks, whole",
    [
        (128, 0, 1, 128),
        (4, 0, 1, 128),
        (130, 0, 1, 256),
        # Blocks that all begin with a transaction.
        (128, 1024, 3, 3 * 128),
        (100, 256, 3, 3 * 128),
        # Of 64 bytes, every 64: either half of a transaction; of which one is wanted.
        (64, 192, 4, 4 * 128),
        # Bytes every 132: each of 32 places alike, and 4 bytes cross no border.
        (4, 132, 10, 10 * 128),
        # 100 bytes at any multiple of 4: 24 of 32 places reach over a border.
        (100, 132, 32, (8 + 24 * 2) * 128),
    ],
)
def test_blocks_take_whole_transactions(block: int, stride: int, blocks: int, whole: int) -> None:
    one = np.ones(1)
    found = Pattern(one, one * blocks, one * block, one * stride).moved(128)
    assert float(found[0]) == whole
    # By definition, where blocks begin anywhere that their stride leads to.
    if blocks > 1:
        grid = int(np.gcd(stride, 128))
        begins = range(0, 128, grid)
        average = sum((at + block - 1) // 128 + 1 for at in begins) / len(begins)
        assert float(found[0]) == pytest.approx(blocks * 128 * average)


def check_executions(plan: Plan) -> None:
    """Equation 2 of every call, added up: its granules, and what it takes besides."""
    product = plan.product
    unit, extents = product.machine, product.program.instruction.extents
    expected = 0.0
    for sizes, calls in executions(plan).items():
        of = {lane: size for lane, size in zip(product.lanes, sizes, strict=True) if lane}
        one = unit.cycles * np.prod([size / extents[lane] for lane, size in of.items()])
        for lanes, cycles in unit.call_cycles:
            one += cycles * np.prod([of[lane] for lane in lanes])
        expected += float(one) * calls
    assert float(modelled(plan)[0].executing[0]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.quick(1)
@pytest.mark.parametrize("target", TARGETS)
def test_executions_are_those_of_equation_2(target: str) -> None:
    """The counter of executions is compared with the executor's in the tests of counts."""
    found = [plan for seed in range(403, 409) for plan in random_plans(seed, target)]
    assert found
    for plan in found:
        check_executions(plan)


@pytest.mark.quick(1)
@pytest.mark.parametrize("target", TARGETS)
def test_what_overlaps_takes_as_long_as_the_longer(target: str) -> None:
    for seed in range(403, 409):
        for plan in random_plans(seed, target):
            work = modelled(plan)[0]
            order = plan.schedule.order
            one, two = work.times(order, 1), work.times(order, 2)
            assert one.total == pytest.approx(one.transferring + one.executing)
            assert (two.total >= two.executing).all()
            assert (two.total >= two.transferring).all()
            assert (two.total <= one.total * (1 + 1e-9) + two.exposed).all()


def test_an_engine_is_that_of_the_slowest_memory_on_the_way() -> None:
    """Gemmini's L2 takes 64 bytes at once, the memory of an SW26010 128."""
    assert machine("gemmini_16x16").engine == Engine(16, 40, 64)
    assert machine("sw26010").engine == Engine(23.45, 278, 128)
