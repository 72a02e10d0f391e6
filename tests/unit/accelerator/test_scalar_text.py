"""Scalars in C++ against :mod:`cpembed.ir.arithmetic`: every conversion, every function."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.accelerator.assembly import parse
from cpembed.accelerator.executor import execute
from cpembed.hw.isa import InstructionSet
from cpembed.ir.dtypes import DTYPES, is_integer, numpy_dtype
from cpembed.ir.interpreter import interpret
from cpembed.ir.parser import parse_computation
from tests.compilers import needs_executor
from tests.unit.accelerator.machines import instruction, machine, main, place

pytestmark = needs_executor

SOURCES = ("float16", "int16", "float32", "bfloat16", "int64", "float8_e5m2", "int4")
FUNCTIONS = {
    "exp": "exp(S[e])", "sqrt": "sqrt(S[e])", "rsqrt": "rsqrt(S[e])", "tanh": "tanh(S[e])",
    "erf": "erf(S[e])", "third": "S[e] / 3", "tenth": "S[e] * 0.1 + 2", "steps": "1 / (S[e] - 2.5)",
    "larger": "max(S[e], 1.5)", "smaller": "min(-S[e], abs(S[e]) - 1)",
    "gelu": "S[e] * 0.5 * (1 + erf(S[e] * 0.7071067811865476))",
}  # fmt: skip


def values(dtype: str) -> np.ndarray:
    """Return all values of a type of up to 16 bits, or random ones with special ones among them."""
    draw = np.random.default_rng(1)
    numpy = numpy_dtype(dtype)
    if dtype == "int4":
        return np.arange(65536).astype(np.int8) % 16 - 8
    if numpy.itemsize <= 2:
        unsigned = np.arange(65536).astype(f"uint{8 * numpy.itemsize}")
        return unsigned.view(numpy)
    array = draw.integers(0, 256, 65536 * numpy.itemsize, dtype=np.uint8).view(numpy)
    if dtype == "float32":
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 2.0**63, -(2.0**63), 2.0**31, 0.5, 1.5, 2.5]
        array[: len(special)] = special
        array[1000:30000] = draw.normal(0, 50, 29000)
    if dtype == "int64":
        array[:6] = [0, -1, 2**63 - 1, -(2**63), 2**24 + 1, 2**53 + 1]
        array[1000:30000] = draw.integers(-300, 300, 29000)
    return array


def expressions(source: str) -> dict[str, tuple[str, str]]:
    """Return expressions and the types of their outputs, by name."""
    result: dict[str, tuple[str, str]] = {}
    for target in DTYPES:
        result[f"saturate_{target}"] = f"D[e] = {target}(S[e])", target
        result[f"wrap_{target}"] = f"D[e] = cast(S[e], {target})", target
        if not is_integer(target) or is_integer(source):
            result[f"store_{target}"] = "D[e] = S[e]", target
    if source in ("float16", "float32"):
        for name, value in FUNCTIONS.items():
            for target in ("float32", "bfloat16"):
                result[f"{name}_{target}"] = f"D[e] = {value}", target
    return result


def machine_of(source: str) -> InstructionSet:
    instructions = [
        instruction(
            name, "u", expression, {"e": 256},
            {
                "D": place("dram", target, "e", strides={"e": 1}),
                "S": place("dram", source, "e", strides={"e": 1}),
            },
        )
        for name, (expression, target) in expressions(source).items()
    ]  # fmt: skip
    return machine("scalars", [main()], ("u",), instructions)


@pytest.mark.parametrize(
    "source", [pytest.param(s, marks=[] if s == "float16" else [pytest.mark.slow]) for s in SOURCES]
)
def test_scalars_are_those_of_the_interpreter(source: str) -> None:
    data = values(source)
    unit = machine_of(source)
    lines = [f".tensor S {source} [65536] input"]
    for name, (_, target) in expressions(source).items():
        lines.append(f".tensor {name} {target} [65536] output")
        lines.append(f"loop i 256 {{\n{name} D={name}[256*i] S=S[256*i]\n}}")
    # Tensors come first.
    lines.sort(key=lambda line: not line.startswith("."))
    run = execute(parse("\n".join(lines), unit), {"S": data})
    for name, (expression, target) in expressions(source).items():
        computation = parse_computation(expression, {"e": 65536}, dtypes={"S": source, "D": target})
        with np.errstate(all="ignore"):
            expected = interpret(computation, {"S": data}).astype(np.float64)
        actual = run.buffers[name].astype(np.float64)
        if name.rpartition("_")[0] in FUNCTIONS and target == "float32":
            # Libraries of functions differ in the last bit of float64, seldom seen in float32.
            np.testing.assert_allclose(actual, expected, rtol=2**-22, err_msg=name)
            assert np.mean(~((actual == expected) | (np.isnan(actual)))) < 1e-3, name
        else:
            np.testing.assert_array_equal(actual, expected, err_msg=name)
