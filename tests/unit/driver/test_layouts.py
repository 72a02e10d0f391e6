"""Layouts are compared as a run of each by itself says, and the reason is what the figures say."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.driver.layout_rows import LayoutRow, LayoutsResult, Times, run_bytes, why_best
from cpembed.driver.layouts import blocks, compare_layouts
from cpembed.driver.matching import matched
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.options import KernelOptions
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Request, Selection
from cpembed.driver.solve import solve
from cpembed.errors import CrashError, WorkloadError
from cpembed.provenance import Provenance
from cpembed.targets.registry import missing_for

VTA = "vta_1x16x16"
CONV = "conv2d n=1 c=16 h=8 w=8 k=16 r=3 s=3 pad=1"


def test_each_layout_is_what_is_chosen_in_it() -> None:
    found = compare_layouts(CONV, VTA)
    assert [row.name for row in found.rows] == ["NCHW", "NHWC", "NCHW16c"]
    for row in found.rows:
        alone = choose(
            Request(workload(f"{CONV} layout={row.name}", VTA), VTA, KernelOptions(untuned=True))
        )
        assert isinstance(alone, Selection)
        assert row.embedding == alone.ranked.embedding
        assert row.utilisation == alone.ranked.overheads.utilisation
        assert row.times is not None
        assert row.times.cycles == alone.choice.estimated
        assert row.total is not None
        assert row.total == pytest.approx((row.times.contraction or 0) + (row.times.moving or 0))
    assert found.best is not None
    assert found.best.total == min(row.total or 0 for row in found.rows)
    assert found.best.name in found.why


def test_measured_times_count_packing() -> None:
    found = compare_layouts(CONV, VTA, measures=True)
    for row in found.rows:
        assert row.times is not None
        assert row.times.provenance is Provenance.SIMULATED
        parts = (row.times.contraction, row.times.packing, row.times.unpacking)
        assert row.total == pytest.approx(sum(part or 0.0 for part in parts))


def test_blocks_that_channels_do_not_fill_are_said() -> None:
    found = compare_layouts("conv2d n=1 c=3 h=8 w=8 k=16 r=3 s=3", VTA)
    assert [row.name for row in found.rows] == ["NCHW", "NHWC"]
    assert "c=3 is no multiple of the 16 channels" in found.refused["NCHW16c"]


def test_blocks_are_what_the_instruction_has() -> None:
    assert blocks(hardware_spec("avx_vnni")) == (8, 32)
    assert blocks(hardware_spec("amx_int8")) == (16, 64)


def test_planes_and_rows_have_their_own_words() -> None:
    names = [row.name for row in compare_layouts("conv1d n=1 c=16 w=8 k=16 s=3", VTA).rows]
    assert names == ["NCW", "NWC", "NCW16c"]


def test_matrices_are_transposed_one_by_one() -> None:
    found = compare_layouts("gemm m=16 n=32 k=32", VTA)
    assert [row.settings for row in found.rows] == [
        {"trans_a": a, "trans_b": b} for a in "01" for b in "01"
    ]
    moved = {row.name: row.moved_bytes for row in found.rows}
    # A as the instruction reads it, tile by tile, needs less moving than A transposed.
    assert (moved["A[m,k] B[n,k]"] or 0) <= (moved["A[k,m] B[n,k]"] or 0)


def test_a_layer_of_a_suite_is_its_sizes() -> None:
    by_name = compare_layouts("resnet18:10", VTA)
    assert by_name.workload.startswith("conv2d n=1")


@pytest.mark.parametrize(
    "words, said",
    [
        ("C[x,y] += A[x,z] * B[z,y] x=4 y=4 z=4", "an expression fixes"),
        ("axpy n=16", "no choice of layouts"),
        ("nosuch n=1", "unknown operator"),
        (f"{CONV} layout=NHWC", "leave layout= out"),
        ("gemm m=4 n=4 k=4 trans_a=1", "leave trans_a= out"),
        ("conv2d n=1 c=16", "missing h"),
        ("conv2d n", "write NAME=VALUE"),
        ("resnet18:x", "NAME:INDEX"),
        ("", "name an operator"),
    ],
)
def test_what_has_no_layouts_is_refused(words: str, said: str) -> None:
    with pytest.raises(WorkloadError) as error:
        compare_layouts(words, VTA)
    assert said in str(error.value)


def test_a_layout_whose_kernel_dies_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from cpembed.driver import layouts

    real = layouts.choose

    def dies(request: Request) -> object:
        if request.workload.operand("I").shape[-1] == 16:
            raise CrashError.from_exit("choosing", -11, "")
        return real(request)

    monkeypatch.setattr(layouts, "choose", dies)
    found = compare_layouts(CONV, VTA)
    reasons = {row.name: row.reason for row in found.rows}
    assert reasons["NCHW"] is None
    assert "SIGSEGV" in (reasons["NHWC"] or "")
    assert found.best is not None
    assert found.best.name == "NCHW"


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "NCHW16c"])
def test_runs_are_those_of_the_elements_of_a_tile(layout: str) -> None:
    """Against a mask over the image, made from the digits."""
    spec = hardware_spec(VTA)
    asked = workload(f"conv2d n=1 c=32 h=8 w=8 k=16 r=1 s=1 layout={layout}", spec)
    best = solve(asked, spec, constraints="strict", top=1).embeddings[0].candidate
    # Without padding and fused axes, one execution reads the steps of its digits.
    image = asked.inputs[0]
    read = asked.access(image.name)
    axes = list(asked.extents)
    counts = dict.fromkeys(axes, 1)
    strides = dict.fromkeys(axes, 1)
    for digits in best.embedding.digits.values():
        for digit in digits:
            counts[digit.axis], strides[digit.axis] = digit.count, digit.stride
    mask = np.zeros(image.shape, bool)
    for point in np.ndindex(*counts.values()):
        values = {a: at * strides[a] for a, at in zip(axes, point, strict=True)}
        mask[tuple(index.evaluate(values) for index in read.index)] = True
    flat = mask.reshape(-1)
    starts = flat & ~np.concatenate([[False], flat[:-1]])
    assert run_bytes(best.program, image.name) == flat.sum() / starts.sum()


def row(name: str, contraction: float, moving: float, **figures: object) -> LayoutRow:
    given = {"on": VTA, "utilisation": 1.0, "run_bytes": 16.0, **figures}
    return LayoutRow(name, {}, times=Times(contraction, moving), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "best, other, said",
    [
        (row("a", 5, 1), row("b", 5, 9), "packing and unpacking take 1 us instead of 9 us"),
        (row("a", 5, 0), row("b", 5, 9), "no time of their own"),
        (
            row("a", 5, 1, utilisation=1.0),
            row("b", 9, 1, utilisation=0.5),
            "100.0% of the instruction is used instead of 50.0%",
        ),
        (row("a", 5, 1, run_bytes=64.0), row("b", 9, 1, run_bytes=4.0), "runs of 64 bytes"),
        (row("a", 5, 1), row("b", 9, 1), "the loops around it differ"),
        (row("a", 5, 1), row("b", 9, 1, on="another"), f"{VTA} runs it"),
    ],
)
def test_the_reason_is_the_part_that_differs(best: LayoutRow, other: LayoutRow, said: str) -> None:
    assert said in LayoutsResult("w", VTA, (other, best)).why


def test_both_parts_are_named_where_both_count() -> None:
    why = LayoutsResult("w", VTA, (row("a", 5, 5), row("b", 9, 9, utilisation=0.9))).why
    assert "packing and unpacking" in why
    assert "the contraction takes" in why


def test_what_takes_the_same_time_is_not_told_apart() -> None:
    found = LayoutsResult("w", VTA, (row("a", 5, 1), row("b", 5.05, 1), row("c", 9, 1)))
    assert [r.name for r in found.as_fast] == ["b"]
    assert found.why.startswith("a and b take the same time; a is 1.67 times as fast as c")
    assert why_best((), None, ()) == "no time is known: nothing can be compared"


def test_disturbed_times_are_said() -> None:
    from cpembed.report.run import layouts_report

    times = Times(5, 1, provenance=Provenance.MEASURED, noisy=True)
    found = LayoutsResult("w", VTA, (row("a", 5, 1), LayoutRow("b", {}, VTA, times=times)))
    assert any("disturbed b" in part for part in layouts_report(found) if isinstance(part, str))
    assert found.to_json()["layouts"][1]["times"]["noisy"]


@pytest.mark.parametrize("target", ["gemmini_16x16", "nvdla_small", VTA, "wmma_s8"])
@pytest.mark.parametrize("words", [CONV, "gemm m=32 n=48 k=64"])
def test_layouts_and_match_state_the_time_of_what_runs(target: str, words: str) -> None:
    spec = hardware_spec(target)
    if missing := missing_for(spec):
        pytest.skip("; ".join(missing))
    layer = workload(words, spec)
    alone = choose(Request(layer, spec, KernelOptions(untuned=True)))
    match = matched(Request(layer, spec)).estimated
    assert isinstance(alone, Selection)
    assert alone.choice.estimated is not None
    assert match is not None
    row = next(row for row in compare_layouts(words, spec).rows if _is_plain(row))
    assert row.times is not None
    assert row.times.total == match.us
    if row.times.cycles is None:
        assert match.us == alone.choice.estimated
    else:
        # Packing precedes the device's cycles.
        assert row.times.cycles == alone.choice.estimated
        assert row.times.contraction is not None
        assert match.us == row.times.contraction + (row.times.moving or 0.0)


def _is_plain(row: LayoutRow) -> bool:
    """True for the layout that an operator has by default."""
    return set(row.settings.values()) <= {"NCHW", "0"}
