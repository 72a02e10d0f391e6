"""What CUDA does not define ends a launch in one line; what it defines does not."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cpembed.errors import CpembedError
from cpembed.targets.cuda.emulator import executor
from cpembed.targets.cuda.emulator.executor import Launch, Order
from tests.unit.targets.cuda.emulator.running import (
    ORDERS,
    fault,
    needs_compiler,
    program,
)

pytestmark = needs_compiler

THREADS = 64

RACE = "data race in shared memory: thread"

CASES = {
    "store_beyond": (1, 0, "a store at line 3 .* out of bounds: bytes 256 to 259 of argument 0"),
    "load_beyond": (
        -1,
        0,
        "ld.global.u32 at .*; from line 7.* out of bounds: bytes -4 to -1 of argument 0",
    ),
    "misaligned": (
        1,
        0,
        "ld.global.v4.u32 at .*; from line 19.* misaligned: byte 4 of .* multiple of 16",
    ),
    "shared_beyond": (
        1,
        0,
        "a store at line 25 .* bytes 256 to 259 of dynamic shared memory of 256",
    ),
    "uninitialised": (63, 64, "thread 63 reads bytes 252 to 255 of tile at line 33 .* nobody has"),
    "some_at_a_barrier": (16, 64, "lane 0 .* in __syncthreads at line 37 .* lane 16 is at the end"),
    "reversed": (0, 1, f"({RACE}|uninitialised .* thread) .* reads .* at line 46"),
    "overwritten": (0, 1, f"{RACE} .* reads .* of tile at line 53 .* wrote at line 55"),
    "one_word": (0, 1, f"{RACE} 1 writes bytes 0 to 0 of tile at line 61 .* 0 wrote at line 61"),
    "some_in_a_collective": (16, 64, "lane 0 .* in __shfl_xor_sync at line 76 .* in __syncwarp at"),
    "copy_in_flight": (0, 2, "thread 0 reads .* at line 87 .* thread 0 issued at .*; from line 83"),
    "atomics": (0, 1, RACE),
    "computes_forever": (1, 0, "thread 40 does not end: it is at line 118 .* after 20,?000 basic"),
    "meets_forever": (1, 0, r"thread \d+ does not end: it is at line 123 "),
    "polls_forever": (1, 0, "thread 0 does not end: it is at line 143 "),
    "beyond_a_shared_array": (
        64,
        63,
        r"index 64 of an array 'float \[64\]' at line 132 .* is out of bounds",
    ),
    "divides": (0, 3, r"thread 0 divides an integer by zero at line 160 "),
    "divides_by_nothing": (1, 0, r"thread 0 divides an integer by zero at line 164 "),
    "beyond_registers": (4, 3, r"index 4 of an array 'float \[4\]' at line 137 "),
}
"""Kernel: a parameter that is wrong, one that is right, and the line."""

WITH_INPUT = {"load_beyond", "misaligned", "copy_in_flight"}


def given(kernel: str, parameter: int) -> list[object]:
    size = THREADS * (4 if kernel == "misaligned" else 1)
    inputs = [np.ones(size, np.float32)] * (kernel in WITH_INPUT)
    out = np.zeros(THREADS, np.int32 if kernel == "atomics" else np.float32)
    return [*inputs, out, parameter]


def launch(kernel: str, threads: int = THREADS) -> Launch:
    return Launch(
        kernel, (1, 1, 1), (threads, 1, 1), 4 * threads if kernel == "shared_beyond" else 0
    )


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("kernel", CASES)
def test_what_is_wrong_is_a_fault_and_what_is_right_is_none(
    kernel: str, order: Order | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "MAX_STEPS", 20_000)
    wrong, right, said = CASES[kernel]
    program("faults.cu").run(launch(kernel), given(kernel, right), order=order)
    line = fault(program("faults.cu"), launch(kernel), given(kernel, wrong), order)
    if order is Order.FORWARD:
        assert re.search(said, line), line


def test_a_barrier_of_a_warp_orders_the_warp_only() -> None:
    arguments = given("reversed", 2)
    program("faults.cu").run(launch("reversed", 32), [*arguments[:1], 2])
    # Lanes read what lanes of the same warp wrote, so it is enough for two warps as well.
    program("faults.cu").run(launch("reversed"), arguments)
    line = fault(program("faults.cu"), launch("copy_in_flight"), given("copy_in_flight", 1))
    assert "cp.async not waited for" in line or "data race" in line or "uninitialised" in line


def test_a_barrier_has_to_be_reached_by_all_warps() -> None:
    line = fault(program("faults.cu"), launch("some_at_a_barrier"), given("some_at_a_barrier", 32))
    assert "a barrier is not reached by all: warp 0 waits at line 37" in line
    assert "warp 1 is at the end of the kernel" in line


def test_an_access_that_is_not_valid_is_not_made() -> None:
    source, out = np.arange(8, dtype=np.float32), np.full(31, 5.0, np.float32)
    counters = program("faults.cu").run(Launch("masked", (1, 1, 1), (32, 1, 1)), [source, out, 8])
    np.testing.assert_array_equal(out, [*source, *[0.0] * 23])
    assert (counters.global_load_bytes, counters.global_load_sectors) == (32, 1)
    assert (counters.global_store_bytes, counters.global_store_sectors) == (124, 4)


def test_lanes_store_apart_from_each_other() -> None:
    out = np.zeros(THREADS, np.float32)
    counters = program("faults.cu").run(launch("different_instructions"), [out, 1])
    assert out.all()
    assert counters.global_store_sectors == 2 * 4


@pytest.mark.parametrize("beyond", [2**30, -(2**30), 2**40])
def test_offsets_have_64_bits(beyond: int) -> None:
    """Of elements of 4 bytes: none of them comes back into the array."""
    arguments = [np.ones(THREADS, np.float32), np.zeros(THREADS, np.float32), beyond]
    line = fault(program("faults.cu"), launch("far_away"), arguments)
    assert "ld.global.u32" in line
    assert "out of bounds: the address is in no array" in line
    program("faults.cu").run(launch("far_away"), [*arguments[:2], 0])


def test_numbers_arrive_as_the_kernel_takes_them() -> None:
    out = np.zeros(5, np.float32)
    values = [out, -3, 200, 0.5, 2.25, np.float16(1.5)]
    program("faults.cu").run(Launch("numbers", (1, 1, 1), (1, 1, 1)), values)
    np.testing.assert_array_equal(out, [-3, 200, 0.5, 2.25, 1.5])


@pytest.mark.parametrize(
    "bad, said",
    [
        ((Launch("nothing", (1, 1, 1), (32, 1, 1)), 2), "no kernel nothing in the text"),
        ((Launch("masked", (1, 1, 1), (2048, 1, 1)), 3), "at most 1024"),
        ((Launch("masked", (1, 0, 1), (32, 1, 1)), 3), "grid of (1, 0, 1)"),
        ((Launch("masked", (1, 1, 1), (32, 1, 1), 1 << 20), 3), "at most 232448"),
        ((Launch("masked", (1, 1, 1), (32, 1, 1)), 2), "takes 3 arguments, and 2 are given"),
    ],
)
def test_launches_that_no_gpu_makes(bad: tuple[Launch, int], said: str) -> None:
    array = np.zeros(32, np.float32)
    assert said in fault(program("faults.cu"), bad[0], [array, array, 1][: bad[1]])


def test_arguments_of_the_wrong_kind() -> None:
    array, one = np.zeros(32, np.float32), Launch("masked", (1, 1, 1), (32, 1, 1))
    assert "an array as argument 1" in fault(program("faults.cu"), one, [array, 3, 1])
    assert "a number of 4 bytes as argument 2" in fault(
        program("faults.cu"), one, [array, array, array]
    )


def test_a_read_only_array_is_not_changed() -> None:
    out = np.zeros(32, np.float32)
    out.flags.writeable = False
    one = Launch("store_beyond", (1, 1, 1), (32, 1, 1))
    assert "writes argument 0, which is a read-only array" in fault(
        program("faults.cu"), one, [out, 0]
    )
    assert not out.any()


def test_orders_are_orders() -> None:
    """Tickets are drawn by all threads; the first ones by those that run first."""
    drawn = {}
    for order in (Order.FORWARD, Order.REVERSE, 1, 2):
        out = np.zeros(256, np.int32)
        one = Launch("ticket", (2, 1, 1), (128, 1, 1))
        program("faults.cu").run(one, [np.zeros(1, np.int32), out], order=order)
        assert sorted(out) == list(range(256))
        drawn[order] = tuple(out)
    assert drawn[Order.FORWARD] == tuple(range(256))
    assert drawn[Order.REVERSE] == tuple(range(255, -1, -1))
    assert len(set(drawn.values())) == 4


def test_a_fault_leaves_the_program_usable() -> None:
    compiled = program("faults.cu")
    fault(compiled, launch("store_beyond"), given("store_beyond", 1))
    out = np.zeros(THREADS, np.float32)
    compiled.run(launch("store_beyond"), [out, 0])
    assert out.all()


def test_a_fault_is_an_error_of_the_package() -> None:
    with pytest.raises(CpembedError):
        program("faults.cu").run(launch("store_beyond"), given("store_beyond", 1))


@pytest.mark.parametrize("sets", [0, 1])
def test_floats_that_nobody_wrote_are_no_numbers(sets: int) -> None:
    out = np.zeros(THREADS, np.float32)
    program("faults.cu").run(launch("unset_floats"), [out, sets])
    assert (out == 0).all() if sets else np.isnan(out).all()
