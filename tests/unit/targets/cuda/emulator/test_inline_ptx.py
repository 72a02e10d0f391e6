"""Inline PTX as TVM writes it, executed."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.errors import LoweringError
from cpembed.targets.cuda.emulator.executor import Launch, compile_text
from cpembed.targets.cuda.emulator.ptx import translate_inline_ptx
from tests.unit.targets.cuda.emulator.running import (
    ORDERS,
    fault,
    needs_compiler,
    program,
    small_integers,
)

COPY = 'asm volatile("cp.async.cg.shared.global [%0], [%1], %2;" :: "r"(to), "l"(from), "n"(16));'


def test_lines_stay_where_they_are() -> None:
    source = (
        f'int a;\nasm volatile(\n  "cp.async.wait_group 1;\\n"\n  :\n  :\n  : "memory");\n{COPY}\n'
    )
    made = translate_inline_ptx(source).split("\n")
    assert made[0] == "int a;"
    assert "executor_copy_wait(f_, 1);" in made[1]
    assert made[5] == ";"
    assert "executor_copy_async(" in made[6]
    assert len(made) == source.count("\n") + 1


@pytest.mark.parametrize("text", ["#define __asm__ asm (x)", "plasma(1);", "asm_like(2);"])
def test_other_text_stays(text: str) -> None:
    assert translate_inline_ptx(text) == text


@needs_compiler
def test_unknown_ptx_does_not_compile_where_it_is_compiled() -> None:
    kernel = 'extern "C" __global__ void k(int* out) {{ {} out[0] = 1; }}'
    unknown = 'asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");'
    with pytest.raises(LoweringError, match="cannot execute this inline PTX: tcgen05") as caught:
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
    assert counters.mma == {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": 2}
    assert counters.instructions["ldmatrix.sync.aligned.m8n8.x2.shared.b16"] == 2
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
