"""Dot products, along rows and in columns: kernels, and when one runs in another target's place."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from cpembed.codegen.plan import Knobs
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.options import KernelOptions
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Request, Selection
from cpembed.driver.run import run
from cpembed.driver.run_result import RunResult
from cpembed.driver.solve import solve
from cpembed.driver.tune import OpenTuning, open_tuning
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.reference import random_inputs, reference
from cpembed.runtime.tuning.database import DIRECTORY_VARIABLE
from cpembed.targets.cpu.target import build, schedule_space
from cpembed.targets.x86.features import missing_features
from tests.features import needs
from tests.running import check_candidates, check_schedules

DOT, VNNI, AMX = (hardware_spec(name) for name in ("avx512_vnni_dot", "avx512_vnni", "amx_int8"))
BF16_DOT, BF16, AMX_BF16 = (
    hardware_spec(name) for name in ("avx512_bf16_dot", "avx512_bf16", "amx_bf16")
)

needs_vnni = needs(DOT)

WORKLOADS = [
    "gemm m=33 n=1 k=256",
    "gemm m=5 n=3 k=100",
    "gemm m=1 n=40 k=64",
    "conv2d n=1 c=70 h=1 w=1 k=19 r=1 s=1 layout=NHWC",
    "conv2d n=1 c=5 h=9 w=9 k=2 r=3 s=3 pad=1 layout=NHWC",
]


needs_bf16 = needs(BF16)

BACK_ENDS = [
    pytest.param(DOT, "x86.vnni_rows", marks=needs_vnni, id="vnni_rows"),
    pytest.param(BF16, "x86.bf16", marks=needs_bf16, id="bf16"),
    pytest.param(BF16_DOT, "x86.bf16_rows", marks=needs_bf16, id="bf16_rows"),
]


@pytest.mark.quick(6)
@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("words", WORKLOADS)
@pytest.mark.parametrize("spec, backend", BACK_ENDS)
def test_kernels_compute_the_workload(
    spec: HardwareSpec, backend: str, words: str, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", threads)
    check_candidates(words, spec, backend)


@pytest.mark.parametrize("spec, backend", BACK_ENDS)
def test_the_instruction_is_used(spec: HardwareSpec, backend: str) -> None:
    given = workload("gemm m=32 n=32 k=128", target=spec)
    program = (
        solve(given, spec, constraints="in_place_padded", top=1).embeddings[0].candidate.program
    )
    kernel = build(program, spec, backend="native")
    assert kernel.backend == backend
    name = "vpdpbusd" if spec is DOT else "vdpbf16ps"
    lines = [line.split() for line in kernel.assembly().splitlines()]
    assert [words[0] for words in lines if words[:1] == [name]]
    # What LLVM is given as a function of its own is no call.
    assert not [words for words in lines if words[:1] == ["callq"] and "cpembed" in words[1]]


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("spec, backend", BACK_ENDS)
def test_every_block_of_a_random_product_is_right(
    spec: HardwareSpec, backend: str, seed: int
) -> None:
    del backend
    rng = random.Random(seed)
    words = f"gemm m={rng.randint(1, 70)} n={rng.randint(1, 7)} k={rng.randint(1, 300)}"
    check_schedules(words, spec, rng, 4)


@needs_vnni
def test_threads_share_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    given = workload("gemm m=1 n=1 k=4096", target=DOT)
    inputs = random_inputs(given, 3)
    program = (
        solve(given, DOT, constraints="in_place_padded", top=1).embeddings[0].candidate.program
    )
    kernel = build(program, DOT, backend="native", knobs=Knobs(split_k=2))
    assert np.array_equal(kernel.run(inputs), reference(given, inputs))


def test_a_block_fits_the_registers() -> None:
    given = workload("gemm m=64 n=8 k=128", target=DOT)
    program = (
        solve(given, DOT, constraints="in_place_padded", top=1).embeddings[0].candidate.program
    )
    space = schedule_space(program, DOT)
    assert all(np.prod([*knobs.register_tiles.values(), 1]) <= 28 for _, knobs in space.ranked())
    with pytest.raises(LoweringError, match="does not fit the registers"):
        space.applied(Knobs({"m.o": 8, "n.o": 8}))


@needs_vnni
def test_the_signed_factor_may_come_first() -> None:
    given = workload("gemm m=16 n=2 k=512 dtype=int8,uint8,int32", target=DOT)
    inputs = random_inputs(given, 3)
    program = solve(given, DOT, constraints="complete", top=1).embeddings[0].candidate.program
    kernel = build(program, DOT, backend="native")
    assert np.array_equal(kernel.run(inputs), reference(given, inputs))


@needs_vnni
def test_few_columns_run_along_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    given = workload("gemm m=512 n=1 k=512", target=VNNI)
    found = run(given, VNNI, seed=1)
    assert isinstance(found, RunResult)
    assert found.solved.target.name == "avx512_vnni_dot"
    assert found.requested.target.name == "avx512_vnni"
    assert found.backend == "x86.vnni_rows"
    why = found.substitution
    assert why is not None
    assert why.requested_cost is not None
    assert why.estimated is not None
    assert (why.unit, why.estimated < why.requested_cost) == ("us", True)
    opened = open_tuning(given, VNNI, trials=1, database=tmp_path)
    assert isinstance(opened, OpenTuning)
    assert opened.tuning.task.target.name == "avx512_vnni_dot"


def runs(given: Computation, target: HardwareSpec | str) -> Selection:
    found = choose(Request(given, target, KernelOptions(untuned=True)))
    assert isinstance(found, Selection)
    return found


@needs_vnni
@pytest.mark.parametrize("target", [VNNI, AMX, BF16, AMX_BF16], ids=lambda spec: spec.name)
def test_which_is_faster_the_model_says(target: HardwareSpec) -> None:
    (other,) = (name for name in target.alternatives if name.endswith("_dot"))
    if missing := {*missing_features(hardware_spec(other)), *missing_features(target)}:
        pytest.skip(f"missing: {', '.join(sorted(missing))}")
    few = workload("gemm m=2048 n=1 k=1000", target=other)
    many = workload("gemm m=64 n=64 k=256", target=other)
    found = runs(few, target)
    assert found.substitution is not None
    assert found.substitution.solved.target.name == target.name
    assert found.solved.target.name == other
    assert runs(many, target).substitution is None
    assert runs(few, other).substitution is None


@needs_vnni
def test_types_that_the_other_does_not_multiply() -> None:
    # Where nothing executes AMX, descriptions of machines choose, and nothing is substituted.
    if missing := missing_features(AMX):
        pytest.skip(f"missing: {', '.join(missing)}")
    signed = workload("gemm m=2048 n=1 k=1000 dtype=int8,int8,int32", target=AMX)
    assert runs(signed, AMX).substitution is None


@needs_vnni
def test_what_is_asked_for_runs_itself() -> None:
    given = workload("gemm m=64 n=1 k=256", target=VNNI)
    for asked in ({"rank": 1}, {"constraints": "in_place_padded"}, {"backend": "native"}):
        found = run(given, VNNI, seed=1, untuned=True, **asked)  # type: ignore[arg-type]
        assert isinstance(found, RunResult)
        assert found.substitution is None
