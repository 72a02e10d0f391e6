"""Sums stored as bytes, four vectors together: what is written, and what that computes."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.api.solve import hardware_spec, solve, workload
from cpembed.backends.contract import Knobs
from cpembed.backends.epilogue import BIAS, Epilogue
from cpembed.backends.kernel import CompiledKernel, build, schedule_space
from cpembed.backends.x86 import features
from cpembed.backends.x86.features import missing_features
from cpembed.ir.computation import Computation
from cpembed.ir.reference import random_inputs, reference

AMX = hardware_spec("amx_int8")
LAYER = "conv2d n=1 c=64 h=7 w=5 k=192 r=1 s=1 layout=NHWC"
LACKS = missing_features(AMX)
runs = pytest.mark.skipif(bool(LACKS), reason=f"missing: {', '.join(LACKS)}")


def kernel(layer: str, epilogue: Epilogue, **blocks: int) -> tuple[Computation, CompiledKernel]:
    given = workload(layer.split(), target=AMX)
    (ranked, *_) = solve(given, AMX, "in_place_padded", top=1).embeddings
    program = ranked.candidate.program
    loops = {name.split(".")[0]: name for name in schedule_space(program, AMX).best().blocks}
    names = {axis: loops.get(axis, f"{axis}.o") for axis in blocks}
    knobs = Knobs({names[axis]: size for axis, size in blocks.items()})
    return given, build(program, AMX, backend="native", knobs=knobs, epilogue=epilogue)


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
@pytest.mark.parametrize("threads", ["1", "3"])
def test_every_task_stores_its_own(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are computed a task late: the first of a thread has none before it, and the last
    one's are not forgotten; also where there are fewer tasks than threads."""
    monkeypatch.setenv("TVM_NUM_THREADS", threads)
    for layer in (LAYER, "gemm m=5 n=16 k=64", "gemm m=33 n=48 k=64"):
        given = workload(layer.split(), target=AMX)
        (ranked, *_) = solve(given, AMX, "in_place_padded", top=1).embeddings
        for dtype in ("uint8", "int32", "float32"):
            epilogue = Epilogue(dtype, relu=True)
            built = build(ranked.candidate.program, AMX, backend="native", epilogue=epilogue)
            inputs = random_inputs(given, 2)
            sums = reference(given, inputs)
            expected = epilogue.apply(sums, {}, np.zeros(sums.shape, np.int64))
            assert np.array_equal(built.run(inputs), expected)
