"""The fastest candidates by estimate, of which bounds leave most without one."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from cpembed.cost.machine.estimate import Estimate
from cpembed.driver.estimate import estimate, least_us
from cpembed.driver.named import workload
from cpembed.hw.loader import load_hardware_spec
from tests.unit.exploration.described.test_agreement import WORDS, random_machine


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(24))
def test_bounds_change_no_ranking(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    spec = load_hardware_spec(random_machine(tmp_path, chance))
    layer = workload(chance.choice(WORDS), spec)
    options = {"constraints": chance.choice([None, "fused", "in_place_padded"])}
    # Ranked by overheads, all candidates have an estimate or a reason.
    every = estimate(layer, spec, top=64, **options)
    times: list[float] = []
    for ranked, each in zip(every.solved.embeddings, every.estimates, strict=True):
        times.append(each.total_us if isinstance(each, Estimate) else math.inf)
        assert least_us(ranked.program, every.machine) <= times[-1] * (1 + 1e-9)
    for top in (1, 3):
        fastest = estimate(layer, spec, top=top, rank_by="estimate", **options)
        if fastest.solved.constraints != every.solved.constraints:
            # Of two presets, the best by overheads and by time may be of different ones.
            continue
        names = [item.candidate.identifier for item in every.solved.embeddings]
        order = sorted(range(len(times)), key=lambda n: times[n])[:top]
        listed = [item.candidate.identifier for item in fastest.solved.embeddings]
        assert listed == [names[n] for n in order]
        assert fastest.considered <= 2 * 64
