"""AMOS's figure 8a, and rows of ``cpembed bench`` as the figures on CPUs store them."""

from __future__ import annotations

import csv
from typing import Any

import pytest

from cpembed.targets.x86 import features
from cpembed.workloads.suites import suite
from experiments import cpu
from tests.experiments.loading import script

figure = script("amos2022/figure8a")


def test_layers_are_those_of_table_5_and_of_the_suite_of_amos() -> None:
    with figure.LAYERS.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(figure.KEYS) == 24
    assert [row["application"] for row in rows] == [key.split("/")[0] for key in figure.KEYS]
    single = [row["layer"] for row in rows[figure.COUNT :]]
    assert single == [row["layer"].replace("n=16 ", "n=1 ") for row in rows[: figure.COUNT]]
    published = [each.parameters for each in suite("amos") if each.application == "C2D"]
    names = ("c", "h", "w", "k", "r", "s", "pad", "stride")
    sizes = [dict(word.split("=") for word in label.split()[1:]) for label in single]
    assert [[each[name] for name in names] for each in sizes] == [
        [each[name] for name in names] for each in published
    ]


def document(**run: Any) -> dict[str, Any]:
    row = {"label": "gemm m=8 n=8 k=8", "macs": 512, "run": run or None, "error": None}
    return {
        "target": "avx512_vnni",
        "rows": [{**row, "best": {"embedding": {"mapping": "y←k:16"}}}],
        "baselines": {"onednn": {"onednn": "3.12.0"}, "tvm": {"tvm": "0.27.0"}},
    }


def quantiles(median: float) -> dict[str, float]:
    return {"p10": median - 1, "median": median, "p90": median + 1}


def test_a_row_has_the_librarys_own_time_or_that_of_a_call() -> None:
    onednn = {
        "primitive_us": quantiles(6),
        "call_us": quantiles(9),
        "ours_us": quantiles(5),
        "primitive_ratio": quantiles(1.2),
        "primitive_ratio_with_packing": quantiles(1.1),
        "noisy": True,
    }
    tvm = {
        "primitive_us": None,
        "call_us": quantiles(8),
        "ours_us": quantiles(4),
        "call_ratio": quantiles(2),
        "call_ratio_with_packing": quantiles(1.5),
    }
    run = {"latency_us": quantiles(4.5), "verified": True, "noisy": False}
    row = cpu.layer_row(
        document(**run, baselines={"onednn": onednn, "tvm": tvm}), ["onednn", "tvm"]
    )
    assert row["us"] == 4.5
    assert cpu.comparison_cells(row, "onednn") == ["6.0", "5.0", "1.20*"]
    assert cpu.comparison_cells(row, "tvm") == ["8.0", "4.0", "2.00"]
    assert cpu.ratio(row, "tvm", packing=True) == 1.5
    lines = cpu.notes([{**row, "key": "C0"}])
    assert "- oneDNN timed by primitive: onednn 3.12.0" in lines
    assert "- MetaSchedule timed by call: tvm 0.27.0" in lines


def test_a_layer_without_a_time_is_an_error_that_says_why() -> None:
    with pytest.raises(RuntimeError, match="has no time on avx512_vnni: CPU feature avx512f"):
        cpu.layer_row(document(missing=["CPU feature avx512f"]), [])


def test_the_widest_instruction_of_the_processor_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(features.ASSUME_VARIABLE, raising=False)
    for present, target in (
        ({"avx2", "avx512f", "avx512_vnni", "avx512bw", "avx512vl", "avx_vnni"}, "avx512_vnni"),
        ({"avx2", "avx_vnni"}, "avx_vnni"),
        ({"avx2"}, "avx2_int7"),
        (set[str](), None),
    ):
        monkeypatch.setattr(features, "cpu_features", lambda present=present: frozenset(present))
        assert cpu.byte_target() == target
        assert bool(cpu.missing_target()) == (target is None)
        assert ("avx512_vnni" in cpu.missing_library("tvm")) == (target != "avx512_vnni")


def test_a_table_has_a_part_for_each_number_of_images() -> None:
    missing = {name: {"missing": "no form"} for name in cpu.LABELS}
    row = {"layer": "a", "target": "avx512_vnni", "us": 2.0, "verified": True, "libraries": missing}
    text = "\n".join(figure.markdown([{**row, "key": "C8"}, {**row, "key": "C8/1"}]))
    assert text.index("## 16 images") < text.index("| C8 |")
    assert text.index("| C8 |") < text.index("## 1 image\n") < text.index("| C8/1 |")
    assert "MetaSchedule: not compared; the paper's AMOS over TVM: 1.37" in text
