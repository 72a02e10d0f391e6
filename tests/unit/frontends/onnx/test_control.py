"""Loops, scans and branches, beside ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("onnxruntime")

from cpembed.errors import ModelError
from cpembed.graph.graph import evaluate
from cpembed.graph.kinds import Product
from cpembed.graph.loop import Loop, nested_operators
from cpembed.graph.passes import prepare
from tests.unit.frontends.onnx.referee import Array, check, loaded, model_of

RANDOM = np.random.default_rng(3)
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node


def f(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def value(name: str, kind: int = FLOAT, shape: list[int] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def body_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: dict[str, Array] | None = None,
) -> onnx.GraphProto:
    tensors = [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()]
    return helper.make_graph(nodes, "body", inputs, outputs, tensors)


def doubling(shape: list[int], *, ends: bool) -> onnx.GraphProto:
    """Add the number of the step and a tensor of outside, until the sum exceeds 30."""
    nodes = [
        node("Cast", ["i"], ["number"], to=FLOAT),
        node("Add", ["s", "number"], ["t"]),
        node("Add", ["t", "outside"], ["u"]),
        node("ReduceSum", ["u"], ["total"], keepdims=0),
        node("Less", ["total", "most"], ["again"]) if ends else node("Identity", ["c"], ["again"]),
        node("Mul", ["u", "u"], ["square"]),
    ]
    outputs = [value("again", BOOL, []), value("u", FLOAT, shape)]
    return body_of(
        nodes,
        [value("i", INT64, []), value("c", BOOL, []), value("s", FLOAT, shape)],
        outputs if ends else [*outputs, value("square", FLOAT, shape)],
        {"most": np.float32(30)} if ends else {},
    )


@pytest.mark.parametrize("condition", [True, False, None])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_loop_of_a_constant_number_of_steps(
    condition: bool | None, count: int, tmp_path: Path
) -> None:
    constants: dict[str, Array] = {"n": np.asarray(count, np.int64)}
    if condition is not None:
        constants["go"] = np.asarray(condition)
    name = "" if condition is None else "go"
    loop = node("Loop", ["n", name, "x"], ["last", "squares"], body=doubling([2, 3], ends=False))
    inputs = {"x": f(2, 3), "outside": f(3)}
    model = model_of([loop], inputs, constants, ["last", "squares"])
    check(model, inputs, tmp_path)
    graph = prepare(loaded(model, tmp_path))
    inside = [o.kind for o in graph.operators if isinstance(o.kind, Loop)]
    assert [kind.steps for kind in inside] == ([] if condition is False or not count else [count])


@pytest.mark.parametrize("count", [0, 1, 4, 100])
@pytest.mark.parametrize("limited", [True, False])
def test_a_loop_that_a_condition_ends(count: int, limited: bool, tmp_path: Path) -> None:
    loop = node(
        "Loop", ["n" if limited else "", "go", "x"], ["last"], body=doubling([2], ends=True)
    )
    inputs = {"go": np.asarray(True), "x": f(2), "outside": np.full(2, 0.5, np.float32)}
    if limited:
        inputs["n"] = np.asarray(count, np.int64)
    model = model_of([loop], inputs, {}, ["last"])
    check(model, inputs, tmp_path)
    check(model, {**inputs, "go": np.asarray(False)}, tmp_path)


def test_results_without_a_fixed_size_are_refused(tmp_path: Path) -> None:
    loop = node("Loop", ["n", "", "x"], ["last", "squares"], body=doubling([2], ends=False))
    inputs = {"n": np.asarray(3, np.int64), "x": f(2), "outside": f(2)}
    with pytest.raises(ModelError, match=r"number of steps is computed.*no fixed size"):
        loaded(model_of([loop], inputs, {}, ["last", "squares"]), tmp_path)


def counting(step: int, *, collects: bool = True) -> onnx.GraphProto:
    """A while loop as TensorFlow's exporter writes it: a counter among the states ends it."""
    nodes = [
        node("Add", ["k", "step"], ["next"]),
        node("Less", ["next", "end"], ["again"]),
        node("Gather", ["rows", "k"], ["row"], axis=0),
        node("Add", ["s", "row"], ["sum"]),
        node("Mul", ["sum", "sum"], ["square"]),
    ]
    outputs = [value("again", BOOL, []), value("next", INT64, []), value("sum", FLOAT, [2])]
    return body_of(
        nodes,
        [value("i", INT64, []), value("c", BOOL, []), value("k", INT64, []),
         value("s", FLOAT, [2])],
        [*outputs, value("square", FLOAT, [2])] if collects else outputs,
        {"step": np.asarray(step), "end": np.asarray(7)},
    )  # fmt: skip


@pytest.mark.parametrize("step, first, count, steps", [
    (1, 0, None, 7), (3, 2, None, 2), (1, 6, None, 1), (1, 0, 4, 4), (1, 0, 40, 7), (1, 0, 0, 0),
])  # fmt: skip
def test_a_loop_that_counts_has_a_constant_number_of_steps(
    step: int, first: int, count: int | None, steps: int, tmp_path: Path
) -> None:
    constants: dict[str, Array] = {"go": np.asarray(True), "first": np.asarray(first)}
    if count is not None:
        constants["n"] = np.asarray(count, np.int64)
    loop = node(
        "Loop", ["" if count is None else "n", "go", "first", "x"], ["k", "last", "squares"],
        body=counting(step),
    )  # fmt: skip
    inputs = {"rows": f(8, 2), "x": f(2)}
    model = model_of([loop], inputs, constants, ["k", "last", "squares"])
    check(model, inputs, tmp_path)
    inside = [
        o.kind for o in prepare(loaded(model, tmp_path)).operators if isinstance(o.kind, Loop)
    ]
    assert [kind.steps for kind in inside] == ([steps] if steps else [])
    assert not any(kind.conditional for kind in inside)


def test_a_condition_that_is_a_state_is_that_of_the_step_before(tmp_path: Path) -> None:
    body = body_of(
        [
            node("Add", ["k", "one"], ["next"]),
            node("Less", ["next", "end"], ["is_below"]),
            node("Identity", ["flag"], ["again"]),
            node("Gather", ["rows", "k"], ["row"], axis=0),
        ],
        [value("i", INT64, []), value("c", BOOL, []), value("k", INT64, []),
         value("flag", BOOL, [])],
        [value("again", BOOL, []), value("next", INT64, []), value("is_below", BOOL, []),
         value("row", FLOAT, [2])],
        {"one": np.asarray(1), "end": np.asarray(3)},
    )  # fmt: skip
    constants = {"go": np.asarray(True), "first": np.asarray(0)}
    loop = node("Loop", ["", "go", "first", "go"], ["k", "flag", "taken"], body=body)
    inputs = {"rows": f(8, 2)}
    model = model_of([loop], inputs, constants, ["k", "taken"])
    check(model, inputs, tmp_path)
    assert loaded(model, tmp_path).types["taken"].shape == (4, 2)


def test_a_counter_that_is_an_input_counts_in_each_call(tmp_path: Path) -> None:
    inputs = {"rows": f(8, 2), "x": f(2), "first": np.asarray(2)}
    constants = {"go": np.asarray(True)}
    body, arguments = counting(1, collects=False), ["", "go", "first", "x"]
    model = model_of(
        [node("Loop", arguments, ["k", "last"], body=body)], inputs, constants, ["last"]
    )
    check(model, inputs, tmp_path)
    body = counting(1)
    loop = node("Loop", arguments, ["k", "last", "squares"], body=body)
    with pytest.raises(ModelError, match="no fixed size"):
        loaded(model_of([loop], inputs, constants, ["squares"]), tmp_path)


def test_a_counter_that_never_arrives_is_refused(tmp_path: Path) -> None:
    constants = {"go": np.asarray(True), "first": np.asarray(0)}
    inputs = {"rows": f(8, 2), "x": f(2)}
    loop = node("Loop", ["", "go", "first", "x"], ["k", "last", "squares"], body=counting(0))
    with pytest.raises(ModelError, match="no fixed size"):
        loaded(model_of([loop], inputs, constants, ["squares"]), tmp_path)


def test_states_that_grow_are_written_out(tmp_path: Path) -> None:
    body = body_of(
        [node("Concat", ["s", "x"], ["longer"], axis=0), node("Identity", ["c"], ["again"])],
        [value("i", INT64, []), value("c", BOOL, []), value("s")],
        [value("again", BOOL, []), value("longer")],
    )
    model = model_of(
        [node("Loop", ["n", "", "x"], ["y"], body=body)],
        {"x": f(1, 2)}, {"n": np.asarray(3, np.int64)}, ["y"],
    )  # fmt: skip
    check(model, {"x": f(1, 2)}, tmp_path)
    long = model_of(
        [node("Loop", ["n", "", "x"], ["y"], body=body)],
        {"x": f(1, 2)}, {"n": np.asarray(100, np.int64)}, ["y"],
    )  # fmt: skip
    with pytest.raises(ModelError, match="states keep their type"):
        loaded(long, tmp_path)


@pytest.mark.parametrize("backwards", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan(backwards: int, axis: int, tmp_path: Path) -> None:
    body = body_of(
        [node("MatMul", ["a", "w"], ["p"]), node("Add", ["p", "s"], ["t"]),
         node("Tanh", ["t"], ["u"]), node("Mul", ["b", "u"], ["v"])],
        [value("s"), value("a"), value("b")], [value("u"), value("v"), value("p")],
        {"w": f(4, 6)},
    )  # fmt: skip
    scan = node(
        "Scan", ["s0", "x", "z"], ["last", "vs", "ps"], body=body, num_scan_inputs=2,
        scan_input_axes=[axis, -2], scan_input_directions=[backwards, 0],
        scan_output_axes=[axis, 0], scan_output_directions=[0, backwards],
    )  # fmt: skip
    x = f(5, 2, 4) if axis == 0 else f(2, 5, 4)
    inputs = {"s0": f(2, 6), "x": x, "z": f(5, 6)}
    model = model_of([scan], inputs, {}, ["last", "vs", "ps"])
    check(model, inputs, tmp_path)
    graph = prepare(loaded(model, tmp_path))
    original = evaluate(loaded(model, tmp_path), inputs)
    for name, array in evaluate(graph, inputs).items():
        if name in graph.outputs:
            np.testing.assert_allclose(array, original[name], 1e-6, 1e-6)
    # The product does not depend on the state: it is one of all steps.
    rows = [
        (times, operator.kind.computation.extents["m"])
        for operator, _, times in nested_operators(graph)
        if isinstance(operator.kind, Product)
    ]
    assert rows == [(1, 10)]


def test_a_loop_inside_a_loop(tmp_path: Path) -> None:
    inner = body_of(
        [node("Add", ["t", "x"], ["u"]), node("Mul", ["u", "scale"], ["v"]),
         node("Identity", ["c2"], ["again2"])],
        [value("j", INT64, []), value("c2", BOOL, []), value("t")],
        [value("again2", BOOL, []), value("v"), value("u")],
    )  # fmt: skip
    outer = body_of(
        [node("Loop", ["inner_count", "", "s"], ["r", "parts"], body=inner),
         node("ReduceMean", ["parts"], ["mean"], axes=[0], keepdims=0),
         node("Add", ["r", "mean"], ["next"]), node("Identity", ["c"], ["again"])],
        [value("i", INT64, []), value("c", BOOL, []), value("s")],
        [value("again", BOOL, []), value("next"), value("mean")],
    )  # fmt: skip
    inputs = {"x": f(3), "scale": np.full(3, 0.5, np.float32)}
    counts = {"inner_count": np.asarray(2, np.int64), "n": np.asarray(3, np.int64)}
    loop = node("Loop", ["n", "", "x"], ["last", "means"], body=outer)
    check(model_of([loop], inputs, counts, ["last", "means"], version=13), inputs, tmp_path)


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_whose_condition_is_computed(taken: bool, tmp_path: Path) -> None:
    branches = {
        f"{name}_branch": body_of(
            [node("MatMul", ["x", "w"], [f"{name}_p"]),
             node(operator, [f"{name}_p"], [f"{name}_y"])],
            [], [value(f"{name}_y")], {"w": f(4, 4)},
        )
        for name, operator in (("then", "Tanh"), ("else", "Relu"))
    }  # fmt: skip
    nodes = [
        node("ReduceSum", ["x"], ["total"], keepdims=0),
        node("Less", ["total", "zero"], ["is_negative"]),
        node("If", ["is_negative"], ["y"], **branches),
    ]
    inputs = {"x": np.abs(f(2, 4)) * (-1 if taken else 1)}
    model = model_of(nodes, inputs, {"zero": np.float32(0)}, ["y"])
    check(model, inputs, tmp_path)


def test_branches_of_two_types_are_refused(tmp_path: Path) -> None:
    branches = {
        f"{name}_branch": body_of(
            [node("Concat", ["x"] * count, [name], axis=0)], [], [value(name)]
        )
        for name, count in (("then", 1), ("else", 2))
    }
    inputs = {"x": f(2, 4), "c": np.asarray(True)}
    model = model_of([node("If", ["c"], ["y"], **branches)], inputs, {}, ["y"])
    with pytest.raises(
        ModelError,
        match=r"branches give float32 \[2, 4\] and float32 \[4, 4\].*depends on c: with --set c=",
    ):
        loaded(model, tmp_path)


def test_a_branch_that_does_not_fit_names_the_input_that_decides(tmp_path: Path) -> None:
    branches = {
        f"{name}_branch": body_of(
            [node("MatMul", ["x", "w"], [name], f"{name}_product")],
            [], [value(name)], {"w": f(rows, 3)},
        )
        for name, rows in (("then", 4), ("else", 5))
    }  # fmt: skip
    nodes = [node("Equal", ["rate", "high"], ["c"]), node("If", ["c"], ["y"], **branches)]
    inputs = {"x": f(2, 4), "rate": np.asarray(16)}
    model = model_of(nodes, inputs, {"high": np.asarray(16)}, ["y"])
    message = r"else_product.*the condition of If \(node 2\) depends on rate: with --set rate=VALUE"
    with pytest.raises(ModelError, match=message) as caught:
        loaded(model, tmp_path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).count("model.onnx") == 1
