"""Networks compiled by ``relax_pipeline=`` alone; what TVM makes of them is the second source."""

import math
from functools import cache

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from cpembed.errors import BackendUnavailable
from cpembed.hw.loader import load_hardware_spec
from cpembed.integrations import tvm as plugin
from cpembed.integrations.tvm.reports import NOBODY
from cpembed.targets.cuda.build import cuda_target
from cpembed.targets.cuda.relax import Emulation
from cpembed.targets.registry import missing_for
from tests.unit.integrations.tvm.modules import Array, called, module_of, processor, random, run

IMAGE = (1, 8, 8, 8)


def weights(seed: int, *shape: int):
    return relax.const(random(seed, shape))


def bias(seed: int, *shape: int):
    return relax.const(random(seed, shape, "int32", 2**10))


def network(dtype: str) -> tvm.IRModule:
    """A layer of 64 filters, one in groups, pooling, a residual, and a matrix product."""

    def requantized(sums, scale):
        if dtype == "int8":
            sums = op.right_shift(sums, relax.const(9, "int32"))
            return op.astype(op.clip(sums, -128, 127), dtype)
        scaled = op.multiply(op.astype(sums, "float32"), relax.const(scale, "float32"))
        return op.astype(op.clip(op.round(scaled), 0, 255), dtype)

    def build(image):
        emit = relax.BlockBuilder.current().emit
        sums = op.nn.conv2d(image, weights(1, 64, 8, 3, 3), padding=1, out_dtype="int32")
        first = emit(requantized(op.nn.relu(op.add(sums, bias(2, 1, 64, 1, 1))), 0.003))
        given = {"padding": 1, "groups": 4, "strides": 2, "out_dtype": "int32"}
        sums = op.nn.conv2d(first, weights(3, 32, 16, 3, 3), **given)
        second = emit(requantized(op.add(sums, bias(4, 1, 32, 1, 1)), 0.001))
        pooled = emit(op.nn.max_pool2d(second, (2, 2), strides=(2, 2)))
        sums = op.nn.conv2d(pooled, weights(5, 32, 32, 1, 1), out_dtype="int32")
        third = emit(requantized(op.add(emit(sums), op.astype(pooled, "int32")), 0.005))
        flat = emit(op.reshape(third, (1, 128)))
        return op.add(op.matmul(flat, weights(6, 128, 10), out_dtype="int32"), bias(7, 10))

    return module_of(build, image=(IMAGE, dtype))


@cache
def compiled(target: str, dtype: str):
    pipeline = plugin.pipeline(target)
    return tvm.compile(network(dtype), "llvm", relax_pipeline=pipeline), pipeline.report


@cache
def expected_bytes(dtype: str) -> Array:
    return run(network(dtype), random(8, IMAGE, dtype))


def of_bytes(target: str, dtype: str) -> tuple[Array, Array, plugin.ScheduleReport]:
    executable, report = compiled(target, dtype)
    return called(executable, random(8, IMAGE, dtype)), expected_bytes(dtype), report


def of_floats() -> tuple[Array, Array, plugin.ScheduleReport]:
    """On Tensor Cores, emulated: whole numbers, of which every sum is exact."""
    if missing := missing_for(load_hardware_spec("mma_f16")):
        pytest.skip(missing[0])
    target, image = cuda_target("sm_80"), small(8, IMAGE)
    module = float_network()
    pipeline = plugin.pipeline("mma_f16")
    tvm.compile(module, target, relax_pipeline=pipeline)
    emulation = Emulation(pipeline.scheduled, pipeline.functions, target)
    found = emulation.run(image)
    products = [name for name, counters in emulation.kernel_counters.items() if counters.mma]
    assert len(products) == 4
    return found, run(module, image), pipeline.report


def small(seed: int, shape: tuple[int, ...], dtype: str = "float16") -> Array:
    return random(seed, shape, dtype, 3)


def float_network() -> tvm.IRModule:
    """As :func:`network`, with biases and activations in float32, stored as float16."""

    def build(image):
        emit = relax.BlockBuilder.current().emit

        def const(seed, *shape, dtype="float16"):
            return relax.const(small(seed, shape, dtype))

        def stored(sums, channels, seed):
            sums = op.add(sums, const(seed, 1, channels, 1, 1, dtype="float32"))
            return emit(op.astype(op.nn.relu(sums), "float16"))

        sums = op.nn.conv2d(image, const(1, 64, 8, 3, 3), padding=1, out_dtype="float32")
        first = stored(sums, 64, 2)
        given = {"padding": 1, "groups": 4, "strides": 2, "out_dtype": "float32"}
        second = stored(op.nn.conv2d(first, const(3, 32, 16, 3, 3), **given), 32, 4)
        pooled = emit(op.nn.max_pool2d(second, (2, 2), strides=(2, 2)))
        sums = emit(op.nn.conv2d(pooled, const(5, 32, 32, 1, 1), out_dtype="float32"))
        third = emit(op.nn.relu(op.add(sums, op.astype(pooled, "float32"))))
        flat = emit(op.reshape(op.astype(third, "float16"), (1, 128)))
        scores = op.matmul(flat, const(6, 128, 10), out_dtype="float32")
        return op.add(scores, const(7, 10, dtype="float32"))

    return module_of(build, image=(IMAGE, "float16"))


CASES = {
    "the_processor": lambda: of_bytes(processor(), "uint8"),
    "vta": lambda: of_bytes("vta_1x16x16", "int8"),
    "tensor_cores": of_floats,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_network_compiled_by_the_pipeline_alone_is_the_same(name):
    found, expected, report = CASES[name]()
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)
    assert np.unique(expected).size > 3
    assert len(report.kernels) == 4, str(report)
    assert all(entry.embedding and entry.utilisation for entry in report.kernels)
    assert any("max_pool2d" in entry.function for entry in report.rest)
    assert not any("conv2d" in entry.function for entry in report.rest)


def test_the_report_says_who_scheduled_what_and_why_more_is_not_part_of_it():
    _, report = compiled(processor(), "uint8")
    residual = report.kernels[2]
    assert residual.operators[0].startswith("conv2d")
    assert residual.reason == "another tensor is added to sums in int32"
    assert all(entry.scheduled_by == NOBODY for entry in report.rest)
    assert str(report).startswith(f"{processor()}: 4 of ")


def emulated(spec: str, module: tvm.IRModule, image: Array) -> Array:
    """What kernels of a specification give, each of them on Tensor Cores."""
    if missing := missing_for(load_hardware_spec(spec)):
        pytest.skip(missing[0])
    target = cuda_target("sm_80")
    pipeline = plugin.pipeline(spec)
    tvm.compile(module, target, relax_pipeline=pipeline)
    assert len(pipeline.report.kernels) == 1, str(pipeline.report)
    return Emulation(pipeline.scheduled, pipeline.functions, target).run(image)


def test_bfloat16_travels_as_its_bits():
    kind = np.dtype(ml_dtypes.bfloat16)
    image, weight = small(1, (16, 24), kind), small(2, (24, 40), kind)

    def build(x):
        sums = op.matmul(x, relax.const(weight, "bfloat16"), out_dtype="float32")
        return op.astype(op.nn.relu(sums), "bfloat16")

    module = module_of(build, x=((16, 24), "bfloat16"))
    found = emulated("mma_bf16", module, image)
    sums = image.astype(np.float32) @ weight.astype(np.float32)
    assert found.dtype == kind
    assert np.array_equal(found, np.maximum(sums, 0).astype(kind))


def test_bytes_are_requantized_on_tensor_cores():
    def build(x):
        sums = op.nn.conv2d(x, weights(1, 16, 8, 3, 3), padding=1, out_dtype="int32")
        scale = relax.const(0.003, "float32")
        scaled = op.multiply(op.astype(op.add(sums, bias(2, 1, 16, 1, 1)), "float32"), scale)
        return op.astype(op.clip(op.round(scaled), -128, 127), "int8")

    module, image = module_of(build, x=(IMAGE, "int8")), random(3, IMAGE)
    found = emulated("mma_s8", module, image)
    assert np.array_equal(found, run(module, image))
    assert np.unique(found).size > 3


def test_what_does_not_embed_stays_with_tvm_and_the_report_says_why():
    weight = relax.const(random(1, (4, 8), "float32"))
    module = module_of(lambda x: op.matmul(x, weight), x=((2, 4), "float32"))
    pipeline = plugin.pipeline(processor())
    executable = tvm.compile(module, "llvm", relax_pipeline=pipeline)
    values = random(2, (2, 4), "float32")
    assert np.allclose(called(executable, values), run(module, values))
    (entry,) = pipeline.report.entries
    assert not entry.is_ours
    assert entry.reason
    assert "float32" in entry.reason


def test_weights_that_are_parameters_are_packed_ahead():
    def build(x, w, b):
        sums = op.nn.conv2d(x, w, padding=1, out_dtype="int32")
        return op.nn.relu(op.add(sums, b))

    shapes = {"x": (IMAGE, "uint8"), "w": ((24, 8, 3, 3), "int8"), "b": ((1, 24, 1, 1), "int32")}
    module = module_of(build, **shapes)
    module["main"] = module["main"].with_attr("num_input", 1)
    pipeline = plugin.pipeline(processor())
    machine = relax.VirtualMachine(tvm.compile(module, "llvm", relax_pipeline=pipeline), tvm.cpu())
    arrays = [random(k, *given) for k, given in enumerate(shapes.values())]
    image, *given = map(tvm.runtime.tensor, arrays)
    packed = machine["main_transform_params"](given)
    assert (24, 8, 3, 3) not in [tuple(tensor.shape) for tensor in packed]
    assert np.array_equal(machine["main"](image, *packed).numpy(), run(module, *arrays))


def test_a_module_compiled_for_another_kind_of_machine_is_refused():
    pipeline = plugin.pipeline("vta_1x16x16")
    with (
        tvm.target.Target("c"),
        pytest.raises(BackendUnavailable, match="compiled for llvm, this one for c"),
    ):
        pipeline(network("int8"))


@pytest.mark.slow
def test_an_exported_library_has_its_kernels(tmp_path):
    executable, _ = compiled(processor(), "uint8")
    executable.export_library(str(tmp_path / "network.so"))
    loaded = tvm.runtime.load_module(str(tmp_path / "network.so"))
    found = called(loaded, random(8, IMAGE, "uint8"))
    assert np.array_equal(found, expected_bytes("uint8"))


def erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


ACTIVATIONS = {
    "gelu": (op.nn.gelu, lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2)))),
    "silu": (op.nn.silu, lambda x: x / (1 + np.exp(-x))),
    "tanh": (op.tanh, np.tanh),
    "clip": (lambda x: op.clip(x, -3, 6), lambda x: np.clip(x, -3, 6)),
    "leaky": (lambda x: op.nn.leakyrelu(x, 0.1), lambda x: np.where(x > 0, x, 0.1 * x)),
}


@pytest.mark.parametrize("stored", ["float16", "float32"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_residuals_are_part_of_kernels_on_tensor_cores(name: str, stored: str):
    function, definition = ACTIVATIONS[name]
    image, weight = small(1, (16, 24)), small(2, (24, 40))
    vector, residual = small(3, (40,), "float32"), small(4, (16, 40), "float32")

    def build(x, r):
        sums = op.matmul(x, relax.const(weight), out_dtype="float32")
        value = function(op.add(op.multiply(sums, relax.const(0.25, "float32")), r))
        value = op.multiply(value, relax.const(vector))
        return op.astype(value, "float16") if stored == "float16" else value

    if missing := missing_for(load_hardware_spec("mma_f16")):
        pytest.skip(missing[0])
    module = module_of(build, x=((16, 24), "float16"), r=((16, 40), "float32"))
    target, pipeline = cuda_target("sm_80"), plugin.pipeline("mma_f16")
    tvm.compile(module, target, relax_pipeline=pipeline)
    assert len(pipeline.report.kernels) == 1
    assert "a chain" in str(pipeline.report), str(pipeline.report)
    assert not pipeline.report.rest, str(pipeline.report)
    result = Emulation(pipeline.scheduled, pipeline.functions, target).run(image, residual)
    sums = image.astype(np.float64) @ weight.astype(np.float64)
    expected = definition(sums * 0.25 + residual) * vector
    np.testing.assert_allclose(
        result.astype(np.float64), expected, rtol=2e-3 if stored == "float16" else 1e-5, atol=1e-5
    )


def test_operations_in_float16_are_not_replaced_by_those_in_float32():
    def build(x):
        sums = op.matmul(x, relax.const(small(2, (24, 40))), out_dtype="float32")
        return op.nn.gelu(op.astype(sums, "float16"))

    if missing := missing_for(load_hardware_spec("mma_f16")):
        pytest.skip(missing[0])
    module = module_of(build, x=((16, 24), "float16"))
    pipeline = plugin.pipeline("mma_f16")
    tvm.compile(module, cuda_target("sm_80"), relax_pipeline=pipeline)
    assert len(pipeline.report.rest) == 1, str(pipeline.report)
    assert "a chain" not in str(pipeline.report)
