"""Rules of barrier objects, bulk copies of bytes, elections and named barriers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cpembed.targets.cuda.emulator.executor import Launch, Order
from tests.unit.targets.cuda.emulator.running import ORDERS, fault, needs_compiler, program

pytestmark = needs_compiler

NUMBERS = np.arange(64)
RIGHT = {
    "invalidated": np.full(64, 7),
    "by_state": NUMBERS[::-1],
    "relaxed": NUMBERS[::-1],
    "peeked": np.ones(64),
    "bytes": NUMBERS[::-1],
    "elected": np.full(64, 5),
    "dropped": NUMBERS[::-1],
    "copies_arrive": NUMBERS[::-1],
    "pending": np.full(64, 7),
    "completed": NUMBERS,
    "tried": NUMBERS[::-1],
    "said": np.concatenate([NUMBERS[32:], NUMBERS[32:]]),
}

WRONG = [
    ("invalidated", 1, "thread 0 writes bytes 0 to 3 .* where the barrier object lies that"),
    ("by_state", 1, "data race in shared memory: thread|too many arrivals at the barrier object"),
    ("by_state", 2, r"for phase \d of the barrier object .*, which is in phase"),
    ("relaxed", 1, "data race in shared memory: thread .* reads"),
    ("relaxed", 2, "data race in shared memory: thread .* reads"),
    (
        "peeked",
        1,
        (
            r"deadlock: thread 0 waits at line .* phase 0 of the barrier object at bytes 8 .*"
            r"; thread 32 waits at line .* phase 0 of the barrier object at bytes 0 "
        ),
    ),
    ("bytes", 1, "of 264 bytes: a multiple of 16"),
    ("bytes", 2, "is misaligned: byte 4 of argument 0, which has to be a multiple of 16"),
    ("bytes", 3, "bulk copy not waited for: thread .* reads"),
    ("bytes", 4, "missing fence.proxy.async: .* of thread 0 .* reads .*, which thread .* wrote at"),
    ("bytes", 5, "data race in shared memory: thread 0 writes .*, which the bulk stores of"),
    ("bytes", 6, "data race in global memory: a load of thread 0 .* reads what a bulk store"),
    ("elected", 1, "(data race in|uninitialised) shared memory: thread"),
    ("said", 1, "data race in shared memory: thread"),
    ("dropped", 1, "deadlock: .* 32 of 64 arrivals are pending"),
    ("dropped", 3, "(data race in|uninitialised) shared memory: thread"),
    ("copies_arrive", 1, r"cp\.async not waited for: thread \d+ reads"),
    ("copies_arrive", 2, "deadlock: .* 64 of 64 arrivals are pending"),
    ("copies_arrive", 3, "cp.async not waited for: thread|uninitialised shared memory: thread"),
    ("pending", 1, "mbarrier.arrive.noComplete.* its arrival is the last one of phase 0"),
    ("completed", 1, "4 bytes more (than are expected|have been copied)|deadlock: .* -4 bytes out"),
    ("completed", 2, "bytes more than are expected"),
]


def arguments(kernel: str, wrong: int) -> list[object]:
    reads = kernel in ("bytes", "copies_arrive")
    given: list[object] = [NUMBERS.astype(np.int32)] if reads else []
    if wrong in (1, 2) and kernel == "bytes":
        given = [np.arange(80, dtype=np.int32)]
    return [*given, np.zeros(64, np.int32), wrong]


LAUNCH_BYTES = 1024


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_copies_that_arrive_may_be_one_more_arrival(order: Order | int) -> None:
    given = arguments("copies_arrive", 10)
    launch = Launch("copies_arrive", (1, 1, 1), (64, 1, 1), LAUNCH_BYTES)
    program("objects.cu").run(launch, given, order=order)
    np.testing.assert_array_equal(given[-2], NUMBERS[::-1])


@pytest.mark.parametrize("order", [Order.REVERSE, 7, 8], ids=str)
def test_a_wait_that_is_not_repeated_may_be_too_short(order: Order | int) -> None:
    launch = Launch("tried", (1, 1, 1), (64, 1, 1), LAUNCH_BYTES)
    line = fault(program("objects.cu"), launch, arguments("tried", 1), order)
    assert re.search("(data race in|uninitialised) shared memory: thread", line)


def test_counts_of_waits_are_those_of_the_first_order() -> None:
    launch = Launch("tried", (1, 1, 1), (64, 1, 1), LAUNCH_BYTES)
    counts = [program("objects.cu").run(launch, arguments("tried", 0), order=o) for o in ORDERS]
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("kernel", RIGHT)
def test_what_is_right_is_no_fault(kernel: str, order: Order | int) -> None:
    given = arguments(kernel, 0)
    launch = Launch(kernel, (1, 1, 1), (64, 1, 1), LAUNCH_BYTES)
    program("objects.cu").run(launch, given, order=order)
    np.testing.assert_array_equal(given[-2], RIGHT[kernel])


@pytest.mark.parametrize("kernel, wrong, said", WRONG)
def test_what_is_wrong_is_a_fault(kernel: str, wrong: int, said: str) -> None:
    launch = Launch(kernel, (1, 1, 1), (64, 1, 1), LAUNCH_BYTES)
    for order in ORDERS:
        line = fault(program("objects.cu"), launch, arguments(kernel, wrong), order)
        assert re.search(said, line), line


def test_clusters_that_no_gpu_launches() -> None:
    compiled, given = program("objects.cu"), arguments("peeked", 0)
    for cluster in ((2, 1, 1), (17, 1, 1), (1, 0, 1)):
        launch = Launch("peeked", (17, 1, 1), (64, 1, 1), LAUNCH_BYTES, cluster)
        assert "cannot be launched with clusters" in fault(compiled, launch, given)


def test_static_shared_memory_is_that_of_no_cluster() -> None:
    launch = Launch("by_order", (2, 1, 1), (64, 1, 1), 0, (2, 1, 1))
    given = [np.zeros(128, np.float32), np.zeros(1, np.uint32), np.zeros(64, np.float32)]
    assert "static shared memory" in fault(program("parts.cu"), launch, given)
