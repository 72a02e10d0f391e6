# pyright: basic
"""Networks of every kind of shape, compiled and run, beside their definitions and ONNX Runtime."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpembed.graph.graph import Graph
from cpembed.hw.loader import load_hardware_spec
from cpembed.targets.registry import missing_for

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from tests.integration.shapes import SHAPES, made  # noqa: E402

CANDIDATES = ("avx512_vnni", "avx_vnni", "avx2_int8")
FLOAT = onnx.TensorProto.FLOAT


@pytest.fixture(scope="module")
def target() -> str:
    """The first target that this machine executes."""
    for name in CANDIDATES:
        if not missing_for(load_hardware_spec(name)):
            return name
    pytest.skip(f"the processor has none of {', '.join(CANDIDATES)}")


def outputs_of(path: Path, target: str, folder: Path, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Of a model whose every operator was compared with its definition."""
    from cpembed.frontends import load_model
    from cpembed.network.plan import Planning
    from cpembed.network.service import NetworkRequest, network

    asked = NetworkRequest(target, folder, Planning(timeout=10.0), times=False)
    result = network(load_model(path, None), asked, inputs)
    wrong = [o for o in result.document["operators"] if not o["verified"]]
    assert not wrong
    return dict(result.run.outputs)


def of_onnx_runtime(path: Path, inputs: Mapping[str, Any]) -> dict[str, Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(inputs)), strict=True))


def inputs_of(path: Path) -> dict[str, Any]:
    from cpembed.frontends import load_model
    from cpembed.network.inputs import random_inputs

    graph: Graph = load_model(path, None)
    return {
        name: array if array.dtype == np.float32 else array % 7
        for name, array in random_inputs(graph, 1).items()
    }


def alike(found: Mapping[str, Any], wanted: Mapping[str, Any], least: float) -> None:
    assert found.keys() == wanted.keys()
    for name, other in wanted.items():
        assert (found[name].shape, found[name].dtype) == (other.shape, other.dtype)
        a, b = found[name].reshape(-1), other.reshape(-1)
        if not np.allclose(a, b, rtol=1e-4, atol=1e-4):
            assert np.corrcoef(a, b)[0, 1] > least, name


@pytest.mark.slow
@pytest.mark.parametrize("how", ["float", "unsigned", "signed", "dynamic"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_model_of_shapes_that_nobody_tuned_for(
    name: str, how: str, target: str, tmp_path: Path
) -> None:
    from onnxruntime.quantization import quantize_dynamic

    from tests.models.quantization import quantized

    whole, path = tmp_path / "whole.onnx", tmp_path / f"{name}.onnx"
    onnx.save(made(name), whole)
    if how == "dynamic":
        quantize_dynamic(whole, path)
    elif how != "float":
        quantized(whole, path, signed=how == "signed")
    path = path if path.exists() else whole
    inputs = inputs_of(path)
    found = outputs_of(path, target, tmp_path / "library", inputs)
    alike(found, of_onnx_runtime(path, inputs), 0.995)


def model(path: Path, nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any]) -> Path:
    def tensors(of: dict[str, Any]) -> list[Any]:
        return [onnx.helper.make_tensor_value_info(name, *kind) for name, kind in of.items()]

    weights = onnx.numpy_helper.from_array(np.eye(8, k=1, dtype=np.float32), "W")
    graph = onnx.helper.make_graph(nodes, "names", tensors(inputs), tensors(outputs), [weights])
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def test_names_of_tensors_and_what_is_returned_without_being_computed(
    target: str, tmp_path: Path
) -> None:
    """Names that others could be made from, an input and a constant as outputs, a Boolean input, an
    input that nothing reads."""
    node = onnx.helper.make_node
    odd = '"quoted" \\ */ <b>&amp; %s {0}'
    path = model(
        tmp_path / "names.onnx",
        [
            node("MatMul", ["x.result", "W"], ["x"], name="/product/x:0"),
            node("Relu", ["x"], ["x@row-major"], name="/product/x 0"),
            node("Where", ["mask", "x", "x.result"], [odd]),
            node("Identity", ["x.result"], ["x.result.result"]),
            node("Identity", ["W"], ["constant"]),
        ],
        {"x.result": (FLOAT, [2, 8]), "mask": (onnx.TensorProto.BOOL, [8]), "idle": (FLOAT, [])},
        {
            **dict.fromkeys(("x", "x@row-major", odd, "x.result.result"), (FLOAT, [2, 8])),
            "x.result": (FLOAT, [2, 8]),
            "constant": (FLOAT, [8, 8]),
            "mask": (onnx.TensorProto.BOOL, [8]),
        },
    )
    inputs = inputs_of(path) | {"mask": np.arange(8) % 3 == 0}
    found = outputs_of(path, target, tmp_path / "library", inputs)
    wanted = of_onnx_runtime(path, inputs)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert np.array_equal(found[name], array), name


@pytest.mark.slow
def test_what_is_broadcast_to_an_image_lies_in_its_order(target: str, tmp_path: Path) -> None:
    onnx.save(made("normalized"), tmp_path / "model.onnx")
    inputs = inputs_of(tmp_path / "model.onnx")
    found = outputs_of(tmp_path / "model.onnx", target, tmp_path / "library", inputs)
    alike(found, of_onnx_runtime(tmp_path / "model.onnx", inputs), 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [5.0, 9.0])
def test_an_interrupt_leaves_nothing_running(seconds: float, target: str, tmp_path: Path) -> None:
    onnx.save(made("unet"), tmp_path / "model.onnx")
    from tests.models.quantization import quantized

    path = quantized(tmp_path / "model.onnx", tmp_path / "int8.onnx")
    environment = {**os.environ, "CPEMBED_NETWORK_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "cpembed", "network", str(path), "--target", target]
    command += ["--save", str(tmp_path / "library")]
    called = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        start_new_session=True,
    )  # fmt: skip
    time.sleep(seconds)
    workers = subprocess.run(
        ["pgrep", "-P", str(called.pid)], capture_output=True, text=True
    ).stdout.split()
    os.killpg(called.pid, signal.SIGINT)
    out, error = called.communicate(timeout=20)
    assert (called.returncode, out, error.strip()) == (130, "", "cpembed: interrupted")
    assert not any(Path(f"/proc/{worker}/exe").exists() for worker in workers)
    assert not (tmp_path / "library").exists()
