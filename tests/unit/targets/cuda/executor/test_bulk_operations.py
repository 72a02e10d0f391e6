"""Reductions and copies by the bulk engine, tensor maps in memory, dependent launches, constants."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from cpembed.targets.cuda.executor import (
    DeviceArray,
    Launch,
    MapArgument,
    Order,
    compile_text,
)
from cpembed.targets.cuda.hopper.tensor_maps import TensorMap, TiledBox
from tests.unit.targets.cuda.executor.running import ORDERS, fault, needs_compiler

pytestmark = needs_compiler

REDUCE = """#include <cstdint>
extern "C" __global__ void k(const TYPE* in, TYPE* out, int wrong) {
  extern __shared__ __align__(128) TYPE tile[];
  for (int n = threadIdx.x; n < 64; n += 32) tile[n] = in[n];
  if (wrong != 1) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned from = (unsigned)__cvta_generic_to_shared(tile);
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.OPERATION [%0], [%1], %2;" ::"l"(out), "r"(from),
                 "r"((unsigned)(64 * sizeof(TYPE))) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    if (wrong != 2) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    if (wrong == 3) out[0] = 1;
  }
}"""

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
    return REDUCE.replace("TYPE", SUMS[operation][0]).replace("OPERATION", operation)


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


BETWEEN_BLOCKS = """
__device__ inline unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
extern "C" __global__ void k(int* out, int wrong) {
  extern __shared__ __align__(128) int memory[];
  unsigned rank, other, object = at(memory + 128), to, far_object;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  other = 1 - rank;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(object));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  memory[threadIdx.x] = rank * 100 + threadIdx.x;
  if (wrong != 1) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(at(memory + 64)), "r"(other));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far_object) : "r"(object), "r"(other));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(object) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "r"(at(memory)), "r"(wrong == 4 ? 120 : 128), "r"(wrong == 5 ? object : far_object) : "memory");
    if (wrong == 3) memory[0] = 7;
  }
  unsigned done = wrong == 2;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(object) : "memory");
  out[rank * 32 + threadIdx.x] = memory[64 + threadIdx.x];
  if (wrong != 6)
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}"""

PAIR = Launch("k", (2, 1, 1), (32, 1, 1), 1024, (2, 1, 1))


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_copies_between_blocks(order: Order | int) -> None:
    out = np.zeros(64, np.int32)
    compile_text(BETWEEN_BLOCKS).run(PAIR, [out, 0], order=order)
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
    line = fault(compile_text(BETWEEN_BLOCKS), PAIR, [np.zeros(64, np.int32), wrong], order)
    assert re.search(said, line), line


MAPPED = """
extern "C" __global__ void k(const CUtensorMap* map, CUtensorMap* made, float* out, int wrong) {
  extern __shared__ __align__(128) float tile[];
  unsigned object = (unsigned)__cvta_generic_to_shared(tile + 64);
  const CUtensorMap* used = map;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(object));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    if (wrong > 0) {
      for (int n = 0; n < 16; n++) made->opaque[n] = map->opaque[n];
      used = made;
    }
    if (wrong != 1)
      asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(used) : "memory");
    if (wrong == 3) used = (const CUtensorMap*)(out);
    if (wrong == 4) used = (const CUtensorMap*)(1 << 20);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" ::"r"(object) : "memory");
    asm volatile("cp.async.bulk.tensor.1d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];" ::"r"(
                     (unsigned)__cvta_generic_to_shared(tile)), "l"(used), "r"(8), "r"(object) : "memory");
  }
  __syncthreads();
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(object) : "memory");
  for (int n = threadIdx.x; n < 64; n += 32) out[n] = tile[n];
}"""


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
    launch = Launch("k", (1, 1, 1), (32, 1, 1), 512)
    compile_text(MAPPED).run(launch, arguments, order=order)
    np.testing.assert_array_equal(out, np.arange(8, 72))


@pytest.mark.parametrize("wrong, said", [
    (1, "missing fence.proxy.tensormap: cp.async.bulk.tensor"),
    (3, "the address is that of no tensor map|misaligned"),
    (4, "the address is that of no tensor map"),
])  # fmt: skip
def test_wrong_tensor_maps(wrong: int, said: str) -> None:
    arguments, _ = mapped(wrong)
    line = fault(compile_text(MAPPED), Launch("k", (1, 1, 1), (32, 1, 1), 512), arguments)
    assert re.search(said, line), line


DEPENDENT = """
extern "C" __global__ void first(float* data) { data[threadIdx.x] = threadIdx.x; }
extern "C" __global__ void second(float* data, const float* weights, float* out, int wrong) {
  float held = weights[threadIdx.x];  // Before the wait, as nobody writes it.
  if (wrong == 0 || (wrong == 2 && threadIdx.x == 0)) asm volatile("griddepcontrol.wait;" ::: "memory");
  if (wrong == 2) __syncthreads();
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (wrong == 3) data[threadIdx.x] = 1;
  else out[threadIdx.x] = held + data[threadIdx.x];
}"""


@pytest.mark.parametrize("wrong, said", [(0, ""), (2, ""), (1, "a load of"), (3, "a store of")])
def test_dependent_launches_wait_for_the_kernel_before(wrong: int, said: str) -> None:
    data, out = DeviceArray.unwritten(32, "float32"), DeviceArray.unwritten(32, "float32")
    program = compile_text(DEPENDENT)
    program.run(Launch("first", (1, 1, 1), (32, 1, 1)), [data])
    launch = Launch("second", (1, 1, 1), (32, 1, 1), dependent=True)
    arguments = [data, np.ones(32, np.float32), out, wrong]
    if said:
        line = fault(program, launch, arguments)
        assert re.search(f"{said} .* accesses what the kernel before has written: no grid", line)
        return
    program.run(launch, arguments)
    np.testing.assert_array_equal(out.require_written("out"), np.arange(32) + 1)


READ_AND_WRITTEN = """
extern "C" __global__ void k(float* data, int shift, int barrier) {
  float held = data[threadIdx.x + shift];
  if (barrier) __syncthreads();
  data[threadIdx.x] = held + 1;
}
extern "C" __global__ void constants(float* data, int late) {
  float held;
  if (late) data[threadIdx.x] = 3;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.f32 %0, [%1];" : "=f"(held) : "l"(data + threadIdx.x));
  if (!late) data[threadIdx.x] = held + 1;
}"""


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_writes_after_reads_of_others_are_races(order: Order | int) -> None:
    program, launch = compile_text(READ_AND_WRITTEN), Launch("k", (1, 1, 1), (64, 1, 1))
    for shift, barrier in ((0, 0), (0, 1), (1, 1)):
        data = np.arange(65, dtype=np.float32)
        program.run(launch, [data, shift, barrier], order=order)
        np.testing.assert_array_equal(data[:64], np.arange(64) + 1 + shift)
    line = fault(program, launch, [np.zeros(65, np.float32), 1, 0], order)
    assert re.search(
        "data race in global memory: .* overwrites what thread .* read at|reads what", line
    )
    # Blocks have no barrier.
    two = Launch("k", (2, 1, 1), (64, 1, 1))
    line = fault(program, two, [np.zeros(65, np.float32), 1, 1], order)
    assert "data race in global memory" in line


def test_what_is_constant_is_not_written_before() -> None:
    program, launch = compile_text(READ_AND_WRITTEN), Launch("constants", (1, 1, 1), (32, 1, 1))
    line = fault(program, launch, [np.zeros(32, np.float32), 1])
    assert re.search("ld.global.nc.* reads what thread 0 wrote at .* in the same launch", line)
    data = np.zeros(32, np.float32)
    program.run(launch, [data, 0])
    assert (data == 1).all()
