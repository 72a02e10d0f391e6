"""Sessions with onnxruntime's interface: shapes, names, providers, bindings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import cpembed.integrations.onnxruntime as ort  # noqa: E402
from cpembed.errors import CpembedError, LoweringError, ModelError, WorkloadError  # noqa: E402
from cpembed.graph.graph import Graph, evaluate  # noqa: E402

RNG = np.random.default_rng(5)
WEIGHTS = RNG.standard_normal((6, 4)).astype(np.float32)


def model(batch: int | str | None, operator: str = "Relu") -> Any:
    """``y = operator(x W)``, and the product ``xw`` as a second output."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node(operator, ["xw"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "two outputs",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 6])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 4]),
            helper.make_tensor_value_info("xw", TensorProto.FLOAT, [batch, 4]),
        ],
        [numpy_helper.from_array(WEIGHTS, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def saved(folder: Path, *arguments: Any) -> Path:
    path = folder / "model.onnx"
    onnx.save(model(*arguments), path)
    return path


class Evaluated:
    """A network run by its definition, in place of a compiled one."""

    def __init__(self, graph: Graph, target: str, threads: int) -> None:
        self.graph, self.target, self.threads, self.closed = graph, target, threads, False

    def run(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return evaluate(self.graph, inputs, keep=lambda name: False)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> list[Evaluated]:
    """The networks that are compiled."""
    compiled: list[Evaluated] = []

    def compile_model(graph: Graph, target: str, *, threads: int = 0) -> Evaluated:
        compiled.append(Evaluated(graph, target, threads))
        return compiled[-1]

    monkeypatch.setattr(ort, "compile_model", compile_model)
    return compiled


def inputs(batch: int) -> dict[str, Any]:
    return {"x": RNG.standard_normal((batch, 6)).astype(np.float32)}


def assert_right(results: list[Any], feed: Mapping[str, Any]) -> None:
    product = feed["x"] @ WEIGHTS
    for result, expected in zip(results, (np.maximum(product, 0), product), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_a_model_of_fixed_shapes_is_compiled_at_once(
    networks: list[Evaluated], tmp_path: Path
) -> None:
    session = ort.InferenceSession(saved(tmp_path, 2))
    assert len(networks) == len(session.networks) == 1
    feed = inputs(2)
    assert_right(session.run(None, feed), feed)
    assert_right(session.run([], feed), feed)
    assert_right(session.run(["xw", "y"], feed)[::-1], feed)
    assert len(networks) == 1


@pytest.mark.parametrize("batch", ["batch", None])
def test_open_shapes_are_compiled_as_they_come(
    networks: list[Evaluated], tmp_path: Path, batch: str | None
) -> None:
    session = ort.InferenceSession(str(saved(tmp_path, batch)))
    assert not networks
    for rows in (1, 3, 1, 3):
        feed = inputs(rows)
        assert_right(session.run(None, feed), feed)
    assert len(networks) == 2
    (x,), (y, xw) = session.get_inputs(), session.get_outputs()
    assert (x.name, x.type, x.shape) == ("x", "tensor(float)", [batch, 6])
    assert (y.name, xw.name, y.shape) == ("y", "xw", [batch, 4])


def test_the_network_that_was_used_least_recently_is_closed(
    networks: list[Evaluated], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort, "MOST_NETWORKS", 2)
    session = ort.InferenceSession(saved(tmp_path, "n"))
    for rows in (1, 2, 1, 3, 1):
        feed = inputs(rows)
        assert_right(session.run(None, feed), feed)
    assert [network.closed for network in networks] == [False, True, False]


def test_bytes_options_and_providers(networks: list[Evaluated]) -> None:
    class Options:
        intra_op_num_threads = 3

    content = model(2).SerializeToString()
    ort.InferenceSession(content, Options())
    ort.InferenceSession(content, providers=[ort.PROVIDER], provider_options=[{"threads": 2}])
    session = ort.InferenceSession(
        content, Options(), providers=[(ort.PROVIDER, {"target": "avx2_int8", "threads": 1})]
    )
    assert [(n.target, n.threads) for n in networks] == [
        ("native", 3),
        ("native", 2),
        ("avx2_int8", 1),
    ]
    assert session.get_providers() == [ort.PROVIDER]
    assert session.get_provider_options() == {ort.PROVIDER: {"target": "avx2_int8", "threads": "1"}}
    with pytest.warns(UserWarning, match="'CUDAExecutionProvider' is left out"):
        ort.InferenceSession(content, providers=["CUDAExecutionProvider"])
    with pytest.raises(ModelError, match="no option 'tarjet'"):
        ort.InferenceSession(content, providers=[(ort.PROVIDER, {"tarjet": "native"})])


@pytest.mark.parametrize("threads", [-1, "two", 1.5])
def test_a_wrong_number_of_threads_is_told_when_the_session_is_made(
    networks: list[Evaluated], tmp_path: Path, threads: Any
) -> None:
    # Open shapes, which are compiled at the first call only.
    path = tmp_path / "open.onnx"
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "open", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="no number of threads"):
        ort.InferenceSession(path, providers=[(ort.PROVIDER, {"threads": threads})])
    assert not networks


def test_wrong_names_and_arrays_are_one_line(networks: list[Evaluated], tmp_path: Path) -> None:
    session = ort.InferenceSession(saved(tmp_path, "n"))
    feed = inputs(2)
    cases: list[tuple[list[str] | None, dict[str, Any], str]] = [
        (["z"], feed, "has no output z: its outputs are y, xw"),
        (None, {}, "input x is missing"),
        (None, {**feed, "z": feed["x"]}, "input z is none of the model's"),
        (None, {"x": feed["x"][0]}, "1"),
        (None, {"x": np.ones((2, 5), np.float32)}, "6"),
    ]
    for outputs, arrays, message in cases:
        with pytest.raises(CpembedError, match=message) as caught:
            session.run(outputs, arrays)
        assert "\n" not in str(caught.value)


def test_a_binding(networks: list[Evaluated], tmp_path: Path) -> None:
    session, feed = ort.InferenceSession(saved(tmp_path, 2)), inputs(2)
    binding = session.io_binding()
    binding.bind_cpu_input("x", feed["x"])
    binding.bind_output("y")
    binding.bind_output("xw")
    with pytest.raises(WorkloadError, match="y is not computed yet"):
        binding.copy_outputs_to_cpu()
    session.run_with_iobinding(binding)
    assert_right(binding.copy_outputs_to_cpu(), feed)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ModelError, match="not an ONNX model"):
        ort.InferenceSession(path)


def test_onnxruntime_runs_what_cannot_be_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")

    def refuse(graph: Graph, target: str, *, threads: int = 0) -> Any:
        raise LoweringError("nothing compiles this")

    monkeypatch.setattr(ort, "compile_model", refuse)
    path, feed = saved(tmp_path, 2), inputs(2)
    with pytest.raises(LoweringError, match="nothing compiles this"):
        ort.InferenceSession(path)
    with pytest.warns(ort.FallbackWarning, match="nothing compiles this"):
        session = ort.InferenceSession(path, providers=[ort.PROVIDER, ort.FALLBACK_PROVIDER])
    assert not session.networks
    assert_right(session.run(None, feed), feed)


def test_other_names_are_onnxruntimes_own() -> None:
    original = pytest.importorskip("onnxruntime")
    assert ort.SessionOptions is original.SessionOptions
    assert ort.get_available_providers() == [ort.PROVIDER, ort.FALLBACK_PROVIDER]
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = ort.no_such_name


@pytest.mark.slow
def test_compiled_models_against_onnxruntime(tmp_path: Path) -> None:
    original = pytest.importorskip("onnxruntime")
    path = saved(tmp_path, "batch", "Sigmoid")
    session, referee = ort.InferenceSession(path), original.InferenceSession(path)
    for rows in (1, 5):
        feed = inputs(rows)
        for mine, reference in zip(session.run(None, feed), referee.run(None, feed), strict=True):
            np.testing.assert_allclose(mine, reference, rtol=1e-5, atol=1e-5)
