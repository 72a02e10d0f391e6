"""Kernels that call kernels: what a part may hold, and where its buffers may begin."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.codegen.plan import SHARED_BUFFERS, KernelPlan
from cpembed.codegen.runtime import compile_plan, empty, from_array

pytest.importorskip("tvm")

PART = """@T.prim_func(s_tir=True)
def main(A: T.Buffer((8192,), "float32"), B: T.Buffer((8192,), "float32")):
    T.func_attr({"tirx.noalias": True, "global_symbol": "main"})
    for chunk in T.parallel(2):
        with T.sblock("chunk"):
            part = T.axis.spatial(2, chunk)
            C = T.sblock_alloc_buffer((4096,), "float32")
            for i in T.serial(512):
                for lane in T.vectorized(8):
                    C[i * 8 + lane] = A[part * 4096 + i * 8 + lane] * T.float32(2)
            for i in T.serial(4096):
                B[part * 4096 + i] = C[4095 - i]
"""


@pytest.mark.parametrize("offset", [0, 3])
def test_a_part_has_local_buffers_that_exceed_the_stack_at_any_address(offset: int) -> None:
    text = f"""@T.prim_func(s_tir=True)
def main(A: T.Buffer((16400,), "float32"), B: T.Buffer((16400,), "float32")):
    T.func_attr({{"tirx.noalias": True, "global_symbol": "main"}})
    for task in T.parallel(2):
        Module.part0(T.address_of(A[task * 8192 + {offset}]), T.address_of(B[task * 8192]))
"""
    plan = KernelPlan(
        "m", text, options=(SHARED_BUFFERS,), parts=(("part0", KernelPlan("p", PART)),)
    )
    array = np.arange(16400, dtype=np.float32)
    result = empty(16400, "float32")
    compile_plan(plan)(from_array(array), result)
    expected = 2 * array[offset : offset + 16384].reshape(4, 4096)[:, ::-1].reshape(-1)
    np.testing.assert_array_equal(result.numpy()[:16384], expected)


def test_a_part_has_numbers_beside_addresses() -> None:
    part = """@T.prim_func(s_tir=True)
def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32"), start: T.int32()):
    T.func_attr({"tirx.noalias": True, "global_symbol": "main"})
    for i in T.serial(T.max(0, 0 - start), 4):
        B[i] = A[i + start]
"""
    text = """@T.prim_func(s_tir=True)
def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    T.func_attr({"tirx.noalias": True, "global_symbol": "main"})
    for task in T.serial(2):
        Module.part0(T.address_of(A[0]), T.address_of(B[task * 4]), task * 3 - 2)
"""
    plan = KernelPlan(
        "m", text, options=(SHARED_BUFFERS,), parts=(("part0", KernelPlan("p", part)),)
    )
    result = from_array(np.full(8, -1, np.float32))
    compile_plan(plan)(from_array(np.arange(8, dtype=np.float32)), result)
    np.testing.assert_array_equal(result.numpy(), [-1, -1, 0, 1, 1, 2, 3, 4])
