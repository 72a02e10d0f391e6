"""Activations and other elementwise chains in the epilogues of kernels, equal to numpy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.epilogue import (
    BIAS,
    RESIDUAL,
    Chain,
    Epilogue,
    Residual,
    channel_axes,
    channel_numbers,
)
from cpembed.codegen.placement import Placement
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Request, Selection
from cpembed.errors import LoweringError, WorkloadError
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import numpy_dtype
from cpembed.ir.reference import random_inputs, reference
from cpembed.ir.scalars import Apply, Input, Number, Scalar
from cpembed.targets.portable import PortableTarget
from cpembed.targets.registry import open_target
from cpembed.targets.x86.features import missing_features
from cpembed.workloads.convolutions import conv2d, depthwise
from cpembed.workloads.einsum import batched_gemm, gemm
from tests.features import require_features
from tests.integration import epilogue_workloads


def op(operation: str, *arguments: Scalar | float) -> Scalar:
    return Apply(operation, tuple(Number(a) if isinstance(a, float) else a for a in arguments))


X, R = Input(0), Input(1)
GELU = op("mul", op("mul", X, 0.5), op("add", op("erf", op("mul", X, 0.70710678)), 1.0))
TANH_GELU = op(
    "mul",
    op("mul", X, 0.5),
    op(
        "add",
        op(
            "tanh",
            op("mul", op("add", X, op("mul", op("mul", op("mul", X, X), X), 0.044715)), 0.7978845),
        ),
        1.0,
    ),
)
HARD_SIGMOID = op("max", op("min", op("add", op("div", X, 6.0), 0.5), 1.0), 0.0)
SOFTPLUS = op(
    "add", op("max", X, 0.0), op("log", op("add", op("exp", op("neg", op("abs", X))), 1.0))
)
CHAINS: dict[str, Scalar] = {
    "silu": op("mul", X, op("sigmoid", X)),
    "hard swish": op("mul", X, HARD_SIGMOID),
    "hard sigmoid": HARD_SIGMOID,
    "gelu": GELU,
    "gelu by tanh": TANH_GELU,
    "sigmoid": op("sigmoid", X),
    "tanh": op("tanh", X),
    "leaky relu": op("where", op("less", X, 0.0), op("mul", X, 0.1), X),
    "elu": op("where", op("less", X, 0.0), op("mul", op("sub", op("exp", X), 1.0), 0.7), X),
    "softplus": SOFTPLUS,
    "mish": op("mul", X, op("tanh", SOFTPLUS)),
    "clip": op("min", op("max", X, -0.3), 1.7),
    "scale": op("mul", X, 0.37),
}
WITH_OPERANDS: dict[str, tuple[Scalar, str | None, int]] = {
    "prelu": (op("where", op("less", X, 0.0), op("mul", X, Input(1)), X), None, 1),
    "residual before silu": (
        op("mul", op("add", X, R), op("sigmoid", op("add", X, R))),
        "float32",
        0,
    ),
    "residual after gelu": (op("add", GELU, R), "float32", 0),
    "two vectors and bytes": (
        op(
            "add",
            op("mul", op("mul", op("sub", R, 3.0), 0.02), Input(2)),
            op("mul", op("sigmoid", X), Input(3)),
        ),
        "uint8",
        2,
    ),
}
DTYPES = ("float32", "bfloat16", "int8", "uint8")

FLOATS = ("float32", "float32", "float32")
SHORT = ("bfloat16", "bfloat16", "float32")
BYTES = ("uint8", "int8", "int32")
WORKLOADS: dict[str, Callable[[Any], Computation]] = {
    **epilogue_workloads.WORKLOADS,
    "heads": lambda d: batched_gemm(b=3, m=9, n=16, k=24, dtype=d),
    "depthwise": lambda d: depthwise(n=1, c=40, h=9, w=9, r=3, s=3, pad=1, layout="NHWC", dtype=d),
}
TARGETS = {
    "avx2_f32": FLOATS,
    "avx2_f32_dot": FLOATS,
    "avx512_f32": FLOATS,
    "avx2_bf16_fma": SHORT,
    "avx512_bf16": SHORT,
    "amx_bf16": SHORT,
    "avx2_int8": BYTES,
    "avx512_vnni": BYTES,
    "amx_int8": BYTES,
}


def chosen(workload: Computation, target: str) -> Selection:
    selection = choose(Request(workload, load_hardware_spec(target)))
    assert isinstance(selection, Selection)
    return selection


def built(selection: Selection, epilogue: Epilogue, native: bool) -> CompiledKernel:
    target: Any = open_target(selection.solved.target)
    if not native:
        target = PortableTarget(selection.solved.target)
        return target.build(target.lower(selection.ranked.candidate.program, epilogue), None)
    lowered = target.lower(selection.ranked.program, epilogue)
    return target.build(lowered, target.space(lowered).best().schedule)


def judge(kernel: CompiledKernel, workload: Computation, epilogue: Epilogue, text: str) -> None:
    random = np.random.default_rng(5)
    inputs = random_inputs(workload, 7)
    sums = reference(workload, inputs)
    size = float(np.sqrt(np.mean(sums.astype(np.float64) ** 2)))
    shape = tuple(workload.extents[axis] for axis in channel_axes(workload))
    vectors: dict[str, Any] = {}
    for name in epilogue.vectors:
        dtype = epilogue.vector_dtype(name, sums.dtype.name)
        # Scaled sums are within the interesting range of all functions.
        values = random.standard_normal(shape) * (size if name == BIAS else 1.0)
        vectors[name] = (values * 2 / size if name == "@scale" else values).astype(dtype)
    other = None
    if epilogue.residual is not None:
        values = random.standard_normal(sums.shape) * 3
        dtype = epilogue.residual.dtype
        values = values if dtype == "float32" else values * 30 + 90
        other = values.astype(numpy_dtype(dtype))
        vectors[RESIDUAL] = other
    actual = kernel.run({**inputs, **vectors})
    flat = {name: vector.reshape(-1) for name, vector in vectors.items()}
    expected = epilogue.apply(sums, flat, channel_numbers(workload), other)
    values = actual.view(numpy_dtype(epilogue.dtype)).astype(np.float64)
    error = np.abs(values - expected.astype(np.float64))
    step = {"float32": 2.0**-18, "bfloat16": 2.0**-7}.get(epilogue.dtype)
    limit = 1.0 if step is None else step * (np.abs(values) + 1)
    assert values.shape == sums.shape
    assert (error <= limit).all(), (text, error.max())


def plain_epilogues(sums: str) -> list[tuple[str, Epilogue]]:
    """Every chain, and every result type at least once with each kind of operand."""
    scaled = sums == "int32"
    cases: list[tuple[str, Epilogue]] = []
    for number, (name, expression) in enumerate(CHAINS.items()):
        cases.append(
            (name, Epilogue(DTYPES[number % 4], scaled, bool(number % 2), chain=Chain(expression)))
        )
    for number, (name, (expression, dtype, vectors)) in enumerate(WITH_OPERANDS.items()):
        residual = None if dtype is None else Residual(dtype)
        chain = Chain(expression, vectors)
        epilogue = Epilogue(
            DTYPES[number % 4], scaled, relu=number == 1, chain=chain, residual=residual
        )
        cases.append((name, epilogue))
    return cases


@pytest.mark.quick(3)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("target", TARGETS)
def test_native_kernels_compute_chains(target: str, name: str, part: int) -> None:
    """``part``: every fourth chain, beginning with this one."""
    spec = load_hardware_spec(target)
    require_features(spec)
    workload = WORKLOADS[name](TARGETS[target])
    selection = chosen(workload, target)
    for text, epilogue in plain_epilogues(workload.output.dtype)[part::4]:
        try:
            kernel = built(selection, epilogue, native=True)
        except LoweringError as error:
            # Only an embedding whose results lie in the instruction's own layout has no place.
            if epilogue.residual is None or not re.search("has no place", str(error)):
                raise
            continue
        judge(kernel, workload, epilogue, f"{target} {name} {text}")


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", WORKLOADS)
def test_portable_kernels_compute_chains(name: str) -> None:
    workload = WORKLOADS[name](FLOATS)
    selection = chosen(workload, "avx2_f32")
    for text, epilogue in plain_epilogues("float32")[::3]:
        if epilogue.residual is None:
            judge(built(selection, epilogue, native=False), workload, epilogue, text)


@pytest.mark.parametrize("target", ["avx2_f32", "avx512_f32"])
def test_results_and_residuals_inside_larger_buffers(target: str) -> None:
    spec = load_hardware_spec(target)
    require_features(spec)
    workload = conv2d(n=1, c=16, h=9, w=9, k=48, r=3, s=3, pad=1, layout="NHWC", dtype=FLOATS)
    shape = workload.output.shape
    wide = Placement.inside((1, 11, 11, 48), (0, 1, 1, 0), shape)
    expression, _, _ = WITH_OPERANDS["residual before silu"]
    residual = Residual("float32", placement=wide)
    epilogue = Epilogue(
        "float32", bias=True, residual=residual, placement=wide, chain=Chain(expression)
    )
    judge(built(chosen(workload, target), epilogue, native=True), workload, epilogue, target)


@pytest.mark.quick(3)
@pytest.mark.parametrize("text", CHAINS)
def test_special_values_are_those_of_the_definition(text: str) -> None:
    """An infinite or NaN sum goes through every function as numpy has it."""
    workload = gemm(m=8, n=32, k=4, dtype=FLOATS)
    first, second = np.zeros((8, 4), np.float32), np.zeros((4, 32), np.float32)
    first[:, 0] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e38, -1e38, 1e-40]
    second[0] = 1.0
    names = [operand.name for operand in workload.inputs]
    inputs = dict(zip(names, (first, second), strict=True))
    native = not missing_features(load_hardware_spec("avx2_f32"))
    selection = chosen(workload, "avx2_f32")
    # Zeros times NaN spread along the sums, so these are taken from the kernel itself.
    sums = built(selection, Epilogue("float32"), native).run(inputs)
    dtype = DTYPES[list(CHAINS).index(text) % 4]
    epilogue = Epilogue(dtype, chain=Chain(CHAINS[text]))
    actual = built(selection, epilogue, native).run(inputs)
    expected = epilogue.apply(sums, {}, channel_numbers(workload))
    a = actual.view(numpy_dtype(dtype)).astype(np.float64)
    b = expected.astype(np.float64)
    close = np.isclose(a, b, rtol=2.0**-7 if dtype == "bfloat16" else 1e-5, atol=1e-6)
    same = close | (np.isnan(a) & np.isnan(b)) | (a == b)
    assert same.all(), (dtype, a[~same], b[~same])


def test_steps_that_a_chain_replaces_are_refused() -> None:
    chain = Chain(X)
    for options in (
        {"zero_point": 3, "scale": True},
        {"clip": (0, 5)},
        {"shift": 2},
        {"wraps": True},
    ):
        with pytest.raises(WorkloadError, match="part of its expression"):
            Epilogue("int8", chain=chain, **options)
    with pytest.raises(WorkloadError, match="part of its expression"):
        Epilogue("float32", chain=chain, residual=Residual("float32", relu=True))
    with pytest.raises(WorkloadError, match="not int32: choose one"):
        Epilogue("int32", chain=chain)
