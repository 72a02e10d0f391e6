"""Damaged stores: whatever became of a file, reading it ends in no traceback, what is undamaged
counts, one line says what was left out, and the file is as it was."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rich.console import Console

from cpembed.driver.bench import Bench, open_bench
from cpembed.driver.named import hardware_spec
from cpembed.driver.presets import DEFAULT_CONSTRAINTS
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.errors import DamagedStore
from cpembed.report import bench as bench_report
from cpembed.report import tune as tune_report
from cpembed.runtime.tuning.database import DIRECTORY_VARIABLE, trial_store
from cpembed.runtime.tuning.records import Lookup
from cpembed.runtime.tuning.session import CandidatePool, Task, screened
from cpembed.stores import ResultStore
from cpembed.targets.choice import compared
from cpembed.targets.cpu import calibration as calibrations
from cpembed.targets.cpu.calibration import (
    calibration,
    calibration_path,
    default_calibration,
    load_calibration,
    store_calibration,
)
from cpembed.targets.cpu.tuning import CpuTuning
from cpembed.targets.registry import open_target, stored_tunings
from cpembed.targets.tuner import tuning_record
from cpembed.targets.vta.tuning import VtaTrial, key_of
from cpembed.targets.x86 import commands as calibrate_report
from cpembed.targets.x86.calibrate import CalibrateResult
from tests.cli.calling import Called, Caller
from tests.fuzz.mutants import mutant
from tests.unit.targets.cpu import tuning as cpu_tuning
from tests.unit.targets.vta import tuning as vta_tuning

pytestmark = pytest.mark.slow

SEED = 20261124
TRIALS, BENCHES, CALIBRATIONS, CALLS = 450, 400, 250, 40
"""Mutants: of each kind of trials, of rows of suites, of calibrations; calls of the program."""

LAYERS = "12,48"


def render(parts: Iterable[Any]) -> None:
    console = Console(quiet=True, width=200)
    for part in parts:
        console.print(part)


def reading(function: Callable[[], Any], path: Path) -> tuple[Any, list[str]]:
    """What a reader returns, and what it says of the file, each line once; it changes nothing."""
    before = path.read_bytes()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = function()
    assert path.read_bytes() == before
    assert all(issubclass(warning.category, DamagedStore) for warning in caught)
    return found, list(dict.fromkeys(str(warning.message) for warning in caught))


def intact(original: bytes, damaged: bytes) -> list[bytes]:
    """Rows, without the key, that are as they were."""
    rows = original.splitlines()[1:]
    lines = damaged.split(b"\n")
    return [row for row in rows if row in lines]


def appends(store: ResultStore[Any], row: Any, damaged: bytes, original: bytes) -> None:
    """Appending loses nothing: what was in the file is, and the new row."""
    store.open()
    store.append(row)
    assert store.path.read_bytes().startswith(damaged)
    (rows, _) = reading(store.load, store.path)
    assert row in rows
    assert len(rows) >= len(intact(original, damaged)) + 1


# ---------------------------------------------------------------------------------------- trials


def keep_vta(folder: Path) -> ResultStore[VtaTrial]:
    machine = vta_tuning.machine()
    spec, chosen = hardware_spec(vta_tuning.TARGET), load_constraint_set("relaxed")
    store = trial_store(folder, key_of(vta_tuning.layer(), spec, machine.tail, chosen), VtaTrial)
    store.open()
    for proposal in screened(vta_tuning.designs(), 6)[:6]:
        store.append(vta_tuning.measure(proposal))
    return store


def keep_cpu(folder: Path) -> ResultStore[Any]:
    every = cpu_tuning.designs()
    spec, chosen = hardware_spec(cpu_tuning.TARGET), load_constraint_set("complete")
    task = Task(
        workload=cpu_tuning.layer(),
        target=spec,
        constraints=chosen,
        trials=8,
        seed=0,
        started=0.0,
        deadline=float("inf"),
    )
    measurer = cpu_tuning.FakeMeasurer(lambda proposal: proposal.estimate)
    field = CandidatePool(tuple(every), cpu_tuning.kernels(every[0])[0], ())
    tuning = CpuTuning(task, field, measurer, "total", folder)
    list(tuning.run())
    return tuning.store


def tuned_vta(folder: Path) -> Any:
    tail, chosen = vta_tuning.machine().tail, load_constraint_set("relaxed")
    asked = Lookup(vta_tuning.layer(), tail, chosen, directory=folder)
    return tuning_record(vta_tuning.target(), asked)


def tuned_cpu(folder: Path) -> Any:
    target = open_target(hardware_spec(cpu_tuning.TARGET))
    return tuning_record(target, Lookup(cpu_tuning.layer(), directory=folder))


@pytest.mark.parametrize(
    "keep, best", [(keep_vta, tuned_vta), (keep_cpu, tuned_cpu)], ids=["vta", "cpu"]
)
def test_trials(
    tmp_path: Path,
    keep: Callable[[Path], ResultStore[Any]],
    best: Callable[[Path], Any],
) -> None:
    random = Random(SEED)
    store = keep(tmp_path)
    original = store.path.read_bytes()
    undamaged = store.load()
    for number in range(TRIALS):
        damaged = mutant(original, random)
        store.path.write_bytes(damaged)
        rows, said = reading(store.load, store.path)
        assert len(rows) >= len(intact(original, damaged)), number
        assert len(said) <= 1, said
        assert all("\n" not in line and len(line) < 700 for line in said), said

        def shown() -> None:
            found = stored_tunings(tmp_path)
            render(tune_report.records_report(found))
            json.dumps(tune_report.records_json(found), allow_nan=False)

        _, said = reading(shown, store.path)
        assert len(said) <= 2, said
        if number % 5 == 0:
            found, said = reading(lambda: best(tmp_path), store.path)
            # Of rows that are damaged, and of those that are whole but none of the workload.
            assert len(said) <= 3, said
            usable = [row for row in undamaged if row.is_measured]
            if len(intact(original, damaged)) == len(undamaged):
                assert found is not None
            assert usable
            appends(store, undamaged[-1], damaged, original)


# ---------------------------------------------------------------------------------------- suites


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    opened = open_bench("deepbench", vta_tuning.TARGET, layers=LAYERS, results=tmp_path / "bench")
    list(opened.run())
    return opened


def test_rows_of_suites(bench: Bench) -> None:
    random = Random(SEED)
    path = bench.store.path
    original = path.read_bytes()
    row = bench.finished()[0]
    for number in range(BENCHES):
        damaged = mutant(original, random)
        path.write_bytes(damaged)
        rows, said = reading(bench.store.load, path)
        assert len(rows) >= len(intact(original, damaged)), number
        assert len(said) <= 1, said
        bench.rows = {found.index: found for found in rows}
        render(bench_report.report(bench))
        json.dumps(bench.to_json(), allow_nan=False)
        if number % 5 == 0:
            appends(bench.store, row, damaged, original)


# ---------------------------------------------------------------------------------- calibrations


def test_calibrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(calibrations.DIRECTORY_VARIABLE, str(tmp_path))
    random = Random(SEED)
    path = store_measured()
    original = path.read_bytes()
    program = cpu_tuning.candidates(cpu_tuning.GEMM)[:2]
    for number in range(CALIBRATIONS):
        # As it is written, and on one line, where values can be exchanged.
        text = original if number % 2 else json.dumps(json.loads(original)).encode()
        path.write_bytes(mutant(text, random))
        found, said = reading(load_calibration, path)
        assert (found is None) == (len(said) == 1), said
        if found is not None:
            render(calibrate_report.report(CalibrateResult(found, path)))
            json.dumps(CalibrateResult(found, path).to_json(), allow_nan=False)
            compared(cpu_tuning.Modelled(found), program)
    calibration.cache_clear()


def store_measured() -> Path:
    threads = calibrations.thread_count()
    measured = replace(default_calibration(threads), measured="2026-01-02", cpu="x")
    return store_calibration(measured)


# ------------------------------------------------------------------------------ the command line


def is_said(called: Called) -> None:
    """A result or a line about the input; nothing of Python's."""
    assert called.code in (0, 2, 3, 4, 5), called
    assert "Traceback" not in called.err, called.err
    assert "internal error" not in called.err, called.err
    assert all(line.startswith("cpembed: ") for line in called.err.splitlines()), called.err


def test_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpembed = Caller(capsys)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "tuned"))
    monkeypatch.setenv(calibrations.DIRECTORY_VARIABLE, str(tmp_path / "calibrated"))
    random = Random(SEED)
    vta = (*vta_tuning.SMALL.split(), "--target", vta_tuning.TARGET)
    suite = ("bench", "deepbench", "--target", vta_tuning.TARGET, "--layers", LAYERS, "--no-run")
    results = ("--results", str(tmp_path / "rows"))
    tune = ("tune", *vta, "--trials", "3", "--constraints", DEFAULT_CONSTRAINTS)
    is_said(cpembed(*tune))
    is_said(cpembed(*suite, *results))
    store_measured()
    calls = [
        (tmp_path / "tuned", ("run", *vta)),
        (tmp_path / "tuned", ("tune", "--show")),
        (tmp_path / "tuned", ("tune", "--show", *vta, "--json")),
        (tmp_path / "tuned", tune),
        (tmp_path / "rows", (*suite, *results)),
        (calibration_path().parent, ("calibrate", "--show")),
        (calibration_path().parent, ("calibrate", "--show", "--json")),
    ]
    originals = {path: path.read_bytes() for folder, _ in calls for path in folder.iterdir()}
    for number in range(CALLS):
        for path, data in originals.items():
            path.write_bytes(data)
        folder, call = calls[number % len(calls)]
        for path in folder.iterdir():
            path.write_bytes(mutant(path.read_bytes(), random))
        called = cpembed(*call)
        is_said(called)
        assert called.code == 0, called
