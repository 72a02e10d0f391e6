"""``solve --estimate``, ``run``, ``match`` and ``layouts`` state one time of a candidate."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cpembed.cost.machine.estimate import Estimate
from cpembed.driver.candidate_time import BACK_END, DESCRIPTION, CandidateTime
from cpembed.driver.estimate import estimate
from cpembed.driver.layouts import compare_layouts
from cpembed.driver.matching import matched
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.options import KernelOptions
from cpembed.driver.plan import Request
from cpembed.driver.run import run
from cpembed.driver.run_result import RunResult
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.targets.registry import missing_for
from tests.unit.exploration.described.test_agreement import random_machine

BACK_ENDS = ("gemmini_16x16", "nvdla_small", "sw26010", "vta_1x16x16", "wmma_s8")
DESCRIBED = ("gemm_16x16x16", "pointwise_conv")


def _words(chance: random.Random, target: str) -> str:
    gemm = f"gemm m={chance.randint(1, 60)} n={chance.randint(1, 60)} k={chance.randint(1, 60)}"
    image = f"h={chance.randint(3, 9)} w={chance.randint(3, 9)} r={chance.choice([1, 3])} s=3"
    channels = f"c={chance.choice([3, 8, 16])} k={chance.choice([8, 24])}"
    # Other layouts of convolutions take long to estimate there.
    if target == "gemm_16x16x16":
        return gemm
    return chance.choice([gemm, f"conv2d n=1 {channels} {image} pad=1"])


def _agree(words: str, spec: HardwareSpec, origin: str) -> None:
    layer, untuned = workload(words, spec), KernelOptions(untuned=True)
    executed = run(layer, spec, untuned=True, method="implicit", seed=1)
    match = matched(Request(layer, spec, untuned)).estimated
    estimated = estimate(layer, spec, rank_by="estimate", top=1)
    if not isinstance(executed, RunResult):
        assert match is None
        assert not estimated.solved.embeddings
        return
    assert executed.time is not None
    assert match is not None
    assert executed.time.origin == origin
    assert match.us == executed.time.total_us
    assert match.machine == executed.time.machine
    times = {
        item.candidate.identifier: time
        for item, time in zip(estimated.solved.embeddings, estimated.times, strict=True)
    }
    if spec.name.startswith("vta"):
        # VTA takes the best by overheads, and not by time.
        by_overheads = estimate(layer, spec, top=8)
        for item, time in zip(by_overheads.solved.embeddings, by_overheads.times, strict=True):
            times.setdefault(item.candidate.identifier, time)
    time = times[executed.candidate.identifier]
    assert time == executed.time
    assert executed.to_json()["estimated_time"] == executed.time.to_json()
    rows = [row for row in compare_layouts(words, spec).rows if row.times is not None]
    plain = [row for row in rows if set(row.settings.values()) <= {"NCHW", "0"}]
    assert [row.times.total for row in plain if row.times] == [executed.time.total_us]


@pytest.mark.parametrize("target", [*BACK_ENDS, *DESCRIBED])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_commands_agree_to_the_last_digit(target: str, seed: int) -> None:
    spec = hardware_spec(target)
    if target in BACK_ENDS and (missing := missing_for(spec)):
        pytest.skip("; ".join(missing))
    chance = random.Random(f"{target} {seed}")
    for _ in range(1 if not seed else 6):
        _agree(_words(chance, target), spec, BACK_END if target in BACK_ENDS else DESCRIPTION)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_commands_agree_on_a_machine_of_ones_own(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    spec = load_hardware_spec(random_machine(tmp_path, chance))
    words = f"gemm m={chance.randint(1, 40)} n={chance.randint(1, 40)} k={chance.randint(1, 40)}"
    _agree(words, spec, DESCRIPTION)


def test_a_named_machine_is_asked_and_not_the_back_end() -> None:
    """Any program on the machine takes no longer than that of the back end, for large tiles."""
    spec = hardware_spec("gemmini_16x16")
    layer = workload("gemm m=64 n=64 k=64", spec)
    named = estimate(layer, spec, machine="rocket_soc", rank_by="estimate", top=1)
    assert isinstance(named.times[0], CandidateTime)
    assert isinstance(named.estimates[0], Estimate)
    assert named.times[0].origin == DESCRIPTION
    assert named.times[0].total_us == named.estimates[0].total_us
    if missing_for(spec):
        return
    by_program = estimate(layer, spec, rank_by="estimate", top=2)
    assert isinstance(by_program.times[0], CandidateTime)
    assert by_program.times[0].origin == BACK_END
    assert by_program.times[0].total_us >= named.times[0].total_us
    # The back end says what is wrong with a candidate that it has no program for.
    assert "is not contiguous" in str(by_program.times[1])
