"""Whole networks: of the tests' own zoo, and the architectures that come with the format."""

from __future__ import annotations

from pathlib import Path
from time import process_time

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx

from cpembed.errors import ModelError
from cpembed.frontends import load_model
from cpembed.graph.graph import evaluate
from cpembed.graph.kinds import Dequantize, Product, Quantize
from tests.models.registry import MODELS, TINY, quantized
from tests.unit.frontends.onnx.referee import Array, check, check_each_operator, loaded, session_of

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def random_inputs(model: onnx.ModelProto) -> dict[str, Array]:
    random = np.random.default_rng(1)
    found: dict[str, Array] = {}
    for given in model.graph.input:
        shape = [d.dim_value for d in given.type.tensor_type.shape.dim]
        whole = given.type.tensor_type.elem_type == onnx.TensorProto.INT64
        found[given.name] = (
            random.integers(0, 50, shape) if whole else random.standard_normal(shape)
        ).astype(np.int64 if whole else np.float32)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_a_network_of_floats(name: str, tmp_path: Path) -> None:
    model = MODELS[name](**TINY[name])
    check(model, random_inputs(model), tmp_path, relative=1e-4, absolute=1e-4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.quick(2)
def test_a_quantized_network(name: str, tmp_path: Path) -> None:
    path = tmp_path / "whole.onnx"
    onnx.save(MODELS[name](**TINY[name]), path)
    quantized(path, tmp_path / "int8.onnx")
    model = onnx.load(tmp_path / "int8.onnx")
    named = {output for node in model.graph.node for output in node.output}
    compared = check_each_operator(model, random_inputs(model), tmp_path)
    # The rest are constants, and weights that are dequantized.
    assert compared > len(named) / 3
    graph = loaded(model, tmp_path)
    kinds = {type(operator.kind) for operator in graph.operators}
    assert {Product, Quantize, Dequantize} <= kinds
    for operator in graph.operators:
        if isinstance(operator.kind, Product) and operator.kind.computation.name == "conv2d":
            weights = graph.producers[operator.inputs[1]]
            assert graph.constants[weights.inputs[0]].dtype == np.int8


@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
@pytest.mark.quick(1)
def test_an_architecture_of_the_format(path: Path) -> None:
    """Their weights are filled by ConstantOfShape; batch normalization leaves no operator."""
    graph = load_model(path)
    model = onnx.load(path)
    inputs = {
        name: np.random.default_rng(2).standard_normal(kind.shape).astype(kind.dtype)
        for name, kind in graph.inputs.items()
    }
    session = session_of(path)
    expected = session.run(None, inputs)
    found = evaluate(graph, inputs, keep=lambda name: False)
    for name, array in zip([o.name for o in model.graph.output], expected, strict=True):
        np.testing.assert_allclose(found[name], array, 1e-3, 1e-6)
    products = sum(isinstance(operator.kind, Product) for operator in graph.operators)
    nodes = [node.op_type for node in model.graph.node]
    assert products == sum(nodes.count(name) for name in ("Conv", "Gemm", "MatMul"))


STORED = sorted(
    path.parent
    for path in (
        *LIGHT.parent.glob("pytorch-*/*/model.onnx"),
        *LIGHT.parent.glob("simple/*/*.onnx"),
    )
)
NOT_READ = ("expand_shape", "gradient", "sequence", "strnorm")
"""Of the stored models, those with shapes that are inputs, sequences or texts."""


def stored_tensor(path: Path) -> Array:
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return onnx.numpy_helper.to_array(tensor)


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
@pytest.mark.quick(25)
def test_stored_models_and_results(folder: Path) -> None:
    """Most are exports of PyTorch in versions of long ago."""
    if any(word in folder.name for word in NOT_READ):
        with pytest.raises(ModelError):
            load_model(folder / "model.onnx")
        return
    graph, data = load_model(folder / "model.onnx"), folder / "test_data_set_0"
    inputs = {name: stored_tensor(data / f"input_{k}.pb") for k, name in enumerate(graph.inputs)}
    found = evaluate(graph, inputs)
    for k, name in enumerate(graph.outputs):
        expected = stored_tensor(data / f"output_{k}.pb")
        assert (found[name].shape, found[name].dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(found[name], expected, 1e-3, 1e-5)


def test_reading_takes_time_in_proportion(tmp_path: Path) -> None:
    """Ten times the operators take some ten times as long: folding is not quadratic."""

    def seconds(layers: int) -> float:
        helper = onnx.helper
        nodes = []
        for k in range(layers):
            nodes += [
                helper.make_node("Shape", [f"x{k}"], [f"shape{k}"]),
                helper.make_node("Gather", [f"shape{k}", "one"], [f"size{k}"]),
                helper.make_node("Unsqueeze", [f"size{k}", "axes"], [f"list{k}"]),
                helper.make_node("Concat", [f"list{k}", "rest"], [f"whole{k}"], axis=0),
                helper.make_node("Reshape", [f"x{k}", f"whole{k}"], [f"r{k}"]),
                helper.make_node("Add", [f"r{k}", f"x{k}"], [f"x{k + 1}"]),
            ]
        integers = onnx.numpy_helper.from_array
        graph = helper.make_graph(
            nodes,
            "chain",
            [helper.make_tensor_value_info("x0", 1, (2, 3))],
            [helper.make_tensor_value_info(f"x{layers}", 1, (2, 3))],
            [
                integers(np.asarray(0), "one"),
                integers(np.asarray([0]), "axes"),
                integers(np.asarray([3]), "rest"),
            ],
        )
        path = tmp_path / f"{layers}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
        best = float("inf")
        for _ in range(3):
            begin = process_time()
            graph_of = load_model(path)
            best = min(best, process_time() - begin)
        assert len(graph_of.operators) == layers
        return best

    # In proportion to the square it would be a hundred times as long.
    assert seconds(600) < 40 * seconds(60)
