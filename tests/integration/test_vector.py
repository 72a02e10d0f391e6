"""Vectors where no matrix instruction can be embedded: kernels, and how one comes to run them."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.packing import packed_before
from cpembed.codegen.plan import Knobs
from cpembed.driver.bench_maker import RowMaker
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.result import SolveResult
from cpembed.driver.run import run
from cpembed.driver.run_result import RunResult
from cpembed.driver.solve import solve
from cpembed.driver.tune import OpenTuning, open_tuning
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.reference import random_inputs, reference
from cpembed.runtime.measurement.verification import Expected
from cpembed.runtime.tuning.database import DIRECTORY_VARIABLE
from cpembed.targets.cpu.calibration import default_calibration
from cpembed.targets.cpu.target import build, schedule_space
from cpembed.workloads.suites import Layer
from tests.features import needs, require_features
from tests.running import check_candidates, check_schedules, exact_inputs

INT8, BF16 = hardware_spec("avx512_int8"), hardware_spec("avx512_bf16_fma")

needs_vectors = needs(INT8)

LAYERS = [
    "depthwise n=1 c=32 h=9 w=11 r=3 s=3 pad=1",
    "depthwise n=1 c=48 h=9 w=11 r=3 s=3 pad=1 layout=NHWC",
    "depthwise n=2 c=37 h=12 w=7 r=5 s=3 stride=2 layout=NHWC",
    "depthwise n=1 c=64 h=14 w=14 r=3 s=3 dilation=2 layout=NHWC",
    "depthwise n=1 c=5 h=8 w=8 r=3 s=3 m=4 layout=NHWC",
    "depthwise n=1 c=64 h=9 w=11 r=3 s=3 pad=1 layout=NCHW16c",
    "depthwise n=1 c=16 h=20 w=1 r=9 s=1 layout=NHWC",
]


@pytest.mark.quick(7)
@needs_vectors
@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("spec", [INT8, BF16], ids=lambda spec: spec.name)
def test_kernels_compute_the_workload(
    spec: HardwareSpec, layer: str, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", threads)
    check_candidates(layer, spec, "x86.vector")


@pytest.mark.quick(1)
@needs_vectors
@pytest.mark.parametrize("seed", range(6))
def test_every_block_of_a_random_layer_is_right(seed: int) -> None:
    rng = random.Random(seed)
    r, s = rng.randint(1, 4), rng.randint(1, 4)
    words = (
        f"depthwise n={rng.randint(1, 2)} c={rng.randint(1, 70)} h={rng.randint(r, 12)} "
        f"w={rng.randint(s, 20)} r={r} s={s} pad={rng.randint(0, 2)} stride={rng.randint(1, 3)} "
        f"layout={rng.choice(['NCHW', 'NHWC'])}"
    )
    check_schedules(words, INT8, rng, 3)


@pytest.mark.slow
@needs_vectors
def test_signs_and_results_of_every_type() -> None:
    for first, second in itertools.product(("uint8", "int8"), repeat=2):
        words = f"depthwise n=1 c=20 h=6 w=9 r=3 s=3 pad=1 dtype={first},{second},int32"
        given = workload(words.split(), target=INT8)
        inputs = random_inputs(given, 3)
        program = (
            solve(given, INT8, constraints="in_place_padded", top=1).embeddings[0].candidate.program
        )
        for dtype in ("int32", "uint8", "int8", "float32", "bfloat16"):
            epilogue = Epilogue(dtype, relu=True)
            kernel = build(program, INT8, backend="native", epilogue=epilogue)
            found = kernel.run(inputs)
            assert Expected(given, inputs).judge_stored(found, epilogue, {}).verified
            if dtype == "uint8":
                assert np.array_equal(found, np.clip(reference(given, inputs), 0, 255))


@pytest.mark.quick(3)
@needs_vectors
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("threads", ["1", "3"])
def test_images_are_read_without_their_padding(
    seed: int, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole call copies no halo, wherever the padding is."""
    monkeypatch.setenv("TVM_NUM_THREADS", threads)
    rng = random.Random(seed)
    spec = rng.choice([INT8, BF16])
    r, s, pad = rng.randint(1, 5), rng.randint(1, 4), rng.randint(1, 2)
    words = (
        f"depthwise n={rng.randint(1, 2)} c={16 * rng.randint(1, 3)} h={rng.randint(r, 12)} "
        f"w={rng.randint(s, 20)} r={r} s={s} pad={pad} stride={rng.randint(1, 2)} layout=NHWC"
    )
    given = workload(words, target=spec)
    program = (
        solve(given, spec, constraints="in_place_padded", top=1).embeddings[0].candidate.program
    )
    space = schedule_space(program, spec)
    columns = space.model.rows(space.nest)
    row = {columns[0].origin: min(columns[0].steps, rng.randint(2, 16))} if columns else {}
    assert space.on_original(Knobs(row)) is not None
    check_schedules(words, spec, rng, 2)
    kernel = build(program, spec, backend="native", knobs=Knobs(row))
    inputs = exact_inputs(given, seed)
    found = kernel.run_whole(inputs, packed_before(given))
    assert np.array_equal(found, reference(given, inputs)), words


def test_a_block_is_of_neighbours_and_fits_the_registers() -> None:
    given = workload("depthwise n=1 c=64 h=30 w=30 r=3 s=3 layout=NHWC", target=INT8)
    program = (
        solve(given, INT8, constraints="in_place_padded", top=1).embeddings[0].candidate.program
    )
    space = schedule_space(program, INT8)
    for _, knobs in space.ranked():
        assert set(knobs.register_tiles) <= {"q.o", "c.o"}
        assert math.prod(knobs.register_tiles.values()) <= 16
    with pytest.raises(LoweringError, match=r"loop p\.o cannot be tiled"):
        space.applied(Knobs({"p.o": 2}))
    with pytest.raises(LoweringError, match="a tile of 7 x 4 does not fit the registers"):
        space.applied(Knobs({"q.o": 7, "c.o": 4}))


def test_a_matrix_instruction_is_none_of_these() -> None:
    given = workload("gemm m=4 n=16 k=16", target="avx512_vnni")
    program = (
        solve(given, "avx512_vnni", constraints="in_place_padded", top=1)
        .embeddings[0]
        .candidate.program
    )
    with pytest.raises(LoweringError, match="avx512_vnni is not a product lane by lane"):
        schedule_space(program, INT8)


@pytest.mark.quick(1)
@pytest.mark.parametrize("target", ["amx_int8", "avx512_vnni", "amx_bf16"])
def test_what_cannot_be_embedded_runs_otherwise(target: str) -> None:
    given = workload("depthwise n=1 c=24 h=7 w=8 r=3 s=3 layout=NHWC", target=target)
    (other,) = (name for name in hardware_spec(target).alternatives if not name.endswith("_dot"))
    # Which alternative is the fastest is estimated for the processor that is here.
    require_features(hardware_spec(other))
    result = run(given, target, untuned=True)
    assert isinstance(result, RunResult)
    assert result.verification.verified
    document = result.to_json()
    assert (document["target"], document["executed"]) == (target, other)
    assert result.substitution is not None
    if target == "avx512_vnni":
        # Pixels could fill its lanes, the image as its second factor: slower, says the model.
        assert result.substitution.solved.commuted
        return
    assert not result.substitution.solved.count
    # Where the target's own instruction is asked for, or a set that may be what excludes it.
    for asked in ({"constraints": "strict"}, {"backend": "generic"}, {"rank": 1}):
        refused = run(given, target, **asked)  # type: ignore[arg-type]
        assert isinstance(refused, SolveResult)
        assert refused.target.name == target


@pytest.mark.parametrize("layer", ["depthwise n=1 c=32 h=9 w=9 r=3 s=3 pad=1"])
def test_a_suite_says_what_ran_instead(layer: str, tmp_path: Path) -> None:
    require_features(hardware_spec("avx512_int8"))
    maker = RowMaker(
        hardware_spec("amx_int8"),
        load_constraint_set("strict"),
        load_constraint_set("in_place_padded"),
        "auto",
        "NHWC",
        0,
        None,
        any_set=True,
    )
    one = Layer("mine", 0, "", layer)
    row = maker.row(one, progress=lambda phase, count: None)
    assert row.error is None
    assert row.run is not None
    assert (row.run.verified, row.run.instead) == (True, "avx512_int8")
    # The suite is about its target, in which the layer has no place.
    assert row.best is not None
    assert row.best.status == "infeasible"
    assert maker.is_current(one, row)


def test_a_target_with_more_features_keeps_its_instruction() -> None:
    spec = hardware_spec("avx512_vnni")
    wider = replace(spec, cpu_features=("avx512f", "avx512bw", "avx512_vnni"))
    given = workload("gemm m=4 n=16 k=16", target="avx512_vnni")
    program = (
        solve(given, spec, constraints="in_place_padded", top=1).embeddings[0].candidate.program
    )
    assert schedule_space(program, wider).model is schedule_space(program, spec).model


def test_a_calibration_without_the_timed_product_is_enough() -> None:
    given = workload("depthwise n=1 c=64 h=9 w=9 r=3 s=3 layout=NHWC", target=INT8)
    program = (
        solve(given, INT8, constraints="in_place_padded", top=1).embeddings[0].candidate.program
    )
    bare = replace(default_calibration(2), product_ns={"tdpbusd": 6.0}, latency_ns={"tdpbusd": 6.0})
    assert schedule_space(program, INT8, bare).ranked()


@needs_vectors
@pytest.mark.parametrize("target", ["amx_int8", "avx512_vnni"])
def test_what_is_tuned_so_runs_so(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of AMX the widest set has embeddings, poor ones, that must not take the vectors' place."""
    require_features(hardware_spec(target))
    given = workload("depthwise n=1 c=32 h=7 w=8 r=3 s=3 layout=NHWC", target=target)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    opened = open_tuning(given, target, trials=2)
    assert isinstance(opened, OpenTuning)
    assert opened.tuning.task.target.name == "avx512_int8"
    list(opened.tuning.run())
    result = run(given, target)
    assert isinstance(result, RunResult)
    assert result.choice.tuned is not None
    assert result.to_json()["executed"] == "avx512_int8"
    assert isinstance(open_tuning(given, target, constraints="strict"), SolveResult)
