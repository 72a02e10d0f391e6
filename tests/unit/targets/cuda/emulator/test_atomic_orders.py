"""What atomic operations and fences order: the last one to count reads what others wrote."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.targets.cuda.emulator.executor import Launch, Order, Program, compile_text
from tests.unit.targets.cuda.emulator.running import ORDERS, fault, needs_compiler

pytestmark = needs_compiler

TEXT = """
__device__ inline unsigned add(unsigned* counter) {
  unsigned old;
  BEFORE;
  asm volatile("ADD.u32 %0, [%1], 1;" : "=r"(old) : PLACE(counter) : "memory");
  AFTER;
  return old;
}

// Warps of a block count in shared memory.
extern "C" __global__ void warps(unsigned* result, unsigned* unused) {
  __shared__ unsigned parts[128], counter;
  if (threadIdx.x == 0) counter = 0;
  __syncthreads();
  parts[threadIdx.x] = threadIdx.x;
  __syncwarp();
  unsigned last = 0;
  if (threadIdx.x % 32 == 0) last = add(&counter) == 3;
  __syncwarp();
  if (!__shfl_sync(0xffffffffu, last, 0)) return;
  for (int part = threadIdx.x % 32; part < 128; part += 32) result[part] = parts[part];
}

// Blocks, of a cluster or not, count in global memory.
extern "C" __global__ void blocks(unsigned* parts, unsigned* counter) {
  __shared__ unsigned last;
  parts[blockIdx.x * 32 + threadIdx.x] = blockIdx.x;
  __syncthreads();
  if (threadIdx.x == 0) last = add(counter) == 3;
  __syncthreads();
  if (!last) return;
  for (int part = 0; part < 4; part++) parts[part * 32 + threadIdx.x] += 10;
}
"""

ORDERED, RACES = True, False

IN_SHARED = {
    ("atom.add.acq_rel.cta.shared::cta", "", ""): ORDERED,
    ("atom.add.acq_rel.gpu.shared::cta", "", ""): ORDERED,
    ("atom.add.relaxed.cta.shared::cta", "fence.acq_rel.cta;", "fence.acq_rel.cta;"): ORDERED,
    ("atom.shared::cta.add", "membar.cta;", "membar.cta;"): ORDERED,
    ("atom.shared::cta.add", "", ""): RACES,
    ("atom.add.relaxed.cta.shared::cta", "", "fence.acq_rel.cta;"): RACES,
    ("atom.add.relaxed.cta.shared::cta", "fence.acq_rel.cta;", ""): RACES,
    ("atom.add.acquire.cta.shared::cta", "", ""): RACES,
    ("atom.add.release.cta.shared::cta", "", ""): RACES,
    ("atom.add.acquire.cta.shared::cta", "fence.acq_rel.cta;", ""): ORDERED,
    ("atom.add.release.cta.shared::cta", "", "fence.acq_rel.cta;"): ORDERED,
}

IN_GLOBAL = {
    ("atom.add.acq_rel.gpu.global", "", "", 1): ORDERED,
    ("atom.add.acq_rel.cluster.global", "", "", 1): RACES,
    ("atom.add.acq_rel.cta.global", "", "", 1): RACES,
    ("atom.add.acq_rel.cluster.global", "", "", 4): ORDERED,
    ("atom.add.acq_rel.cta.global", "", "", 4): RACES,
    ("atom.global.add", "membar.gl;", "membar.gl;", 1): ORDERED,
    ("atom.global.add", "fence.acq_rel.cluster;", "fence.acq_rel.cluster;", 4): ORDERED,
    ("atom.global.add", "fence.acq_rel.cluster;", "fence.acq_rel.cluster;", 1): RACES,
    ("atom.global.add", "membar.cta;", "membar.gl;", 1): RACES,
    ("atom.global.add", "membar.gl;", "membar.cta;", 1): RACES,
    ("atom.add.relaxed.cta.global", "membar.gl;", "membar.gl;", 4): RACES,
}


def compiled(add: str, before: str, after: str, cluster: int = 1) -> Program:
    text = TEXT.replace("ADD", add)
    if cluster > 1:
        # Clusters have no static shared memory.
        text = text[: text.index("// Warps")] + text[text.index("// Blocks") :]
        text = text.replace("__shared__ unsigned last;", "extern __shared__ unsigned words[];")
        text = text.replace("last", "words[0]")
    for place, instruction in (("BEFORE", before), ("AFTER", after)):
        text = text.replace(place, f'asm volatile("{instruction}" ::: "memory")')
    generic = '"r"((unsigned)__cvta_generic_to_shared(counter))'
    return compile_text(
        text.replace("PLACE(counter)", '"l"(counter)' if ".global" in add else generic)
    )


@pytest.mark.quick(6)
@pytest.mark.parametrize("case", IN_SHARED, ids=" ".join)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_counting_in_shared_memory(case: tuple[str, str, str], order: Order | int) -> None:
    result = np.zeros(128, np.uint32)
    launch, arguments = Launch("warps", (1, 1, 1), (128, 1, 1)), [result, np.zeros(1, np.uint32)]
    if IN_SHARED[case] is RACES:
        assert "data race in shared memory" in fault(compiled(*case), launch, arguments, order)
        return
    compiled(*case).run(launch, arguments, order=order)
    np.testing.assert_array_equal(result, np.arange(128))


@pytest.mark.quick(6)
@pytest.mark.parametrize("case", IN_GLOBAL, ids=lambda case: " ".join(map(str, case)))
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_counting_in_global_memory(case: tuple[str, str, str, int], order: Order | int) -> None:
    parts, counter = np.zeros(128, np.uint32), np.zeros(1, np.uint32)
    text = compiled(*case)
    launch = Launch("blocks", (4, 1, 1), (32, 1, 1), 4, (case[3], 1, 1))
    if IN_GLOBAL[case] is RACES:
        assert "data race in global memory" in fault(text, launch, [parts, counter], order)
        return
    text.run(launch, [parts, counter], order=order)
    np.testing.assert_array_equal(parts, np.repeat(np.arange(4), 32) + 10)


@pytest.mark.parametrize("fences", [True, False])
def test_atomic_functions_of_a_block(fences: bool) -> None:
    body = TEXT[TEXT.index("// Warps") : TEXT.index("// Blocks")]
    fence = "__threadfence_block();" if fences else ""
    text = f"""
__device__ inline unsigned add(unsigned* counter) {{
  {fence} unsigned old = atomicAdd_block(counter, 1u); {fence}
  return old;
}}
{body}"""
    result = np.zeros(128, np.uint32)
    launch, arguments = Launch("warps", (1, 1, 1), (128, 1, 1)), [result, result[:1].copy()]
    if not fences:
        assert "data race in shared memory" in fault(compile_text(text), launch, arguments)
        return
    compile_text(text).run(launch, arguments)
    np.testing.assert_array_equal(result, np.arange(128))


STORED = """
extern "C" __global__ void chain(unsigned* data, unsigned* flag) {
  unsigned seen = 0;
  if (blockIdx.x == 0) {
    data[0] = 7;
    asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
  } else if (blockIdx.x == 1) {
    asm volatile("OPERATION" : "=r"(seen) : "l"(flag) : "memory");
  } else {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    if (seen == 2) data[1] = data[0];
  }
}
"""


@pytest.mark.parametrize(
    "operation, ordered",
    [("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;", True),
     ("st.relaxed.gpu.global.u32 [%1], 2;", False)],
)  # fmt: skip
def test_a_store_ends_what_was_released(operation: str, ordered: bool) -> None:
    text, arguments = compile_text(STORED.replace("OPERATION", operation)), [np.zeros(2, np.uint32)]
    arguments.append(np.zeros(1, np.uint32))
    launch = Launch("chain", (3, 1, 1), (1, 1, 1))
    if ordered:
        text.run(launch, arguments)
        assert list(arguments[0]) == [7, 7]
    else:
        assert "data race in global memory" in fault(text, launch, arguments)
