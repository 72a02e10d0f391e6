"""A tiled product with cp.async, ldmatrix and mma.sync: results, counts, and what goes wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cpembed.targets.cuda.emulator.executor import Counters, Launch, Order
from tests.unit.targets.cuda.emulator.running import (
    ORDERS,
    Array,
    fault,
    needs_compiler,
    program,
    small_integers,
    text,
    with_device_functions,
)

pytestmark = needs_compiler

M, N, K = 128, 192, 256
TYPES = {"gemm_f16": ("float16", "float32"), "gemm_s8": ("int8", "int32")}

NO_MUTATION = 0
WRONG_RESULT = ""

MUTATIONS = {
    1: r"(data race in|uninitialised) shared memory: warp \d+ reads .* line \d+ \(.*ldmatrix",
    2: r"data race in shared memory: thread \d+ copies to .* line \d+ \(.*cp\.async.*read at",
    3: r"cp\.async not waited for: warp \d+ reads bytes .* of dynamic shared memory at line",
    4: r"cp\.async not waited for: warp \d+ reads",
    5: r"cp\.async not waited for: warp \d+ reads",
    6: r"cp\.async not waited for: thread \d+ copies",
    7: WRONG_RESULT,
    8: WRONG_RESULT,
    9: r"cp\.async not waited for: warp \d+ reads",
    10: r"out of bounds: bytes \d+ to \d+ of argument 0, which has 65536",
}
"""By their numbers in gemm.cu."""


def launch(kernel: str) -> Launch:
    return Launch(kernel, (N // 64, M // 64, 1), (128, 1, 1), 4 * 64 * 64)


def arguments(kernel: str, swizzled: int, mutation: int) -> tuple[list[Array | int], Array]:
    """Of a launch, and the product."""
    dtype, sums = TYPES[kernel]
    a, b = small_integers((M, K), dtype, 1), small_integers((N, K), dtype, 2)
    wide = "int64" if sums == "int32" else "float64"
    product = a.astype(wide) @ b.astype(wide).T
    return [a, b, np.zeros((M, N), sums), N, K, swizzled, mutation], product


def run(kernel: str, *, swizzled: int = 1, order: Order | int = Order.FORWARD) -> Counters:
    given, product = arguments(kernel, swizzled, NO_MUTATION)
    counters = program("gemm.cu").run(launch(kernel), given, order=order)
    np.testing.assert_array_equal(given[2], product)
    return counters


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("kernel", TYPES)
def test_the_product_is_exact_in_every_order(kernel: str, order: Order | int) -> None:
    assert run(kernel, order=order) == run(kernel)


@pytest.mark.parametrize("kernel", TYPES)
def test_counters_are_what_the_text_asks_for(kernel: str) -> None:
    counters = run(kernel)
    blocks, warps, steps = M // 64 * N // 64, 4, K * np.dtype(TYPES[kernel][0]).itemsize // 64
    each = blocks * warps
    assert counters.mma == {
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" if kernel == "gemm_f16"
        else "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32": each * steps * 16
    }  # fmt: skip
    assert counters.ldmatrix == each * steps * 8
    assert counters.instructions["cp.async.cg.shared.global"] == each * steps * 4
    assert counters.instructions["st.global.v2.u32"] == each * 16
    assert counters.barriers == blocks * steps * 2
    assert counters.instructions["__syncthreads"] == warps * counters.barriers
    assert counters.cp_async_groups == each * (steps + 1)
    assert counters.blocks == blocks
    # A 16-byte copy of a warp writes 512 bytes: 4 wavefronts; it reads 8 rows of 64 bytes.
    assert counters.shared_store_wavefronts == each * steps * 4 * 4
    assert counters.global_load_sectors == each * steps * 4 * 16
    assert counters.global_load_bytes == 32 * counters.global_load_sectors
    # A row of 8 results is a sector.
    assert counters.global_store_sectors == each * 16 * 8
    item = np.dtype(TYPES[kernel][0]).itemsize
    assert counters.unique_bytes_read == (M + N) * K * item
    assert counters.unique_bytes_written == counters.global_store_bytes == M * N * 4
    for traffic in ("shared_load_wavefronts", "shared_store_wavefronts", "global_load_sectors"):
        assert getattr(counters, traffic) == getattr(counters, f"{traffic}_least")


@pytest.mark.parametrize("kernel", TYPES)
def test_ldmatrix_takes_four_wavefronts_if_its_rows_are_swizzled(kernel: str) -> None:
    swizzled, plain = run(kernel), run(kernel, swizzled=0)
    assert swizzled.ldmatrix_wavefronts == 4 * swizzled.ldmatrix
    # Rows of 64 bytes: every second one lies in the same banks.
    assert plain.ldmatrix_wavefronts == 16 * plain.ldmatrix
    assert plain.shared_load_wavefronts_least == swizzled.shared_load_wavefronts


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_every_mutation_is_found(mutation: int, order: Order | int) -> None:
    given, product = arguments("gemm_f16", 1, mutation)
    if MUTATIONS[mutation] == WRONG_RESULT:
        program("gemm.cu").run(launch("gemm_f16"), given, order=order)
        assert not np.array_equal(given[2], product)
        return
    line = fault(program("gemm.cu"), launch("gemm_f16"), given, order)
    assert re.search(MUTATIONS[mutation], line), line


def test_a_fault_says_block_and_lines() -> None:
    given, _ = arguments("gemm_f16", 1, 1)
    line = fault(program("gemm.cu"), launch("gemm_f16"), given)
    assert line.startswith("gemm_f16, block (0, 0, 0): data race in shared memory: warp 0 reads ")
    assert "\n" not in line
    lines = with_device_functions(text("gemm.cu")).split("\n")
    for number, code in re.findall(r"line (\d+) \((.{20})", line):
        assert lines[int(number) - 1].strip().startswith(code)
    # The device function, the product's function, and the kernel.
    assert len(re.findall(r"; from lines? [\d, ]+\)", line)) == 2
