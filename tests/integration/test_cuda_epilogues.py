"""Epilogue trees of Tensor Core kernels, executed by the emulator, beside numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpembed.codegen.epilogue import (
    BIAS,
    RESIDUAL,
    Chain,
    Epilogue,
    Residual,
    SecondResult,
    channel_numbers,
)
from cpembed.driver.epilogue_language import FUNCTIONS, parse_expression
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.ir.reference import reference
from cpembed.ir.scalars import Apply, Input
from cpembed.runtime.measurement.verification import Expected
from cpembed.targets.cuda.build import CudaKernels, cuda_text
from cpembed.targets.cuda.emulator.executor import Order
from cpembed.targets.cuda.lower import lower
from cpembed.targets.cuda.multistage.schedule import KernelSchedule, Plan
from cpembed.targets.registry import open_target
from cpembed.targets.verification import verified
from tests.running import exact_inputs
from tests.unit.targets.cuda.emulator.running import needs_compiler

pytestmark = needs_compiler

SCHEDULE = KernelSchedule((2, 1), (1, 2), 2, 3)


def kernels(words: str, target: str, epilogue: Epilogue, splits: int = 1) -> CudaKernels:
    spec = hardware_spec(target)
    given = workload(words, target=spec)
    program = solve(given, spec, constraints="fused", top=1).embeddings[0].candidate.program
    plan = Plan(lower(program, spec, epilogue), replace(SCHEDULE, splits=splits))
    return CudaKernels(plan, cuda_text(plan, "sm_80"))


ARGUMENTS = {1: "x * 0.25", 2: "x * 0.25, 0.125", 3: "x * 0.25, -1, 2"}


@pytest.mark.quick(10)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_within_its_tolerance_and_keeps_special_values(name: str) -> None:
    """Of NaN, infinities and zeros too: `verified` judges results of special values as well."""
    argument = ARGUMENTS[FUNCTIONS[name][0]]
    # The sum of two functions would hide a function that is 0.
    expression = parse_expression(f"{name}({argument})")
    epilogue = Epilogue("float32", chain=Chain(expression))
    made = kernels("gemm m=16 n=16 k=32", "mma_f16", epilogue)
    target = open_target(hardware_spec("mma_f16"))
    judged, _ = verified(target, made, made.plan.product.program.unfused, epilogue, 3)
    assert judged.verified, judged


TREES = {
    "bias, activation, residual": (
        "mma_f16", Epilogue("float16", bias=True, scale=True, residual=Residual("float16"),
                            chain=Chain(parse_expression("gelu(x) + residual"))),
    ),
    "residual before the activation": (
        "mma_bf16", Epilogue("bfloat16", bias=True, residual=Residual("bfloat16"),
                             chain=Chain(parse_expression("relu6(x + residual)"))),
    ),
    "an activation and its argument": (
        "mma_f16", Epilogue("float16", bias=True, chain=Chain(parse_expression("silu(x)")),
                            second=SecondResult("float32", Input(0))),
    ),
    "bytes and halves": (
        "mma_s8", Epilogue("int8", scale=True, bias=True, zero_point=3, clip=(-100, 90),
                           second=SecondResult("float16", parse_expression("x * 0.5"))),
    ),
    "sums of halves": (
        "mma_f16_f16", Epilogue("float16", chain=Chain(parse_expression("hard_swish(x)")),
                                second=SecondResult("int8", parse_expression("round(x)"))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("name", TREES)
def test_trees_are_computed(name: str, layout: str, splits: int) -> None:
    target, epilogue = TREES[name]
    words = f"conv2d n=1 c=32 h=5 w=7 k=24 r=3 s=3 pad=1 layout={layout}"
    made = kernels(words, target, epilogue, splits)
    given = made.plan.product.program.unfused
    inputs = exact_inputs(given, 5)
    expected = Expected(given, inputs)
    vectors = expected.vectors(epilogue, 5)
    for order in (Order.FORWARD, Order.REVERSE):
        outputs = made.outputs({**inputs, **vectors}, order)
        assert expected.judge_stored(outputs[0], epilogue, vectors).verified
        assert len(outputs) == (1 if epilogue.second is None else 2)
        for second in outputs[1:]:
            assert expected.judge_second(second, epilogue, vectors).verified
            # One that is wrong by much is noticed, but for sums that are rounded at every addition.
            assert (
                given.output.dtype == "float16"
                or not expected.judge_second(second * 0 + 99, epilogue, vectors).verified
            )


def test_integers_without_functions_are_bit_exact() -> None:
    """Sums, products and limits of float32 are rounded as the definition rounds them."""
    expression = parse_expression("clip(x * 0.37 + residual * 1.7, -90, 100)")
    chain = Chain(Apply("div", (expression, Input(2))), vectors=1)
    epilogue = Epilogue("int8", scale=True, residual=Residual("int8"), chain=chain)
    made = kernels("gemm m=40 n=24 k=64", "mma_s8", epilogue)
    given = made.plan.product.program.unfused
    inputs = exact_inputs(given, 9)
    vectors = Expected(given, inputs).vectors(epilogue, 9)
    output = made.run({**inputs, **vectors})
    flat = {name: vector.reshape(-1) for name, vector in vectors.items()}
    residual = vectors[RESIDUAL]
    expected = epilogue.apply(reference(given, inputs), flat, channel_numbers(given), residual)
    np.testing.assert_array_equal(output, expected)
    assert len(np.unique(expected)) > 20


def test_biases_are_added_to_sums_of_float16_in_float32() -> None:
    """-1 and the least float16 are -0.99999994 in float32, and -1 in float16."""
    epilogue = Epilogue("float32", bias=True)
    made = kernels("gemm m=16 n=16 k=16", "mma_f16_f16", epilogue)
    least = np.float16(2.0**-24)
    inputs = {"A": np.eye(16, dtype=np.float16) * least, "B": np.eye(16, dtype=np.float16)}
    bias = np.full(16, -1, np.float16)
    output = made.run({**inputs, BIAS: bias})
    given = made.plan.product.program.unfused
    sums = reference(given, inputs)
    expected = epilogue.apply(sums, {BIAS: bias}, channel_numbers(given))
    np.testing.assert_array_equal(output, np.float32(-1) + np.eye(16, dtype=np.float32) * least)
    np.testing.assert_array_equal(expected, output)
