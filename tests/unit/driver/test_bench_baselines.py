"""Suites beside a baseline: rows, what they come to, resumption. The baseline is a fake one, and
portable code stands for the instruction, so that any machine can run this."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from cpembed.codegen.epilogue import Epilogue, channel_numbers
from cpembed.codegen.runtime import thread_count
from cpembed.driver import bench as bench_module
from cpembed.driver import bench_baselines, bench_maker
from cpembed.driver.bench import Bench, open_bench
from cpembed.driver.bench_baselines import BaselineRow
from cpembed.driver.bench_summary import summarise_baselines
from cpembed.driver.run import run
from cpembed.driver.run_result import RunResult
from cpembed.errors import BackendUnavailable, WorkloadError
from cpembed.ir.reference import reference
from cpembed.report.bench import report
from cpembed.report.plots import baselines_svg
from cpembed.runtime.baselines import Arrays, Contender, NotCovered, Subject, compare_interleaved
from cpembed.runtime.measurement import interleaved
from cpembed.runtime.measurement import interleaved as load
from cpembed.runtime.measurement.runner import Quantiles
from cpembed.targets.cpu.calibration import (
    DIRECTORY_VARIABLE,
    default_calibration,
    store_calibration,
)
from cpembed.targets.registry import open_target
from cpembed.targets.x86 import target as x86
from tests.unit.runtime.baselines.fakes import FakeBaseline, FakeForm

TARGET = "avx512_vnni"


@pytest.fixture
def baseline(monkeypatch: pytest.MonkeyPatch) -> FakeBaseline:
    """Registered as `fake`; the kernels of every layer count as native ones."""
    fake = FakeBaseline()
    both = {**x86.openers(), "fake": lambda spec, stored: fake}
    monkeypatch.setattr(x86, "openers", lambda: both)
    monkeypatch.setattr(bench_module, "missing_for", lambda spec: ())

    def portable(*arguments: Any, **options: Any) -> Any:
        result = run(*arguments, **{**options, "backend": "generic"})
        if isinstance(result, RunResult):
            target = open_target(result.solved.target)
            return replace(result, target=target, backend="x86.fake", missing=())
        return result

    monkeypatch.setattr(bench_maker, "run", portable)
    monkeypatch.setattr(
        bench_baselines, "compare_interleaved", partial(compare_interleaved, rounds=3, round_ms=0.5)
    )
    # Whatever else this machine does, nothing is disturbed.
    monkeypatch.setattr(interleaved, "wait_for_idle_threads", lambda: True)
    monkeypatch.setattr(load, "_elsewhere", lambda: 0.0)
    monkeypatch.setattr(interleaved, "UNSURE", math.inf)
    return fake


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Bench]:
    def call(layers: str = "41", **options: Any) -> Bench:
        options = {"results": tmp_path, "baselines": ["fake"], **options}
        return open_bench("deepbench", options.pop("target", TARGET), layers=layers, **options)

    return call


def complete(bench: Bench) -> Bench:
    list(bench.run())
    return bench


@pytest.mark.slow
def test_a_row_has_both_sides(baseline: FakeBaseline, opened: Callable[..., Bench]) -> None:
    bench = complete(opened())
    row = bench.finished()[0]
    assert row.error is None
    assert row.run is not None
    found = row.run.baselines["fake"]
    assert (found.missing, found.form, found.implementations) == (None, "right", ["fake:isa"])
    assert found.max_error == 0
    assert found.primitive_us == Quantiles(100.0, 100.0, 100.0)
    assert found.ours_us is not None
    assert found.primitive_ratio is not None
    # Of an odd number of rounds the median ratio is that of the median round; where other tests
    # disturb some, the middle ones lie within a factor of 1.25, or the row is noisy.
    ratio = found.primitive_ratio.median
    assert found.noisy or ratio == pytest.approx(100 / found.ours_us.median, rel=0.25)
    assert found.ours_with_packing_us is not None
    # The layer as the library is told it.
    subject = baseline.subjects[0]
    assert (subject.operator, subject.settings["stride"]) == ("conv2d", (2, 8))
    assert subject.settings["layout"] == "NCHW"
    document = bench.to_json()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["baselines"] == {"fake": {"version": "1"}}
    assert document["rows"][0]["run"]["baselines"]["fake"]["primitive_us"]["median"] == 100
    text = printed(bench)
    assert "Beside fake" in text
    assert "fake:isa (right)" in text


def test_what_is_stored_is_the_same_on_both_sides(
    baseline: FakeBaseline, opened: Callable[..., Bench]
) -> None:
    stored = Epilogue("uint8", scale=True, bias=True, relu=True)

    def right(subject: Subject, inputs: Arrays) -> Sequence[Contender]:
        vectors = {name: inputs[name].reshape(-1) for name in stored.vectors}
        sums = reference(subject.workload, inputs)
        result = stored.apply(sums, vectors, channel_numbers(subject.workload))
        return [FakeForm("bytes", result, primitive_us=100.0)]

    baseline.forms = right
    bench = complete(opened(output="uint8", scale=True, bias=True, relu=True))
    run = bench.finished()[0].run
    assert run is not None
    assert (run.baselines["fake"].missing, run.baselines["fake"].stored) == (None, "uint8")
    assert baseline.subjects[0].stored == stored
    assert bench.to_json()["epilogue"] == {
        "dtype": "uint8", "scale": True, "bias": True, "relu": True,
        "shift": 0, "clip": None, "wraps": False,
        "zero_point": 0, "residual": None, "placement": None, "chain": None,
        "second": None,
    }  # fmt: skip
    assert "uint8, a bias added, scaled, negative results as 0" in printed(bench)
    assert opened().reused == 0, "rows of what is stored are their own"
    relu = opened(relu=True, baselines=())
    assert relu.maker.epilogue == Epilogue("int32", relu=True)


def test_what_cannot_be_stored_is_refused(
    opened: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_module, "missing_for", lambda spec: ())
    for options, words in (
        ({"output": "uint8", "execute": False, "baselines": ()}, "leave out --no-run"),
        ({"relu": True, "target": "vta_1x16x16", "baselines": ()}, "has a fixed epilogue"),
        ({"relu": True}, "add --output"),
        ({"output": "int8", "baselines": ["tvm"]}, "store the sums, not int8"),
    ):
        with pytest.raises(WorkloadError, match=words):
            opened(**options)
    monkeypatch.setattr(bench_module, "missing_for", lambda spec: ("CPU feature x",))
    with pytest.raises(
        BackendUnavailable, match="CPU feature x: leave the epilogue and output type out"
    ):
        opened(output="uint8", baselines=())
    assert opened(output="uint8", backend="generic", baselines=()).maker.backend == "generic"


def printed(bench: Bench) -> str:
    page = io.StringIO()
    console = Console(file=page, width=300)
    for part in report(bench):
        console.print(part)
    return page.getvalue()


@pytest.mark.slow
def test_the_baseline_is_part_of_what_rows_depend_on(
    baseline: FakeBaseline, opened: Callable[..., Bench]
) -> None:
    first = complete(opened())
    assert first.reused == 0
    if first.finished()[0].has_noisy_comparison:
        pytest.skip("the machine was too busy to compare: the row is made again")
    again = opened()
    assert (again.reused, len(baseline.subjects)) == (1, 1)
    assert complete(again).finished()[0].run is not None
    assert len(baseline.subjects) == 1, "nothing was measured again"
    baseline.version = "2"
    assert opened().reused == 0
    assert opened(baselines=()).reused == 0


@pytest.mark.slow
def test_rows_depend_on_the_machines_calibration(
    baseline: FakeBaseline,
    opened: Callable[..., Bench],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "constants"))
    run = complete(opened()).finished()[0].run
    assert run is not None
    assert run.peak_share is None
    measured = replace(
        default_calibration(thread_count()), product_shared_ns={"vpdpbusd": 0.25}, measured="now"
    )
    store_calibration(measured)
    again = opened()
    assert again.reused == 0
    row = complete(again).finished()[0]
    run = row.run
    assert run is not None
    assert run.gops is not None
    assert run.peak_share == pytest.approx(run.gops / (thread_count() * 128 / 0.25))
    # Other tests at the same time may disturb the comparison, which is then made again.
    assert opened().reused == (0 if row.has_noisy_comparison else 1)
    text = printed(again)
    assert "of peak" in text
    assert f"{run.peak_share:.1%}" in text


@pytest.mark.slow
def test_a_disturbed_comparison_is_worth_another_try(
    baseline: FakeBaseline, opened: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(interleaved, "wait_for_idle_threads", lambda: False)
        row = complete(opened()).finished()[0]
    assert row.run is not None
    assert row.run.baselines["fake"].noisy
    again = opened()
    assert [layer.index for layer in again.pending] == [41]


@pytest.mark.slow
def test_what_a_baseline_cannot_do_is_said(
    baseline: FakeBaseline, opened: Callable[..., Bench]
) -> None:
    baseline.forms = lambda subject, inputs: NotCovered("no such form")
    bench = complete(opened())
    run = bench.finished()[0].run
    assert run is not None
    assert run.baselines == {"fake": BaselineRow(missing="no such form")}
    summary = bench.summary()["run"]["baselines"]["fake"]
    assert summary["not_compared"] == [{"reason": "no such form", "layers": [41]}]
    assert (summary["compared"], summary["call_ratio"]) == (0, None)
    text = printed(bench)
    assert "not compared: no such form" in text
    assert "0 layers compared; 1 not compared" in text
    assert "geometric mean" in text, "of our own rates"


def test_portable_code_is_not_compared(
    baseline: FakeBaseline, opened: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one layer cannot be expressed with the instruction."""
    monkeypatch.setattr(bench_maker, "run", lambda *a, **o: run(*a, **{**o, "backend": "generic"}))
    found = complete(opened()).finished()[0].run
    assert found is not None
    assert found.baselines["fake"].missing == "portable code ran in place of the instruction"
    assert baseline.subjects == []


@pytest.mark.parametrize(
    "options, error, said",
    [
        ({"execute": False}, WorkloadError, "--no-run"),
        ({"backend": "generic"}, WorkloadError, "not with portable code"),
        ({"target": "vta_1x16x16"}, WorkloadError, "vta_1x16x16 is simulated"),
        ({"baselines": ["nosuch"]}, WorkloadError, "'nosuch': use onednn"),
    ],
)
@pytest.mark.usefixtures("baseline")
def test_what_cannot_be_compared_is_refused(
    opened: Callable[..., Bench], options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        opened(**options)


def test_a_machine_without_the_instruction_is_refused(
    baseline: FakeBaseline, opened: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_module, "missing_for", lambda spec: ("this machine lacks it",))
    with pytest.raises(BackendUnavailable, match="this machine lacks it"):
        opened()


# ----------------------------------------------------------------------------------- summary


def row(primitive: float | None, call: float, *, noisy: bool = False) -> BaselineRow:
    """A comparison with these ratios; packing halves them."""

    def ratio(value: float) -> Quantiles:
        return Quantiles(value, value / 2, value * 2)

    return BaselineRow(
        form="call",
        implementations=["isa"],
        primitive_ratio=None if primitive is None else ratio(primitive),
        primitive_ratio_with_packing=None if primitive is None else ratio(primitive / 2),
        call_ratio=ratio(call),
        call_ratio_with_packing=ratio(call / 2),
        noisy=noisy,
    )


ROWS = [
    (0, {"one": row(0.5, 2.0), "two": row(None, 3.0)}),
    (3, {"one": row(2.0, 8.0), "two": row(None, 1.0)}),
    (4, {"one": row(99.0, 99.0, noisy=True), "two": BaselineRow(missing="why")}),
]


def test_the_summary_is_of_the_steady_rows() -> None:
    found = summarise_baselines(ROWS)
    one = found["one"]
    assert (one["compared"], one["noisy"], one["not_compared"]) == (2, [4], [])
    assert one["primitive_ratio"] == {
        "geometric_mean": pytest.approx(1.0),
        "worst": 0.5,
        "worst_layer": 0,
        "best": 2.0,
        "best_layer": 3,
        "ours_not_slower": 1,
        "layers": 2,
    }
    assert one["primitive_ratio_with_packing"]["geometric_mean"] == pytest.approx(0.5)
    assert one["call_ratio"]["geometric_mean"] == pytest.approx(4.0)
    two = found["two"]
    assert two["primitive_ratio"] is None
    assert two["call_ratio"]["geometric_mean"] == pytest.approx(math.sqrt(3))
    assert two["call_ratio"]["ours_not_slower"] == 2
    assert two["not_compared"] == [{"reason": "why", "layers": [4]}]


def test_the_drawing_has_a_part_a_baseline(
    baseline: FakeBaseline, opened: Callable[..., Bench]
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    finished = complete(opened()).finished()[0]
    assert finished.run is not None
    rows = [
        msgspec.structs.replace(
            finished, index=index, run=msgspec.structs.replace(finished.run, baselines=compared)
        )
        for index, compared in ROWS
    ]
    text = baselines_svg(rows, "suite on target")
    assert text == baselines_svg(rows, "suite on target")
    assert text.startswith("<?xml")
    for words in ("suite on target: one", "suite on target: two"):
        assert words in text
    assert "one's primitive time / ours" in text
    assert "two's call time / ours" in text
    assert "packing counted" in text


def test_disturbed_rows_are_drawn_otherwise_and_said(
    baseline: FakeBaseline, opened: Callable[..., Bench]
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    finished = complete(opened()).finished()[0]
    assert finished.run is not None
    compared = {"one": next(found["one"] for _, found in ROWS if found["one"].call_ratio)}
    drawn: list[str] = []
    for noisy in (False, True):
        baselines = {"one": msgspec.structs.replace(compared["one"], noisy=noisy)}
        run = msgspec.structs.replace(finished.run, baselines=baselines)
        drawn.append(baselines_svg([msgspec.structs.replace(finished, index=7, run=run)], "suite"))
    steady, disturbed = drawn
    assert "disturbed" not in steady
    assert "<pattern" not in steady
    assert "1 disturbed by other work on the machine (hatched), not in the means" in disturbed
    # Both bars of the layer, and the legend's.
    assert disturbed.count("fill: url(#") == 3
