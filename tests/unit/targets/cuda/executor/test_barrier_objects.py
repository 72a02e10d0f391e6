"""Rules of barrier objects, bulk copies of bytes, elections and named barriers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cpembed.targets.cuda.executor import Launch, Order
from tests.unit.targets.cuda.executor.running import ORDERS, fault, needs_compiler, program

pytestmark = needs_compiler

NUMBERS = np.arange(64)
RIGHT = {
    "invalidated": np.full(64, 7),
    "by_state": NUMBERS[::-1],
    "relaxed": NUMBERS[::-1],
    "peeked": np.ones(64),
    "bytes": NUMBERS[::-1],
    "elected": np.full(64, 5),
    "said": np.concatenate([NUMBERS[32:], NUMBERS[32:]]),
}

WRONG = [
    ("invalidated", 1, "thread 0 writes bytes 0 to 3 .* where the barrier object lies that was init"),
    ("by_state", 1, "data race in shared memory: thread|too many arrivals at the barrier object"),
    ("by_state", 2, r"for phase \d of the barrier object .*, which is in phase"),
    ("relaxed", 1, "data race in shared memory: thread .* reads"),
    ("relaxed", 2, "data race in shared memory: thread .* reads"),
    ("peeked", 1, r"deadlock: thread 0 waits at line .* phase 0 of the barrier object at bytes 8 .*"
     r"; thread 32 waits at line .* phase 0 of the barrier object at bytes 0 "),
    ("bytes", 1, "of 264 bytes: a multiple of 16"),
    ("bytes", 2, "is misaligned: byte 4 of argument 0, which has to be a multiple of 16"),
    ("bytes", 3, "bulk copy not waited for: thread .* reads"),
    ("bytes", 4, "missing fence.proxy.async: .* of thread 0 .* reads .*, which thread .* wrote at"),
    ("bytes", 5, "data race in shared memory: thread 0 writes .*, which the bulk stores of thread 0"),
    ("bytes", 6, "data race in global memory: a load of thread 0 .* reads what a bulk store of thr"),
    ("elected", 1, "(data race in|uninitialised) shared memory: thread"),
    ("said", 1, "data race in shared memory: thread"),
]  # fmt: skip


def arguments(kernel: str, wrong: int) -> list[object]:
    given: list[object] = [NUMBERS.astype(np.int32)] if kernel == "bytes" else []
    if wrong in (1, 2) and kernel == "bytes":
        given = [np.arange(80, dtype=np.int32)]
    return [*given, np.zeros(64, np.int32), wrong]


LAUNCH_BYTES = 1024


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
