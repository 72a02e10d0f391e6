"""Networks that are read from ONNX and run on emulated Tensor Cores, product by product."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.codegen.epilogue import Epilogue
from cpembed.driver.matching import network_units
from cpembed.frontends import load_model
from cpembed.graph.graph import Graph
from cpembed.graph.kinds import Attention, Product
from cpembed.network.build import prepared_and_named
from cpembed.network.inputs import random_inputs
from cpembed.network.stepwise import StepwiseRun, run_stepwise
from cpembed.network.stepwise_document import stepwise_document
from cpembed.steps import silent
from cpembed.targets.cuda.emulator.executor import COMPILER

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
needs_compiler = pytest.mark.skipif(bool(COMPILER.missing()), reason="no C++ compiler")

Array = NDArray[Any]
Nodes = Sequence[tuple[Any, ...]]


class Model:
    """ONNX model in the making: inputs, constants and nodes, each an operator of one output."""

    def __init__(self, seed: int, opset: int = 20) -> None:
        self.random = np.random.default_rng(seed)
        self.opset = opset
        self.inputs: dict[str, tuple[int, ...]] = {}
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def input(self, name: str, *shape: int) -> str:
        self.inputs[name] = shape
        return name

    def constant(self, array: Array) -> str:
        name = f"constant{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(array, name))
        return name

    def weights(self, *shape: int) -> str:
        scale = 1 / np.sqrt(np.prod(shape[1:]) if len(shape) > 2 else np.prod(shape[:1]))
        return self.constant((self.random.standard_normal(shape) * scale).astype(np.float32))

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator}{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(operator, [*inputs], [name], name, **attributes))
        return name

    def write(self, path: Path, *outputs: str) -> Path:
        float32 = onnx.TensorProto.FLOAT
        values = [onnx.helper.make_tensor_value_info(n, float32, s) for n, s in self.inputs.items()]
        results = [onnx.helper.make_tensor_value_info(n, float32, None) for n in outputs]
        graph = onnx.helper.make_graph(self.nodes, "g", values, results, self.constants)
        opsets = [onnx.helper.make_opsetid("", self.opset)]
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
        onnx.save(model, path)
        return path


def convolutions(path: Path, seed: int) -> Path:
    """Activations of all kinds, a residual, and a sum that is read before and after its ReLU."""
    model = Model(seed)
    functions = ("HardSwish", "Sigmoid", "Elu", "Softplus", "Relu", "Gelu")
    function = functions[seed % len(functions)]
    x = model.input("x", 1, 16, 6, 6)
    y = model.node("Conv", x, model.weights(16, 16, 3, 3), model.weights(16, 1), pads=[1] * 4)
    # The bias is a vector.
    model.nodes[-1].input[2] = model.constant(model.random.normal(size=16).astype(np.float32))
    y = model.node(function, y)
    y = model.node("Conv", y, model.weights(16, 16, 1, 1))
    total = model.node("Add", y, x)
    y = model.node("Relu", total)
    y = model.node("Conv", y, model.weights(16, 16, 3, 3), pads=[1] * 4)
    return model.write(path, model.node("Add", y, total))


def perceptron(path: Path, seed: int) -> Path:
    """Two layers, GELU between them, a bias each and a residual."""
    model = Model(seed)
    x = model.input("x", 2, 16, 32)
    y = model.node("MatMul", x, model.weights(32, 48))
    y = model.node("Add", y, model.constant(model.random.normal(size=48).astype(np.float32)))
    y = model.node("Gelu", y, approximate="tanh" if seed % 2 else "none")
    y = model.node("MatMul", y, model.weights(48, 32))
    y = model.node("Add", y, model.constant(model.random.normal(size=32).astype(np.float32)))
    return model.write(path, model.node("Add", y, x))


def heads(model: Model, tensor: str, shape: Sequence[int]) -> str:
    split = model.node("Reshape", tensor, model.constant(np.array(shape)))
    return model.node("Transpose", split, perm=[0, 2, 1, 3])


def attention(path: Path, seed: int) -> Path:
    """Causal attention as products, a scale, an added mask and a softmax, with projections."""
    model = Model(seed)
    x = model.input("x", 2, 32, 64)
    q, k, v = (model.node("MatMul", x, model.weights(64, 64)) for _ in "qkv")
    q, k, v = (heads(model, each, (2, 32, 4, 16)) for each in (q, k, v))
    scores = model.node("MatMul", q, model.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = model.node("Mul", scores, model.constant(np.array(0.25, np.float32)))
    mask = np.triu(np.full((1, 1, 32, 32), -np.inf, np.float32), 1)
    weights = model.node("Softmax", model.node("Add", scores, model.constant(mask)), axis=-1)
    y = model.node("Transpose", model.node("MatMul", weights, v), perm=[0, 2, 1, 3])
    y = model.node("Reshape", y, model.constant(np.array([2, 32, 64])))
    return model.write(path, model.node("MatMul", y, model.weights(64, 64)))


def grouped_heads(path: Path, seed: int) -> Path:
    """The operator of opset 23, whose heads share keys."""
    model = Model(seed, opset=23)
    q, k, v = (model.input(n, 2, h, 32, 16) for n, h in (("q", 4), ("k", 2), ("v", 2)))
    return model.write(path, model.node("Attention", q, k, v, is_causal=1))


def masked_heads(path: Path, seed: int) -> Path:
    """A mask of each head."""
    model = Model(seed, opset=23)
    q, k, v = (model.input(n, 2, 4, 32, 16) for n in "qkv")
    mask = np.random.default_rng(seed).standard_normal((4, 32, 32)).astype(np.float32)
    mask[mask < -1] = -np.inf
    added = model.constant(mask)
    return model.write(path, model.node("Attention", q, k, v, added))


def prepared(path: Path, target: str) -> Graph:
    return prepared_and_named(load_model(path), network_units(target))


def run(path: Path, target: str) -> tuple[StepwiseRun, Array, Array]:
    """Return a network's run, and its result beside that of ONNX Runtime."""
    units = network_units(target)
    graph = prepared_and_named(load_model(path), units)
    inputs = random_inputs(graph, 1)
    result = run_stepwise(graph, units.primary, inputs, progress=silent)
    assert result.failed == ()
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, dict(inputs))
    (output,) = result.outputs.values()
    return result, output, expected


def on_host(result: StepwiseRun) -> list[str]:
    return [work.work for step in result.steps for work in step.host]


@needs_compiler
@pytest.mark.parametrize(
    "network, target, seed, products",
    [
        (convolutions, "mma_f16", 0, 3),
        (convolutions, "wgmma_f16", 1, 3),
        (perceptron, "mma_bf16", 3, 2),
        (attention, "mma_f16", 5, 6),
        (grouped_heads, "mma_f16", 6, 2),
        (grouped_heads, "wgmma_f16", 6, 2),
        (masked_heads, "mma_f16", 7, 2),
        (masked_heads, "wgmma_f16", 7, 2),
    ],
)
def test_networks_agree_with_onnx_runtime(
    network: Any, target: str, seed: int, products: int, tmp_path: Path
) -> None:
    result, output, expected = run(network(tmp_path / "m.onnx", seed), target)
    document = stepwise_document(result)
    assert document["totals"]["on_target"] == document["totals"]["products"] == products
    # Epilogues are part of the kernels: nothing but conversions and movement is left to the host.
    # Images are converted at the network's border alone.
    borders = ["NCHW to NHWC", "NHWC to NCHW"] if network is convolutions else []
    assert [work for work in on_host(result) if " to " in work] == borders
    assert {*on_host(result)} - {*borders} <= {"copy", "reshape", "transpose"}
    scale = float(np.abs(expected).max())
    tolerance = 2e-2 if "bf16" in target else 3e-3
    assert float(np.abs(output - expected).max()) <= tolerance * scale


def kinds(graph: Graph) -> list[str]:
    return [type(operator.kind).__name__ for operator in graph.operators]


def test_attention_is_one_operator_only_where_the_target_chains_products(tmp_path: Path) -> None:
    path = attention(tmp_path / "m.onnx", 0)
    assert "Attention" in kinds(prepared(path, "mma_f16"))
    assert "Attention" not in kinds(prepared(path, "mma_s8"))
    (kind,) = (
        operator.kind
        for operator in prepared(path, "mma_f16").operators
        if isinstance(operator.kind, Attention)
    )
    assert (kind.causal, kind.masked, kind.factors) == (0, False, "float16")


def test_projections_store_what_attention_reads(tmp_path: Path) -> None:
    graph = prepared(attention(tmp_path / "m.onnx", 0), "mma_f16")
    epilogues = [o.kind.epilogue for o in graph.operators if isinstance(o.kind, Product)]
    # Conversions precede the movement of heads, so that products make them.
    assert epilogues == [Epilogue("float16")] * 3 + [None]


@needs_compiler
def test_a_sum_that_is_read_twice_is_a_second_result(tmp_path: Path) -> None:
    result, *_ = run(convolutions(tmp_path / "m.onnx", 4), "mma_f16")
    kinds = [s.operator.kind for s in result.steps if isinstance(s.operator.kind, Product)]
    seconds = [kind.epilogue.second for kind in kinds if kind.epilogue is not None]
    assert [second and second.dtype for second in seconds] == [None, "float16", None]
    assert [len(step.operator.outputs) for step in result.steps].count(2) == 1


@needs_compiler
@pytest.mark.slow
def test_a_quantized_network_has_its_epilogues_in_the_kernels(tmp_path: Path) -> None:
    """Requantization and residuals included; what is left of the host is between products."""
    from tests.models.registry import TINY, write_int8

    path = write_int8("tiny", tmp_path / "tiny.onnx", **TINY["tiny"])
    result, output, expected = run(path, "mma_s8")
    document = stepwise_document(result)
    assert document["totals"]["on_target"] == document["totals"]["products"] == 7
    works = {work for work in on_host(result) if not work.startswith("padding by")}
    assert works <= {"quantize", "max pool", "mean pool", "reshape", "dequantize"}
    # A pointwise convolution has no padding, and a matrix product none either.
    padded = [s.operator.name for s in result.steps if any("padding" in w.work for w in s.host)]
    assert "Gemm_16" not in padded
    assert 0 < len(padded) < 7
    assert float(np.abs(output - expected).max()) <= 0.1 * float(np.abs(expected).max())
