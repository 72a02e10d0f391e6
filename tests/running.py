"""Kernels of a workload, run and compared with the reference bit for bit."""

from __future__ import annotations

import random

import numpy as np

from cpembed.api.solve import solve, workload
from cpembed.backends.kernel import build, schedule_space
from cpembed.backends.packing import packed_before
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.reference import random_inputs, reference
from cpembed.measure.runner import Expected
from cpembed.tune.cpu_variants import with_variants


def check_candidates(words: str, spec: HardwareSpec, backend: str) -> None:
    """The best two and their variants, on the schedules that the model takes."""
    given = workload(words, target=spec)
    inputs = random_inputs(given, 5)
    expected, ahead = Expected(given, inputs), packed_before(given)
    for ranked in with_variants(solve(given, spec, top=2).embeddings, spec):
        kernel = build(ranked.candidate.program, spec, backend="native")
        assert kernel.backend == backend
        assert expected.judge(kernel.run(inputs)).verified
        assert expected.judge(kernel.run_whole(inputs, ahead)).verified


def check_schedules(words: str, spec: HardwareSpec, rng: random.Random, count: int) -> None:
    """Of the best candidate, the schedule that the model takes and some others."""
    given = workload(words, target=spec)
    inputs = random_inputs(given, rng.randrange(1 << 30))
    expected = reference(given, inputs)
    program = solve(given, spec, top=1).embeddings[0].candidate.program
    ranked = schedule_space(program, spec).ranked()
    for _, knobs in [ranked[0], *rng.sample(ranked, min(count, len(ranked)))]:
        kernel = build(program, spec, backend="native", knobs=knobs)
        assert np.array_equal(kernel.run(inputs), expected), (words, knobs)
