"""Kernels of a workload, run and compared with the reference bit for bit."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.epilogue import PROCESSOR_RESULT_TYPES, Epilogue
from cpembed.codegen.packing import packed_before
from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import is_integer, numpy_dtype
from cpembed.ir.interpreter import Array
from cpembed.ir.reference import random_inputs, reference
from cpembed.runtime.measurement.verification import Expected, Verification
from cpembed.targets.cpu.target import build, schedule_space
from cpembed.targets.cpu.variants import with_variants


def verify(kernel: CompiledKernel, workload: Computation, seed: int = 0) -> Verification:
    """Run the kernel on random inputs, a bias and a scale included, and compare with the
    reference."""
    inputs = random_inputs(workload, seed)
    expected = Expected(workload, inputs)
    vectors = expected.vectors(kernel.epilogue, seed)
    found = kernel.run({**inputs, **vectors})
    return expected.judge_stored(found, kernel.epilogue, vectors)


def compare(
    workload: Computation, inputs: Mapping[str, NDArray[Any]], found: NDArray[Any]
) -> Verification:
    """Judge an output that was computed from ``inputs``."""
    return Expected(workload, inputs).judge(found)


def exact_inputs(given: Computation, seed: int) -> dict[str, Array]:
    """Random inputs whose sums are the same in every order: floats hold small integers."""
    rng = np.random.default_rng(seed)
    inputs = random_inputs(given, seed)
    for operand in given.inputs:
        if not is_integer(operand.dtype):
            small = rng.integers(-8, 8, operand.shape, endpoint=True)
            inputs[operand.tensor] = small.astype(numpy_dtype(operand.dtype))
    return inputs


def check_candidates(words: str, spec: HardwareSpec, backend: str) -> None:
    """The best two and their variants, on the schedules that the model takes."""
    given = workload(words, target=spec)
    inputs = random_inputs(given, 5)
    expected, ahead = Expected(given, inputs), packed_before(given)
    for ranked in with_variants(
        solve(given, spec, constraints="in_place_padded", top=2).embeddings, spec
    ):
        kernel = build(ranked.candidate.program, spec, backend="native")
        assert kernel.backend == backend
        assert expected.judge(kernel.run(inputs)).verified
        assert expected.judge(kernel.run_whole(inputs, ahead)).verified


def check_schedules(words: str, spec: HardwareSpec, rng: random.Random, count: int) -> None:
    """Of the best candidate, the schedule that the model takes and some others, the last of them
    with a random epilogue as well."""
    given = workload(words, target=spec)
    inputs = exact_inputs(given, rng.randrange(1 << 30))
    expected, ahead = Expected(given, inputs), packed_before(given)
    sums = reference(given, inputs)
    program = (
        solve(given, spec, constraints="in_place_padded", top=1).embeddings[0].candidate.program
    )
    ranked = schedule_space(program, spec).ranked()
    for _, knobs in [ranked[0], *rng.sample(ranked, min(count, len(ranked)))]:
        kernel = build(program, spec, backend="native", knobs=knobs)
        assert np.array_equal(kernel.run(inputs), sums), (words, knobs)
        assert np.array_equal(kernel.run_whole(inputs, ahead), sums), (words, knobs)
    # Threads do not share sums that have a bias or a scale.
    epilogue, knobs = random_epilogue(rng), replace(knobs, split_k=1)
    kernel = build(program, spec, backend="native", knobs=knobs, epilogue=epilogue)
    vectors = expected.vectors(epilogue, rng.randrange(1 << 30))
    for found in (
        kernel.run({**inputs, **vectors}),
        kernel.run_whole({**inputs, **vectors}, ahead),
    ):
        assert expected.judge_stored(found, epilogue, vectors).verified, (words, knobs, epilogue)


def random_epilogue(rng: random.Random) -> Epilogue:
    """Bytes, which are narrowed together where they are neighbours, as often as all others."""
    dtype = rng.choice(("uint8", "int8", rng.choice(PROCESSOR_RESULT_TYPES)))
    scale, bias, relu = rng.choices((False, True), k=3)
    return Epilogue(dtype, scale=scale, bias=bias, relu=relu)
