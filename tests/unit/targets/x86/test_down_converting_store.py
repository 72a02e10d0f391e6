"""Sums stored as bytes, four vectors together: what is written, and what that computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.epilogue import BIAS, SCALE, Epilogue
from cpembed.codegen.plan import Knobs
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import numpy_dtype, saturated_range
from cpembed.ir.reference import random_inputs, reference
from cpembed.targets.cpu.target import build
from cpembed.targets.x86 import features
from tests.features import needs
from tests.running import verify

AMX, BF16 = hardware_spec("amx_int8"), hardware_spec("amx_bf16")
LAYER = "conv2d n=1 c=64 h=9 w=7 k=192 r=3 s=3 layout=NHWC"
runs = needs(AMX)


def kernel(
    layer: str, epilogue: Epilogue, target: HardwareSpec = AMX, **blocks: int
) -> tuple[Computation, CompiledKernel]:
    given = workload(layer.split(), target=target)
    (ranked, *_) = solve(given, target, constraints="in_place_padded", top=1).embeddings
    program = ranked.candidate.program
    knobs = Knobs({f"{axis}.o": size for axis, size in blocks.items()})
    return given, build(program, target, backend="native", knobs=knobs, epilogue=epilogue)


def test_scaled_sums_are_stored_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded by an instruction, packed as integers are; not lane by lane."""
    monkeypatch.setenv(features.ASSUME_VARIABLE, "amx_tile,amx_int8")
    for dtype in ("uint8", "int8"):
        _, built = kernel(LAYER, Epilogue(dtype, scale=True, bias=True), k=4)
        assembly = built.assembly()
        assert "vpackssdw" in assembly
        assert "vcvtps2dq" in assembly
        assert "vcvttss2si" not in assembly


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "blocks, stored",
    [({"k": 4}, "64"), ({"k": 2}, "32"), ({"k": 3}, "32"), ({"k": 1}, None)],
)
def test_neighbours_are_stored_together(
    blocks: dict[str, int], stored: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one store of 64 bytes, by half of that, or each alone as it was."""
    monkeypatch.setenv(features.ASSUME_VARIABLE, "amx_tile,amx_int8")
    _, built = kernel(LAYER, Epilogue("uint8"), **blocks)
    assembly = built.assembly()
    assert ("vpackssdw" in assembly) is (stored is not None)
    assert ("vpmovusdb" in assembly) is (stored is None)


VECTORS = hardware_spec("avx512_int8")
VNNI = hardware_spec("avx512_vnni")
DEPTHWISE = "depthwise n=1 c=48 h=7 w=5 r=3 s=3 pad=1 layout=NHWC"
BIAS_AND_SCALE = Epilogue("uint8", bias=True, scale=True)
INSTRUCTIONS = {"uint8": "vpmovusdb", "int8": "vpmovsdb", "int32": "vcvtps2dq"}


@pytest.mark.quick(5)
@needs(VNNI)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "bfloat16"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("layer, target", [(DEPTHWISE, VECTORS), (LAYER, VNNI)])
def test_scaled_sums_of_vectors(dtype: str, relu: bool, layer: str, target: HardwareSpec) -> None:
    """Of both signs, some far beyond what an integer holds, some halfway between two."""
    epilogue = replace(BIAS_AND_SCALE, dtype=dtype, relu=relu)
    given, built = kernel(layer, epilogue, target)
    inputs = random_inputs(given, 5)
    sums = reference(given, inputs)
    channels = sums.shape[-1]
    generator = np.random.default_rng(3)
    bias = (generator.normal(size=channels) * sums.std()).astype(np.int32) - int(sums.mean())
    scale = np.exp(generator.uniform(-9, 25, channels)).astype(np.float32)
    scale[::3] = 0.5**11
    scale[::5] *= -1
    vectors = {BIAS: bias, SCALE: scale}
    expected = epilogue.apply(sums, vectors, np.indices(sums.shape)[-1])
    found = built.run({**inputs, **vectors})
    assert np.array_equal(found.view(expected.dtype), expected)
    if dtype in INSTRUCTIONS and (dtype == "int32" or target is VECTORS):
        assert INSTRUCTIONS[dtype] in built.assembly()
    if dtype != "bfloat16":
        low, high = saturated_range(dtype)
        assert {0 if relu else low, high} <= set(np.unique(expected).tolist())


@needs(VNNI)
@pytest.mark.parametrize("layer, target", [(DEPTHWISE, VECTORS), (LAYER, VNNI)])
def test_bfloat16_is_converted_by_an_instruction_where_there_is_one(
    layer: str, target: HardwareSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    epilogue = Epilogue("bfloat16", scale=True)
    _, built = kernel(layer, epilogue, target)
    has_one = "avx512_bf16" in features.cpu_features()
    assert ("vcvtne2ps2bf16" in built.assembly()) is has_one
    without = features.cpu_features() - {"avx512_bf16"}
    monkeypatch.setattr(features, "cpu_features", lambda: without)
    given, built = kernel(layer, epilogue, target)
    assert "vcvtne" not in built.assembly()
    assert verify(built, given).verified


@runs
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("blocks", [{"k": 4}, {"k": 3}, {"k": 5}, {"k": 2}])
def test_bytes_with_a_bias(dtype: str, relu: bool, blocks: dict[str, int]) -> None:
    """A bias that leaves some sums beyond either end of the type and some inside."""
    epilogue = Epilogue(dtype, bias=True, relu=relu)
    given, built = kernel(LAYER, epilogue, **blocks)
    inputs = {name: data % 3 for name, data in random_inputs(given, 5).items()}
    sums = reference(given, inputs)
    bias = np.random.default_rng(3).integers(-300, 300, 192).astype(np.int32) - int(sums.mean())
    expected = epilogue.apply(sums, {BIAS: bias}, np.indices(sums.shape)[-1])
    found = built.run({**inputs, BIAS: bias})
    assert np.array_equal(found, expected)
    low, high = np.iinfo(expected.dtype).min, np.iinfo(expected.dtype).max
    assert {low if not relu else 0, high} <= set(np.unique(expected).tolist())
    assert len(np.unique(expected)) > 50


@runs
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("blocks", [{"k": 4}, {"k": 3}])
def test_halves_with_a_bias_and_a_scale(relu: bool, blocks: dict[str, int]) -> None:
    """Two vectors of float32 at a time, rounded to the nearest even."""
    epilogue = Epilogue("bfloat16", bias=True, scale=True, relu=relu)
    given, built = kernel(LAYER, epilogue, target=BF16, **blocks)
    assert "vcvtne2ps2bf16" in built.assembly()
    inputs = random_inputs(given, 5)
    vectors = {
        name: np.random.default_rng(seed).normal(size=192).astype(np.float32)
        for seed, name in enumerate((BIAS, SCALE))
    }
    exact = reference(given, inputs).astype(np.float32)
    expected = epilogue.apply(exact, vectors, np.indices(exact.shape)[-1]).astype(np.float32)
    bits = built.run({**inputs, **vectors})
    found = bits.view(numpy_dtype("bfloat16")).astype(np.float32)
    # The order in which sums are added may decide a rounding.
    assert np.allclose(found, expected, rtol=2**-7, atol=1e-3)


@runs
@pytest.mark.parametrize("threads", ["1", "3"])
def test_every_task_stores_its_own(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are computed a task late: the first of a thread has none before it, and the last
    one's are not forgotten; also where there are fewer tasks than threads."""
    monkeypatch.setenv("TVM_NUM_THREADS", threads)
    for layer in (LAYER, "gemm m=5 n=16 k=64", "gemm m=33 n=48 k=64"):
        given = workload(layer.split(), target=AMX)
        (ranked, *_) = solve(given, AMX, constraints="in_place_padded", top=1).embeddings
        for dtype in ("uint8", "int32", "bfloat16"):
            epilogue = Epilogue(dtype, relu=True)
            built = build(ranked.candidate.program, AMX, backend="native", epilogue=epilogue)
            inputs = random_inputs(given, 2)
            sums = reference(given, inputs)
            expected = epilogue.apply(sums, {}, np.zeros(sums.shape, np.int64))
            found = built.run(inputs)
            assert np.array_equal(found, expected.view(found.dtype))
