"""Kernels on NaN, infinities, zeros of either sign, the smallest and the largest numbers, against
the definitions of their kinds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from cpembed.codegen.runtime import compile_plan, from_array
from cpembed.graph.kinds import (
    Apply,
    DynamicQuantize,
    Elementwise,
    Input,
    Kind,
    LayerNorm,
    Number,
    Pool,
    Quantize,
    Reduce,
    Resize,
    Scalar,
    Softmax,
)
from cpembed.ir.scalars import BOOLEAN, OF_BITS, OPERATIONS
from cpembed.network.observation import difference
from cpembed.network.operators import generated_plan
from tests.unit.network.operators.running import Array, memory, placed

pytest.importorskip("tvm")

VALUES = np.asarray(
    [
        math.nan,
        math.inf,
        -math.inf,
        0.0,
        -0.0,
        1e-40,
        -1e-40,
        3.4028235e38,
        -3.4028235e38,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -7.0,
        2.0**31,
        -(2.0**31),
        2.0**63,
        10000000000.0,
    ],
    np.float32,
)
BOUNDED = np.asarray([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, 1.0, -2.0], np.float32)
"""Without the largest, whose sums in float32 are infinite where those in float64 are not."""
CONSTANTS = (0.0, -0.0, 1.0, -1.0, 2.0, math.inf, -math.inf, math.nan)
LIBRARY = {"exp", "log", "sqrt", "erf", "tanh", "sigmoid", "sin", "cos", "atan", "pow"}


def run(kind: Kind, arrays: list[Array]) -> list[tuple[Array, Array]]:
    """What the definition says of each output, and what the kernel computes."""
    wanted = kind.evaluate(arrays)
    inputs, outputs = [placed(a) for a in arrays], [placed(w) for w in wanted]
    function = compile_plan(generated_plan(kind, inputs, outputs, 1))
    results = [
        from_array(np.zeros_like(memory(w, o))) for w, o in zip(wanted, outputs, strict=True)
    ]
    function(*(from_array(memory(a, p)) for a, p in zip(arrays, inputs, strict=True)), *results)
    found: list[tuple[Array, Array]] = []
    for expected, result in zip(wanted, results, strict=True):
        flat = result.numpy()[: expected.size]
        flat = flat.astype(np.bool_) if expected.dtype == np.bool_ else flat.view(expected.dtype)
        found.append((expected, flat.reshape(expected.shape)))
    return found


def check(kind: Kind, arrays: list[Array], relative: float = 0.0) -> None:
    for expected, found in run(kind, arrays):
        finite = np.abs(expected.astype(np.float64))
        finite = finite[np.isfinite(finite)]
        allowed = relative * float(finite.max()) if finite.size else 0.0
        assert difference(found, expected) <= allowed, (kind, expected, found)


def expressions(operation: str) -> list[Scalar]:
    """The operation of two inputs, of one and itself, of one and constants on either side."""
    count, _ = OPERATIONS[operation]
    if count == 1:
        return [Apply(operation, (Input(0),))]
    pairs: list[tuple[Scalar, ...]] = [(Input(0), Input(1)), (Input(0), Input(0))]
    for value in CONSTANTS:
        pairs += [(Input(0), Number(value)), (Number(value), Input(0))]
    return [Apply(operation, pair) for pair in pairs]


CASES = [
    (operation, expression)
    for operation, (count, _) in OPERATIONS.items()
    if count < 3 and operation not in OF_BITS
    for expression in expressions(operation)
]


@pytest.mark.quick(7)
@pytest.mark.parametrize("operation, expression", CASES, ids=str)
def test_operations_are_numpy_s(operation: str, expression: Scalar) -> None:
    first, second = np.asarray(list(itertools.product(VALUES, VALUES)), np.float32).T.copy()
    if operation in ("sin", "cos"):
        # Of large numbers the approximation is none.
        first = np.where(np.abs(first) > 1e6, np.float32(3.0), first)
        first[:3] = [math.inf, -math.inf, math.nan]
    arrays = [first, second] if "number=1" in str(expression) else [first]
    dtype = "bool" if operation in BOOLEAN else "float32"
    check(Elementwise(expression, dtype), arrays, 2e-5 if operation in LIBRARY else 0.0)


def negated(operation: str) -> Scalar:
    return Apply("not", (Apply(operation, (Input(0), Input(1))),))


SELF = Apply("equal", (Input(0), Input(0)))


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "expression",
    [
        Apply("not", (SELF,)),
        *map(negated, ("equal", "less", "less_equal")),
        Apply("where", (negated("less"), Input(0), Input(1))),
        Apply("sub", (Apply("add", (Input(0), Input(1))), Input(1))),
        Apply("add", (Apply("mul", (Input(0), Number(0.0))), Input(1))),
        Apply("min", (Apply("max", (Input(0), Number(0.0))), Number(6.0))),
        Apply("fma", (Input(0), Input(1), Apply("neg", (Input(0),)))),
    ],
    ids=str,
)
def test_nothing_is_simplified_as_if_floats_were_numbers(expression: Scalar) -> None:
    first, second = np.asarray(list(itertools.product(VALUES, VALUES)), np.float32).T.copy()
    is_boolean = isinstance(expression, Apply) and expression.operation in BOOLEAN
    kind = Elementwise(expression, "bool" if is_boolean else "float32")
    check(kind, [first, second] if "number=1" in str(expression) else [first])


@pytest.mark.quick(4)
@pytest.mark.parametrize("source", ["float32", "float64"])
@pytest.mark.parametrize(
    "dtype",
    ["uint64", "int8", "uint8", "int16", "int32", "uint32", "int64", "bool", "float16", "bfloat16"],
)
def test_conversions_saturate(dtype: str, source: str) -> None:
    values = np.concatenate([VALUES.astype(source), np.asarray([1e19, 2.0**64, 2.0**32], source)])
    check(Elementwise(Input(0), dtype), [values])


def sprinkled(generator: np.random.Generator, shape: tuple[int, ...], share: float) -> Array:
    array = generator.normal(size=shape).astype(np.float32)
    places = generator.random(shape) < share
    array[places] = generator.choice(BOUNDED, int(places.sum()))
    return array


def row_kind(generator: np.random.Generator) -> Kind:
    axes = [(2,), (1,), (0,), (1, 2)]
    reductions = ["sum", "mean", "max", "min", "prod"]
    pools = [((3, 3), (1, 1), (1, 1)), ((2, 2), (2, 2), (0, 0)), ((1, 3), (1, 2), (0, 0))]
    window, strides, pads = pools[generator.integers(len(pools))]
    options: list[Kind] = [
        Reduce(str(generator.choice(reductions)), axes[generator.integers(4)], True),
        Reduce(str(generator.choice(["argmax", "argmin"])), axes[generator.integers(3)], False),
        Softmax(int(generator.integers(3)), bool(generator.integers(2))),
        Pool(str(generator.choice(["max", "mean"])), window, strides, pads, pads, (1, 1)),
        Quantize((0.1,), (3,), str(generator.choice(["int8", "uint8"]))),
        DynamicQuantize(),
        Resize((7, 40), "linear"),
    ]
    return options[generator.integers(len(options))]


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(60))
def test_rows_and_windows_are_numpy_s(seed: int) -> None:
    generator = np.random.default_rng(seed)
    array = sprinkled(generator, (3, 9, 33), float(generator.choice([0.01, 0.1, 0.4])))
    if generator.integers(3) == 0:
        array[generator.integers(3)] = -math.inf
    check(row_kind(generator), [array], 2e-5)


def test_a_layer_norm_of_infinities_is_no_number() -> None:
    generator = np.random.default_rng(0)
    array = sprinkled(generator, (8, 33), 0.02)
    vectors = [generator.normal(size=33).astype(np.float32) for _ in range(2)]
    check(LayerNorm(1, 1e-5), [array, *vectors], 2e-5)


def test_the_extremes_of_64_bits_without_a_sign() -> None:
    array = np.asarray([[2**64 - 1, 0, 2**63], [5, 7, 2**63 - 1]], np.uint64)
    for what in ("max", "min"):
        check(Reduce(what, (1,), False), [array])
