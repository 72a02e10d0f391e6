"""Bulk reductions and copies, tensor maps in memory, dependent launches, constant memory."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from cpembed.targets.cuda.emulator.executor import (
    DeviceArray,
    Launch,
    MapArgument,
    Order,
    compile_text,
)
from cpembed.targets.cuda.tma.tensor_maps import TensorMap, TiledBox
from tests.unit.targets.cuda.emulator.running import ORDERS, fault, needs_compiler, program, text

pytestmark = needs_compiler


SUMS = {
    "add.f32": ("float", np.float32, np.add),
    "add.noftz.f16": ("half", np.float16, np.add),
    "add.u32": ("unsigned", np.uint32, np.add),
    "add.u64": ("uint64_t", np.uint64, np.add),
    "min.s32": ("int", np.int32, np.minimum),
    "max.noftz.f16": ("half", np.float16, np.maximum),
    "xor.b32": ("unsigned", np.uint32, np.bitwise_xor),
}


def reduction(operation: str) -> str:
    return text("reduce.cu").replace("TYPE", SUMS[operation][0]).replace("OPERATION", operation)


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("operation", SUMS)
def test_blocks_reduce_into_one_array(operation: str, order: Order | int) -> None:
    _, dtype, function = SUMS[operation]
    values = np.random.default_rng(2).integers(0, 9, 64).astype(dtype)
    out = np.arange(64).astype(dtype)
    launch = Launch("k", (3, 1, 1), (32, 1, 1), 64 * values.itemsize)
    expected = out
    for _ in range(3):
        expected = function(expected, values)
    compile_text(reduction(operation)).run(launch, [values, out, 0], order=order)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("wrong, said", [
    (1, "missing fence.proxy.async"), (2, "the block ends while the bulk store issued at"),
    (3, "data race in global memory: .* overwrites what a thread of another block wrote"),
])  # fmt: skip
def test_wrong_reductions(wrong: int, said: str) -> None:
    launch = Launch("k", (3, 1, 1), (32, 1, 1), 256)
    arguments = [np.ones(64, np.float32), np.ones(64, np.float32), wrong]
    line = fault(compile_text(reduction("add.f32")), launch, arguments)
    assert re.search(said, line), line


def test_a_reduction_needs_values() -> None:
    launch = Launch("k", (1, 1, 1), (32, 1, 1), 256)
    out = DeviceArray.unwritten(64, "float32")
    line = fault(compile_text(reduction("add.f32")), launch, [np.ones(64, np.float32), out, 0])
    assert "uninitialised global memory" in line


PAIR = Launch("between_blocks", (2, 1, 1), (32, 1, 1), 1024, (2, 1, 1))


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_copies_between_blocks(order: Order | int) -> None:
    out = np.zeros(64, np.int32)
    program("bulk_operations.cu").run(PAIR, [out, 0], order=order)
    np.testing.assert_array_equal(out, [*range(100, 132), *range(32)])


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("wrong, said", [
    (1, "missing fence.proxy.async"),
    (2, "bulk copy not waited for: thread|uninitialised shared memory: thread"),
    (3, "data race in shared memory: thread 0 .* writes .*, which the barrier object"),
    (4, "of 120 bytes: a multiple of 16"),
    (5, "its barrier object is in another block's shared memory than its destination"),
])  # fmt: skip
def test_wrong_copies_between_blocks(wrong: int, said: str, order: Order | int) -> None:
    line = fault(program("bulk_operations.cu"), PAIR, [np.zeros(64, np.int32), wrong], order)
    assert re.search(said, line), line


def mapped(wrong: int) -> tuple[list[Any], np.ndarray[Any, Any]]:
    array, out = np.arange(100, dtype=np.float32), np.zeros(64, np.float32)
    tensor_map = TensorMap(
        dtype="float32", global_dims=(100,), global_strides=(), element_strides=(1,),
        box=TiledBox((64,)), swizzle=0,
    )  # fmt: skip
    return [MapArgument(tensor_map, array), np.zeros(16, np.uint64), out, wrong], out


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("copied", [0, 2])
def test_tensor_maps_may_lie_in_global_memory(copied: int, order: Order | int) -> None:
    arguments, out = mapped(copied)
    launch = Launch("mapped", (1, 1, 1), (32, 1, 1), 512)
    program("bulk_operations.cu").run(launch, arguments, order=order)
    np.testing.assert_array_equal(out, np.arange(8, 72))


@pytest.mark.parametrize("wrong, said", [
    (1, "missing fence.proxy.tensormap: cp.async.bulk.tensor"),
    (3, "the address is that of no tensor map|misaligned"),
    (4, "the address is that of no tensor map"),
])  # fmt: skip
def test_wrong_tensor_maps(wrong: int, said: str) -> None:
    arguments, _ = mapped(wrong)
    line = fault(
        program("bulk_operations.cu"), Launch("mapped", (1, 1, 1), (32, 1, 1), 512), arguments
    )
    assert re.search(said, line), line


@pytest.mark.parametrize("wrong, said", [(0, ""), (2, ""), (1, "a load of"), (3, "a store of")])
def test_dependent_launches_wait_for_the_kernel_before(wrong: int, said: str) -> None:
    data, out = DeviceArray.unwritten(32, "float32"), DeviceArray.unwritten(32, "float32")
    compiled = program("bulk_operations.cu")
    compiled.run(Launch("first", (1, 1, 1), (32, 1, 1)), [data])
    launch = Launch("second", (1, 1, 1), (32, 1, 1), dependent=True)
    arguments = [data, np.ones(32, np.float32), out, wrong]
    if said:
        line = fault(compiled, launch, arguments)
        assert re.search(f"{said} .* accesses what the kernel before has written: no grid", line)
        return
    compiled.run(launch, arguments)
    np.testing.assert_array_equal(out.require_written("out"), np.arange(32) + 1)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_writes_after_reads_of_others_are_races(order: Order | int) -> None:
    compiled, launch = (
        program("bulk_operations.cu"),
        Launch("read_and_written", (1, 1, 1), (64, 1, 1)),
    )
    for shift, barrier in ((0, 0), (0, 1), (1, 1)):
        data = np.arange(65, dtype=np.float32)
        compiled.run(launch, [data, shift, barrier], order=order)
        np.testing.assert_array_equal(data[:64], np.arange(64) + 1 + shift)
    line = fault(compiled, launch, [np.zeros(65, np.float32), 1, 0], order)
    assert re.search(
        "data race in global memory: .* overwrites what thread .* read at|reads what", line
    )
    # Blocks have no barrier.
    two = Launch("read_and_written", (2, 1, 1), (64, 1, 1))
    line = fault(compiled, two, [np.zeros(65, np.float32), 1, 1], order)
    assert "data race in global memory" in line


def test_what_is_constant_is_not_written_before() -> None:
    compiled, launch = program("bulk_operations.cu"), Launch("constants", (1, 1, 1), (32, 1, 1))
    line = fault(compiled, launch, [np.zeros(32, np.float32), 1])
    assert re.search("ld.global.nc.* reads what thread 0 wrote at .* in the same launch", line)
    data = np.zeros(32, np.float32)
    compiled.run(launch, [data, 0])
    assert (data == 1).all()
