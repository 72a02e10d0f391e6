"""Global memory that nobody has written: reading it is a fault, by every kind of access."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.errors import ExecutionFault
from cpembed.targets.cuda.emulator.executor import Argument, DeviceArray, Launch, Order
from tests.unit.targets.cuda.emulator.running import ORDERS, fault, needs_compiler, program

pytestmark = needs_compiler

LANES = 32


def warp(kernel: str, threads: int = LANES) -> Launch:
    return Launch(kernel, (1, 1, 1), (threads, 1, 1))


READERS = {
    "plain_read": ("a load", np.float32, 4),
    "vector_read": ("a load", np.float32, 16),
    "instruction_read": ("ld.global.u32", np.float32, 4),
    "copy": ("cp.async.ca.shared.global", np.float32, 4),
    "atomic": ("an atomic operation", np.float32, 4),
    "fragment_read": ("wmma.load.a", np.float16, 32),
}
"""Kernel: its access in messages, the element type, and the bytes of an access."""


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("kernel", READERS)
def test_each_byte_of_a_read_has_to_be_written(kernel: str, order: Order | int) -> None:
    access, dtype, _ = READERS[kernel]
    compiled = program("global_memory.cu")
    size = 256 if kernel == "fragment_read" else 128

    def arguments(source: DeviceArray) -> list[Argument]:
        out = np.zeros(128, np.float32)
        return [source] if kernel == "atomic" else [source, out]

    full = DeviceArray.unwritten(size, np.dtype(dtype).name)
    full.written[...] = ~np.uint64(0)
    compiled.run(warp(kernel), arguments(full), order=order)
    # All but one byte of what the last lane reads.
    torn = DeviceArray.unwritten(size, np.dtype(dtype).name)
    torn.written[...] = ~np.uint64(0)
    byte = 8 * 31 + 5 if kernel == "fragment_read" else READERS[kernel][2] * (LANES - 1) + 1
    torn.written[byte // 64] &= ~(np.uint64(1) << np.uint64(byte % 64))
    line = fault(compiled, warp(kernel), arguments(torn), order)
    assert "uninitialised global memory" in line
    assert access in line
    assert f"nobody has written byte {byte} yet" in line
    assert "argument 0" in line


def test_what_a_kernel_writes_the_next_one_may_read() -> None:
    compiled = program("global_memory.cu")
    workspace, out = (DeviceArray.unwritten(LANES, "float32") for _ in range(2))
    compiled.run(warp("fill"), [workspace, 0, 16])
    with pytest.raises(ExecutionFault, match="byte 64 yet"):
        compiled.run(warp("plain_read"), [workspace, out])
    compiled.run(warp("fill"), [workspace, 16, 16])
    compiled.run(warp("plain_read"), [workspace, out])
    np.testing.assert_array_equal(out.require_written("out"), np.arange(LANES))


@pytest.mark.parametrize("first, count", [(0, 31), (1, 31), (7, 3)])
def test_elements_that_are_left_unwritten_are_counted(first: int, count: int) -> None:
    out = DeviceArray.unwritten(LANES, "float32")
    program("global_memory.cu").run(warp("fill"), [out, first, count])
    missing = [n for n in range(LANES) if not first <= n < first + count]
    with pytest.raises(ExecutionFault) as caught:
        out.require_written("C")
    message = f"leave {len(missing)} of 32 elements of C unwritten, the first of them element"
    assert f"{message} {missing[0]}" in str(caught.value)


def test_plain_arrays_count_as_written() -> None:
    source, out = np.ones(LANES, np.float32), np.empty(LANES, np.float32)
    program("global_memory.cu").run(warp("plain_read"), [source, out])
    np.testing.assert_array_equal(out, source)
