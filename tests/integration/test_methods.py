"""Generated kernels of methods: transforms by themselves, and whole methods on this CPU."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpembed.codegen import runtime
from cpembed.codegen.method_layouts import padded_image, result_layout, weights_layout
from cpembed.codegen.methods import (
    TileBlocks,
    image_transform,
    output_transform,
    weights_transform,
)
from cpembed.codegen.packing import Direction, packing_source
from cpembed.codegen.plan import KernelPlan
from cpembed.driver.build import build
from cpembed.driver.build_result import BuildResult
from cpembed.driver.methods import fastest, planned_method
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.options import METHODS
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Request, Selection
from cpembed.driver.run import judged, run
from cpembed.driver.run_result import RunResult
from cpembed.errors import InvariantError, LoweringError, WorkloadError
from cpembed.export.loader import Library
from cpembed.ir.computation import Computation
from cpembed.ir.reference import random_inputs, reference
from cpembed.runtime.measurement.verification import Verification
from cpembed.targets.x86.features import missing_features
from cpembed.transform.methods.error_growth import bound, running_bound
from cpembed.transform.methods.winograd import Winograd, winograd

AVX2 = hardware_spec("avx2_f32")
needs_fma = pytest.mark.skipif(
    bool(missing_features(AVX2)), reason=f"missing: {', '.join(missing_features(AVX2))}"
)

LAYERS = [
    "conv2d n=1 c=16 h=8 w=8 k=16 r=3 s=3 pad=1 layout=NHWC",
    "conv2d n=2 c=5 h=9 w=11 k=7 r=3 s=3 pad=1",
    "conv2d n=1 c=21 h=7 w=10 k=19 r=3 s=3 layout=NHWC",
    "conv2d n=1 c=4 h=11 w=9 k=6 r=5 s=3 pad=2,1",
    "conv2d n=1 c=3 h=9 w=9 k=2 r=1 s=3 stride=2,1",
    "conv2d n=1 c=1 h=9 w=9 k=1 r=3 s=2 groups=3 layout=NHWC",
    "conv2d n=1 c=32 h=6 w=6 k=16 r=3 s=3 layout=NCHW16c",
    "conv1d n=2 c=6 w=23 k=18 s=3 pad=1",
    "conv3d n=1 c=4 d=5 h=6 w=5 k=3 t=3 r=3 s=3 pad=1",
]


def _given(words: str, dtype: str = "float32") -> Computation:
    return workload(f"{words} dtype={dtype}")


def _computed(method: Winograd, blocks: TileBlocks, inputs: dict[str, Any]) -> Any:
    """By the generated transforms, and numpy for the product."""
    conv = method.convolution

    def moved(operand: Any, direction: Direction, array: Any, elements: int) -> Any:
        source = packing_source(operand, blocks.threads, direction)
        target = runtime.empty(elements, operand.dtype)
        runtime.compile_plan(KernelPlan("packing", source))(runtime.from_array(array), target)
        return target

    image = padded_image(method)
    padded = moved(image, Direction.PACK, inputs[conv.image.name], image.elements)
    before = runtime.compile_plan(image_transform(method, blocks))
    after = runtime.compile_plan(output_transform(method, blocks))
    u = method.weights_part(inputs[conv.weights.name])
    product, found = method.blocked(blocks.size), result_layout(conv, channels_last=True)
    output = runtime.empty(found.elements, conv.output.dtype)
    for number in range(blocks.count):
        at = runtime.from_array(np.array([number], np.int32))
        v = runtime.empty(product.operand("V").elements, conv.image.dtype)
        before(padded, at, v)
        m = runtime.to_array(v, product.operand("V").shape) @ u
        after(runtime.from_array(m), at, output)
    whole = runtime.to_array(output, (found.elements,))
    unpacked = moved(found, Direction.UNPACK, whole, conv.output.elements)
    return runtime.to_array(unpacked, conv.output.shape)


def _exact(layer: Computation, inputs: dict[str, Any]) -> Any:
    wide = layer.with_dtypes({operand.name: "float64" for operand in layer.operands})
    return reference(wide, {name: array.astype(np.float64) for name, array in inputs.items()})


@pytest.mark.quick(1)
@pytest.mark.parametrize("outputs", [2, 4, 3])
@pytest.mark.parametrize("words", LAYERS)
def test_transforms_are_the_method(words: str, outputs: int) -> None:
    draw = random.Random(f"{words} {outputs}")
    layer = _given(words, draw.choice(("float32", "float32", "float64")))
    if words.startswith("conv3d"):
        outputs = 2
    method = winograd(layer, outputs, channels_last=True)
    blocks = TileBlocks(
        method.tiles, draw.randint(1, method.tiles), draw.choice((1, 2)), draw.choice((32, 64))
    )
    inputs = random_inputs(layer, seed=outputs)
    off = np.abs(_computed(method, blocks, inputs) - _exact(layer, inputs))
    allowed = running_bound(method, inputs)
    assert (off <= allowed).all()
    assert (allowed <= bound(method, inputs) * (1 + 1e-9)).all()


@pytest.mark.quick(1)
@needs_fma
@pytest.mark.parametrize("method", ["explicit", "winograd_2x2", "winograd_4x4"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_methods_run(method: Any, layout: str) -> None:
    layer = _given(f"conv2d n=1 c=16 h=10 w=9 k=24 r=3 s=3 pad=1 layout={layout}")
    found = run(layer, AVX2, method=method)
    assert isinstance(found, RunResult)
    assert found.verification.verified
    expected = "all" if method == "explicit" else "finite"
    assert found.verification.special_values == expected
    assert found.workload is layer
    document = found.to_json()
    assert document["method"]["name"] == method
    if method == "explicit":
        assert "error" not in document["method"]
        assert document["method"]["relative_multiplications"] == 1
    else:
        error = document["method"]["error"]
        assert 0 < error["largest"] <= error["bound"]
        assert document["method"]["relative_multiplications"] < 0.8


@pytest.mark.quick(1)
@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize(
    "words",
    [
        "conv2d n=1 c=3 h=9 w=9 k=21 r=5 s=3 layout=NHWC",
        "conv2d n=1 c=2 h=9 w=9 k=3 r=3 s=1 groups=2",
        "transposed_conv2d n=1 c=4 h=6 w=6 k=16 r=3 s=3 pad=1",
    ],
)
def test_generated_code_transforms_weights(words: str, outputs: int) -> None:
    layer = _given(words)
    method = winograd(layer, outputs, channels_last=True)
    given = random_inputs(layer, seed=3)["W"]
    layout = weights_layout(method)
    packed = runtime.empty(layout.elements, "float32")
    source = packing_source(layout, 1, Direction.PACK)
    runtime.compile_plan(KernelPlan("packing", source))(runtime.from_array(given), packed)
    u = runtime.empty(method.product.operand("U").elements, "float32")
    runtime.compile_plan(weights_transform(method))(packed, u)
    found = runtime.to_array(u, method.product.operand("U").shape)
    expected = method.weights_part(given.astype(np.float64))
    # Both are rounded once, of values that differ in the last bits of a float64.
    assert np.abs(found - expected).max() <= 2.0**-23 * np.abs(expected).max()


@pytest.mark.slow
@needs_fma
@pytest.mark.parametrize("method", ["winograd_4x4", "winograd_2x2", "explicit"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_libraries_of_methods(method: Any, layout: str, tmp_path: Path) -> None:
    layer = _given(f"conv2d n=2 c=12 h=10 w=9 k=24 r=3 s=3 pad=1 layout={layout}")
    made = build(layer, AVX2, folder=tmp_path, name="layer", method=method, threads=1)
    assert isinstance(made, BuildResult)
    assert made.to_json()["method"]["name"] == method
    inputs = random_inputs(layer, seed=5)
    with Library(tmp_path / "liblayer.so", "layer") as library:
        for _ in range(2):
            library.pack(inputs["W"])
            (found,) = library.run(inputs["I"])
            off = np.abs(found - _exact(layer, inputs))
            allowed = running_bound(winograd(layer, 4, channels_last=True), inputs)
            assert (off <= allowed).all()
            inputs["W"] = inputs["W"][::-1].copy()


@pytest.mark.slow
@needs_fma
def test_the_model_compares_methods() -> None:
    """Where tiles are whole and channels many, transforms are worth it; a pixel is not."""
    layer = _given("conv2d n=1 c=128 h=28 w=28 k=128 r=3 s=3 pad=1 layout=NHWC")
    asked = Request(layer, AVX2)
    implicit = choose(asked)
    assert isinstance(implicit, Selection)
    compared = fastest(asked, implicit)
    assert compared is not None
    assert set(compared.estimates) == set(METHODS) - {"auto"}
    estimates = compared.estimates
    assert compared.name == min(estimates, key=lambda name: estimates[name])
    assert compared.name == "winograd_4x4"
    small = Request(_given("conv2d n=1 c=16 h=3 w=3 k=16 r=3 s=3 layout=NHWC"), AVX2)
    implicit = choose(small)
    assert isinstance(implicit, Selection)
    compared = fastest(small, implicit)
    assert compared is None or "winograd" not in compared.name


@needs_fma
def test_wrong_numbers_are_seen() -> None:
    layer = _given("conv2d n=1 c=16 h=10 w=9 k=24 r=3 s=3 pad=1 layout=NHWC")
    inputs = random_inputs(layer, seed=1)
    method = winograd(layer, 4)

    def verify(wrong: float, *, on_special: bool = False) -> Verification:
        def run(data: Mapping[str, Any]) -> Any:
            found = _exact(layer, dict(data)).astype(np.float32)
            if data is not inputs or not on_special:
                found[0, 3, 4, 5] += wrong
            return found

        return judged(method, inputs, 1, run)[0]

    assert verify(0.0).verified
    with pytest.raises(InvariantError, match="winograd_4x4 is wrong by up to"):
        verify(0.01).require("winograd_4x4", 1)
    assert not verify(np.nan).verified
    assert not verify(0.01, on_special=True).verified
    # A NaN would be one of its whole tile, in which the convolution has numbers.
    assert verify(0.0).special_values == "finite"


@needs_fma
@pytest.mark.parametrize("types", ["uint8,int8", pytest.param("int8", marks=pytest.mark.slow)])
def test_bytes_by_tiles_of_two_are_exact(types: str, tmp_path: Path) -> None:
    words = "conv2d n=1 c=16 h=10 w=9 k=24 r=3 s=3 pad=1 layout=NHWC"
    layer = workload(f"{words} dtype={types}", hardware_spec("avx2_int16"))
    result = run(layer, "avx2_int16", method="winograd_2x2")
    assert isinstance(result, RunResult)
    assert result.verification.verified
    assert result.verification.max_error == 0
    document = result.to_json()["method"]
    assert document["exact"]
    assert "error" not in document
    # A library transforms weights by generated code.
    built = build(layer, "avx2_int16", tmp_path, name="layer", method="winograd_2x2")
    assert isinstance(built, BuildResult)
    inputs = random_inputs(layer, seed=1)
    with Library(tmp_path / "liblayer.so", "layer") as library:
        library.pack(inputs["W"])
        (actual,) = library.run(inputs["I"])
    assert np.array_equal(actual, reference(layer, inputs))


def test_what_a_method_is_not_for_is_said() -> None:
    strided = Request(_given("conv2d n=1 c=16 h=9 w=9 k=16 r=3 s=3 stride=2"), AVX2)
    with pytest.raises(WorkloadError, match="stride 2 and dilation 1"):
        planned_method(strided, "winograd_2x2")
    integers = Request(_given("conv2d n=1 c=16 h=9 w=9 k=16 r=3 s=3", "int8"), "vta_1x16x16")
    with pytest.raises(LoweringError, match="runs no method but the implicit one"):
        planned_method(integers, "explicit")
