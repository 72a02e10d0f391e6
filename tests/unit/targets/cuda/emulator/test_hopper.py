"""A product by a warp that copies and warp groups that multiply: results, and what goes wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from cpembed.errors import ExecutionFault
from cpembed.targets.cuda.emulator.executor import (
    Counters,
    Launch,
    MapArgument,
    Order,
    compile_text,
)
from cpembed.targets.cuda.tma.tensor_maps import TensorMap, TiledBox
from tests.unit.targets.cuda.emulator.running import ORDERS, Array, needs_compiler, text

pytestmark = needs_compiler

TILE_N, STAGES = 64, 3
SHARED_BYTES = STAGES * (128 + TILE_N) * 128 + STAGES * 16


def matrix_map(array: Array, box: tuple[int, int], swizzle: int = 128) -> MapArgument:
    """Of a matrix in row-major order; the box has columns and rows."""
    rows, columns = array.shape
    size = array.itemsize
    tensor_map = TensorMap(
        dtype=str(array.dtype),
        global_dims=(columns, rows),
        global_strides=(columns * size,),
        element_strides=(1, 1),
        box=TiledBox(box),
        swizzle=swizzle,
    )
    return MapArgument(tensor_map, array)


@dataclass(frozen=True)
class Problem:
    m: int
    n: int
    k: int
    cluster: int = 1
    by_map: int = 0

    def arguments(self, a_swizzle: int = 128, b_rows: int | None = None) -> tuple[Any, Array]:
        """Of a launch, and the product."""
        rng = np.random.default_rng(self.m + self.n + self.k)
        a = rng.integers(-4, 5, (self.m, self.k)).astype(np.float16)
        b = rng.integers(-4, 5, (self.n, self.k)).astype(np.float16)
        c = np.zeros((self.m, self.n), np.float32)
        maps = [
            matrix_map(a, (a_swizzle // 2, 128), a_swizzle),
            matrix_map(b, (64, b_rows or TILE_N // self.cluster)),
            matrix_map(c, (32, 128)),
        ]
        product = a.astype(np.float32) @ b.astype(np.float32).T
        return [*maps, c, self.m, self.n, self.k, self.by_map], product

    @property
    def launch(self) -> Launch:
        rows = -(-self.m // (128 * self.cluster)) * self.cluster
        grid = (rows, -(-self.n // TILE_N), 1)
        return Launch("gemm", grid, (384, 1, 1), SHARED_BYTES, (self.cluster, 1, 1))


def source(cluster: int = 1) -> str:
    return text("hopper.cu").replace("CLUSTER = 1;", f"CLUSTER = {cluster};")


def run(problem: Problem, order: Order | int = Order.FORWARD) -> Counters:
    arguments, product = problem.arguments()
    counters = compile_text(source(problem.cluster)).run(problem.launch, arguments, order=order)
    np.testing.assert_array_equal(arguments[3], product)
    return counters


SHAPES = [
    Problem(128, 64, 64),
    Problem(200, 80, 328, by_map=1),
    Problem(100, 136, 72),
    Problem(520, 64, 264, cluster=2),
    Problem(300, 80, 456, cluster=2, by_map=1),
    Problem(520, 64, 200, cluster=4),
]


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("problem", SHAPES, ids=str)
def test_the_product_is_exact_in_every_order(problem: Problem, order: Order | int) -> None:
    run(problem, order)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_random_shapes(order: Order | int) -> None:
    rng = np.random.default_rng(5)
    for _ in range(6):
        m, n, k = (int(size) for size in rng.integers(1, (300, 17, 60)))
        cluster, by_map = (int(choice) for choice in rng.integers(0, (2, 2)))
        # Rows of a tensor map are multiples of 16 bytes.
        run(Problem(m, 8 * n, 8 * k, cluster + 1, by_map), order)


def test_the_counts_of_a_product() -> None:
    problem = Problem(520, 128, 320, cluster=2)
    counters = run(problem)
    blocks, steps = 6 * 2, 5
    image = 128 * (128 + TILE_N // 2)
    # Each block copies its rows of A and half of B's tile, and the halves go to both blocks.
    assert counters.bulk_load_image_bytes == blocks * steps * image
    assert counters.multicast_bytes == blocks * steps * 128 * TILE_N // 2
    assert counters.bulk_load_bytes == (520 * 2 * 2 + 6 * 128) * 320
    assert counters.bulk_load_sectors == counters.bulk_load_bytes // 32
    assert counters.mbarrier_phases == 2 * blocks * steps
    # Warp instructions of four products of depth 16 for each step, by two groups of four warps.
    assert sum(counters.mma.values()) == blocks * steps * 4 * 8
    # 64 rows of A and 64 of B, of 32 bytes each; 128 bytes a wavefront where no banks conflict.
    assert counters.wgmma_wavefronts_least == blocks * steps * 4 * 2 * 2 * 64 * 32 // 128
    assert counters.wgmma_wavefronts == counters.wgmma_wavefronts_least


WRONG_RESULT = ""


@dataclass(frozen=True)
class Mutant:
    """A replacement in the text, and the fault or a wrong result in every order."""

    old: str
    new: str
    fault: str
    problem: Problem = Problem(200, 80, 328, by_map=1)
    a_swizzle: int = 128
    b_rows: int | None = None


OVERWRITTEN = "data race in shared memory: thread 0 .* copies to"
FENCE = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
MEETING = 'asm volatile("bar.sync 1, 256;" ::: "memory");'
CLUSTER = Problem(300, 80, 456, cluster=2, by_map=1)

MUTANTS = {
    # Barrier objects: counts.
    "full barrier expects two arrivals": Mutant(
        "init(objects + stage * 16, 1);",
        "init(objects + stage * 16, 2);",
        r"deadlock: .* waits at line .* for phase 0 of the barrier object .* 1 of 2 arrivals are "
        r"pending, and 0 bytes outstanding|deadlock: .* 1 of 2 arrivals are pending",
    ),
    "empty barrier expects one arrival": Mutant(
        "+ 8, 2 * CLUSTER);",
        "+ 8, 1);",
        r"too many arrivals|data race in shared memory: thread 0 .*copies to .* read at line",
    ),
    "empty barrier expects three arrivals": Mutant(
        "+ 8, 2 * CLUSTER);",
        "+ 8, 3);",
        r"deadlock: .* 1 of 3 arrivals are pending",
    ),
    "all threads arrive": Mutant(
        "CLUSTER == 1 && threadIdx.x % 128 == 0",
        "CLUSTER == 1",
        f"too many arrivals at the barrier|{OVERWRITTEN}",
    ),
    "nobody arrives": Mutant(
        "CLUSTER == 1 && threadIdx.x % 128 == 0",
        "CLUSTER == 7",
        r"deadlock: thread 0 waits at line \d+ .* phase 0 of the barrier object .* 2 of 2 arrivals",
    ),
    "no initialisation": Mutant(
        "init(objects + stage * 16, 1);",
        "",
        "no barrier object is initialised at bytes",
    ),
    "two initialisations": Mutant(
        "init(objects + stage * 16, 1);",
        "init(objects + stage * 16, 1); init(objects + stage * 16, 1);",
        "is in use since line",
    ),
    "no barrier after the initialisation": Mutant(
        "    meet_cluster();\n  else\n    __syncthreads();",
        "    meet_cluster();",
        "was initialised at line .* with no barrier between them|no barrier object is initialised",
    ),
    "no fence after the initialisation": Mutant(
        'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");',
        "",
        "no fence.mbarrier_init or fence.proxy.async follows the initialisation",
    ),
    # Phases.
    "producer waits for the wrong parity": Mutant(
        "step / STAGES % 2 ^ 1);",
        "step / STAGES % 2);",
        "deadlock: .* thread 0 waits|deadlock",
    ),
    "consumer waits for the wrong parity": Mutant(
        "wait(full, step / STAGES % 2);",
        "wait(full, step / STAGES % 2 ^ 1);",
        "bulk copy not waited for|uninitialised shared memory",
    ),
    "parity of every step": Mutant(
        "wait(full, step / STAGES % 2);",
        "wait(full, step % 2);",
        "bulk copy not waited for|uninitialised shared memory|deadlock",
    ),
    "consumer does not wait": Mutant(
        "wait(full, step / STAGES % 2);",
        "",
        "bulk copy not waited for|uninitialised shared memory",
    ),
    "only one lane waits": Mutant(
        "wait(full, step / STAGES % 2);",
        "if (threadIdx.x % 128 == 0) wait(full, step / STAGES % 2);",
        "bulk copy not waited for|uninit",
    ),
    "producer does not wait": Mutant(
        "wait(empty, step / STAGES % 2 ^ 1);",
        "",
        f"arrive.* by thread 0: too many arrivals|bulk copy not waited for|{OVERWRITTEN}",
    ),
    "one stage too few is waited for": Mutant(
        "wait(empty, step / STAGES % 2 ^ 1);",
        "if (step != 3) wait(empty, step / STAGES % 2 ^ 1);",
        f"arrive.* by thread 0: too many arrivals|bulk copy not waited for|{OVERWRITTEN}",
    ),
    # Transactions.
    "too few bytes are expected": Mutant(
        "expect(full, A_BYTES + B_BYTES);",
        "expect(full, A_BYTES);",
        r"bytes more than are expected|bulk copy not waited for",
    ),
    "too many bytes are expected": Mutant(
        "expect(full, A_BYTES + B_BYTES);",
        "expect(full, A_BYTES + B_BYTES + 16);",
        r"deadlock: .* 16 bytes outstanding",
    ),
    "bytes are not expected": Mutant(
        "expect(full, A_BYTES + B_BYTES);",
        "arrive(full);",
        "bulk copy not waited for|more than are",
    ),
    "the box is smaller than what is expected": Mutant(
        "",
        "",
        r"deadlock: .* 4096 bytes outstanding",
        b_rows=32,
    ),
    # Coordinates, images and descriptors.
    "copies of another step": Mutant(
        "&a_map, step * 64, row", "&a_map, step * 32, row", WRONG_RESULT
    ),
    "coordinates exchanged": Mutant(
        "step * 64, column, full", "column, step * 64, full", WRONG_RESULT
    ),
    "an image that is not aligned": Mutant(
        "load(image, &a_map",
        "load(image + 64, &a_map",
        "is misaligned: bytes .* a multiple of 128",
    ),
    "an image beyond shared memory": Mutant(
        "load(image, &a_map",
        "load(image + 7 * A_BYTES, &a_map",
        "out of bounds: bytes",
    ),
    "a map of 64-byte rows": Mutant("", "", "deadlock: .* 8192 bytes outstanding", a_swizzle=64),
    "a descriptor without swizzle": Mutant("| uint64_t(1) << 62", "", WRONG_RESULT),
    "a descriptor of the 64-byte swizzle": Mutant(
        "uint64_t(1) << 62", "uint64_t(2) << 62", WRONG_RESULT
    ),
    "the wrong stride in a descriptor": Mutant(
        "uint64_t(1024 >> 4)", "uint64_t(512 >> 4)", WRONG_RESULT
    ),
    "a base offset in a descriptor": Mutant(
        "uint64_t(1) << 62", "uint64_t(1) << 62 | uint64_t(1) << 49", WRONG_RESULT
    ),
    "an address that is not shifted": Mutant(
        "uint64_t((address & 0x3ffff) >> 4)",
        "uint64_t(address & 0x3ffff)",
        "reserved bits|out of bounds|address outside|uninitialised",
    ),
    "depths too close": Mutant(
        "describe(image + A_BYTES + depth * 32)",
        "describe(image + A_BYTES + depth * 16)",
        WRONG_RESULT,
    ),
    "both groups multiply the first rows": Mutant(
        "image + (group - 1) * 64 * 128 + depth", "image + depth", WRONG_RESULT
    ),
    "sums are not added": Mutant(
        "describe(image + A_BYTES + depth * 32), 1);",
        "describe(image + A_BYTES + depth * 32), depth > 0);",
        WRONG_RESULT,
    ),
    "a negated factor": Mutant("p, 1, 1, 0, 0", "p, -1, 1, 0, 0", WRONG_RESULT),
    "a transposed factor": Mutant("p, 1, 1, 0, 0", "p, 1, 1, 0, 1", WRONG_RESULT),
    # Products: fences and waits.
    "no wgmma.fence": Mutant(
        'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");',
        "",
        "missing wgmma.fence: warp",
    ),
    "no commit": Mutant(
        'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");',
        "",
        "data race in shared memory: thread 0 .* products of warp group|ends while wgmma",
    ),
    "no wait for products": Mutant(
        'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");',
        "",
        "data race in shared memory: thread 0 .* products of warp group|ends while wgmma|wgmma",
    ),
    "a wait that leaves a group": Mutant(
        "wgmma.wait_group.sync.aligned 0;",
        "wgmma.wait_group.sync.aligned 1;",
        "data race in shared memory: thread 0 .* which products of warp group .* read|ends while",
    ),
    "sums are changed in flight": Mutant(
        'asm volatile("wgmma.commit_group',
        'd[5] = 1.0f; asm volatile("wgmma.commit_group',
        "has written registers of sums while products",
    ),
    "three warps multiply": Mutant(
        "for (int depth = 0;",
        "if (threadIdx.x / 32 % 4 != 3) for (int depth = 0;",
        "deadlock: .* wgmma.* issued at line .* by 3 of the four warps",
    ),
    "lanes with different descriptors": Mutant(
        "+ (group - 1) * 64 * 128 + depth",
        "+ threadIdx.x % 2 * 1024 + depth",
        "lanes 0 and 1 of warp 4 have different descriptors|have different descriptors",
    ),
    "warps with different descriptors": Mutant(
        "+ (group - 1) * 64 * 128 + depth",
        "+ threadIdx.x / 32 % 2 * 1024 + depth",
        "issues it with other operands",
    ),
    # The asynchronous proxy and stores.
    "no fence before a store": Mutant(
        'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");',
        "",
        "missing fence.proxy.async: .* of thread 128 .* reads bytes",
    ),
    "no barrier before a store": Mutant(
        f"{FENCE}\n      {MEETING}",
        FENCE,
        "data race in shared memory|uninitialised|missing fence|bulk copy not waited",
    ),
    "no wait for a store": Mutant(
        'asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");',
        "",
        "the block ends while the bulk store issued at line .* reads its shared memory",
    ),
    "a store in no group": Mutant(
        'asm volatile("cp.async.bulk.commit_group;");',
        "",
        "the block ends with the bulk store issued at line .* in no group",
    ),
    "a store too far right": Mutant(
        '"r"(column + half * 32)',
        '"r"(column + half * 16)',
        "data race in global memory: .* overwrites what a bulk store",
    ),
    "a map that is none": Mutant(
        '"l"(map), "r"(x)', '"l"((const char*)map + 64), "r"(x)', "is that of no tensor map"
    ),
    # Named barriers and registers.
    "a barrier of too many threads": Mutant(
        f"{MEETING}\n      for",
        f"{MEETING}\n      for".replace("256", "384"),
        "deadlock: .* at barrier 1, where 256 of 384 threads are|comes to barrier 1 .* as one of",
    ),
    "a barrier of too few threads": Mutant(
        f"{MEETING}\n      for",
        f"{MEETING}\n      for".replace("256", "128"),
        "data race|comes to barrier 1|uninitialised",
    ),
    "registers of three warps": Mutant(
        'asm volatile("setmaxnreg.inc',
        'if (threadIdx.x / 32 != 7) asm volatile("setmaxnreg.inc',
        "setmaxnreg was executed",
    ),
    "registers in sevens": Mutant("u32 160;", "u32 161;", "a multiple of 8 from 24 to 256"),
    "more registers than there are": Mutant(
        "u32 160;", "u32 248;", r"ask for \d+ registers of 65536"
    ),
    # Clusters.
    "a multicast to one block": Mutant(
        "(unsigned short)((1 << CLUSTER) - 1)",
        "(unsigned short)1",
        "deadlock|bulk copy not waited for|more than are expected|data race",
        CLUSTER,
    ),
    "a multicast to a block that is not there": Mutant(
        "(unsigned short)((1 << CLUSTER) - 1)",
        "(unsigned short)7",
        "mask 0x7 of a multicast",
        CLUSTER,
    ),
    "empty barriers of the own block only": Mutant(
        "arrive_at(empty, threadIdx.x % 128)",
        "arrive_at(empty, rank)",
        "thread 0 of block . of the cluster .* copies to",
        CLUSTER,
    ),
    "arrivals of one block": Mutant(
        "2 * CLUSTER);",
        "2);",
        "too many arrivals|thread 0 of block . of the cluster .* copies to",
        CLUSTER,
    ),
    "a cluster that starts apart": Mutant(
        "  if (CLUSTER > 1)\n    meet_cluster();\n  else",
        "",
        "no barrier object is initialised|was initialised at line",
        CLUSTER,
    ),
    "a cluster that ends apart": Mutant(
        "if (CLUSTER > 1) meet_cluster();  //",
        "//",
        "ends before it is known that .* mbarrier.arrive|has ended",
        CLUSTER,
    ),
    "the same part from each block": Mutant(
        "column + rank * PART, full",
        "column, full",
        WRONG_RESULT,
        CLUSTER,
    ),
    "both parts to one place": Mutant(
        "image + A_BYTES + rank * PART * 128",
        "image + A_BYTES",
        "bulk copy not waited for: .* copies to|data race",
        CLUSTER,
    ),
    "a block that does not wait": Mutant(
        r"barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;",
        r"barrier.cluster.arrive.release.aligned;",
        "has arrived before and not waited|no barrier object|was initialised",
        CLUSTER,
    ),
    "a relaxed barrier of the cluster": Mutant(
        "barrier.cluster.arrive.release.aligned",
        "barrier.cluster.arrive.relaxed.aligned",
        "was initialised at line .* with no barrier between them",
        CLUSTER,
    ),
    "an address of a block that is not there": Mutant(
        "arrive_at(empty, threadIdx.x % 128)",
        "arrive_at(empty, 2)",
        "mapa.* names block 2 of a cluster of 2",
        CLUSTER,
    ),
}


def outcome(mutant: Mutant, order: Order | int) -> str:
    """The fault of a mutant, or "right" or "wrong"."""
    whole = source(mutant.problem.cluster)
    assert mutant.old in whole
    mutated = whole.replace(mutant.old, mutant.new) if mutant.old else whole
    arguments, product = mutant.problem.arguments(mutant.a_swizzle, mutant.b_rows)
    try:
        compile_text(mutated).run(mutant.problem.launch, arguments, order=order)
    except ExecutionFault as fault:
        return str(fault)
    return "right" if np.array_equal(arguments[3], product) else "wrong"


@pytest.mark.quick(12)
@pytest.mark.parametrize("name", MUTANTS)
def test_each_fault_is_found_in_every_order(name: str) -> None:
    mutant = MUTANTS[name]
    for order in ORDERS:
        line = outcome(mutant, order)
        if mutant.fault == WRONG_RESULT:
            assert line == "wrong", line
        else:
            assert re.search(mutant.fault, line), line


@pytest.mark.parametrize("order", ORDERS)
def test_what_each_lane_has_waited_for_a_collective_knows(order: Order | int) -> None:
    """Fences of single lanes keep the lanes' knowledge apart, of which each has the copies."""
    wait = "wait(full, step / STAGES % 2);"
    fenced = source().replace(wait, f"__threadfence();\n      {wait}\n      __threadfence();")
    assert fenced != source()
    problem = Problem(128, 64, 328)
    arguments, product = problem.arguments()
    compile_text(fenced).run(problem.launch, arguments, order=order)
    np.testing.assert_array_equal(arguments[3], product)
