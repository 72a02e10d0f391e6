"""Expressions, quantization and tables, element by element against their definitions."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable

import numpy as np
import pytest

from cpembed.codegen.runtime import compile_plan, from_array
from cpembed.errors import CpembedError, LoweringError
from cpembed.graph.kinds import (
    Apply,
    Dequantize,
    Elementwise,
    Input,
    Number,
    Product,
    Quantize,
    Scalar,
    Table,
)
from cpembed.ir.scalars import OPERATIONS
from cpembed.network.layout import Layout
from cpembed.network.operators import generated_plan
from tests.unit.network.operators.running import (
    Array,
    check,
    image_layouts,
    memory,
    placed,
    random_array,
)

pytest.importorskip("tvm")

SHAPE = (1, 16, 5, 7)
LAST_HALO = Layout.plain(SHAPE).channels_last().with_halo((1, 2))
BLOCKED = Layout.plain(SHAPE).blocked(8)


def computed(kind: Elementwise, arrays: list[Array]) -> tuple[Array, Array]:
    """The definition's result and the kernel's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (wanted,) = kind.evaluate(arrays)
    inputs, output = [placed(a) for a in arrays], placed(wanted)
    function = compile_plan(generated_plan(kind, inputs, [output], 1))
    result = from_array(np.zeros_like(memory(wanted, output)))
    function(*(from_array(memory(a, p)) for a, p in zip(arrays, inputs, strict=True)), result)
    found = result.numpy()
    if wanted.dtype.name == "bfloat16":
        found = found.view(wanted.dtype)
    return wanted.astype(np.float64).reshape(-1), found.astype(np.float64)


def apply(operation: str, *arguments: Scalar) -> Apply:
    return Apply(operation, arguments)


def test_a_product_that_is_added_to_is_rounded_before() -> None:
    generator = np.random.default_rng(0)
    arrays = [generator.normal(size=4096).astype(np.float32) for _ in range(3)]
    product = apply("mul", Input(0), Input(1))
    for node in (
        apply("add", product, Input(2)),
        apply("sub", Input(2), product),
        apply("sub", apply("neg", product), apply("mul", Input(2), Input(2))),
    ):
        wanted, found = computed(Elementwise(node, "float32"), arrays)
        np.testing.assert_array_equal(found, wanted)
    wanted, found = computed(Elementwise(apply("fma", *map(Input, range(3))), "float32"), arrays)
    np.testing.assert_array_equal(found, wanted)
    rounded_twice = (arrays[0] * arrays[1] + arrays[2]).astype(np.float64)
    assert (found != rounded_twice).any()


def test_inputs_are_broadcast_in_any_layout() -> None:
    generator = np.random.default_rng(1)
    arrays = [
        random_array(generator, "uint8", SHAPE),
        random_array(generator, "float32", (16, 1, 1)),
        random_array(generator, "float32", ()),
        random_array(generator, "bool", (1, 1, 5, 7)),
    ]
    scaled = apply("add", apply("mul", Input(0), Input(1)), Input(2))
    kind = Elementwise(apply("where", Input(3), scaled, Number(-3.5)), "int8")
    check(kind, arrays, [BLOCKED], LAST_HALO, threads=2)


@pytest.mark.slow
def test_conversions_saturate_and_round_to_even() -> None:
    special = [0.5, 1.5, -0.5, 2.5, 254.5, 255.5, 1e10, -1e10, 3e38, -0.0, 2.0**31, -(2.0**31)]
    special += [2.0**31 - 128, 2.0**63, -(2.0**63), 1e-40, math.inf, -math.inf, math.nan]
    array = np.asarray(special, np.float32)
    for dtype in ("int8", "uint8", "int16", "int32", "int64", "bool", "float16", "bfloat16"):
        wanted, found = computed(Elementwise(Input(0), dtype), [array])
        np.testing.assert_array_equal(found, wanted, err_msg=dtype)


def test_integers_are_divided_towards_zero_and_by_nothing_that_stops_the_processor() -> None:
    numbers = np.asarray([0, 1, -1, 7, -7, 2**31 - 1, -(2**31)], np.int32)
    arrays = [np.repeat(numbers, 7), np.tile(numbers, 7)]
    for operation in ("div", "rem"):
        kind = Elementwise(apply(operation, Input(0), Input(1)), "int32")
        wanted, found = computed(kind, arrays)
        np.testing.assert_array_equal(found, wanted)


REFERENCES: dict[str, Callable[[float], float]] = {
    "exp": math.exp,
    "log": math.log,
    "erf": math.erf,
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "sin": math.sin,
    "cos": math.cos,
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("operation", REFERENCES)
def test_functions_of_float32_are_within_four_units_in_the_last_place(operation: str) -> None:
    generator = np.random.default_rng(2)
    sizes = generator.choice([1e-3, 0.1, 1, 10, 30], 20000)
    x = (generator.normal(size=20000) * sizes).astype(np.float32)
    x = np.clip(np.abs(x) if operation == "log" else x, -80, 80)
    x = x[x != 0] if operation == "log" else x
    exact = np.asarray([REFERENCES[operation](float(v)) for v in x])
    _, found = computed(Elementwise(apply(operation, Input(0)), "float32"), [x])
    unit = np.spacing(np.abs(exact.astype(np.float32))).astype(np.float64)
    limit = np.maximum(4 * unit, 1e-6 if operation in ("sin", "cos") else 0)
    assert (np.abs(found - exact) <= limit).all()


@pytest.mark.quick(1)
@pytest.mark.parametrize("operation", ["exp", "log", "erf", "tanh", "sigmoid"])
def test_functions_have_their_limits(operation: str) -> None:
    x = np.asarray([0, -0.0, math.inf, -math.inf, math.nan, 88.8, -110, 1e-40], np.float32)
    wanted, found = computed(Elementwise(apply(operation, Input(0)), "float32"), [x])
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-44)


def expression(generator: np.random.Generator, depth: int, inputs: int, floats: bool) -> Scalar:
    """A random tree of operations that are defined bit for bit."""
    if depth == 0 or generator.random() < 0.15:
        if generator.random() < 0.7:
            return Input(int(generator.integers(inputs)))
        value = float(np.float32(generator.normal() * 10))
        return Number(value if floats else int(generator.integers(-5, 100)))
    names = ["add", "sub", "mul", "neg", "abs", "floor", "ceil", "equal", "less", "less_equal"]
    names += ["and", "or", "not", "where", "div", "rem", "max", "min", "round"]
    names += ["fma", "sqrt"] if floats else []
    name = str(generator.choice(names))
    count, _ = OPERATIONS[name]
    arguments = (expression(generator, depth - 1, inputs, floats) for _ in range(count))
    return Apply(name, tuple(arguments))


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(80))
def test_random_expressions_are_computed_bit_for_bit(seed: int) -> None:
    generator = np.random.default_rng(seed)
    floats = seed % 2 == 0
    dtypes = ["uint8", "int8", "int32", "bool", "int16"]
    dtypes += ["float32", "bfloat16", "float16"] if floats else ["int64", "uint16", "uint32"]
    count = int(generator.integers(1, 4))
    arrays = [random_array(generator, str(generator.choice(dtypes)), 700) for _ in range(count)]
    if floats:
        arrays[0] = random_array(generator, "float32", 700)
    results = ["float32", "uint8", "int8", "int32", "bool", "bfloat16", "int64", "uint16"]
    kind = Elementwise(expression(generator, 3, count, floats), str(generator.choice(results)))
    try:
        wanted, found = computed(kind, arrays)
    except (TypeError, ValueError, LoweringError):
        pytest.skip("numpy does not compute it: a difference of Booleans")
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32"])
def test_quantization_divides_truly_and_by_channel(dtype: str) -> None:
    generator = np.random.default_rng(3)
    scales = tuple(generator.uniform(0.05, 2, 16))
    zeros = tuple(int(z) for z in generator.integers(0, 9, 16))
    x = random_array(generator, "float32", SHAPE)
    # Halves, where a reciprocal's rounding would show; numbers beyond the type; no number.
    halves = np.float32(scales[3]) * (np.arange(35, dtype=np.float32) + np.float32(0.5))
    x[0, 3] = halves.reshape(5, 7)
    x[0, 4, 0, :4] = [1e30, -1e30, math.inf, math.nan]
    check(Quantize(scales, zeros, dtype, 1), [x], [LAST_HALO], BLOCKED, threads=2)
    check(Quantize((0.1,), (3,), dtype), [x], [BLOCKED], LAST_HALO)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64"])
def test_dequantization(dtype: str) -> None:
    generator = np.random.default_rng(4)
    q = random_array(generator, dtype, SHAPE)
    scales = tuple(generator.uniform(0.05, 2, 16))
    check(Dequantize(scales, tuple(range(16)), 1), [q], [BLOCKED], LAST_HALO, threads=2)
    check(Dequantize((0.3,), (0,)), [q], [LAST_HALO])


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "float32", "int32", "bfloat16"])
def test_tables(dtype: str) -> None:
    generator = np.random.default_rng(5)
    entries = tuple(random_array(generator, dtype, 256).tolist())
    for number, given in enumerate(("int8", "uint8")):
        q = random_array(generator, given, SHAPE)
        layouts = image_layouts(SHAPE)
        check(Table(entries, dtype), [q], [layouts[number]], layouts[-1 - number], threads=2)


@pytest.mark.parametrize("source, target", [("int8", "uint8"), ("uint8", "int8")])
def test_tables_that_change_the_sign_of_bytes(source: str, target: str) -> None:
    q = np.arange(256).astype(np.uint8).view(source).reshape(4, 8, 2, 4)
    kind = Table(tuple(range(np.iinfo(target).min, np.iinfo(target).max + 1)), target)
    assert kind.is_shift
    assert not Table((1, *kind.entries[1:]), target).is_shift
    check(kind, [q], [Layout.plain(q.shape)])


def test_products_have_no_generated_kernel() -> None:
    kind = Product.__new__(Product)
    object.__setattr__(kind, "computation", type("Named", (), {"name": "gemm"}))
    with pytest.raises(LoweringError, match="gemm has no generated kernel"):
        generated_plan(kind, [], [], 1)


def test_an_operation_with_too_few_arguments_is_refused() -> None:
    x = placed(np.zeros(4, np.float32))
    with pytest.raises(CpembedError, match="add takes 2 arguments, not 1"):
        generated_plan(Elementwise(apply("add", Input(0)), "float32"), [x], [x], 1)


@pytest.mark.quick(3)
@pytest.mark.parametrize("exponent", [2.0, 3.0, -1.0, 0.5, -0.5, 0.0, 1.7, 9.0])
def test_constant_powers(exponent: float) -> None:
    generator = np.random.default_rng(6)
    x = generator.uniform(0.1, 5, 500).astype(np.float32)
    kind = Elementwise(apply("pow", Input(0), Number(exponent)), "float32")
    wanted, found = computed(kind, [x])
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_powers_of_elements() -> None:
    generator = np.random.default_rng(7)
    floats = [generator.uniform(0.1, 3, 500).astype(np.float32) for _ in range(2)]
    power = apply("pow", Input(0), Input(1))
    wanted, found = computed(Elementwise(power, "float32"), floats)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    integers = [generator.integers(-9, 9, 500), generator.integers(0, 40, 500)]
    arrays = [part.astype(np.int32) for part in integers]
    wanted, found = computed(Elementwise(power, "int32"), arrays)
    np.testing.assert_array_equal(found, wanted)


def test_functions_of_functions_are_compiled_in_a_moment() -> None:
    """Compilers that take shared values apart need minutes for this one."""
    inner = apply("log", apply("add", Number(1.0), apply("exp", Input(0))))
    mish = apply("mul", Input(0), apply("tanh", inner))
    x = np.linspace(-20, 20, 500, dtype=np.float32)
    start = time.process_time()
    wanted, found = computed(Elementwise(mish, "float32"), [x])
    assert time.process_time() - start < 20
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


def test_equal_parts_of_an_expression_are_computed_once() -> None:
    """Eight parts of two operations each, of which the expression as a tree has 510."""
    part: Scalar = Input(0)
    for _ in range(8):
        half = apply("mul", part, Number(0.5))
        part = apply("add", half, half)
    x = np.linspace(-20, 20, 500, dtype=np.float32)
    plan = generated_plan(Elementwise(part, "float32"), [placed(x)], [placed(x)], 1)
    assert str(plan).count("alloc_buffer") == 16


def test_many_values_at_one_time_take_no_workspace() -> None:
    """A library has 16 blocks of that, and what lies in one is in no register."""
    parts = [apply("mul", Input(0), Number(0.5 + k)) for k in range(40)]
    total: Scalar = parts[0]
    for part in (*parts[1:], *reversed(parts)):
        total = apply("add", total, apply("abs", part))
    x = np.linspace(-3, 3, 500, dtype=np.float32)
    kind = Elementwise(total, "float32")
    wanted, found = computed(kind, [x])
    np.testing.assert_array_equal(found, wanted)
    compiled = compile_plan(generated_plan(kind, [placed(x)], [placed(x)], 1))
    assert "AllocWorkspace" not in compiled.assembly()
