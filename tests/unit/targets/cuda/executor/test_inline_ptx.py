"""Inline PTX as TVM writes it: translate_inline_ptx, and executed."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.errors import LoweringError
from cpembed.targets.cuda.executor import Launch, compile_text
from cpembed.targets.cuda.executor_source import translate_inline_ptx
from tests.unit.targets.cuda.executor.running import (
    ORDERS,
    fault,
    needs_compiler,
    program,
    small_integers,
)

COPY = 'asm volatile("cp.async.cg.shared.global [%0], [%1], %2;" :: "r"(to), "l"(from), "n"(16));'
TO_SHARED = '"{ .reg .u64 addr; cvta.to.shared.u64 addr, %1; cvt.u32.u64 %0, addr; }\\n"'


def test_lines_stay_where_they_are() -> None:
    source = (
        f'int a;\nasm volatile(\n  "cp.async.wait_group 1;\\n"\n  :\n  :\n  : "memory");\n{COPY}\n'
    )
    made = translate_inline_ptx(source).split("\n")
    assert made[0] == "int a;"
    assert made[1] == "executor_cp_async_wait(1)"
    assert made[5] == ";"
    assert made[6] == "executor_cp_async(executor_shared_pointer((to)), (from), (16), true);"
    assert len(made) == source.count("\n") + 1


@pytest.mark.parametrize(
    "statement, made",
    [
        ('asm volatile("cp.async.commit_group;");', "cpembed_cp_async_commit();"),
        (
            '__asm__ __volatile__ ("cp.async.wait_all;" ::: "memory");',
            "executor_cp_async_wait_all();",
        ),
        (
            f'asm volatile({TO_SHARED} : "=r"(addr) : "l"((void *)(p + f(1, 2))));',
            "(addr) = executor_shared_address(((void *)(p + f(1, 2))));",
        ),
        ("#define __asm__ asm (x)", "#define __asm__ asm (x)"),
        ("plasma(1);", "plasma(1);"),
    ],
)
def test_single_statements(statement: str, made: str) -> None:
    assert translate_inline_ptx(statement) == made


@needs_compiler
def test_unknown_ptx_does_not_compile_where_it_is_compiled() -> None:
    kernel = 'extern "C" __global__ void k(int* out) {{ {} out[0] = 1; }}'
    unknown = 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");'
    with pytest.raises(LoweringError, match="does not know this inline PTX: wgmma") as caught:
        compile_text(kernel.format(unknown))
    assert "\n" not in str(caught.value)
    left_out = f"\n#ifndef CPEMBED_EXECUTOR\n{unknown}\n#endif\n"
    compile_text(kernel.format(left_out))


@needs_compiler
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_product_in_inline_ptx(order: object) -> None:
    a, b = small_integers((16, 32), "float16", 1), small_integers((8, 32), "float16", 2)
    out = np.zeros((16, 8), np.float32)
    counters = program("ptx.cu").run(
        Launch("product", (1, 1, 1), (32, 1, 1), 2048), [a, b, out, 0], order=order
    )
    np.testing.assert_array_equal(out, a.astype(np.float32) @ b.astype(np.float32).T)
    assert counters.mma == {"cpembed_mma_m16n8k16_f32_f16_f16": 2}
    assert counters.instructions["cpembed_ldmatrix_x2"] == 2
    # 64 pieces of A, and 32 of B and as many again that are not valid.
    assert counters.global_load_bytes == 16 * (64 + 32)
    assert counters.shared_store_wavefronts_least == 16


@needs_compiler
@pytest.mark.parametrize(
    "mutation, said", [(1, "cp.async not waited for"), (2, "uninit|data race")]
)
def test_what_is_left_out_is_found(mutation: int, said: str) -> None:
    a, b = small_integers((16, 32), "float16", 1), small_integers((8, 32), "float16", 2)
    out = np.zeros((16, 8), np.float32)
    line = fault(
        program("ptx.cu"), Launch("product", (1, 1, 1), (32, 1, 1), 2048), [a, b, out, mutation]
    )
    assert any(word in line for word in said.split("|")), line
