"""Inputs that are bound to constants, sizes of single axes, and sizes without a name."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from cpembed.errors import ModelError
from cpembed.frontends import load_model
from cpembed.graph.graph import evaluate
from tests.cli.calling import Caller


def branching(path: Path) -> Path:
    """A model that halves x where the rate is 8000, and doubles it elsewhere."""
    value = helper.make_tensor_value_info
    branches = {
        name: helper.make_graph(
            [helper.make_node("Mul", ["x", factor], [f"{name}_y"])],
            name, [], [value(f"{name}_y", TensorProto.FLOAT, None)],
        )
        for name, factor in (("then_branch", "half"), ("else_branch", "two"))
    }  # fmt: skip
    nodes = [
        helper.make_node("Equal", ["sr", "narrow"], ["is_narrow"]),
        helper.make_node("If", ["is_narrow"], ["y"], **branches),
    ]
    constants = [
        helper.make_tensor("narrow", TensorProto.INT64, [], [8000]),
        helper.make_tensor("half", TensorProto.FLOAT, [], [0.5]),
        helper.make_tensor("two", TensorProto.FLOAT, [], [2.0]),
    ]
    graph = helper.make_graph(
        nodes, "rates",
        [value("x", TensorProto.FLOAT, ["?", "?"]), value("sr", TensorProto.INT64, [])],
        [value("y", TensorProto.FLOAT, ["?", "?"])], constants,
    )  # fmt: skip
    file = path / "rates.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    file.write_bytes(model.SerializeToString())
    return file


@pytest.mark.parametrize("rate, factor", [(8000, 0.5), (16000, 2.0)])
def test_a_constant_decides_a_branch(tmp_path: Path, rate: int, factor: float) -> None:
    graph = load_model(branching(tmp_path), {"x": (2, 3)}, constants={"sr": rate})
    assert list(graph.inputs) == ["x"]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(evaluate(graph, {"x": x})["y"], x * factor)


def test_values_are_read_from_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "rate.npy", np.int64(8000))
    graph = load_model(branching(tmp_path), {"x": (1, 1)}, constants={"sr": tmp_path / "rate.npy"})
    assert list(graph.inputs) == ["x"]


def test_sizes_without_a_name_are_different_sizes(tmp_path: Path) -> None:
    file = branching(tmp_path)
    graph = load_model(file, {"x:0": (2,), "x:1": (3,)}, constants={"sr": 8000})
    assert graph.inputs["x"].shape == (2, 3)
    with pytest.raises(ModelError, match=r"dimension 1 of input x is left open.*x:1=1"):
        load_model(file, {"x:0": (2,)}, constants={"sr": 8000})


def test_a_named_size_of_one_axis_holds_everywhere(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["y"])], "sum",
        [value("a", TensorProto.FLOAT, ["n", 2]), value("b", TensorProto.FLOAT, ["n", 2])],
        [value("y", TensorProto.FLOAT, ["n", 2])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    file = tmp_path / "sum.onnx"
    file.write_bytes(model.SerializeToString())
    loaded = load_model(file, {"a:0": (5,)})
    assert {kind.shape for kind in loaded.inputs.values()} == {(5, 2)}
    for shapes, text in [
        ({"a:0": (5,), "b:0": (6,)}, "the size n is given as 5 and as 6"),
        ({"a:2": (5,)}, r"a:2=5 is not one size of axis 2 of input a, which has 2 dimensions"),
        ({"a:1": (3,)}, "dimension 1 of input a is 2 in the model, not 3"),
    ]:
        with pytest.raises(ModelError, match=text):
            load_model(file, shapes)


@pytest.mark.parametrize(
    "constants, text",
    [
        ({"rate": 1}, "has no input rate: its inputs are x, sr"),
        ({"sr": 0.5}, r"input sr: 0.5 is float64, the model has int64: give int64"),
        ({"sr": 8000.0}, r"8000.0 is float64, the model has int64"),
        ({"sr": [8000, 8000]}, "input sr has 0 dimensions, the shape 2 has 1"),
        ({"sr": "fast"}, "'fast' is no number, list of numbers, or .npy file"),
        ({"x": 2**70}, "is no number"),
        ({"sr": Path("nowhere.npy")}, "nowhere.npy cannot be read: No such file"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(
    tmp_path: Path, constants: dict[str, object], text: str
) -> None:
    with pytest.raises(ModelError, match=text):
        load_model(branching(tmp_path), {"x": (2, 3)}, constants=constants)


def test_the_command_line_binds_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cpembed = Caller(capsys)
    file = branching(tmp_path)
    options = ["--target", "avx2_f32", "--shape", "x=2,3", "--plan-only", "--json"]
    called = cpembed("network", str(file), *options, "--set", "sr=16000")
    assert called.code == 0, called.err
    assert [each["inputs"] for each in called.json["operators"]] == [["x"]]
    called = cpembed("network", str(file), *options, "--set", "sr")
    called.is_one_line_error(2, "'sr' is no value: write NAME=16000")


def test_inputs_of_any_graph_are_bound() -> None:
    from cpembed.frontends.binding import bind_inputs
    from cpembed.frontends.builder import Builder
    from cpembed.graph.kinds import Apply, Elementwise, Input, TensorType

    builder = Builder("net")
    x, y = (builder.input(name, TensorType((1, 2), "float32")) for name in "xy")
    total = builder.add(Elementwise(Apply("add", (Input(0), Input(1))), "float32"), [x, y], "sum")
    graph = bind_inputs(builder.graph({"total": total}), {"y": [[1, 2]]})
    assert list(graph.inputs) == ["x"]
    values = evaluate(graph, {"x": np.ones((1, 2), np.float32)})
    np.testing.assert_array_equal(values["total"], [[2, 3]])
    with pytest.raises(ModelError, match=r"input x: the value has the shape \[2\], the model has"):
        bind_inputs(graph, {"x": [1, 2]})
