"""Models cut to some of their tensors, and operators that another runtime computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx import TensorProto, helper

from cpembed.errors import ModelError, WorkloadError
from cpembed.frontends import load_model
from cpembed.graph.graph import evaluate
from cpembed.graph.kinds import Foreign
from tests.unit.frontends.onnx.referee import Array, check, model_of, session_of

X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
MASK = np.asarray([1.0, 2.0], np.float32)


def with_tail() -> onnx.ModelProto:
    """A model whose last operator is of no domain that anything knows, and has an input alone."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "first"),
        helper.make_node("Neg", ["a"], ["b"], "second"),
        helper.make_node("Strange", ["b", "mask"], ["y"], "tail", domain="nobody"),
    ]
    model = model_of(nodes, {"x": X, "mask": MASK}, {}, ["y"])
    model.opset_import.append(helper.make_opsetid("nobody", 1))
    return model


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_what_the_outputs_do_not_need_is_left_out(tmp_path: Path) -> None:
    path = saved(with_tail(), tmp_path)
    with pytest.raises(ModelError, match=r"Strange.*--outputs.*--fallback"):
        load_model(path)
    graph = load_model(path, outputs=["b", "a"])
    assert [*graph.inputs] == ["x"]
    assert graph.outputs == ("b", "a")
    results = evaluate(graph, {"x": X})
    np.testing.assert_array_equal(results["a"], np.maximum(X, 0))
    np.testing.assert_array_equal(results["b"], -np.maximum(X, 0))
    assert len(load_model(path, outputs=["a"]).operators) == 1


def test_a_name_that_no_tensor_has(tmp_path: Path) -> None:
    path = saved(with_tail(), tmp_path)
    with pytest.raises(ModelError, match=r"no tensor c to cut it at: it has .*b"):
        load_model(path, outputs=["c"])


def test_more_tensors_than_are_named_are_hinted_at(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", [a], [b]) for a, b in zip("xpqr", "pqrs", strict=True)]
    path = saved(model_of(nodes, {"x": X}, {}, ["s"]), tmp_path)
    with pytest.raises(ModelError, match=r"it has q, r, s, …$"):
        load_model(path, outputs=["nowhere"])


def test_a_fallback_is_no_remedy_where_sizes_depend_on_elements(tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"], "where")]
    with pytest.raises(ModelError, match=r"where.*--outputs$"):
        load_model(saved(model_of(nodes, {"x": X}, {}, ["y"]), tmp_path))


def test_what_a_branch_reads_is_needed(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 3])
    branch = helper.make_graph([helper.make_node("Neg", ["a"], ["z"])], "branch", [], [value])
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Exp", ["x"], ["unused"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch),
    ]
    path = saved(model_of(nodes, {"x": X}, {"c": np.asarray(True)}, ["y", "unused"]), tmp_path)
    graph = load_model(path, outputs=["y"])
    np.testing.assert_array_equal(evaluate(graph, {"x": X})["y"], -np.maximum(X, 0))
    assert len(graph.operators) == 2


# -- fallback -------------------------------------------------------------------------------------


def around_a_determinant() -> onnx.ModelProto:
    """An operator that no kernel computes between operators that kernels do."""
    square = np.random.default_rng(1).standard_normal((2, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Det", ["a"], ["d"], "determinant"),
        helper.make_node("Exp", ["d"], ["y"]),
    ]
    return model_of(nodes, {"x": square}, {}, ["y"])


def inputs_of(model: onnx.ModelProto) -> Mapping[str, Array]:
    shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(2).standard_normal(shape).astype(np.float32)}


def test_onnxruntime_computes_what_is_not_read(tmp_path: Path) -> None:
    model = around_a_determinant()
    path, inputs = saved(model, tmp_path), inputs_of(model)
    with pytest.raises(ModelError, match="Det"):
        load_model(path)
    graph = load_model(path, fallback="onnxruntime")
    (foreign,) = [o for o in graph.operators if isinstance(o.kind, Foreign)]
    assert foreign.kind.label == "Det (onnxruntime)"
    (expected,) = session_of(model).run(None, dict(inputs))
    np.testing.assert_allclose(evaluate(graph, inputs)["y"], expected, 1e-5)


def test_a_shape_that_onnxruntime_does_not_derive_is_that_for_zeros(tmp_path: Path) -> None:
    vectors = {"support_vectors": [1.0, 2.0, 3.0, -1.0, 0.5, 2.0], "n_supports": 2}
    kernel = {"kernel_type": "LINEAR", "kernel_params": [0.5, 0.0, 3.0], "rho": [0.5]}
    nodes = [
        helper.make_node("SVMRegressor", ["x"], ["a"], domain="ai.onnx.ml",
                         coefficients=[1.0, -2.0], **vectors, **kernel),
        helper.make_node("Exp", ["a"], ["y"]),
    ]  # fmt: skip
    model = model_of(nodes, {"x": X}, {}, ["y"])
    graph = load_model(saved(model, tmp_path), fallback="onnxruntime")
    assert graph.types["y"].shape == (2, 1)
    (expected,) = session_of(model).run(None, {"x": X})
    np.testing.assert_allclose(evaluate(graph, {"x": X})["y"], expected, 1e-5)


def test_a_function_computes_what_is_not_read(tmp_path: Path) -> None:
    model = around_a_determinant()
    path, inputs = saved(model, tmp_path), inputs_of(model)

    def determinant(arrays: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
        assert not attributes
        return np.linalg.det(arrays[0]).astype(np.float32)

    graph = load_model(path, fallback={"Det": determinant})
    (expected,) = session_of(model).run(None, dict(inputs))
    np.testing.assert_allclose(evaluate(graph, inputs)["y"], expected, 1e-5)
    with pytest.raises(ModelError, match="Det"):
        load_model(path, fallback={"Other": determinant})


def test_an_error_of_a_function_names_it(tmp_path: Path) -> None:
    path = saved(around_a_determinant(), tmp_path)

    def wrong(arrays: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
        raise IndexError("no such row")

    with pytest.raises(ModelError, match=r"determinant: .*Det, .*wrong, failed: IndexError: no"):
        load_model(path, fallback={"Det": wrong})


def test_a_result_of_another_type_than_for_zeros_is_an_error(tmp_path: Path) -> None:
    path = saved(around_a_determinant(), tmp_path)

    def growing(arrays: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
        return np.zeros(1 if arrays[0].any() else 2, np.float32)

    graph = load_model(path, fallback={"Det": growing})
    with pytest.raises(WorkloadError, match="may not depend on elements"):
        evaluate(graph, {"x": np.ones((2, 3, 3), np.float32)})


def test_results_whose_size_depends_on_elements_are_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"], "where")]
    path = saved(model_of(nodes, {"x": X}, {}, ["y"]), tmp_path)
    with pytest.raises(ModelError, match=r"where.*depend.*--outputs"):
        load_model(path, fallback="onnxruntime")


def test_operators_that_are_read_need_no_fallback(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    model = model_of(nodes, {"x": X}, {}, ["y"])
    graph = load_model(saved(model, tmp_path), fallback="onnxruntime")
    assert not any(isinstance(o.kind, Foreign) for o in graph.operators)
    check(model, {"x": X}, tmp_path)
