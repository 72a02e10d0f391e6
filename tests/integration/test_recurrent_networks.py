"""Recurrences from a model's file to a library: verified, beside ONNX Runtime, called from C."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")

from cpembed.frontends import load_model
from cpembed.frontends.builder import Builder
from cpembed.frontends.loops import LoopBody
from cpembed.graph.graph import Graph, evaluate
from cpembed.graph.kinds import Apply, Elementwise, Input, Number, Reduce, TensorType
from cpembed.hw.loader import load_hardware_spec
from cpembed.network.build import compile_network
from cpembed.network.run import run_network
from cpembed.network.service import NetworkRequest, network
from cpembed.steps import silent
from cpembed.targets.registry import missing_for
from tests.unit.frontends.onnx.referee import Array, single

FLOATS, BYTES = ("avx512_f32", "avx2_f32"), ("avx512_vnni", "avx_vnni", "avx2_int8")
RANDOM = np.random.default_rng(11)


def target(names: tuple[str, ...]) -> str:
    for name in names:
        if not missing_for(load_hardware_spec(name)):
            return name
    pytest.skip(f"the processor has none of {', '.join(names)}")


def f(*shape: int) -> Array:
    return (0.3 * RANDOM.standard_normal(shape)).astype(np.float32)


def recurrent(operator: str, sizes: tuple[int, int, int, int], **options: Any) -> onnx.ModelProto:
    """A layer of ``sizes`` steps, sequences, inputs and states, with lengths as an input."""
    steps, batch, size, state = sizes
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
    d = 2 if options.get("direction") == "bidirectional" else 1
    lengths = np.full(batch, steps, np.int32)
    weights = [f(d, gates * state, size), f(d, gates * state, state), f(d, 2 * gates * state)]
    outputs = 3 if operator == "LSTM" else 2
    inputs = [f(steps, batch, size), *weights, lengths]
    return single(
        operator, inputs, [1, 2, 3], outputs=outputs, version=14, hidden_size=state, **options
    )


def compiled_results(
    graph: Graph, name: str, folder: Path, inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """The results of the library, in which every operator was verified."""
    result = network(graph, NetworkRequest(target((name,)), folder, times=False), inputs)
    assert not result.failed, result.failed
    verified = {each["name"]: each["verified"] for each in result.document["operators"]}
    assert all(verified.values()), verified
    return dict(result.run.outputs)


@pytest.mark.parametrize("operator", ["LSTM", "GRU"])
def test_a_layer_with_lengths(operator: str, tmp_path: Path) -> None:
    import onnxruntime

    model = recurrent(operator, (6, 2, 5, 8), direction="bidirectional")
    file = tmp_path / "layer.onnx"
    file.write_bytes(model.SerializeToString())
    inputs = {"x0": f(6, 2, 5), "x4": np.array([4, 6], np.int32)}
    graph = load_model(file)
    results = compiled_results(graph, target(FLOATS), tmp_path, inputs)
    session = onnxruntime.InferenceSession(file.read_bytes())
    for info, expected in zip(session.get_outputs(), session.run(None, inputs), strict=True):
        np.testing.assert_allclose(results[info.name], expected, 1e-5, 1e-5)


def test_a_thousand_steps_compile_in_seconds(tmp_path: Path) -> None:
    file = tmp_path / "long.onnx"
    file.write_bytes(recurrent("GRU", (1000, 1, 8, 16)).SerializeToString())
    graph = load_model(file)
    started = time.perf_counter()
    compiled = compile_network(graph, target(FLOATS), tmp_path)
    # Without the search for embeddings it is a second; written out, it was an hour.
    assert time.perf_counter() - started < 120
    assert len(compiled.network.program.run) < 30
    inputs = {"x0": f(1000, 1, 8), "x4": np.array([1000], np.int32)}
    run = run_network(compiled, inputs, times=True, progress=silent)
    assert not run.failed
    assert run.times is not None
    assert len(run.times.steps_us) == len(compiled.network.program.run)
    expected = evaluate(graph, inputs, keep=lambda name: False)
    for name, array in expected.items():
        np.testing.assert_allclose(run.outputs[name], array, 1e-4, 1e-4)


def test_a_quantized_recurrence_multiplies_bytes(tmp_path: Path) -> None:
    def integers(*shape: int) -> Array:
        return RANDOM.integers(-100, 100, shape, np.int8)

    scale, zero = np.array([0.004], np.float32), np.array([0], np.int8)
    inputs: list[Array | None] = [
        f(5, 1, 8), integers(1, 8, 64), integers(1, 16, 64), f(1, 128), *[None] * 4,
        scale, zero, scale, zero,
    ]  # fmt: skip
    model = single(
        "DynamicQuantizeLSTM", inputs, [1, 2, 3, 8, 9, 10, 11], outputs=3,
        domain="com.microsoft", hidden_size=16,
    )  # fmt: skip
    file = tmp_path / "dynamic.onnx"
    file.write_bytes(model.SerializeToString())
    request = NetworkRequest(target(BYTES), tmp_path, times=False)
    x = {"x0": f(5, 1, 8)}
    result = network(load_model(file), request, x)
    assert not result.failed, result.failed
    products = [each for each in result.document["operators"] if each["workload"]]
    assert [each["steps"] for each in products] == [1, 5]
    assert all(each["embedded_on"] for each in products)


def doubling() -> Graph:
    """``s = s + s + x`` until its sum exceeds 100, at most ``n`` times."""
    outer = Builder("doubling")
    x = outer.input("x", TensorType((3,), "float32"))
    n = outer.input("n", TensorType((), "int64"))
    go = outer.input("go", TensorType((), "bool"))
    loop = LoopBody(outer, "loop", None, limit=n, condition=go)
    state = loop.state(x)

    def emit(expression: Any, dtype: str, *inputs: str) -> str:
        return loop.builder.add(Elementwise(expression, dtype), inputs, "step")

    a, b = Input(0), Input(1)
    twice = emit(Apply("add", (Apply("add", (a, a)), b)), "float32", state, loop.read(x))
    total = loop.builder.add(Reduce("sum", (0,), False), [twice], "sum")
    again = emit(Apply("less", (a, Number(100.0))), "bool", total)
    finals, _ = loop.emit([twice], again=again)
    return outer.graph({"y": finals[0]})


@pytest.mark.parametrize("limit, go", [(0, True), (3, True), (50, True), (50, False)])
def test_a_loop_that_a_condition_ends(limit: int, go: bool, tmp_path: Path) -> None:
    graph = doubling()
    inputs = {
        "x": np.array([1, 2, 3], np.float32),
        "n": np.asarray(limit, np.int64),
        "go": np.asarray(go),
    }
    result = network(graph, NetworkRequest(target(FLOATS), tmp_path, times=False), inputs)
    assert not result.failed, result.failed
    np.testing.assert_array_equal(result.run.outputs["y"], evaluate(graph, inputs)["y"])


def test_the_library_is_called_from_c(tmp_path: Path) -> None:
    graph = doubling()
    compile_network(graph, target(FLOATS), tmp_path, name="doubling")
    (tmp_path / "main.c").write_text(
        """
#include "doubling.h"
#include <stdio.h>
int main(void) {
  doubling_handle *handle;
  float x[3] = {1, 2, 3}, y[3];
  int64_t n = 4;
  unsigned char go = 1;
  const void *inputs[] = {x, &n, &go};
  void *outputs[] = {y};
  if (doubling_open(0, NULL, &handle) || doubling_run(handle, inputs, outputs, NULL)) return 1;
  printf("%g %g %g", y[0], y[1], y[2]);
  doubling_close(handle);
}
"""
    )
    command = ["cc", "main.c", "-L.", "-ldoubling", "-Wl,-rpath,$ORIGIN", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    run = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, check=True)
    inputs = {
        "x": np.array([1, 2, 3], np.float32),
        "n": np.asarray(4, np.int64),
        "go": np.asarray(True),
    }
    assert [float(text) for text in run.stdout.split()] == evaluate(graph, inputs)["y"].tolist()


def test_what_a_loop_moves_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that is not handed on is a difference, though every operator is right."""
    from cpembed.network import loop_program

    class Forgetting:
        def __getattr__(self, name: str) -> Any:
            moving = loop_program_moving
            return moving.FINISH if name == "SWAP" else getattr(moving, name)

    loop_program_moving = loop_program.Moving
    monkeypatch.setattr(loop_program, "Moving", Forgetting())
    graph = doubling()
    inputs = {"x": f(3), "n": np.asarray(5, np.int64), "go": np.asarray(True)}
    result = network(graph, NetworkRequest(target(FLOATS), tmp_path, times=False), inputs)
    assert "loop" in {verdict.operator for verdict in result.failed}
