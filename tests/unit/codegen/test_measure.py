"""Verification judges by the right yardstick; measurements are consistent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest

from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.epilogue import Epilogue, channel_numbers
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.reference import random_inputs, reference
from cpembed.runtime.measurement import runner
from cpembed.runtime.measurement.runner import ATTEMPTS, measure
from cpembed.runtime.measurement.verification import Expected
from cpembed.targets.cpu.target import build
from cpembed.workloads.einsum import gemm
from tests.running import compare
from tests.unit.codegen.handwritten import conv2d_program, gemm_program

VNNI = load_hardware_spec("avx512_vnni")


@pytest.fixture(scope="module")
def kernel() -> CompiledKernel:
    sizes = {"n": 1, "c": 4, "h": 6, "w": 6, "k": 16, "r": 3, "s": 3}
    return build(conv2d_program(VNNI, sizes=sizes, pad=1, layout="NCHW"), VNNI, backend="generic")


def test_one_wrong_bit_in_an_integer_result_is_an_error() -> None:
    workload = gemm(m=5, n=7, k=9, dtype="int8")
    inputs = random_inputs(workload, 0)
    result = reference(workload, inputs)
    assert compare(workload, inputs, result).verified
    result[2, 3] ^= 1
    judged = compare(workload, inputs, result)
    assert not judged.verified
    assert (judged.max_error, judged.tolerance) == (1.0, 0.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rounding_passes_and_a_lost_product_does_not(dtype: str) -> None:
    workload = gemm(m=8, n=8, k=64, dtype=dtype)
    inputs = random_inputs(workload, 1)
    a, b = (inputs[name].astype(np.float32) for name in ("A", "B"))
    backwards = np.zeros((8, 8), np.float32)
    for k in reversed(range(64)):
        backwards += a[:, k : k + 1] * b[k : k + 1]
    judged = compare(workload, inputs, backwards)
    assert judged.verified
    assert 0 < judged.tolerance < 1e-4
    lost = backwards - a[:, :1] * b[:1]
    assert not compare(workload, inputs, lost).verified


def test_not_a_number_is_an_error() -> None:
    workload = gemm(m=2, n=2, k=2, dtype="float32")
    inputs = random_inputs(workload, 0)
    result = reference(workload, inputs)
    result[0, 0] = np.nan
    assert not compare(workload, inputs, result).verified


def test_measurement_separates_packing_from_the_contraction(kernel: CompiledKernel) -> None:
    inputs = random_inputs(kernel.program.workload, 0)
    measurement = measure(kernel, inputs, rounds=5, round_ms=1.0)
    assert measurement.packed_ahead == ("W",)
    assert measurement.latency_us is not None
    assert (
        0
        < measurement.latency_us.p10
        <= measurement.latency_us.median
        <= measurement.latency_us.p90
    )
    assert measurement.packing_us > 0
    assert measurement.unpacking_us > 0
    operations = 2 * kernel.program.workload.macs
    assert measurement.gops == pytest.approx(operations / measurement.latency_us.median / 1e3)


def test_what_is_packed_ahead_is_not_timed(kernel: CompiledKernel) -> None:
    inputs = random_inputs(kernel.program.workload, 0)
    measurement = measure(kernel, inputs, packed_ahead=("I", "W"), rounds=3, round_ms=1.0)
    assert measurement.packing_us == 0


def test_layouts_in_place_need_no_packing() -> None:
    program = gemm_program(VNNI, m=16, n=16, k=16, in_place=True)
    kernel = build(program, VNNI, backend="generic")
    assert kernel.is_packed_in_place("A")
    assert not kernel.is_packed_in_place("B")
    assert kernel.is_packed_in_place("C")
    measured = measure(kernel, random_inputs(program.workload, 0), rounds=3, round_ms=1.0)
    assert measured.packing_us == 0
    assert measured.unpacking_us == 0


@dataclass
class FakeClock:
    """Stands for the time module: a kernel call takes as many seconds as is scripted."""

    calls: Iterator[float]
    now: float = 0.0
    executions: list[float] = field(default_factory=list[float])

    def perf_counter(self) -> float:
        return self.now

    def work(self) -> None:
        self.executions.append(next(self.calls))
        self.now += self.executions[-1]


ROUNDS = 10
ATTEMPT = 2 + ROUNDS
"""Calls of an attempt: a first one, one that counts how many fit in a round, and the rounds (a
call of a millisecond fills a round of one)."""


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, int]]:
    def call(*seconds: Iterator[float]) -> tuple[Any, int]:
        clock = FakeClock(chain(*seconds))
        monkeypatch.setattr(runner, "time", clock)
        return runner.time_work(clock.work, ROUNDS, 1.0), len(clock.executions)

    return call


def test_steady_rounds_are_measured_once(timed: Callable[..., tuple[Any, int]]) -> None:
    timing, calls = timed(repeat(1e-3, ATTEMPT))
    assert (timing.median, timing.is_noisy, calls) == (pytest.approx(1e3), False, ATTEMPT)


def test_disturbed_rounds_are_repeated(timed: Callable[..., tuple[Any, int]]) -> None:
    """Rounds of 1 and of 4 ms, half of them each, then undisturbed ones."""
    disturbed = chain(repeat(1e-3, 2 + ROUNDS // 2), repeat(4e-3, ROUNDS // 2))
    timing, calls = timed(disturbed, repeat(1e-3, ATTEMPT))
    assert (timing.median, timing.is_noisy, calls) == (pytest.approx(1e3), False, 2 * ATTEMPT)


def test_rounds_that_stay_disturbed_are_flagged(timed: Callable[..., tuple[Any, int]]) -> None:
    def disturbed(slow: float) -> Iterator[float]:
        return chain(repeat(1e-3, 2 + ROUNDS // 2), repeat(slow, ROUNDS // 2))

    slowest = [5e-3, 4e-3, 2e-3, 3e-3, 6e-3]
    timing, calls = timed(*map(disturbed, slowest))
    assert len(slowest) == ATTEMPTS
    assert (timing.is_noisy, calls) == (True, ATTEMPTS * ATTEMPT)
    assert (timing.p10, timing.p90) == (pytest.approx(1e3), pytest.approx(2e3)), "the steadiest"


def test_one_disturbed_part_makes_the_measurement_noisy(
    kernel: CompiledKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady, noisy = runner.Quantiles(2.0, 2.0, 2.0), runner.Quantiles(2.0, 1.0, 4.0)
    inputs = random_inputs(kernel.program.workload, 0)
    for parts, expected in (([steady] * 4, False), ([steady, steady, steady, noisy], True)):
        times = iter(parts)
        monkeypatch.setattr(runner, "time_work", lambda *arguments, times=times: next(times))
        assert measure(kernel, inputs).noisy is expected


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "float32", "bfloat16"])
@pytest.mark.parametrize("sums", ["uint8,int8", "bfloat16"])
def test_a_step_of_the_epilogue_that_is_missing_is_seen(sums: str, dtype: str) -> None:
    """Also where floats are judged with a tolerance."""
    layer = gemm(m=6, n=7, k=9, dtype=sums)
    expected = Expected(layer, random_inputs(layer, 3))
    complete = Epilogue(dtype, scale=True, bias=True, relu=True)
    vectors = expected.vectors(complete, 4)
    flat, channel = vectors, channel_numbers(layer)
    products = reference(layer, random_inputs(layer, 3))
    right = complete.apply(products, flat, channel)
    assert expected.judge_stored(right, complete, vectors).verified
    for step in ("scale", "bias", "relu"):
        less = replace(complete, **{step: False}).apply(products, flat, channel)
        if step == "relu" and dtype == "uint8":
            continue  # saturation is one
        assert not expected.judge_stored(less, complete, vectors).verified, step
    shifted = complete.apply(products, flat, (channel + 1) % 7)
    assert not expected.judge_stored(shifted, complete, vectors).verified


def test_what_a_conversion_to_bfloat16_flushes_is_right() -> None:
    layer = gemm(m=1, n=3, k=1, dtype="uint8,int8")
    inputs = {"A": np.array([[1]], np.uint8), "B": np.array([[1, 3, 5]], np.int8)}
    scaled = Epilogue("bfloat16", scale=True)
    # The smallest normal, something below it, and something above.
    vectors = {"@scale": np.array([2.0**-126, 1e-39, 2.0**-126], np.float32)}
    exact = scaled.apply(reference(layer, inputs), vectors, channel_numbers(layer))
    expected = Expected(layer, inputs)
    assert exact[0, 1] > 0
    for first, second in ((1, 1), (1, 0), (0, 0)):
        result = exact * np.array([first, second, 1], exact.dtype)
        assert expected.judge_stored(result, scaled, vectors).verified
    for wrong in (exact * exact.dtype.type(2), exact * exact.dtype.type(0)):
        assert not expected.judge_stored(wrong, scaled, vectors).verified
