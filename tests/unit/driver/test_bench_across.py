"""Suites of a user's own, models as suites, and suites on several targets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpembed.driver.bench import Bench, open_bench
from cpembed.driver.bench_across import across
from cpembed.driver.bench_layers import model_layers
from cpembed.driver.matching import matched
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.plan import Request
from cpembed.errors import WorkloadError
from tests.unit.network.networks import network

VTA, GEMM = "vta_1x16x16", "gemm_16x16x16"
TABLE = "layer,count\ngemm m=8 n=32 k=32,3\ngemm m=16 n=24 k=16,1\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(TABLE)
    return path


def done(path: Path, target: str, results: Path, **options: object) -> Bench:
    bench = open_bench(str(path), target, results=results, **options)  # type: ignore[arg-type]
    for _ in bench.run():
        pass
    return bench


@pytest.mark.slow
def test_a_table_is_run_like_a_suite_and_kept(table: Path, tmp_path: Path) -> None:
    bench = done(table, VTA, tmp_path)
    rows = bench.finished()
    assert [row.count for row in rows] == [3, 1]
    assert all(row.run is not None and row.run.verified for row in rows)
    assert bench.suite == "mine.csv"
    assert done(table, VTA, tmp_path).taken == 2
    table.write_text(TABLE.replace("n=24", "n=40"))
    assert done(table, VTA, tmp_path).taken == 0


def test_layers_of_a_table_are_picked_by_number(table: Path, tmp_path: Path) -> None:
    bench = open_bench(str(table), VTA, layers="1", results=tmp_path)
    assert [layer.index for layer in bench.layers] == [1]
    with pytest.raises(WorkloadError, match=r"mine.csv has layers 0 to 1"):
        open_bench(str(table), VTA, layers="2", results=tmp_path)


def test_an_unknown_suite_says_that_files_are_taken(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"\.csv"):
        open_bench("nosuch", VTA, results=tmp_path)


def test_no_library_is_called_with_an_expression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text('layer\n"C[x,y] += A[x,z] * B[z,y] x=16 y=16 z=16"\n')
    monkeypatch.setattr("cpembed.driver.bench.check_comparable", lambda *_: None)
    with pytest.raises(WorkloadError, match="leave the baseline out"):
        open_bench(str(path), VTA, baselines=["onednn"], results=tmp_path)


def test_distinct_products_of_a_model_are_layers() -> None:
    graph = network(
        "n",
        {
            "a": "gemm m=8 n=32 k=32",
            "b": "conv2d n=1 c=8 h=9 w=9 k=8 r=1 s=1 stride=2",
            "c": "gemm m=8 n=32 k=32",
            "d": "conv2d n=1 c=8 h=5 w=5 k=8 r=1 s=1",
        },
    )
    layers = model_layers(graph, "n.onnx")
    assert [layer.count for layer in layers] == [2, 1, 1]
    assert [layer.application for layer in layers] == ["a", "b", "d"]
    # The last two have the same sizes and differ in the stride.
    assert len({layer.label for layer in layers}) == 3
    assert layers[0].workload() == workload("gemm m=8 n=32 k=32")


def test_a_model_without_products_is_no_suite() -> None:
    graph = network("n", {"a": "gemm m=8 n=32 k=32"})
    with pytest.raises(WorkloadError, match="no products"):
        model_layers(replace(graph, operators=(), outputs=()), "n.onnx")


def test_targets_stand_beside_each_other(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benches = [done(table, target, tmp_path) for target in (VTA, GEMM)]
    found = across(benches)
    assert found.targets == (VTA, GEMM)
    for target, bench in zip(found.targets, benches, strict=True):
        for figure, row in zip(found.figures[target], bench.finished(), strict=True):
            spec = hardware_spec(target)
            alone = matched(Request(workload(row.label, spec), spec))
            assert figure is not None
            assert figure.utilisation == alone.utilisation
            assert figure.moved_bytes == alone.moved_bytes
            assert figure.count == row.count
    first = benches[0].finished()[0].run
    assert first is not None
    simulated = found.figures[VTA][0]
    assert simulated is not None
    assert simulated.time is not None
    assert (simulated.time.amount, simulated.time.provenance) == (first.cycles, "simulated")
    vta, gemm = found.lines
    runs = [row.run for row in benches[0].finished()]
    cycles = [run.simulated_us or 0 for run in runs if run is not None]
    assert vta.times["simulated"].amount == pytest.approx(3 * cycles[0] + cycles[1])
    # 8 of 16 rows three times, all rows once; 24 columns take 32 on either.
    assert gemm.use == pytest.approx((3 * 0.5 + 0.75) / 4)
    assert vta.use == pytest.approx((3 * 1.0 + 0.75) / 4)
    assert all(how.startswith("estimated") for how in gemm.times)
    # What ran is not searched again.
    monkeypatch.delattr("cpembed.driver.bench_across.match_in_worker")
    assert across(benches[:1]).figures[VTA] == found.figures[VTA]


def test_a_layer_that_does_not_fit_has_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text('layer\n"C[m,n] max= A[m,k] * B[k,n] m=8 n=16 k=16"\ngemm m=8 n=16 k=16\n')
    found = across([done(path, VTA, tmp_path, execute=False)])
    first, second = found.figures[VTA]
    assert first is not None
    assert second is not None
    assert first.embedded_on is None
    assert first.reason
    assert second.embedded_on == VTA
    (line,) = found.lines
    assert (line.embedded, line.layers) == (1, 2)
