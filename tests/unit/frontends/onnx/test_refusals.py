"""What is refused: in one line that says what, where, and the remedy."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx import TensorProto, helper, numpy_helper

from cpembed.errors import ModelError
from cpembed.frontends import load_model
from cpembed.graph.graph import evaluate
from tests.unit.frontends.onnx.referee import check, model_of, single

X = np.ones((2, 3), np.float32)


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(ModelError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    return message


def save(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def model_with(shape: tuple[int | str, ...], folder: Path) -> Path:
    node = helper.make_node("Relu", ["image"], ["y"])
    graph = helper.make_graph(
        [node],
        "open",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    return save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder)


def test_unknown_operators_are_counted(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "first"),
        helper.make_node("Multinomial", ["a"], ["b"], "where"),
        helper.make_node("Multinomial", ["b"], ["c"]),
        helper.make_node("Det", ["c"], ["d"]),
    ]
    path = save(model_of(nodes, {"x": X}, {}, ["d"]), tmp_path)
    message = refusal(lambda: load_model(path))
    assert "operator Multinomial of node where (number 2 of 4)" in message
    assert "the model has 2" in message
    assert "1 of Det" in message


def test_open_sizes_are_named_and_can_be_given(tmp_path: Path) -> None:
    path = model_with(("N", 3, "side", "side"), tmp_path)
    message = refusal(lambda: load_model(path))
    assert "dimension 0 (N) of input image" in message
    assert "--shape image=1,3,1,1" in message
    graph = load_model(path, shapes={"image": (2, 3, 8, 8)})
    assert graph.inputs["image"].shape == (2, 3, 8, 8)
    assert graph.types[graph.outputs[0]].shape == (2, 3, 8, 8)


def test_what_depends_on_open_sizes_alone_is_computed(tmp_path: Path) -> None:
    """The batch is read from the input's shape, as exporters write it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["sizes"], axis=0),
        helper.make_node("Reshape", ["x", "sizes"], ["y"]),
    ]
    constants = {"first": np.asarray([0]), "rest": np.asarray([3, 2])}
    model = model_of(nodes, {"x": np.ones((1, 6), np.float32)}, constants, ["y"])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    path = save(model, tmp_path)
    for batch in (1, 5):
        graph = load_model(path, shapes={"x": (batch, 6)})
        assert graph.types["y"].shape == (batch, 3, 2)
        assert [operator.kind.label for operator in graph.operators] == ["reshape"]


@pytest.mark.parametrize("shapes, said", [
    ({"photo": (1, 3, 8, 8)}, "has no input photo: its inputs are image"),
    ({"image": (1, 3, 8)}, "has 4 dimensions"),
    ({"image": (1, 4, 8, 8)}, "dimension 1 of input image is 3 in the model, not 4"),
    ({"image": (-1, 3, 8, 8)}, "sizes are at least 0"),
    ({"image": (1, 3, 8, 9)}, "the size side is given as 8 and as 9"),
])  # fmt: skip
def test_shapes_that_do_not_fit(
    shapes: dict[str, tuple[int, ...]], said: str, tmp_path: Path
) -> None:
    path = model_with(("N", 3, "side", "side"), tmp_path)
    assert said in refusal(lambda: load_model(path, shapes=shapes))


def test_files_that_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    assert "cannot be read" in refusal(lambda: load_model(path))
    path.write_bytes(b"no protobuf")
    assert "not an ONNX model" in refusal(lambda: load_model(path))
    path.write_bytes(b"")
    assert "holds no graph" in refusal(lambda: load_model(path))
    path.unlink()
    path.mkdir()
    assert "cannot be read" in refusal(lambda: load_model(path))


def test_a_file_of_more_than_two_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)
    assert "external data" in refusal(lambda: load_model(path))


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    assert "the suffix '.txt' is no model's" in refusal(lambda: load_model(tmp_path / "x.txt"))


def test_nodes_in_a_circle(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
    ]
    path = save(model_of(nodes, {"x": X}, {}, ["b"]), tmp_path)
    assert "topologically sorted" in refusal(lambda: load_model(path))


def test_what_has_to_be_constant(tmp_path: Path) -> None:
    model = single("Reshape", [X, np.asarray([3, 2])])
    message = refusal(lambda: load_model(save(model, tmp_path)))
    assert "Reshape node (node 1): shape is computed while the network runs" in message


@pytest.mark.parametrize("taken", [True, False])
def test_the_branch_of_a_constant_condition_is_taken(taken: bool, tmp_path: Path) -> None:
    def branch(operator: str) -> onnx.GraphProto:
        result = [helper.make_tensor_value_info("r", TensorProto.FLOAT, [2, 3])]
        return helper.make_graph([helper.make_node(operator, ["x"], ["r"])], operator, [], result)

    node = helper.make_node(
        "If", ["c"], ["y"], "choice", then_branch=branch("Neg"), else_branch=branch("Abs")
    )
    fixed = model_of([node], {"x": X}, {"c": np.asarray(taken)}, ["y"])
    graph = load_model(save(fixed, tmp_path))
    assert np.array_equal(evaluate(graph, {"x": X})["y"], -X if taken else X)


def external(location: str, folder: Path, **entries: str) -> Path:
    """A model whose constant ``w`` lies in another file."""
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])], {"x": X}, {"w": 2 * X}, ["y"]
    )  # fmt: skip
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return save(model, folder)


def test_external_data_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    content = b"12345678" + (2 * X).tobytes()
    (tmp_path / "weights" / "w.bin").write_bytes(content)
    path = external("weights/w.bin", tmp_path, offset="8", length="24")
    assert np.array_equal(evaluate(load_model(path), {"x": X})["y"], 3 * X)


@pytest.mark.parametrize("location", ["../w.bin", "/etc/hostname", "a/../../w.bin", "", "..\\w"])
def test_external_data_elsewhere_is_not_read(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes((2 * X).tobytes())
    path = external(location, folder)
    assert "own folder only" in refusal(lambda: load_model(path))


def test_links_are_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes((2 * X).tobytes())
    os.symlink(tmp_path / "w.bin", folder / "w.bin")
    assert "which is a link" in refusal(lambda: load_model(external("w.bin", folder)))
    os.symlink(tmp_path, folder / "up")
    assert "which is a link" in refusal(lambda: load_model(external("up/w.bin", folder)))


@pytest.mark.parametrize("entries", [
    {"length": "20"}, {"offset": "4"}, {"offset": "-4"}, {"offset": "x"}, {"length": "9999"},
])  # fmt: skip
def test_external_data_of_another_size(entries: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes((2 * X).tobytes())
    assert "get the whole file" in refusal(
        lambda: load_model(external("w.bin", tmp_path, **entries))
    )


def test_constants_that_would_not_fit_memory(tmp_path: Path) -> None:
    model = single("ConstantOfShape", [np.asarray([1 << 20, 1 << 20])], [0])
    assert "MiB" in refusal(lambda: load_model(save(model, tmp_path)))


def test_functions_of_the_model_are_inlined(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    twice = helper.make_function(
        "own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], opsets[:1]
    )
    graph = helper.make_graph(
        [helper.make_node("Twice", ["x"], ["y"], domain="own")],
        "calls",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
    )
    model = helper.make_model(graph, functions=[twice], opset_imports=opsets, ir_version=10)
    assert np.array_equal(evaluate(load_model(save(model, tmp_path)), {"x": X})["y"], 2 * X)


def test_names_of_outputs_are_kept(tmp_path: Path) -> None:
    """Also where an output is an input, a constant, or what another output is."""
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Identity", ["r"], ["first"]),
        helper.make_node("Identity", ["r"], ["second"]),
        helper.make_node("Identity", ["w"], ["fixed"]),
        helper.make_node("Add", ["x", "w"], ["sum"]),
    ]
    outputs = ["same", "first", "second", "fixed", "r", "sum"]
    graph = load_model(save(model_of(nodes, {"x": -X}, {"w": 5 * X}, outputs), tmp_path))
    found = evaluate(graph, {"x": -X})
    assert graph.outputs == tuple(outputs)
    expected = {
        "same": -X,
        "first": 0 * X,
        "second": 0 * X,
        "fixed": 5 * X,
        "r": 0 * X,
        "sum": 4 * X,
    }
    for name, array in expected.items():
        assert np.array_equal(found[name], array), name


def test_batch_normalization_is_folded_only_where_nothing_else_reads(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((1, 2, 4, 4)).astype(np.float32)
    constants = {name: random.uniform(0.5, 2, 3).astype(np.float32) for name in "sbmv"}
    constants["w"] = random.standard_normal((3, 2, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", *"sbmv"], ["n"]),
        helper.make_node("Relu", ["c"], ["r"]),
    ]
    alone = load_model(save(model_of(nodes[:2], {"x": x}, constants, ["n"]), tmp_path))
    shared = load_model(save(model_of(nodes, {"x": x}, constants, ["n", "r"]), tmp_path))
    assert [operator.kind.label for operator in alone.operators] == ["conv2d", "add"]
    assert "fma" in [operator.kind.label for operator in shared.operators]
    first, second = (evaluate(graph, {"x": x})["n"] for graph in (alone, shared))
    np.testing.assert_allclose(first, second, 1e-5, 1e-5)


@pytest.mark.parametrize("node, weights, rank", [
    (helper.make_node("Conv", ["x", "w", "c"], ["o"], group=2), (4, 2, 3, 3), 4),
    (helper.make_node("ConvTranspose", ["x", "w", "c"], ["o"], strides=[2, 2]), (4, 4, 3, 3), 4),
    (helper.make_node("Gemm", ["x", "w", "c"], ["o"]), (4, 4), 2),
    (helper.make_node("Gemm", ["x", "w", "c"], ["o"], transB=1), (4, 4), 2),
])  # fmt: skip
def test_batch_normalization_becomes_part_of_weights(
    node: onnx.NodeProto, weights: tuple[int, ...], rank: int, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 4, 6, 6)[:rank]).astype(np.float32)
    constants = {name: random.uniform(0.5, 2, 4).astype(np.float32) for name in "sbmvc"}
    constants["w"] = random.standard_normal(weights).astype(np.float32)
    nodes = [node, helper.make_node("BatchNormalization", ["o", *"sbmv"], ["n"])]
    model = model_of(nodes, {"x": x}, constants, ["n"])
    check(model, {"x": x}, tmp_path, relative=1e-4, absolute=1e-4)
    labels = [operator.kind.label for operator in load_model(save(model, tmp_path)).operators]
    assert labels[-1] == "add"
    assert not any("mul" in label for label in labels)


def test_a_window_that_is_not_that_of_the_weights(tmp_path: Path) -> None:
    x, w = np.ones((1, 2, 5, 5), np.float32), np.ones((3, 2, 3, 3), np.float32)
    path = save(single("Conv", [x, w], [1], kernel_shape=[3, 2]), tmp_path)
    assert "kernel_shape [3, 2] is not that of the weights, [3, 3]" in refusal(
        lambda: load_model(path)
    )


def test_a_sparse_constant(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], {"x": X}, {}, ["y"])
    values = numpy_helper.from_array(np.ones(1, np.float32), "w")
    places = numpy_helper.from_array(np.zeros(1, np.int64))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3]))
    assert "is sparse" in refusal(lambda: load_model(save(model, tmp_path)))


def test_a_recurrent_layer_of_an_input_without_steps(tmp_path: Path) -> None:
    weights = [np.ones((1, 8, 3), np.float32), np.ones((1, 8, 2), np.float32)]
    path = save(single("LSTM", [X, *weights], [1, 2], hidden_size=2), tmp_path)
    assert "[2, 3] has no axes of steps, batch and features" in refusal(lambda: load_model(path))
