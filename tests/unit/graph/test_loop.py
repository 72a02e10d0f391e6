"""Loops by their definition, beside loops written out, and what is moved out of them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from cpembed.errors import WorkloadError
from cpembed.frontends.builder import Builder
from cpembed.frontends.loops import LoopBody
from cpembed.frontends.products import matrix_product
from cpembed.graph.graph import Graph, evaluate
from cpembed.graph.kinds import (
    Apply,
    Dequantize,
    Elementwise,
    Input,
    Kind,
    Number,
    Product,
    Quantize,
    Reshape,
    Slice,
    TensorType,
    Transpose,
)
from cpembed.graph.loop import Loop, multiplications, nested_operators
from cpembed.graph.passes import prepare
from cpembed.graph.passes.hoisting import hoist
from cpembed.network.build import uniquely_named
from cpembed.network.inputs import random_inputs, special_inputs

A, B = Input(0), Input(1)
ADD, MUL = Apply("add", (A, B)), Apply("mul", (A, B))


def f32(*shape: int) -> TensorType:
    return TensorType(shape, "float32")


def recurrence(backwards: bool, collected_backwards: bool) -> Graph:
    """``s = s * w + x[t]``, all of which are collected; w is an input."""
    outer = Builder("net")
    x, s, w = (
        outer.input(n, f32(*shape)) for n, shape in (("x", (4, 3)), ("s", (3,)), ("w", (3,)))
    )
    loop = LoopBody(outer, "loop", 4)
    state, part = loop.state(s), loop.slice(x, backwards)
    product = loop.builder.add(Elementwise(MUL, "float32"), [state, loop.read(w)], "scaled")
    total = loop.builder.add(Elementwise(ADD, "float32"), [product, part], "sum")
    (last,), (parts,) = loop.emit([total], [(total, collected_backwards)])
    return outer.graph({"last": last, "parts": parts})


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("collected_backwards", [False, True])
def test_the_definition(backwards: bool, collected_backwards: bool) -> None:
    graph = recurrence(backwards, collected_backwards)
    inputs = random_inputs(graph, 0)
    state, parts = inputs["s"], []
    for part in inputs["x"][::-1] if backwards else inputs["x"]:
        state = state * inputs["w"] + part
        parts.append(state)
    for each in (graph, prepare(graph), uniquely_named(prepare(graph))):
        values = evaluate(each, inputs)
        np.testing.assert_array_equal(values["last"], state)
        expected = parts[::-1] if collected_backwards else parts
        np.testing.assert_array_equal(values["parts"], expected)


def test_states_keep_their_type() -> None:
    outer = Builder("net")
    loop = LoopBody(outer, "loop", 2)
    state = loop.state(outer.input("s", f32(3)))
    wide = loop.builder.add(Reshape((1, 3)), [state], "wide")
    with pytest.raises(WorkloadError, match=r"float32 \[3\] before a step and float32 \[1, 3\]"):
        loop.emit([wide])


def test_a_count_at_run_time_has_no_results() -> None:
    outer = Builder("net")
    limit = outer.input("n", TensorType((), "int64"))
    loop = LoopBody(outer, "loop", None, limit=limit)
    state = loop.state(outer.input("s", f32(3)))
    twice = loop.builder.add(Elementwise(ADD, "float32"), [state, state], "twice")
    with pytest.raises(WorkloadError, match="no fixed size"):
        loop.emit([twice], [(twice, False)])
    (last,), _ = loop.emit([twice])
    graph = outer.graph({"y": last})
    s = np.ones(3, np.float32)
    for count in (-1, 0, 5):
        values = evaluate(graph, {"n": np.asarray(count, np.int64), "s": s})
        np.testing.assert_array_equal(values["y"], s * 2.0 ** max(0, count))


def test_special_values_may_keep_a_condition_true() -> None:
    outer = Builder("net")
    go, s = outer.input("go", TensorType((), "bool")), outer.input("s", f32(3))
    loop = LoopBody(outer, "loop", None, condition=go)
    state = loop.state(s)
    again = loop.builder.constant(np.asarray(False))
    loop.emit([loop.builder.add(Elementwise(ADD, "float32"), [state, state], "twice")], again=again)
    graph = outer.graph({"y": outer.operators[-1].outputs[0]})
    inputs = random_inputs(graph, 0)
    assert special_inputs(graph, inputs) == inputs


def chain(case: random.Random, quantized: bool) -> Graph:
    """A product of a slice after random operators, and one of the state, in a loop."""
    steps, rows, size = case.randint(1, 4), case.randint(1, 3), case.choice([2, 4])
    outer = Builder("net")
    numbers = np.random.default_rng(case.randrange(1 << 30))
    x, s = outer.input("x", f32(steps, rows, size)), outer.input("s", f32(rows, 5))
    scale = outer.input("scale", f32(size))
    loop = LoopBody(outer, "loop", steps)
    state, part = loop.state(s), loop.slice(x, case.random() < 0.5)
    builder = loop.builder

    def add(kind: Kind, *inputs: str) -> str:
        return builder.add(kind, inputs, "step")

    for _ in range(case.randrange(4)):
        shape = builder.types[part].shape
        kinds: list[tuple[Kind, tuple[str, ...]]] = [
            (Elementwise(MUL, "float32"), (part, loop.read(scale))),
            (Elementwise(Apply("max", (A, Number(0.0))), "float32"), (part,)),
            (Reshape((1, *shape)), (part,)),
            (Transpose((*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)), (part,)),
            (Slice((0,) * len(shape), shape, (1,) * len(shape)), (part,)),
        ]
        kind, inputs = case.choice(kinds)
        part = add(kind, *inputs) if builder.types[part].shape[-1] == size else part
    shape = builder.types[part].shape
    part = add(Reshape((int(np.prod(shape)) // size, size)), part)
    if quantized:
        part = add(Dequantize((0.1,), (3,)), add(Quantize((0.1,), (3,), "uint8"), part))

    def multiplied(tensor: str, columns: int) -> str:
        depth = builder.types[tensor].shape[1]
        w = builder.constant(numbers.standard_normal((depth, columns)).astype(np.float32))
        form = matrix_product(builder.types[tensor].shape, (depth, columns))
        return add(form.product, tensor, w)

    product = multiplied(part, 5)
    total = add(Elementwise(ADD, "float32"), product, multiplied(state, 5))
    (last,), (parts,) = loop.emit([total], [(product, case.random() < 0.5)])
    return outer.graph({"last": last, "parts": parts})


@pytest.mark.parametrize("seed", range(60))
def test_products_of_slices_leave_the_loop(seed: int) -> None:
    graph = chain(random.Random(seed), quantized=seed % 3 == 0)
    hoisted = hoist(graph)
    inputs = random_inputs(graph, seed)
    expected = evaluate(graph, inputs)
    for each in (hoisted, prepare(hoisted)):
        values = evaluate(each, inputs)
        for name in graph.outputs:
            np.testing.assert_allclose(values[name], expected[name], 1e-5, 1e-5)
    products = [times for o, _, times in nested_operators(hoisted) if isinstance(o.kind, Product)]
    steps = next(o.kind.steps for o in graph.operators if isinstance(o.kind, Loop))
    assert sorted(products) == sorted([1, steps])
    assert multiplications(hoisted) == multiplications(graph)


def test_invariant_work_leaves_inner_and_outer_loops() -> None:
    outer = Builder("net")
    x, w = outer.input("x", f32(2)), outer.input("w", f32(2))
    loop = LoopBody(outer, "outer", 3)
    state = loop.state(x)
    inner = LoopBody(loop.builder, "inner", 2)
    inner_state = inner.state(state)
    squared = inner.builder.add(
        Elementwise(MUL, "float32"), [inner.read(loop.read(w))] * 2, "squared"
    )
    total = inner.builder.add(Elementwise(ADD, "float32"), [inner_state, squared], "total")
    (end,), _ = inner.emit([total])
    (last,), _ = loop.emit([end])
    graph = outer.graph({"y": last})
    hoisted = hoist(graph)
    counts = {o.name.rpartition("/")[2]: times for o, _, times in nested_operators(hoisted)}
    assert counts["squared"] == 1
    assert counts["total"] == 6
    inputs: dict[str, Any] = random_inputs(graph, 1)
    np.testing.assert_array_equal(evaluate(hoisted, inputs)["y"], evaluate(graph, inputs)["y"])
    np.testing.assert_allclose(
        evaluate(graph, inputs)["y"], inputs["x"] + 6 * inputs["w"] ** 2, 1e-5
    )
