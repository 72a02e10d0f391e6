"""Suites: one row a layer, resumed after an interruption, wrong kernels said loudly."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from cpembed.codegen.compiled import CompiledKernel
from cpembed.driver import bench_maker
from cpembed.driver.bench import Bench, open_bench, select_layers
from cpembed.driver.bench_layers import NamedSuite
from cpembed.driver.bench_maker import RowMaker
from cpembed.driver.bench_rows import BenchRow, RunRow
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.errors import BackendUnavailable, LoweringError, SpecError, WorkloadError
from cpembed.hw.loader import load_hardware_spec
from cpembed.provenance import Provenance
from cpembed.report.bench import report
from cpembed.resources import constraint_files, hardware_spec_files
from cpembed.runtime.measurement import environment
from cpembed.runtime.measurement.runner import Quantiles
from cpembed.targets.vta.target import VtaTarget
from cpembed.workloads.suites import Layer, suite
from tests.features import needs
from tests.unit.targets.cuda.emulator.running import needs_compiler

VTA = "vta_1x16x16"
VNNI = load_hardware_spec("avx512_vnni")
NO_BACK_END = "gemm_16x16x16"
FEW = "0,12,48"
"""Layer 0 has one input channel, the others embed."""


def solving(results: Path, **options: Any) -> Bench:
    options = {"layers": FEW, "execute": False, **options}
    return open_bench("deepbench", options.pop("target", VTA), results=results, **options)


def complete(bench: Bench) -> Bench:
    list(bench.run())
    return bench


def interrupt_after(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    make, made = RowMaker.row, []

    def row(self: RowMaker, layer: Any, *, progress: Any) -> BenchRow:
        if len(made) == rows:
            raise KeyboardInterrupt
        made.append(layer.index)
        return make(self, layer, progress=progress)

    monkeypatch.setattr(RowMaker, "row", row)


# ----------------------------------------------------------------------------------------- rows


def ran(row: BenchRow, median: float, packing: float, *, noisy: bool = False) -> BenchRow:
    """The row as if the instruction had run."""
    run = RunRow(
        backend="x86.vnni",
        provenance=Provenance.MEASURED,
        verified=True,
        max_error=0.0,
        latency_us=Quantiles(median, median / 4 if noisy else median, median),
        generic_latency_us=None,
        packing_us=packing,
        unpacking_us=1.0,
        packed_ahead=["W"],
        gops=1.0,
        gops_with_packing=0.5,
        missing=[],
        noisy=noisy,
    )
    return msgspec.structs.replace(row, run=run)


def test_the_total_counts_a_layer_as_often_as_the_network_has_it(tmp_path: Path) -> None:
    bench = complete(open_bench("resnet50", VTA, layers="0,2", execute=False, results=tmp_path))
    assert [row.count for row in bench.finished()] == [suite("resnet50")[i].count for i in (0, 2)]
    first, second = (row.count for row in bench.finished())
    assert second > 1
    assert bench.summary()["run"]["total_us"] is None
    bench.maker = replace(bench.maker, backend="auto")
    bench.rows[0] = ran(bench.rows[0], 2000.0, 9.0)
    bench.rows[2] = ran(bench.rows[2], 4000.0, 19.0, noisy=True)
    found = bench.summary()["run"]
    assert found["total_us"] == first * 2000 + second * 4000
    assert found["total_with_packing_us"] == first * 2010 + second * 4020
    assert (found["timed_layers"], found["noisy"]) == (first + second, [2])
    text = printed(bench)
    assert f"({first + second} layers, by count)" in text
    assert "1 layer (2): other work on the machine disturbed the times" in text
    rows = [line for line in text.splitlines() if "yes (x86.vnni)" in line]
    assert [", noisy" in line for line in rows] == [False, True]
    assert "1000.0" in rows[1], "the p10"


def printed(bench: Bench) -> str:
    page = io.StringIO()
    console = Console(file=page, width=300)
    for part in report(bench):
        console.print(part)
    return page.getvalue()


def test_rows_have_the_mapping_or_the_reason(tmp_path: Path) -> None:
    rows = complete(solving(tmp_path)).finished()
    assert [row.index for row in rows] == [0, 12, 48]
    stem, face = rows[0], rows[1]
    assert stem.strict is not None
    assert stem.strict.embedding is None
    assert stem.strict.reason is not None
    assert stem.strict.reason.axes == ["z"]
    assert "c=1" in stem.strict.reason.text
    assert stem.best is not None
    assert stem.best.embedding is not None
    # Its channel alone would use a sixteenth; a window of 5 by 20 fills 6 and a quarter times 16.
    assert stem.best.constraints == "fused"
    assert stem.best.embedding.mapping == "y←k:16 z←r_s:16"
    assert stem.best.embedding.utilisation == 100 / 112
    assert face.strict is not None
    assert face.strict.embedding is not None
    assert face.strict.embedding.mapping == "y←k:16 z←c:16"
    assert face.run is None
    assert face.macs == 128 * 128 * 27 * 27 * 9


def test_a_row_has_the_element_types_of_the_roles(tmp_path: Path) -> None:
    """The matrix of a matrix-vector product is VNNI's second factor, of signed bytes."""
    maker = solving(tmp_path, target="avx512_vnni").maker
    row = maker.row(Layer("mine", 0, "", "gemv m=64 k=64"), progress=lambda phase, count: None)
    assert row.best is not None
    assert row.best.embedding is not None
    assert row.best.embedding.utilisation == 1.0


def test_the_json_document_has_the_promised_fields(tmp_path: Path) -> None:
    document = complete(solving(tmp_path)).to_json()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert {"suite", "target", "rows", "summary", "machine", "versions", "date"} <= set(document)
    assert document["suite"] == "deepbench"
    assert document["target"] == VTA
    assert document["machine"]["threads"] >= 1
    assert document["versions"]["ortools"].startswith("9.15")
    row = document["rows"][1]
    assert {"index", "label", "strict", "best", "run", "error"} <= set(row)
    assert row["strict"]["embedding"]["axes"]["z"] == [{"axis": "c", "count": 16, "stride": 1}]
    summary = document["summary"]
    assert summary["layers"] == 3
    assert summary["strict"]["embedded"] == 2
    assert [group["layers"] for group in summary["strict"]["reasons"]] == [[0]]
    times = [
        r["strict"]["seconds"]["model"] + r["strict"]["seconds"]["solve"] for r in document["rows"]
    ]
    assert summary["strict"]["seconds"]["max"] == max(times)
    assert summary["best"]["embedded"] == 3
    assert summary["run"]["executed"] == 0


@pytest.mark.slow
def test_portable_code_verifies_where_no_back_end_executes(tmp_path: Path) -> None:
    bench = solving(tmp_path, layers="6", execute=True, backend="generic")
    run = complete(bench).finished()[0].run
    assert run is not None
    assert (run.verified, run.max_error, run.backend) == (True, 0.0, "generic")
    # Its time is not the instruction's.
    assert run.latency_us is None
    assert run.gops is None
    assert run.generic_latency_us is not None
    assert bench.summary()["run"]["verified"] == 1
    assert bench.summary()["run"]["gops_geometric_mean"] is None


def test_a_target_without_back_end_is_solved_only(tmp_path: Path) -> None:
    bench = solving(tmp_path, execute=True, target=NO_BACK_END)
    assert bench.maker.backend is None
    assert "no back end" in bench.missing[0]
    with pytest.raises(BackendUnavailable, match=NO_BACK_END):
        solving(tmp_path, execute=True, backend="native", target=NO_BACK_END)


@pytest.mark.slow
def test_a_simulated_target_has_cycles_and_no_latency(tmp_path: Path) -> None:
    bench = complete(solving(tmp_path, layers="6,41", execute=True))
    assert bench.missing == ()
    for row in bench.finished():
        run = row.run
        assert run is not None
        assert (run.verified, run.max_error, run.backend) == (True, 0.0, "vta.simulator")
        assert (run.latency_us, run.gops, run.details["output"]) == (None, None, "requantized")
        assert run.provenance is Provenance.SIMULATED
        assert run.cycles is not None
        assert run.clock_mhz == 100
        assert run.simulated_us == run.cycles / 100
        # In documents what only this target says stands beside what every target does.
        document = row.to_json()["run"]
        assert document["provenance"] == "simulated"
        assert document["simulated_cycles"] == document["cycles"] == run.cycles
        assert document["simulated_us"] == run.simulated_us
        assert document["simulated_gops"] == pytest.approx(
            2 * row.macs / document["simulated_us"] / 1e3
        )
        assert document["lower_bound_ratio"] >= 1
    found = bench.summary()["run"]["simulated"]
    assert found["layers"] == sum(row.count for row in bench.finished())
    again = solving(tmp_path, layers="6,41", execute=True)
    assert again.reused == 2
    assert again.finished() == bench.finished()
    text = printed(again)
    assert "yes (vta.simulator)" in text
    assert f"{found['total_cycles']:,} cycles" in text
    assert "latency us" not in text
    # The page says what each field counts.
    page = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    document = bench.to_json()
    fields = [name for name in document["rows"][0]["run"] if "simulated" in name or "ratio" in name]
    for name in (*fields, "output", "shift", "clock_mhz", "lower_bound_cycles", "gemm_utilisation"):
        assert f"`run.{name}`" in page
    summary = document["summary"]["run"]["simulated"]
    assert [name for name in summary if f"`{name}`" not in page] == []


@needs_compiler
def test_an_emulated_target_has_estimates_and_no_latency(tmp_path: Path) -> None:
    table = tmp_path / "layers.csv"
    table.write_text("layer\ngemm m=9 n=17 k=33\n", encoding="utf-8")
    bench = complete(open_bench(str(table), "mma_f16", machine="rtx_4090", results=tmp_path))
    (row,) = bench.finished()
    assert row.run is not None
    assert row.run.selection is not None
    text = printed(bench)
    assert "estimated us" in text
    assert f"{row.run.selection.estimated:.2f}" in text
    assert "for rtx_4090, packing" in text
    assert "latency" not in text


@pytest.mark.slow
def test_a_layer_that_cannot_be_lowered_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> Any:
        raise LoweringError("no schedule: single tiles exceed the buffers")

    monkeypatch.setattr(VtaTarget, "build", refuse)
    named = {"constraints": "in_place_padded"}
    bench = complete(solving(tmp_path, layers="6", execute=True, **named))
    run = bench.finished()[0].run
    assert run is not None
    assert (run.backend, run.cycles) == ("generic", None)
    assert run.missing == ["no schedule: single tiles exceed the buffers"]
    assert "yes (generic); no schedule: single tiles" in " ".join(
        printed(bench).replace(", noisy", "").split()
    )


# ------------------------------------------------------------------------------------- failures


@pytest.mark.slow
def test_a_wrong_kernel_is_a_failed_row_and_the_suite_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = CompiledKernel.run

    def wrong(self: CompiledKernel, inputs: Any) -> Any:
        found = honest(self, inputs).copy()
        if self.program.unfused.extents["r"] == 5:
            found.flat[-1] += 1
        return found

    monkeypatch.setattr(CompiledKernel, "run", wrong)
    bench = complete(solving(tmp_path, layers="6,41", execute=True, backend="generic"))
    right, failed = bench.finished()
    assert failed.failed_verification
    assert failed.run is None
    assert failed.error is not None
    assert "wrong by up to 1" in failed.error.message
    assert failed.best is not None
    assert failed.best.embedding is not None
    assert right.run is not None
    assert right.run.verified
    assert bench.summary()["run"]["failed_verification"] == [41]
    assert bench.exit_code() == 1


@pytest.mark.parametrize(
    "error, code", [(LoweringError("no such register"), 0), (ZeroDivisionError("oops"), 1)]
)
def test_an_exception_is_reported_in_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    make = bench_maker.solve

    def solve(workload: Any, *arguments: Any, **options: Any) -> Any:
        if workload.extents["c"] == 128:
            raise error
        return make(workload, *arguments, **options)

    monkeypatch.setattr(bench_maker, "solve", solve)
    bench = complete(solving(tmp_path, layers="12,48"))
    failed = [row for row in bench.finished() if row.error is not None]
    assert [row.index for row in failed] == [12]
    assert failed[0].error is not None
    assert (failed[0].error.type, failed[0].error.message) == (type(error).__name__, str(error))
    assert bench.summary()["errors"][0]["index"] == 12
    assert bench.exit_code() == code
    # An error is worth another try.
    monkeypatch.undo()
    again = solving(tmp_path, layers="12,48")
    assert [layer.index for layer in again.pending] == [12]
    assert complete(again).exit_code() == 0


# ------------------------------------------------------------------------------------ the store


def test_an_interrupted_run_resumes_after_its_complete_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        complete(solving(tmp_path))
    monkeypatch.undo()
    again = solving(tmp_path)
    assert again.reused == 2
    assert [row.index for row in again.run()] == [48]
    assert [row.index for row in again.finished()] == [0, 12, 48]
    # All of a larger selection is not there, what is there is taken.
    assert solving(tmp_path, layers="0-48").reused == 3
    assert solving(tmp_path, fresh=True).reused == 0
    assert solving(tmp_path).reused == 0


def test_a_torn_last_line_is_made_again(tmp_path: Path) -> None:
    bench = complete(solving(tmp_path))
    whole = bench.store.path.read_bytes()
    bench.store.path.write_bytes(whole[:-40])
    again = solving(tmp_path)
    assert again.reused == 2
    assert [layer.index for layer in again.pending] == [48]
    complete(again)
    assert solving(tmp_path).reused == 3


def test_what_rows_depend_on_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complete(solving(tmp_path, layers="48"))

    def taken(**options: Any) -> int:
        return solving(tmp_path, **{"layers": "48", **options}).reused

    assert taken() == 1
    assert taken(layout="NHWC") == 0
    assert taken(constraints="in_place") == 0
    assert taken(seed=1) == 0
    assert taken(execute=True, backend="generic") == 0

    # The same names, other contents.
    spec = tmp_path / f"{VTA}.toml"
    spec.write_text(hardware_spec_files()[VTA].read_text() + "\n# changed\n")
    assert taken(target=str(spec)) == 0
    padded = load_constraint_set("in_place_padded")
    assert taken(constraints=padded) == 1
    assert taken(constraints=padded.removing("padding")) == 0

    for name, value in (("cpu_model", "another CPU"), ("source_digest", "another source")):
        with monkeypatch.context() as patch:
            patch.setattr(environment, name, lambda value=value: value)
            patch.setattr("cpembed.driver.bench.source_digest", environment.source_digest)
            assert taken() == 0
    monkeypatch.setattr("cpembed.driver.bench.versions", lambda: {"cpembed": "9.9"})
    assert taken() == 0


def test_a_constraint_set_extended_by_another_changes_the_key(tmp_path: Path) -> None:
    """A user's set that extends a changed one is another set, though its own file is the same."""
    base, mine = tmp_path / "base.toml", tmp_path / "mine.toml"
    base.write_text(constraint_files()["strict"].read_text())
    mine.write_text('extends = "base"\n')
    complete(solving(tmp_path, layers="48", constraints=str(mine)))
    assert solving(tmp_path, layers="48", constraints=str(mine)).reused == 1
    base.write_text(base.read_text() + '\naxes = "all"\n')
    assert solving(tmp_path, layers="48", constraints=str(mine)).reused == 0


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(Exception, match="name another folder") as caught:
        solving(blocked / "results")
    assert getattr(caught.value, "exit_code", None) == 2


# ------------------------------------------------------------------------------------ selection


@pytest.mark.parametrize("text", ["108", "5-200", "7-3", "a", "", "1,,2", "-1", "1-2-3"])
def test_wrong_layers_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(WorkloadError, match="layers") as caught:
        select_layers(NamedSuite("deepbench", suite("deepbench")), text)
    assert "\n" not in str(caught.value)


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="nosuch"):
        open_bench("nosuch", VTA, results=tmp_path)
    with pytest.raises(SpecError, match="nosuch"):
        open_bench("deepbench", "nosuch", results=tmp_path)


# ------------------------------------------------------------------------------- whole suites


@pytest.mark.slow
def test_deepbench_on_vta_embeds_all_but_the_layers_with_few_channels(tmp_path: Path) -> None:
    """Rieber et al. 2021: 96 of the 108 layers embed without padding, all of them with it."""
    bench = complete(solving(tmp_path, layers=None, constraints="strict_padded"))
    rows = bench.finished()
    few = [layer.index for layer in suite("deepbench") if int(layer.parameters["c"]) < 16]
    assert len(rows) == 108
    assert len(few) == 12
    unfit = [row for row in rows if row.strict is None or row.strict.embedding is None]
    assert [row.index for row in unfit] == few
    for row, index in zip(unfit, few, strict=True):
        assert row.strict is not None
        assert row.strict.status == "infeasible"
        assert row.strict.reason is not None
        assert f"c={suite('deepbench')[index].parameters['c']}" in row.strict.reason.text
    assert all(row.best is not None and row.best.embedding is not None for row in rows)


@pytest.mark.slow
@needs(VNNI)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_deepbench_layers_run_on_vnni_bit_for_bit(tmp_path: Path, layout: str) -> None:
    bench = open_bench("deepbench", VNNI, layers="0,9,14,27,48,81", layout=layout, results=tmp_path)
    assert bench.missing == ()
    for row in bench.run():
        assert row.error is None, row.error
        assert row.run is not None
        assert (row.run.backend, row.run.verified, row.run.max_error) == ("x86.vnni", True, 0.0)
        assert row.run.latency_us is not None
        assert row.run.gops is not None
        assert row.run.gops_with_packing is not None
        # What packing costs is measured apart, and either may be disturbed: only what they count.
        assert row.run.whole_us is not None
        assert row.run.gops == pytest.approx(row.macs / row.run.latency_us.median / 500)
        assert row.run.gops_with_packing == pytest.approx(row.macs / row.run.whole_us.median / 500)
    assert bench.exit_code() == 0
    assert bench.summary()["run"]["verified"] == 6
