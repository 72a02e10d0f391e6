"""Kernels that TVM's own rules make: elementwise, pooling, reductions, and products on WMMA."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cpembed.codegen import runtime
from cpembed.targets.cuda.build import cuda_target
from cpembed.targets.cuda.emulator.executor import Launch, Order, compile_text
from tests.unit.targets.cuda.emulator.running import Array, needs_compiler

pytestmark = needs_compiler


def scheduled(tensors: list[Any]) -> Any:
    """A module with TVM's default schedules for a GPU."""
    tvm = runtime.tvm()
    from tvm import te
    from tvm.s_tir import dlight

    rules = dlight.gpu
    module = tvm.IRModule({"main": te.create_prim_func(tensors)})
    with cuda_target("sm_80"):
        return dlight.ApplyDefaultSchedule(
            rules.Matmul(), rules.GEMV(), rules.Reduction(), rules.GeneralReduction(),
            rules.Fallback(),
        )(module)  # fmt: skip


def launched(tensors: list[Any], arrays: dict[str, Array], order: Order | int) -> None:
    """Build the tensors' function and run it on arrays, by the names of parameters."""
    tvm = runtime.tvm()
    module, target = scheduled(tensors), cuda_target("sm_80")
    with target:
        source = tvm.tirx.build(module, target=target).imports[0].inspect_source()
    script = module.script()

    def extents(kind: str) -> tuple[int, int, int]:
        found = dict(re.findall(rf"thread_binding\((\d+), thread=\"{kind}Idx\.([xyz])\"", script))
        sizes = {axis: int(size) for size, axis in found.items()}
        return (sizes.get("x", 1), sizes.get("y", 1), sizes.get("z", 1))

    parameters = re.search(r"main_kernel\(([^)]*)\)", source)
    assert parameters
    names = [word.split()[-1].removesuffix("_ptr") for word in parameters[1].split(",")]
    shared = 98304 if "extern __shared__" in source else 0
    launch = Launch("main_kernel", extents("block"), extents("thread"), shared)
    compile_text(source).run(launch, [arrays[name] for name in names], order=order)


def softmax(x: Array) -> Array:
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def max_pool(x: Array) -> Array:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    return np.max(
        [padded[:, :, i : i + 14 : 2, j : j + 14 : 2] for i in range(3) for j in range(3)], 0
    )


def pool(topi: Any, x: Any) -> Any:
    return topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max")


CASES: dict[
    str, tuple[tuple[int, ...], str, Callable[[Any, Any], Any], Callable[[Array], Array]]
] = {
    "relu": ((2, 8, 14, 14), "float16", lambda t, x: t.nn.relu(x), lambda x: np.maximum(x, 0)),
    "softmax": ((8, 100), "float16", lambda t, x: t.nn.softmax(x), softmax),
    "max_pool": ((2, 8, 14, 14), "float16", pool, max_pool),
    "softmax_f32": ((8, 100), "float32", lambda t, x: t.nn.softmax(x), softmax),
    "sum": ((8, 100), "float32", lambda t, x: t.sum(x, axis=1), lambda x: x.sum(1)),
    "tanh": ((8, 100), "float16", lambda t, x: t.tanh(x), np.tanh),
    "sigmoid": ((8, 100), "float16", lambda t, x: t.sigmoid(x), lambda x: 1 / (1 + np.exp(-x))),
    "relu_bf16": ((8, 100), "bfloat16", lambda t, x: t.nn.relu(x), lambda x: np.maximum(x, 0)),
    "round": (
        (8, 100),
        "float32",
        lambda t, x: t.cast(t.clip(t.round(x * 100.0), -128, 127), "int8"),
        lambda x: np.clip(np.rint(x * 100), -128, 127),
    ),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", CASES)
def test_operators_without_products(name: str) -> None:
    runtime.tvm()
    import ml_dtypes
    from tvm import te, topi

    shape, dtype, build, expected = CASES[name]
    numpy_dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    values = np.random.default_rng(0).standard_normal(shape).astype(numpy_dtype)
    x = te.placeholder(shape, dtype, name="X")
    y = build(topi, x)
    result = np.dtype(ml_dtypes.bfloat16 if y.dtype == "bfloat16" else str(y.dtype))
    wanted = expected(values.astype(np.float32))
    for order in (Order.FORWARD, 5):
        out = np.zeros([int(n) for n in y.shape], result)
        launched([x, y], Only(X=values, other=out), order)
        np.testing.assert_allclose(
            out.astype(np.float64), wanted, rtol=4e-3 if result.itemsize == 2 else 1e-5, atol=1e-6
        )


class Only(dict[str, Array]):
    """Arrays by name; ``other`` is that of every other name."""

    def __missing__(self, name: str) -> Array:
        return self["other"]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 128])
def test_products_of_tvm(rows: int) -> None:
    """A row times a matrix in vectors, and WMMA."""
    runtime.tvm()
    from tvm import te

    a, b = (te.placeholder((n, 128), "float16", name=x) for x, n in (("A", rows), ("B", 128)))
    k = te.reduce_axis((0, 128))
    c = te.compute(
        (rows, 128),
        lambda i, j: te.sum(a[i, k].astype("float32") * b[j, k].astype("float32"), axis=k),
        name="C",
    )
    rng = np.random.default_rng(1)
    arrays = Only(
        A=rng.integers(-8, 9, (rows, 128)).astype(np.float16),
        B=rng.integers(-8, 9, (128, 128)).astype(np.float16),
        other=np.zeros((rows, 128), np.float32),
    )
    launched([a, b, c], arrays, Order.REVERSE)
    expected = arrays["A"].astype(np.float32) @ arrays["B"].astype(np.float32).T
    np.testing.assert_array_equal(arrays["other"], expected)
