"""``cpembed tune`` as a person or a script sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cpembed.runtime.tuning.database import DIRECTORY_VARIABLE
from cpembed.runtime.tuning.space import Proposal
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.target import VtaTuner
from cpembed.targets.vta.tuning import VtaTrial
from tests.cli.calling import Called, Caller
from tests.cli.schema import NUMBER, TUNED, Map, assert_matches

VTA = ("--target", "vta_1x16x16")
GEMM = ("gemm", "m=16", "n=32", "k=48")
TRIAL = {
    "embedding": {"axes": Map([{"axis": str, "count": int, "stride": int}])},
    "identifier": str,
    "rank": int,
    "constraints": str,
    "schedule": {
        "tiles": Map(int),
        "order": [str],
        "threads": int,
        "thread_loop": (str, type(None)),
        "slots": [int],
    },
    "estimate": NUMBER,
    "cycles": int,
    "lower_bound": int,
    "busiest_module": int,
}
MEASURED = {**TRIAL, "us": NUMBER, "lower_bound_ratio": NUMBER, "busiest_module_ratio": NUMBER}
DOCUMENT = {**TUNED, "form": str, "untuned": MEASURED, "best": MEASURED}


@pytest.fixture
def tune(cpembed: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Called]:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    return lambda *arguments: cpembed("tune", *arguments)


def test_a_document_and_what_is_kept(tune: Callable[..., Called], tmp_path: Path) -> None:
    call = (*GEMM, *VTA, "--trials", "6")
    called = tune(*call, "--json")
    assert (called.code, called.err) == (0, "")
    assert_matches(called.json, DOCUMENT)
    assert (called.json["trials"], called.json["measured"]) == (6, 6)
    assert Path(called.json["database"]).parent == tmp_path
    assert tune(*call, "--json").json["measured"] == 0
    (file,) = tune("--show", "--json").json["files"]
    assert_matches(file, {"path": str, "key": Map(object), "current": bool, "trials": int})
    assert_matches(file["best"], TRIAL)
    assert file["best"]["cycles"] == called.json["best"]["cycles"]
    assert file["current"] is True


def test_a_report_says_untuned_and_tuned(tune: Callable[..., Called]) -> None:
    lines = tune(*GEMM, *VTA, "--trials", "4").out.splitlines()
    labels = [line.split()[0] for line in lines if line[:1].strip()]
    assert labels[-6:] == ["tried", "untuned", "tuned", "embedding", "schedule", "kept"]
    table = tune("--show").out.splitlines()
    assert table[0].split()[:3] == ["workload", "target", "constraints"]
    assert "C[m, n] += (A[m, k] * B[k, n])" in table[2]


def test_what_is_kept_is_shown_of_one_workload(tune: Callable[..., Called]) -> None:
    tune(*GEMM, *VTA, "--trials", "1")
    assert len(tune("--show", *GEMM, *VTA, "--json").json["files"]) == 1
    assert tune("--show", "gemm", "m=1", "n=32", "k=48", *VTA, "--json").json["files"] == []
    assert tune("--show", "--target", "vta_8x8x8", "--json").json["files"] == []
    called = tune("--show", "--target", "vta_8x8x8")
    assert (called.code, called.out) == (0, "")
    assert "no results in" in called.err
    tune("--show", *GEMM).is_one_line_error(2, "--target")


def test_trials_of_another_version_are_shown_as_old(
    tune: Callable[..., Called], tmp_path: Path
) -> None:
    tune(*GEMM, *VTA, "--trials", "1")
    (path,) = tmp_path.glob("*.jsonl")
    path.write_text(path.read_text().replace('"model": "', '"model": "0'))
    out = tune("--show").out
    assert "old: " in out
    assert "another version" in out
    assert tune("--show", "--json").json["files"][0]["current"] is False


def test_other_targets_are_one_line(tune: Callable[..., Called]) -> None:
    tune(*GEMM, "--target", "gemm_16x16x16").is_one_line_error(5, "no back end executes")


def test_a_machine_without_the_instruction_is_one_line(
    tune: Callable[..., Called], bare_cpu: None
) -> None:
    tune(*GEMM, "--target", "avx512_vnni").is_one_line_error(5, "this machine lacks")


@pytest.mark.parametrize(
    "arguments, part",
    [
        ((), "'WORKLOAD...'"),
        (GEMM, "'--target'"),
        ((*GEMM, *VTA, "--trials", "0"), "--trials"),
        ((*GEMM, *VTA, "--constraints", "nosuch"), "nosuch"),
        ((*GEMM, *VTA, "dtype=int8,int8,int8", "--output", "int32"), "cannot be int32"),
    ],
)
def test_wrong_calls_are_one_line(
    tune: Callable[..., Called], arguments: tuple[str, ...], part: str
) -> None:
    tune(*arguments).is_one_line_error(2, part)


def test_nothing_to_tune_is_said_as_by_solve(tune: Callable[..., Called]) -> None:
    called = tune("gemm", "m=4", "n=8", "k=64", *VTA, "--constraints", "strict")
    assert called.code == 3
    assert "proven infeasible" in called.err


def test_an_interruption_keeps_and_reports_what_was_measured(
    tune: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    count, tried = 0, VtaTuner.run_trial

    def breaks(self: VtaTuner, proposal: Proposal[Schedule], *of: Any) -> VtaTrial:
        nonlocal count
        count += 1
        if count > 3:
            raise KeyboardInterrupt
        return tried(self, proposal, *of)

    call = (*GEMM, *VTA, "--trials", "6", "--json")
    with monkeypatch.context() as patch:
        patch.setattr(VtaTuner, "run_trial", breaks)
        called = tune(*call)
    assert called.code == 130
    assert "3 of 6 trials are kept in" in called.err
    assert called.json["trials"] == 3
    assert tune(*call).json["measured"] == 3


@pytest.mark.slow
def test_a_run_says_that_it_is_tuned(tune: Callable[..., Called], cpembed: Caller) -> None:
    tuned = tune(*GEMM, *VTA, "--trials", "4", "--json").json
    document = cpembed("run", *GEMM, *VTA, "--json").json
    assert document["simulated_cycles"] == tuned["best"]["cycles"]
    assert document["tuned"]["trials"] == 4
    assert "the best of 4 trials" in cpembed("run", *GEMM, *VTA).out
    plain = cpembed("run", *GEMM, *VTA, "--untuned", "--json").json
    assert plain["tuned"] is None
    assert plain["simulated_cycles"] == tuned["untuned"]["cycles"]
