"""``cpembed tune`` on this machine's CPU, as a person or a script sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cpembed.driver import tune as api
from cpembed.runtime.tuning.database import DIRECTORY_VARIABLE
from cpembed.targets.cpu import tuning
from cpembed.targets.cpu.isolated_measure import IsolatedMeasurer
from cpembed.targets.cpu.measure import Failed, Timeable, Timed
from tests.cli.calling import Called, Caller
from tests.cli.schema import NUMBER, QUANTILES, TUNED, Map, assert_matches
from tests.features import needs

GEMM = ("gemm", "m=32", "n=32", "k=64")
VNNI = ("--target", "avx512_vnni")
VTA = ("--target", "vta_1x16x16")
needs_vnni = needs("avx512_vnni")

TRIAL = {
    "embedding": {"axes": Map([{"axis": str, "count": int, "stride": int}])},
    "identifier": str,
    "rank": int,
    "constraints": str,
    "knobs": {
        "register_tiles": Map(int),
        "loop_order": str,
        "cache_tiles": Map(int),
        "non_temporal": bool,
        "split_k": int,
        # Names of before, until 0.2.
        "blocks": Map(int),
        "columns_outermost": bool,
        "panels": Map(int),
    },
    "estimate_us": NUMBER,
    "estimated_moves_us": NUMBER,
    "latency_us": QUANTILES,
    "packing_us": NUMBER,
    "unpacking_us": NUMBER,
    "ratio": NUMBER,
    "noisy": bool,
    "rejected": bool,
    "final": int,
}
_MEASURED = {**TRIAL, "total_us": NUMBER}
DOCUMENT = {
    **TUNED,
    "objective": str,
    "not_expressed": int,
    "untuned": _MEASURED,
    "best": _MEASURED,
}


@pytest.fixture
def tune(cpembed: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Called]:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    return lambda *arguments: cpembed("tune", *arguments)


@needs_vnni
def test_a_document_and_what_is_kept(tune: Callable[..., Called], cpembed: Caller) -> None:
    call = (*GEMM, *VNNI, "--trials", "3", "--candidates", "4", "--json")
    called = tune(*call)
    assert (called.code, called.err) == (0, "")
    document = called.json
    assert_matches(document, DOCUMENT)
    assert (document["trials"], document["measured"], document["objective"]) == (3, 3, "total")
    assert document["best"]["final"] == document["untuned"]["final"] == 1
    assert document["speedup"] == document["untuned"]["ratio"] / document["best"]["ratio"] >= 1
    # A disturbed decision is repeated, nothing else.
    document = tune(*call).json
    assert (document["measured"], document["kept"]) == (0, 3)

    (file,) = tune("--show", "--json").json["files"]
    assert (file["current"], file["trials"]) == (True, 3)
    assert_matches(file["best"], TRIAL)
    table = tune("--show").out.splitlines()
    assert "s total" in table[2]
    assert "times as fast as untuned" in table[2]

    ran = cpembed("run", *GEMM, *VNNI, "--json").json
    assert ran["tuned"]["trials"] == 3
    assert ran["schedule"] == document["best"]["knobs"]
    assert ran["embedding"] == document["best"]["identifier"]
    assert "the best of 3 trials: " in cpembed("run", *GEMM, *VNNI).out
    plain = cpembed("run", *GEMM, *VNNI, "--untuned", "--json").json
    assert plain["tuned"] is None
    assert plain["schedule"] == document["untuned"]["knobs"]
    assert plain["model"]["considered"] >= 1
    assert "untuned: " in cpembed("run", *GEMM, *VNNI, "--untuned").out


@needs_vnni
def test_a_report_says_untuned_tuned_and_what_the_model_expected(
    tune: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    few = ("--trials", "2", "--candidates", "2", "--threads", "1")
    called = tune(*GEMM, *VNNI, *few, "--objective", "kernel")
    assert (called.code, called.err) == (0, "")
    lines = called.out.splitlines()
    labels = [line.split()[0] for line in lines if line[:1].strip()]
    expected = ["tried", "minimised", "untuned", "tuned", "model", "embedding", "schedule", "kept"]
    assert [label for label in labels[4:] if label != "noisy"] == expected
    assert "latency alone" in called.out
    assert "kernel" in tune("--show").out.splitlines()[2]
    (file,) = tune("--show", "--json").json["files"]
    assert (file["key"]["threads"], file["key"]["objective"]) == (1, "kernel")


@needs_vnni
def test_an_interruption_keeps_and_reports_what_was_measured(
    tune: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0

    class Breaking(IsolatedMeasurer):
        def measure(self, proposal: Timeable, champion: Timeable | None) -> Timed | Failed:
            nonlocal count
            count += 1
            if count > 2:
                raise KeyboardInterrupt
            return super().measure(proposal, champion)

    call = (*GEMM, *VNNI, "--trials", "3", "--candidates", "2", "--json")
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "IsolatedMeasurer", Breaking)
        called = tune(*call)
    assert called.code == 130
    assert "2 of 3 trials are kept in" in called.err
    assert called.json["trials"] == 2
    assert tune(*call).json["measured"] == 1


@pytest.mark.slow
@needs_vnni
def test_rows_of_a_suite_follow_tuning(
    tune: Callable[..., Called], cpembed: Caller, tmp_path: Path
) -> None:
    bench = (
        "bench",
        "unit16",
        *VNNI,
        "--layers",
        "2",
        "--results",
        str(tmp_path / "rows"),
        "--json",
    )
    (plain,) = cpembed(*bench).json["rows"]
    assert "tuned" not in plain["run"]
    chosen = plain["run"]["chosen"]
    assert chosen["considered"] >= chosen["rank"] >= 1
    assert cpembed(*bench).json["taken_from_store"] == 1
    assert tune("unit16:2", *VNNI, "--trials", "1", "--candidates", "1").code == 0
    document = cpembed(*bench).json
    assert document["taken_from_store"] == 0
    assert document["rows"][0]["run"]["tuned"]["trials"] == 1
    assert "chosen" not in document["rows"][0]["run"]
    assert cpembed(*bench).json["taken_from_store"] == 1
    (untuned,) = cpembed(*bench, "--untuned").json["rows"]
    assert untuned["run"]["chosen"] == chosen


def test_options_of_the_other_kind_of_target_are_one_line(
    tune: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(*GEMM, *VTA, "--objective", "kernel").is_one_line_error(2, "vta_1x16x16", "objective")
    monkeypatch.setattr(api, "missing_for", lambda spec: ())
    tune(*GEMM, *VNNI, "--output", "int32").is_one_line_error(2, "avx512_vnni", "output form")
