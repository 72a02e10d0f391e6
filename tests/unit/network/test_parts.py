"""Networks with operators that run elsewhere: how they are divided, and what they compute."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cpembed.errors import LoweringError
from cpembed.graph.graph import Graph, Operator, evaluate
from cpembed.graph.kinds import Apply, Elementwise, Foreign, Input, TensorType
from cpembed.graph.kinds.base import Array
from cpembed.hw.loader import load_hardware_spec
from cpembed.network.build import compile_model, compile_network
from cpembed.network.parts import PartedNetwork, parts_of
from cpembed.targets.registry import missing_for
from tests.cli.calling import Caller

TARGETS = ("avx512_vnni", "avx2_f32", "neon_f32")
TYPE = TensorType((4, 5), "float32")


def doubled(arrays: Sequence[Array]) -> Sequence[Array]:
    return [arrays[0] * 2]


def operator(name: str, kind: str, *inputs: str) -> Operator:
    """An operator whose output has its name: foreign, or the sum or the negative of its inputs."""
    if kind == "foreign":
        return Operator(name, Foreign("Twice", (TYPE,), "callback", doubled), inputs, (name,))
    arguments = tuple(map(Input, range(len(inputs))))
    return Operator(name, Elementwise(Apply(kind, arguments), "float32"), inputs, (name,))


GRAPH = Graph(
    "mixed",
    {"x": TYPE, "z": TYPE},
    ("last", "early"),
    {"c": np.full((4, 5), 3, np.float32)},
    (
        operator("a", "neg", "x"),
        operator("early", "add", "a", "c"),
        operator("f", "foreign", "a"),
        operator("b", "add", "f", "a"),
        operator("g", "foreign", "f"),
        # Nothing foreign comes before it, so that it belongs to the first part.
        operator("free", "neg", "z"),
        operator("h", "foreign", "b"),
        operator("last", "add", "h", "free"),
    ),
)


def test_as_few_parts_as_the_order_allows() -> None:
    parts = parts_of(GRAPH)
    names = [
        part.name if isinstance(part, Operator) else [o.name for o in part.operators]
        for part in parts
    ]
    assert names == [["a", "early", "free"], "f", "g", ["b"], "h", ["last"]]
    first = parts[0]
    assert isinstance(first, Graph)
    assert [*first.inputs] == ["x", "z"]
    assert [*first.constants] == ["c"]
    assert {*first.outputs} == {"a", "early", "free"}


def test_the_parts_compute_what_the_network_does() -> None:
    generator = np.random.default_rng(0)
    inputs = {n: generator.standard_normal((4, 5)).astype(np.float32) for n in GRAPH.inputs}
    values: dict[str, Array] = {**GRAPH.constants, **inputs}
    for part in parts_of(GRAPH):
        if isinstance(part, Operator):
            results = part.kind.evaluate([values[name] for name in part.inputs])
            values |= zip(part.outputs, results, strict=True)
        else:
            values |= evaluate(part, {name: values[name] for name in part.inputs})
    for name, expected in evaluate(GRAPH, inputs).items():
        np.testing.assert_array_equal(values[name], expected)


def test_a_network_of_parts_is_shown_without_its_weights() -> None:
    shown = repr(PartedNetwork(GRAPH, [operator("f", "foreign", "a")]))
    assert shown == (
        "<network mixed of 1 parts: (x: float32 [4, 5], z: float32 [4, 5]) -> "
        "last: float32 [4, 5], early: float32 [4, 5]>"
    )


def target() -> str:
    pytest.importorskip("tvm")
    name = next((n for n in TARGETS if not missing_for(load_hardware_spec(n))), None)
    if name is None:
        pytest.skip(f"the processor has none of {', '.join(TARGETS)}")
    return name


def test_a_library_holds_no_foreign_operator(tmp_path: Path) -> None:
    with pytest.raises(LoweringError, match=r"Twice \(callback\).*--outputs"):
        compile_network(GRAPH, "avx2_f32", tmp_path / "library")
    assert not (tmp_path / "library").exists()


@pytest.mark.slow
def test_compiled_parts() -> None:
    generator = np.random.default_rng(0)
    inputs = {n: generator.standard_normal((4, 5)).astype(np.float32) for n in GRAPH.inputs}
    network = compile_model(GRAPH, target())
    assert isinstance(network, PartedNetwork)
    expected = evaluate(GRAPH, inputs)
    for name, result in network.run(inputs).items():
        np.testing.assert_array_equal(result, expected[name])
    assert {*network.seconds} == {"f", "g", "h"}
    network.close()


@pytest.mark.slow
def test_the_command_line_reports_what_ran_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    nodes = [
        onnx.helper.make_node("Relu", ["x"], ["a"]),
        onnx.helper.make_node("Det", ["a"], ["d"], "determinant"),
        onnx.helper.make_node("Exp", ["d"], ["y"]),
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(nodes, "g", [value("x", 1, [2, 3, 3])], [value("y", 1, [2])])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    cpembed = Caller(capsys)
    command = ["network", str(path), "--target", target(), "--fallback", "onnxruntime"]
    called = cpembed(*command)
    assert called.code == 0, called.err
    assert "Det (onnxruntime)" in called.out
    timeline = tmp_path / "timeline.json"
    document = cpembed(*command, "--json", "--trace", str(timeline)).json
    assert [entry["operator"] for entry in document["fallback"]] == ["determinant"]
    events = json.loads(timeline.read_text())["traceEvents"]
    assert [e["cat"] for e in events if e["ph"] == "X"] == ["operator", "fallback", "operator"]
    assert len(document["parts"]) == 2
    cut = cpembed("network", str(path), "--target", target(), "--outputs", "a", "--json").json
    assert [o["label"] for o in cut["operators"]] == ["max"]
    refused = cpembed(*command, "--save", str(tmp_path / "library"))
    assert refused.code == 2
    assert "--outputs" in refused.err
