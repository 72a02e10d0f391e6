"""Attention of integers as one kernel beside the operators that define it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from cpembed.codegen.plan import storage_dtype
from cpembed.codegen.runtime import compile_plan, empty, from_array
from cpembed.driver.matching import network_units, prepared_for
from cpembed.graph.graph import Graph, Operator, evaluate
from cpembed.graph.kinds import (
    Dequantize,
    Elementwise,
    Input,
    Product,
    Quantize,
    QuantizedAttention,
    Scalar,
    Softmax,
    TensorType,
)
from cpembed.graph.kinds.base import Array
from cpembed.graph.passes.quantized_attention import split_quantized_attentions
from cpembed.ir.dtypes import as_stored
from cpembed.ir.parser import parse_computation
from cpembed.ir.scalars import apply
from cpembed.network.kernel_cache import Cache
from cpembed.network.operators import PlacedTensor
from cpembed.network.plan import Planning
from cpembed.network.product_kernels import ProductKernels
from cpembed.network.quantized_attention import QuantizedAttentionChoice
from cpembed.network.service import NetworkRequest, network
from cpembed.targets.registry import open_target

TARGET = "avx2_int8"


@cache
def products() -> ProductKernels:
    """Kernels that all tests share."""
    return ProductKernels(network_units(TARGET), Cache(None))


def product(heads: int, rows: int, columns: int, depth: int, transposed: bool) -> Product:
    second = "B[h, n, k]" if transposed else "B[h, k, n]"
    workload = parse_computation(
        f"C[h, m, n] += A[h, m, k] * {second}",
        {"h": heads, "m": rows, "n": columns, "k": depth},
        name="batched_gemm",
        dtypes=dict.fromkeys("ABC", "float32"),
        varying=("B",),
    )
    return Product(workload, (1, heads, rows, columns))


def quantized_graph(random: np.random.Generator, sizes: Sequence[int], *, masked: bool) -> Graph:
    """Return an attention as quantized models have it, with random scales and zero points."""
    heads, rows, keys, depth, columns = sizes
    shapes = {"q": (1, heads, rows, depth), "k": (1, heads, keys, depth)}
    shapes["v"] = (1, heads, keys, columns)
    dtype = str(random.choice(["uint8", "int8"]))
    types = {name: TensorType(shape, dtype) for name, shape in shapes.items()}
    operators: list[Operator] = []

    def emit(name: str, kind: object, *inputs: str) -> str:
        operators.append(Operator(name, kind, inputs, (name,)))  # type: ignore[arg-type]
        return name

    def zero(dtype: str) -> int:
        middle = 128 if dtype == "uint8" else 0
        return middle + int(random.choice([0, random.integers(-20, 20)]))

    def rounded(x: str, scale: float, number: int, dtype: str = dtype) -> str:
        q = emit(f"{x} rounded", Quantize((scale,), (number,), dtype), x)
        return emit(f"{x} restored", Dequantize((scale,), (number,)), q)

    floats = [emit(f"{n} float", Dequantize((0.02,), (zero(dtype),)), n) for n in "qkv"]
    scores = emit("scores", product(heads, rows, keys, depth, True), *floats[:2])
    if random.random() < 0.7:
        scores = rounded(scores, 0.05, zero(dtype))
    expression: Scalar = apply("mul", Input(0), 1 / math.sqrt(depth))
    inputs = [scores]
    if masked:
        shape = [1, 1, int(random.choice([1, rows])), keys]
        types["mask"] = TensorType(tuple(shape), "float32")
        expression, inputs = apply("add", expression, Input(1)), [scores, "mask"]
    scores = emit("scaled", Elementwise(expression, "float32"), *inputs)
    weights = emit("softmax", Softmax(3), scores)
    scale = float(random.choice([1 / 255, 1 / 256]))
    weights = rounded(weights, scale, 0, "uint8")
    sums = emit("sums", product(heads, rows, columns, keys, False), weights, floats[2])
    emit("y", Quantize((0.02,), (zero(dtype),), dtype), sums)
    return Graph("quantized", types, ("y",), operators=tuple(operators))


def prepared(graph: Graph) -> tuple[Graph, Operator]:
    """Return the prepared graph, and its attention."""
    graph = prepared_for(graph, network_units(TARGET), attends=True)
    (attention,) = (o for o in graph.operators if isinstance(o.kind, QuantizedAttention))
    return graph, attention


def inputs_of(graph: Graph, random: np.random.Generator) -> dict[str, Array]:
    """Return inputs: ends of the types among them, rows of equal scores, masks of -inf."""
    arrays: dict[str, Array] = {}
    for name, kind in graph.inputs.items():
        if name == "mask":
            mask = np.where(random.random(kind.shape) < 0.7, 0.0, -np.inf)
            if kind.shape[2] > 1:
                mask[..., 0, :] = -np.inf
            arrays[name] = mask.astype(np.float32)
            continue
        limits = np.iinfo(kind.dtype)
        array = random.integers(limits.min, limits.max + 1, kind.shape)
        array[:, 0, 0] = limits.min
        array[:, -1, -1] = limits.max
        if name == "q":
            array[..., kind.shape[2] // 2, :] = 0 if kind.dtype == "int8" else 128
        arrays[name] = array.astype(kind.dtype)
    return arrays


def computed(graph: Graph, operator: Operator, arrays: Sequence[Array], rows: int | None) -> Array:
    kind = operator.kind
    assert isinstance(kind, QuantizedAttention)
    types = tuple(map(TensorType.of_array, arrays))
    choice = QuantizedAttentionChoice(kind, types, products(), 2)
    if rows is not None:
        choice.__dict__["tiles"] = replace(choice.tiles, rows=min(rows, choice.tiles.rows))
    result = graph.types[operator.output]
    inputs, output = [PlacedTensor.plain(t) for t in types], PlacedTensor.plain(result)
    kernel = choice.kernel(open_target(choice.products.units.primary), inputs, [output])
    assert kernel.cost_us > 0
    buffers = [from_array(as_stored(array)) for array in arrays]
    stored = empty(result.elements, storage_dtype(result.dtype))
    scratch = [empty(memory.elements, memory.dtype) for memory in kernel.planned.scratch]
    compile_plan(kernel.planned.plan)(*buffers, stored, *scratch)
    return stored.numpy().reshape(result.shape)


def values_of(graph: Graph, arrays: dict[str, Array]) -> dict[str, Array]:
    """Return all tensors of a graph by its definition."""
    everything = replace(graph, outputs=tuple(o.output for o in graph.operators))
    return {**graph.constants, **arrays, **evaluate(everything, arrays)}


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.quick(3)
def test_random_attention_is_what_its_operators_compute(seed: int) -> None:
    random = np.random.default_rng(seed)
    heads, rows, keys = (int(random.integers(1, most)) for most in (4, 40, 70))
    sizes = (heads + 1, rows + 1, keys + 1, 8 * int(random.integers(1, 4)), 8)
    source = quantized_graph(random, sizes, masked=seed % 3 == 1)
    graph, attention = prepared(source)
    arrays = inputs_of(source, random)
    values = values_of(graph, arrays)
    expected = values[attention.output]
    result = computed(graph, attention, [values[n] for n in attention.inputs], (8, None)[seed % 2])
    difference = np.abs(result.astype(np.int32) - expected.astype(np.int32))
    assert difference.max() <= 1
    # Only a last bit of an exponential may decide otherwise.
    assert (difference > 0).mean() < 0.002
    assert len(np.unique(expected)) > 2


def test_it_is_recognized_and_split_into_equal_operators() -> None:
    random = np.random.default_rng(5)
    source = quantized_graph(random, (2, 9, 12, 8, 8), masked=True)
    arrays = inputs_of(source, random)
    graph, attention = prepared(source)
    separate = prepared_for(source, network_units(TARGET), attends=False)
    split = split_quantized_attentions(graph, [attention.name])
    expected = evaluate(separate, arrays)["y"]
    np.testing.assert_array_equal(evaluate(graph, arrays)["y"], expected)
    np.testing.assert_array_equal(evaluate(split, arrays)["y"], expected)
    assert not any(isinstance(o.kind, QuantizedAttention) for o in split.operators)


def test_in_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuantizedAttentionChoice, "split_us", lambda *_: math.inf)
    random = np.random.default_rng(7)
    source = quantized_graph(random, (3, 20, 33, 16, 8), masked=True)
    request = NetworkRequest(TARGET, planning=Planning(cache=Cache(tmp_path)), times=False)
    result = network(source, request, inputs_of(source, random))
    result.require()
    (row,) = [r for r in result.document["operators"] if r["kind"] == "quantizedattention"]
    assert row["verified"]
    assert row["verified_with_special_values"]
    assert row["macs"] == 3 * 20 * 33 * (16 + 8)
