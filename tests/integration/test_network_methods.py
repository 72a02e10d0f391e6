"""Networks whose convolutions run by Winograd's method or im2col, compiled and run on this CPU."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpembed.codegen.epilogue import Epilogue, Residual
from cpembed.driver.options import MethodName
from cpembed.errors import BackendUnavailable
from cpembed.export.layout import workspace_of
from cpembed.export.program import Role
from cpembed.frontends.products import Window, convolution
from cpembed.graph.graph import Graph, Operator, evaluate
from cpembed.graph.kinds import Product, TensorType
from cpembed.network.build import compile_network
from cpembed.network.executions import Execution
from cpembed.network.inputs import random_inputs
from cpembed.network.kernel_cache import Cache
from cpembed.network.plan import Planning
from cpembed.network.product_executions import ProductExecutions
from cpembed.network.service import NetworkRequest, NetworkResult, network, network_plan
from cpembed.report.network import report
from cpembed.transform.methods.error_growth import MOST_GROWTH
from tests.features import needs

TARGET = "avx2_f32"
needs_fma = needs(TARGET)


@dataclass
class Networks:
    """A chain of convolutions while it is built."""

    generator: np.random.Generator
    shape: tuple[int, ...]
    operators: list[Operator] = field(default_factory=list[Operator])
    constants: dict[str, Any] = field(default_factory=dict[str, Any])
    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    def convolution(
        self,
        filters: int,
        taps: tuple[int, ...] = (3, 3),
        *,
        stride: int = 1,
        padding: int = 1,
        groups: int = 1,
        epilogue: Epilogue | None = None,
        residual: str = "",
    ) -> str:
        """Add a convolution of the last result, and return its result."""
        number = len(self.operators)
        source = f"t{number - 1}" if number else "x"
        shape = self.tensors.get(source, self.shape)
        steps = len(taps) * (stride,), len(taps) * (1,), len(taps) * (padding,)
        window = Window(
            taps=taps, strides=steps[0], dilations=steps[1], before=steps[2], after=steps[2]
        )
        weights = (filters, shape[1] // groups, *taps)
        form = convolution(shape, weights, window, groups=groups, dtypes=("float32", "float32"))
        names = [source, f"w{number}"]
        scale = np.sqrt(2 / np.prod(weights[1:]))
        self.constants[names[1]] = (self._random(weights) * scale).astype(np.float32)
        for vector in () if epilogue is None else epilogue.vectors:
            names.append(f"v{number}{vector}")
            self.constants[names[-1]] = self._random((filters,))
        names += [residual] if residual else []
        product = Product(form.computation, form.shape, epilogue=epilogue)
        result = f"t{number}"
        self.operators.append(Operator(f"conv{number}", product, tuple(names), (result,)))
        self.tensors[result] = form.shape
        return result

    def graph(self, name: str = "chain") -> Graph:
        last = self.operators[-1].output
        inputs = {"x": TensorType(self.shape, "float32")}
        return Graph(name, inputs, (last,), self.constants, operators=tuple(self.operators))

    def _random(self, shape: tuple[int, ...]) -> Any:
        return self.generator.standard_normal(shape).astype(np.float32)


def _residual_block(channels: int = 16, size: int = 10, samples: int = 1) -> Graph:
    """Two convolutions, the second of which adds the input of the first."""
    made = Networks(np.random.default_rng(1), (samples, channels, size, size))
    steps = Epilogue("float32", bias=True, relu=True)
    first = made.convolution(channels, epilogue=steps)
    made.convolution(channels, epilogue=steps)
    added = Epilogue("float32", scale=True, bias=True, residual=Residual("float32", relu=True))
    made.convolution(channels, epilogue=added, residual=first)
    return made.graph("block")


def _run(graph: Graph, method: MethodName, folder: Path | None = None) -> NetworkResult:
    request = NetworkRequest(TARGET, folder, Planning(method=method), times=False, name="methods")
    return network(graph, request, random_inputs(graph, 3))


def _methods(document: dict[str, Any]) -> list[str]:
    return [o["method"] for o in document["operators"] if o["kind"] == "product"]


def _is_near(graph: Graph, result: NetworkResult) -> bool:
    expected = evaluate(graph, random_inputs(graph, 3))
    return all(
        np.abs(result.run.outputs[name] - expected[name]).max()
        <= 1e-4 * np.abs(expected[name]).max()
        for name in graph.outputs
    )


@needs_fma
def test_a_residual_block_by_tiles_of_four(tmp_path: Path) -> None:
    graph = _residual_block()
    result = _run(graph, "winograd_4x4", tmp_path / "lib")
    document = result.document
    assert _methods(document) == ["winograd_4x4"] * 3
    assert not result.failed
    assert _is_near(graph, result)
    for operator in document["operators"]:
        assert operator["verified"]
        assert operator["verified_with_special_values"]
        assert 0 < operator["error"]["growth"] <= MOST_GROWTH
        assert operator["embedded_on"]
        assert operator["product"].startswith("M[e, x, k] += ")
        assert operator["products"] >= 1
        assert (
            operator["error"]["growth"] <= 1.15 * operator["expected_growth"] <= MOST_GROWTH * 1.15
        )
    text = "\n".join(str(block) for block in report(document))
    assert "conv2d by winograd_4x4, error x" in text
    assert "3 by winograd_4x4; errors against float64 up to x" in text
    json.dumps(document)
    _check_library(tmp_path, graph, result)


def _check_library(folder: Path, graph: Graph, result: NetworkResult) -> None:
    """Load the library in a process that has neither this package nor a compiler."""
    np.save(folder / "x.npy", random_inputs(graph, 3)["x"])
    program = (
        "import sys, numpy as np\n"
        f"sys.path.insert(0, {str(folder / 'lib')!r})\n"
        "import methods\n"
        "for threads in (1, 2):\n"
        "    with methods.Library(threads=threads) as library:\n"
        f"        (result,) = library.run(np.load({str(folder / 'x.npy')!r}))\n"
        f"    np.save({str(folder)!r} + f'/result{{threads}}.npy', result)\n"
        "assert not any(name.startswith(('tvm', 'cpembed')) for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=folder)
    (expected,) = result.run.outputs.values()
    for threads in (1, 2):
        loaded = np.load(folder / f"result{threads}.npy")
        # The order of sums does not depend on the number of threads.
        assert np.array_equal(loaded, expected)


@needs_fma
def test_transformed_data_share_the_workspace(tmp_path: Path) -> None:
    graph = _residual_block()
    planning = Planning(method="winograd_4x4")
    compiled = compile_network(graph, TARGET, tmp_path, planning, name="memory")
    program = compiled.network.program
    transformed = [b for b in program.buffers if b.name.split(".")[0].startswith("conv")]
    assert len(transformed) == 6
    assert all(b.role is Role.WORKSPACE and b.is_shared for b in transformed)
    # V and M of three convolutions, of which those of one are needed at a time.
    sizes = sum(buffer.bytes for buffer in transformed)
    assert workspace_of(program).bytes < sizes
    # Weights are constants of 36 places for 9 taps, and are not transformed again.
    weights = [b for b in program.with_role(Role.CONSTANT) if b.elements >= 36 * 16 * 16]
    assert len(weights) == 3
    assert not program.prepare


def _random_network(seed: int) -> Graph:
    draw = random.Random(seed)
    axes = draw.choice((1, 2, 2, 2, 3))
    channels = draw.choice((6, 16, 32))
    sizes = [draw.randint(5, 13 if axes < 3 else 6) for _ in range(axes)]
    made = Networks(np.random.default_rng(seed), (draw.randint(1, 2), channels, *sizes))
    last, previous = "", ""
    for _ in range(draw.randint(1, 3)):
        groups = draw.choice((1, 1, 2))
        taps = tuple(draw.choice((3, 3, 1, 5)) for _ in range(axes))
        shape = made.tensors.get(last, made.shape)
        same = draw.random() < 0.6
        filters = shape[1] if same else draw.choice((8, 16, 32))
        stride = 1 if same or min(shape[2:]) < 5 else draw.choice((1, 2))
        padding = 1 if same else draw.randint(1, 2)
        if same or min(shape[2:]) < 5:
            taps = (3,) * axes
        steps, residual = None, ""
        if draw.random() < 0.8:
            if same and last and previous and made.tensors[previous] == made.tensors[last]:
                residual = previous
            steps = Epilogue(
                "float32",
                bias=draw.random() < 0.7,
                scale=draw.random() < 0.3,
                relu=draw.random() < 0.6,
                residual=Residual("float32", relu=draw.random() < 0.5) if residual else None,
            )
        previous, last = (
            last,
            made.convolution(
                filters,
                taps,
                stride=stride,
                padding=padding,
                groups=groups,
                epilogue=steps,
                residual=residual,
            ),
        )
    return made.graph(f"random{seed}")


def _assign_at_random(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Let the assignment minimize random costs, so that it combines any executions."""
    draw, choices = random.Random(seed), ProductExecutions.choices

    def costed(executions: ProductExecutions, operator: Operator) -> tuple[Execution, ...]:
        return tuple(
            replace(execution, cost_us=draw.uniform(0.0, 1e6))
            for execution in choices(executions, operator)
        )

    monkeypatch.setattr(ProductExecutions, "choices", costed)


@needs_fma
@pytest.mark.quick(3)
@pytest.mark.parametrize("method", ["winograd_2x2", "winograd_4x4", "explicit", "implicit"])
@pytest.mark.parametrize("seed", range(6))
def test_every_execution_of_a_product_can_be_compiled(
    seed: int, method: MethodName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A residual may lie in another order than the result, for example."""
    graph = _residual_block(32)
    _assign_at_random(monkeypatch, seed)
    result = _run(graph, method)
    assert not result.failed
    assert _is_near(graph, result)


def _bytes_block(seed: int) -> Graph:
    """Convolutions of bytes, one with a residual; zero points and data at the ends of types."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    channels, size = draw.choice((16, 24, 32)), draw.randint(5, 12)
    types, shape = [draw.choice(("uint8", "int8")) for _ in range(4)], (1, channels, size, size)
    window = Window(taps=(3, 3), strides=(1, 1), dilations=(1, 1), before=(1, 1), after=(1, 1))
    operators: list[Operator] = []
    constants: dict[str, Any] = {}

    def end(dtype: str) -> int:
        limits = np.iinfo(dtype)
        return draw.choice((int(limits.min), int(limits.max), 0))

    for number in range(3):
        form = convolution(
            shape, (channels, channels, 3, 3), window, dtypes=(types[number], "int8")
        )
        residual = None
        if number == 2:
            # It adds the input of the first convolution.
            residual = Residual(
                types[0],
                draw.uniform(0.5, 2),
                draw.uniform(0.5, 2),
                end(types[0]),
                end(types[3]),
                rounds=draw.random() < 0.5,
            )
        epilogue = Epilogue(
            types[number + 1],
            scale=True,
            bias=True,
            zero_point=end(types[number + 1]),
            residual=residual,
        )
        product = Product(
            form.computation, form.shape, epilogue=epilogue, padding=end(types[number])
        )
        inputs = ["x" if number == 0 else f"t{number - 1}", f"w{number}"]
        inputs += [f"v{number}{name}" for name in epilogue.vectors] + ["x"] * (number == 2)
        extremes = draw.random() < 0.5
        weights = numbers.choice([-128, 127], (channels, channels, 3, 3))
        if not extremes:
            weights = numbers.integers(-128, 128, weights.shape)
        constants[f"w{number}"] = weights.astype(np.int8)
        for name in epilogue.vectors:
            bias = numbers.integers(-(2**18), 2**18, channels).astype(np.int32)
            scale = (numbers.uniform(0.5, 2, channels) / (3000 * channels**0.5)).astype(np.float32)
            constants[f"v{number}{name}"] = bias if name == "@bias" else scale
        operators.append(Operator(f"conv{number}", product, tuple(inputs), (f"t{number}",)))
    arguments = {"x": TensorType(shape, types[0])}
    return Graph("bytes", arguments, ("t2",), constants, operators=tuple(operators))


@needs_fma
@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(10))
def test_bytes_by_tiles_of_two_are_exact(seed: int) -> None:
    graph = _bytes_block(seed)
    numbers = np.random.default_rng(seed)
    limits = np.iinfo(graph.inputs["x"].dtype)
    for extremes in (False, True):
        shape = graph.inputs["x"].shape
        x = numbers.integers(limits.min, limits.max, shape, endpoint=True)
        x = numbers.choice([limits.min, limits.max], shape) if extremes else x
        inputs = {"x": x.astype(graph.inputs["x"].dtype)}
        planning = Planning(method="winograd_2x2")
        result = network(graph, NetworkRequest("native", None, planning, times=False), inputs)
        assert _methods(result.document) == ["winograd_2x2"] * 3
        # A zero point that moves by 128 may leave a table before the first convolution.
        products = [o for o in result.document["operators"] if o["kind"] == "product"]
        assert all(product["embedded_on"] == "avx2_int16" for product in products)
        assert all(product["expected_growth"] is None for product in products)
        assert not result.failed
        assert np.array_equal(result.run.outputs["t2"], evaluate(graph, inputs)["t2"])
        report(result.document)


@pytest.mark.slow
@needs_fma
@pytest.mark.parametrize("method", ["winograd_2x2", "winograd_4x4", "explicit", "auto"])
@pytest.mark.parametrize("seed", range(8))
def test_random_networks(seed: int, method: MethodName) -> None:
    graph = _random_network(seed)
    result = _run(graph, method)
    assert not result.failed
    assert _is_near(graph, result)


@pytest.mark.slow
@needs_fma
def test_the_assignment_chooses_a_method_where_it_is_fastest() -> None:
    graph = _residual_block(64, 28)
    document = network_plan(graph, TARGET, Planning())
    assert "winograd_4x4" in _methods(document)
    own = network_plan(graph, TARGET, Planning(method="implicit"))
    assert _methods(own) == ["implicit"] * 3
    assert document["totals"]["predicted_us"] < own["totals"]["predicted_us"]
    assert document["assignment"]["proven"]


@pytest.mark.slow
@needs_fma
def test_measured_costs_compare_methods(tmp_path: Path) -> None:
    graph = _residual_block(32, 12)
    planning = Planning(method="winograd_2x2", measures=True, cache=Cache(tmp_path))
    document = network_plan(graph, TARGET, planning)
    assert _methods(document) == ["winograd_2x2"] * 3
    assert document["assignment"]["costs"] == "measured"
    assert all(operator["predicted_us"] > 0 for operator in document["operators"])


@pytest.mark.slow
@needs_fma
def test_strides_and_single_channels_stay_sums() -> None:
    made = Networks(np.random.default_rng(5), (1, 16, 12, 12))
    made.convolution(16, stride=2)
    made.convolution(16, groups=16)
    made.convolution(16, (1, 1), padding=0)
    result = _run(made.graph(), "winograd_4x4")
    assert _methods(result.document) == ["implicit"] * 3
    assert not result.failed


def test_a_target_without_libraries_names_the_option() -> None:
    graph = _residual_block()
    request = NetworkRequest("vta_1x16x16", planning=Planning(method="winograd_4x4"))
    with pytest.raises(BackendUnavailable, match="leave --method winograd_4x4 out"):
        network(graph, request, random_inputs(graph, 1))


@pytest.mark.slow
@needs_fma
def test_the_command_line_names_a_method(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    draw = np.random.default_rng(7)
    weights = draw.standard_normal((16, 16, 3, 3)).astype(np.float32)
    image = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, 16, 10, 10))
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (1, 16, 10, 10))
    constant = onnx.numpy_helper.from_array(weights, "w")
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], pads=(1, 1, 1, 1))
    graph = onnx.helper.make_graph([node], "conv", [image], [result], [constant])
    path = tmp_path / "conv.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)
    words = (path, "--target", TARGET, "--method")
    document = json.loads(_command("network", *words, "winograd_2x2", "--json"))
    (operator,) = document["operators"]
    assert operator["method"] == "winograd_2x2"
    assert operator["error"]["growth"] <= MOST_GROWTH
    assert "conv2d by winograd_2x2" in _command("network", *words, "winograd_2x2")
    _command("build", *words, "implicit", "-o", tmp_path / "own")
    _command("build", *words, "winograd_2x2", "-o", tmp_path / "transformed")
    sizes = [
        sum(file.stat().st_size for file in (tmp_path / folder).glob("*.so"))
        for folder in ("own", "transformed")
    ]
    # Sixteen places for nine taps.
    assert sizes[1] - sizes[0] > 16 * 16 * 7 * 4


def _command(*words: Any) -> str:
    command = [sys.executable, "-m", "cpembed", *map(str, words)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr
    return process.stdout
