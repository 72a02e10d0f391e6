"""What a run says beside its time, and what is too large to be run here."""

from __future__ import annotations

import pytest

from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import BackendUnavailable
from cpembed.targets.cuda.emulator.executor import Counters
from cpembed.targets.cuda.lower import lower
from cpembed.targets.cuda.model import gpu
from cpembed.targets.cuda.target import MEASURED, CudaDetails, CudaSpace, CudaTarget
from cpembed.targets.verification import verified

SPEC = hardware_spec("mma_f16")


def test_the_first_schedules_have_different_blocks() -> None:
    layer = workload("gemm m=256 n=256 k=512", SPEC)
    program = solve(layer, SPEC, top=1).embeddings[0].candidate.program
    space = CudaSpace(lower(program, SPEC), gpu(SPEC))
    first, ranked = space.first_blocks(MEASURED), space.ranked()
    assert len({(item.schedule.block, item.schedule.splits) for item in first}) == MEASURED
    assert first[0] == ranked[0]
    # Of each block the best, and no block that is left out is better than the last.
    kept = {(item.schedule.block, item.schedule.splits): item.cost for item in first}
    for item in ranked[: ranked.index(first[-1])]:
        assert kept[item.schedule.block, item.schedule.splits] <= item.cost


def test_a_run_says_to_measure_them() -> None:
    first = (("blocks of 1", 3.0), ("blocks of 2", 3.5), ("blocks of 4", 4.25))
    details = CudaDetails(Counters(), 3.0, "a100", first)
    rows = dict(details.rows())
    assert rows["measure"].startswith("the first 3 on the GPU (3, 3.5, 4.25 us by estimate)")
    assert details.to_json()["measure"][1] == {"schedule": "blocks of 2", "estimated_us": 3.5}
    alone = CudaDetails(Counters(), 3.0, "a100", first[:1])
    assert "measure" not in dict(alone.rows())


def test_what_would_be_emulated_for_days_is_refused_before_its_data_are_made() -> None:
    target = CudaTarget(SPEC)
    small, large = (workload(f"gemm m={n} n={n} k={n}", SPEC) for n in (64, 40000))
    target.require_executable(small.macs)
    with pytest.raises(BackendUnavailable, match="some 132 hours"):
        verified(target, None, large, None, 0)
