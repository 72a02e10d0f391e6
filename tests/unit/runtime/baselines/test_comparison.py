"""A comparison: wrong forms are out, the fastest right one counts, both sides take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cpembed.codegen import runtime
from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.epilogue import BIAS, SCALE, Epilogue, channel_numbers
from cpembed.errors import InvariantError
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.reference import random_inputs, reference
from cpembed.runtime.baselines import (
    Arrays,
    Comparison,
    Contender,
    NotCovered,
    Subject,
    compare_interleaved,
)
from cpembed.runtime.measurement import interleaved
from cpembed.runtime.measurement.verification import Expected
from cpembed.targets.cpu.target import build
from cpembed.targets.x86.calibrate import ThrottlingProbe
from cpembed.workloads.einsum import gemm
from tests.unit.codegen.handwritten import conv2d_program
from tests.unit.runtime.baselines.fakes import FakeBaseline, FakeForm

VNNI = load_hardware_spec("avx512_vnni")


@pytest.fixture(scope="module")
def kernel() -> CompiledKernel:
    sizes = {"n": 1, "c": 4, "h": 6, "w": 6, "k": 16, "r": 3, "s": 3}
    return build(conv2d_program(VNNI, sizes=sizes, pad=1, layout="NCHW"), VNNI, backend="generic")


@pytest.fixture
def fought(kernel: CompiledKernel) -> Callable[..., Comparison | NotCovered]:
    workload = kernel.program.workload
    subject = Subject(workload, "conv2d", {})
    inputs = random_inputs(workload, 0)

    def call(*forms: FakeForm, probe: ThrottlingProbe | None = None) -> Comparison | NotCovered:
        def contenders(subject: Subject, inputs: Arrays) -> Sequence[Contender]:
            right = reference(workload, inputs)
            for form in forms:
                form.result = form.result + right
                if form.form == "bytes":
                    form.result = form.result.clip(0, 255).astype(np.uint8)
            return forms

        def kernel_of(stored: str) -> CompiledKernel:
            epilogue = None if stored == "int32" else Epilogue(stored)
            return build(kernel.program, VNNI, backend="generic", epilogue=epilogue)

        baseline = FakeBaseline(contenders)
        return compare_interleaved(
            kernel_of, baseline, subject, inputs, rounds=2, round_ms=0.5, probe=probe
        )

    return call


EXACT = np.zeros((1, 16, 6, 6), np.int32)
OFF_BY_ONE = np.arange(EXACT.size, dtype=np.int32).reshape(EXACT.shape) == 5


def test_the_fastest_right_form_by_its_own_account(
    fought: Callable[..., Comparison | NotCovered],
) -> None:
    forms = [
        FakeForm("slow", EXACT, 1e-5, primitive_us=300.0),
        FakeForm("fast", EXACT, 1e-4, primitive_us=200.0, reorder_us=7.0),
        FakeForm("wrong", OFF_BY_ONE, 1e-6, primitive_us=1.0),
    ]
    found = fought(*forms)
    assert isinstance(found, Comparison)
    assert (found.form, found.names, found.verification.verified) == ("fast", ("fake:isa",), True)
    assert found.primitive is not None
    assert (found.primitive.median, found.reorder_us) == (200.0, 7.0)
    assert found.call.p10 >= 100
    assert found.kernel.p10 > 0
    ratio, packing = (found.primitive_ratio(packing=packing) for packing in (False, True))
    assert ratio is not None
    assert packing is not None
    ours = found.interleaved.samples["kernel"]
    assert ratio.median == pytest.approx(np.median([200 / us for us in ours]))
    whole = found.interleaved.samples["kernel with packing"]
    assert packing.median == pytest.approx(np.median([207 / us for us in whole]))
    assert found.call_ratio(packing=False).median > 0


@pytest.mark.slow
def test_ours_stores_what_the_baseline_stores(
    fought: Callable[..., Comparison | NotCovered], monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = fought(FakeForm("sums", EXACT, primitive_us=100.0))
    assert isinstance(sums, Comparison)
    assert sums.stored == "int32"

    def forms() -> list[FakeForm]:
        return [
            FakeForm("sums", EXACT, primitive_us=300.0),
            FakeForm("bytes", EXACT, primitive_us=200.0),
        ]

    found = fought(*forms())
    assert isinstance(found, Comparison)
    assert (found.form, found.stored) == ("bytes", "uint8")
    monkeypatch.setattr(Epilogue, "expression", lambda *_: "T.uint8(3)")
    with pytest.raises(InvariantError, match="stores uint8 is wrong by up to"):
        fought(*forms())


@pytest.mark.slow
def test_both_store_what_is_asked_for(kernel: CompiledKernel) -> None:
    """The library may add the bias after the scale, and be off by that rounding; it may not leave
    a step out, nor may ours."""
    workload = kernel.program.workload
    stored = Epilogue("uint8", scale=True, bias=True, relu=True)
    subject = Subject(workload, "conv2d", {}, stored)
    inputs = random_inputs(workload, 0)
    left_out = ""

    def contenders(subject: Subject, inputs: Arrays) -> Sequence[Contender]:
        channel = channel_numbers(workload)
        scale, bias = (inputs[name][channel].astype(np.float64) for name in (SCALE, BIAS))
        exact = reference(workload, inputs) * scale + (0 if left_out else bias * scale)
        return [FakeForm("bytes", np.rint(exact).clip(0, 255).astype(np.uint8), 1e-4)]

    def contested(ours: Epilogue) -> Comparison | NotCovered:
        def kernel_of(dtype: str) -> CompiledKernel:
            assert dtype == "uint8"
            return build(kernel.program, VNNI, backend="generic", epilogue=ours)

        return compare_interleaved(
            kernel_of, FakeBaseline(contenders), subject, inputs, seed=7, rounds=2, round_ms=0.5
        )

    found = contested(stored)
    assert isinstance(found, Comparison)
    assert found.stored == "uint8"
    with pytest.raises(InvariantError, match="stores uint8 is wrong by up to"):
        contested(replace(stored, bias=False))
    left_out = "the bias"
    wrong = contested(stored)
    assert isinstance(wrong, NotCovered)
    assert "in every form (bytes)" in wrong.reason


def test_a_library_without_an_account_is_timed_by_the_clock(
    fought: Callable[..., Comparison | NotCovered],
) -> None:
    found = fought(FakeForm("slow", EXACT, 3e-3), FakeForm("fast", EXACT, 1e-4))
    assert isinstance(found, Comparison)
    assert (found.form, found.primitive, found.reorder_us) == ("fast", None, None)
    assert found.primitive_ratio(packing=True) is None


def test_a_baseline_that_is_wrong_is_not_compared(
    fought: Callable[..., Comparison | NotCovered],
) -> None:
    found = fought(
        FakeForm("wrong", OFF_BY_ONE), FakeForm("worse", 2 * OFF_BY_ONE.astype(np.int32))
    )
    assert found == NotCovered("wrong by 1 or more in every form (wrong, worse)")


def test_packing_is_part_of_the_second_time(
    kernel: CompiledKernel,
    fought: Callable[..., Comparison | NotCovered],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights ahead of time, the data in every call, the output's unpacking too."""
    called: list[str] = []
    bound = runtime.Function.bound

    def counted(self: runtime.Function, *buffers: Any) -> Callable[[], object]:
        call = bound(self, *buffers)
        # Moves take two buffers, and only sums are 32 bits wide.
        sums = "int32" in str(buffers[0].dtype)
        name = "contraction" if len(buffers) > 2 else "O" if sums else "I"

        def marked() -> None:
            called.append(name)
            call()

        return marked

    monkeypatch.setattr(runtime.Function, "bound", counted)
    monkeypatch.setattr(interleaved, "wait_for_idle_threads", lambda: True)
    fought(FakeForm("right", EXACT))
    assert not kernel.is_packed_in_place("I")
    whole = [k for k, name in enumerate(called) if name == "I"]
    assert len(whole) > 4
    assert all(called[k : k + 3] == ["I", "contraction", "O"] for k in whole)
    assert called.count("O") == len(whole) < called.count("contraction")


# ------------------------------------------------------------------------------ verification


def test_sums_are_judged_in_the_type_that_holds_them() -> None:
    workload = gemm(m=4, n=4, k=64, dtype="uint8,int8")
    inputs = random_inputs(workload, 0)
    sums = reference(workload, inputs)
    expected = Expected(workload, inputs)
    assert sums.min() < 0 < 255 < sums.max()
    for found in (sums, sums.astype(np.float32), sums.clip(0, 255).astype(np.uint8)):
        assert expected.judge_converted(found).verified
        wrong = found.copy()
        wrong[2, 3] = 7 if wrong[2, 3] != 7 else 9
        judged = expected.judge_converted(wrong)
        assert not judged.verified
    assert not expected.judge_converted(sums.astype(np.uint8)).verified, "it wraps"
    assert not expected.judge(sums.astype(np.float32)).verified, "the workload's type is int32"


def test_sums_beyond_24_bits_are_rounded_once() -> None:
    workload = gemm(m=1, n=1, k=4096, dtype="uint8,int8")
    inputs = {"A": np.full((1, 4096), 255, np.uint8), "B": np.full((4096, 1), 127, np.int8)}
    inputs["B"][0] = 126
    exact = reference(workload, inputs)
    assert exact[0, 0] > 2**24
    assert int(np.float32(exact[0, 0])) != exact[0, 0]
    expected = Expected(workload, inputs)
    assert expected.judge_converted(exact.astype(np.float32)).verified
    next_one = np.nextafter(exact.astype(np.float32), np.float32(np.inf))
    assert not expected.judge_converted(next_one).verified


def test_a_bfloat16_result_may_be_off_by_its_rounding() -> None:
    workload = gemm(m=8, n=8, k=64, dtype="bfloat16")
    inputs = random_inputs(workload, 1)
    expected = Expected(workload, inputs)
    rounded = reference(workload, inputs).astype(ml_dtypes.bfloat16)
    assert expected.judge_converted(rounded).verified
    assert not expected.judge(rounded.astype(np.float32)).verified
    wrong = (rounded.astype(np.float32) * np.float32(1.02)).astype(ml_dtypes.bfloat16)
    assert not expected.judge_converted(wrong).verified


class FakeProbe(ThrottlingProbe):
    """Products that take a millisecond, whatever the machine does."""

    macs = 10**6

    def __init__(self) -> None:
        pass

    def stretch(self) -> None:
        time.sleep(1e-3)

    def wait(self) -> bool:
        return True


def test_the_products_alone_are_timed_beside_both(
    fought: Callable[..., Comparison | NotCovered],
) -> None:
    found = fought(FakeForm("right", EXACT, 1e-4, primitive_us=200.0), probe=FakeProbe())
    assert isinstance(found, Comparison)
    assert found.share is not None
    loops = found.interleaved.samples["products"]
    assert found.peak is not None
    assert found.peak.median == pytest.approx(np.median(loops) * found.share)
    assert found.peak.median >= 1000 * found.share
    assert found.primitive_over_peak is not None
    assert found.primitive_over_peak.median == pytest.approx(
        np.median([200 / us for us in loops]) / found.share
    )
    without = fought(FakeForm("right", EXACT, 1e-4, primitive_us=200.0))
    assert isinstance(without, Comparison)
    assert without.peak is without.primitive_over_peak is None
