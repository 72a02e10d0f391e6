"""``--machine``: the GPU whose estimates choose a kernel, and targets that have no choice."""

from __future__ import annotations

import pytest

from cpembed.driver.candidate_time import CandidateTime
from cpembed.driver.estimate import estimate
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.options import KernelOptions
from cpembed.driver.plan import Request
from cpembed.driver.run import run
from cpembed.driver.run_result import RunResult
from cpembed.errors import SpecError
from cpembed.targets.cuda.model import gpu
from cpembed.targets.cuda.target import CudaSpace, CudaTarget
from cpembed.targets.registry import missing_for

SPEC = hardware_spec("mma_f16")


def test_a_named_machine_becomes_the_first() -> None:
    spec = hardware_spec("mma_f16", machine="h100")
    assert next(iter(spec.machines)) == "h100"
    assert dict(spec.machines) == dict(SPEC.machines)
    assert hardware_spec(spec, machine="a100") == SPEC
    with pytest.raises(SpecError, match="has no machine 'h900'; it has a100, h100, h200, rtx_5090"):
        hardware_spec("mma_f16", machine="h900")


def test_the_machine_decides_the_schedule() -> None:
    """Both machines rank by their own figures, whichever of them the specification lists first."""
    words = "gemm m=4096 n=4096 k=4096"
    layer = workload(words, SPEC)
    costs: dict[str, float] = {}
    for name in ("a100", "h100", "h200", "rtx_5090"):
        times = estimate(layer, SPEC, machine=name, rank_by="estimate", top=1).times
        assert isinstance(times[0], CandidateTime)
        assert times[0].machine == name
        costs[name] = times[0].total_us
    assert costs["h100"] < costs["a100"]


def test_a_run_takes_the_schedule_of_its_machine() -> None:
    if missing := missing_for(SPEC):
        pytest.skip("; ".join(missing))
    layer = workload("gemm m=64 n=64 k=64", SPEC)
    result = run(layer, SPEC, machine="h100", untuned=True, seed=1)
    assert isinstance(result, RunResult)
    assert result.time is not None
    assert result.time.machine == "h100"
    target = CudaTarget(SPEC.for_machine("h100"))
    assert target.gpu == gpu(SPEC, "h100")
    space = CudaSpace(target.lower(result.candidate.program), target.gpu)
    assert result.choice.schedule == space.best().schedule


def test_a_target_of_one_machine_refuses_the_name_of_another() -> None:
    spec = hardware_spec("avx512_vnni")
    name = next(iter(spec.machines))
    request = Request(workload("gemm m=16 n=16 k=16", spec), spec, KernelOptions(machine=name))
    with pytest.raises(SpecError, match=f"--machine {name} changes no kernel"):
        _ = request.execution
