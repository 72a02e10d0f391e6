"""``cpembed calibrate`` as a person or a script sees it; one short calibration for most tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpembed.errors import MeasurementError
from cpembed.targets.cpu.calibration import DIRECTORY_VARIABLE, default_calibration
from cpembed.targets.x86 import calibrate as api
from cpembed.targets.x86.calibrate import FEATURES, Measurement
from cpembed.targets.x86.features import lacking
from tests.cli.calling import Called, Caller, in_a_process
from tests.cli.schema import NUMBER, Map, assert_matches

MISSING = {name: ", ".join(lacking(needs)) for name, needs in FEATURES.items() if lacking(needs)}
SHORT = ("calibrate", "--rounds", "8", "--timeout", "1.5", "--json")
MAYBE = (int, float, type(None))
DOCUMENT = {
    "calibration": {
        "cpu": str,
        "threads": int,
        "cache_bytes": [int],
        "product_ns": Map(NUMBER),
        "product_row_ns": Map(NUMBER),
        "latency_ns": Map(NUMBER),
        "tile_line_ns": [NUMBER],
        "vector_line_ns": [NUMBER],
        "store_line_ns": [NUMBER],
        "task_ns": NUMBER,
        "launch_us": NUMBER,
        "call_us": NUMBER,
        "copy_ns_per_line": NUMBER,
        "measured": str,
        "split_line_ns": NUMBER,
        "product_shared_ns": Map(NUMBER),
        "noisy": [str],
    },
    "path": (str, type(None)),
    "peak_gops": Map({"thread": NUMBER, "all": MAYBE}),
    "gb_per_s": {
        "tile_load": [MAYBE],
        "split_tile_load": MAYBE,
        "vector_load": [MAYBE],
        "store": [MAYBE],
        "copy": NUMBER,
    },
    "missing": Map(str),
    "notes": [str],
    "clock_ghz": MAYBE,
    "rounds": MAYBE,
    "seconds": MAYBE,
}

needs_vnni = pytest.mark.skipif("vpdpbusd" in MISSING, reason=MISSING.get("vpdpbusd", ""))
needs_amx = pytest.mark.skipif("tdpbusd" in MISSING, reason=MISSING.get("tdpbusd", ""))


@pytest.fixture
def calibrate(
    cpembed: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Called]:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    return lambda *arguments: cpembed("calibrate", *arguments)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[Called, Path]:
    """A calibration in a process of its own, and the folder that has it."""
    folder = tmp_path_factory.mktemp("calibrated")
    return in_a_process(*SHORT, "--database", str(folder)), folder


@needs_vnni
def test_figures_are_plausible(short: tuple[Called, Path]) -> None:
    """By wide margins: the machine may have other work, in which a figure is several times too
    large, or a clock of its own."""
    called, _ = short
    assert called.code == 0, called.err
    assert_matches(called.json, DOCUMENT)
    found = called.json["calibration"]
    loads = [found["vector_line_ns"]]
    assert 0.05 < found["product_ns"]["vpdpbusd"] < 4
    # Five cycles, and at least two products in that time.
    assert found["latency_ns"]["vpdpbusd"] > 2 * found["product_ns"]["vpdpbusd"]
    if "tdpbusd" in MISSING:
        assert found["tile_line_ns"] == [0, 0, 0, 0]
    else:
        loads.append(found["tile_line_ns"])
    for near, second, third, memory in loads:
        assert 0.02 < near < 1.5 * second
        assert second < 1.5 * third
        assert third < 3 * memory
        assert 2 * near < memory
    stores = found["store_line_ns"]
    assert 0 < stores[0] < 1.5 * stores[1]
    assert stores[1] < 3 * stores[2]
    assert found["copy_ns_per_line"] > 0.5 * found["vector_line_ns"][1]
    assert found["call_us"] > 0.05
    assert found["task_ns"] >= 0
    assert 0.5 < called.json["clock_ghz"] < 8


@needs_amx
def test_figures_of_tiles_are_plausible(short: tuple[Called, Path]) -> None:
    found = short[0].json["calibration"]
    for name in ("tdpbusd", "tdpbf16ps"):
        # 16 cycles, of 1 to 5 GHz; the unit may be shared.
        assert 3 < found["product_ns"][name] < 80
        assert found["product_row_ns"][name] * 16 < 1.5 * found["product_ns"][name]
        assert found["latency_ns"][name] > 0.5 * found["product_ns"][name]
    # A tile product does 256 times the work of a vector's.
    peaks = short[0].json["peak_gops"]
    assert peaks["tdpbusd"]["thread"] > peaks["vpdpbusd"]["thread"]


@needs_vnni
def test_what_was_measured_is_kept_and_shown(
    short: tuple[Called, Path], calibrate: Callable[..., Called]
) -> None:
    called, folder = short
    document = called.json
    (path,) = folder.iterdir()
    assert document["path"] == str(path)
    assert json.loads(path.read_text()) == document["calibration"]
    shown = calibrate("--show", "--json", "--database", str(folder))
    assert (shown.code, shown.err) == (0, "")
    assert_matches(shown.json, DOCUMENT)
    assert shown.json["calibration"] == document["calibration"]
    assert shown.json["seconds"] is None
    report = calibrate("--show", "--database", str(folder)).out
    assert document["calibration"]["measured"] in report
    assert "vpdpbusd" in report
    assert "GB/s" in report


@needs_vnni
def test_notes_are_said_on_stderr(short: tuple[Called, Path]) -> None:
    called, _ = short
    assert called.err.count("\n") == len(called.json["notes"])


def test_nothing_measured_shows_published_figures(calibrate: Callable[..., Called]) -> None:
    called = calibrate("--show", "--json")
    assert called.code == 0
    assert_matches(called.json, DOCUMENT)
    assert called.json["path"] is None
    assert called.json["calibration"]["measured"] == ""
    assert "nothing was measured here" in called.err
    report = calibrate("--show").out
    assert "published" in report.splitlines()[0]
    assert "tdpbf16ps" in report


def test_a_report_names_units_absences_and_what_is_not_steady(
    calibrate: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = replace(
        default_calibration(2),
        cpu="A CPU",
        measured="2026-01-02T03:04:05+00:00",
        product_ns={"tdpbf16ps": 8.0, "vpdpbusd": 0.25},
        product_shared_ns={"tdpbf16ps": 16.0},
        vector_line_ns=(0.25, 0.5, 2.0, 8.0),
        noisy=("tile_line_ns:L3",),
    )
    measured = Measurement(
        calibration=found,
        missing={"tdpbusd": "CPU feature amx_int8"},
        notes=("so and so",),
        clock_ghz=2.5,
        rounds=60,
        seconds=12.0,
    )
    monkeypatch.setattr(api, "measure_calibration", lambda *arguments: measured)
    called = calibrate()
    assert called.code == 0
    assert called.err == "cpembed: so and so; calibrate again when the machine is idle\n"
    lines = [" ".join(line.split()) for line in called.out.splitlines()]
    assert "absent tdpbusd: CPU feature amx_int8" in lines
    assert "not steady tile_line_ns:L3" in lines
    # 16 384 operations in 8 ns; two threads at half of that.
    assert "tdpbf16ps 8 0.2 6.4 2.05 TFLOPS 2.05 TFLOPS" in lines
    assert "vpdpbusd 0.25 · 2 0.512 TOPS ·" in lines
    assert "vector load 0.25 ns, 256 GB/s 0.5 ns, 128 GB/s 2 ns, 32 GB/s 8 ns, 8 GB/s" in lines


def test_an_interruption_or_a_busy_machine_writes_nothing(
    calibrate: Callable[..., Called], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def raises(error: BaseException) -> Callable[..., Any]:
        def measure(*arguments: Any) -> Measurement:
            raise error

        return measure

    monkeypatch.setattr(api, "measure_calibration", raises(KeyboardInterrupt()))
    called = calibrate()
    assert (called.code, called.err.strip()) == (130, "cpembed: interrupted")
    monkeypatch.setattr(api, "measure_calibration", raises(MeasurementError("too busy")))
    calibrate().is_one_line_error(4, "too busy")
    assert list(tmp_path.iterdir()) == []


def test_a_cpu_without_the_instructions_is_one_line(
    calibrate: Callable[..., Called], bare_cpu: None
) -> None:
    del bare_cpu
    calibrate().is_one_line_error(5, "no instruction to calibrate", "amx_int8")


@pytest.mark.parametrize(
    "arguments", [("--rounds", "0"), ("--timeout", "0"), ("--threads", "none"), ("more",)]
)
def test_wrong_calls_are_one_line(
    calibrate: Callable[..., Called], arguments: tuple[str, ...]
) -> None:
    calibrate(*arguments).is_one_line_error(2, arguments[0])


def test_a_file_that_is_none_is_a_line_beside_published_figures(
    calibrate: Callable[..., Called], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        api,
        "measure_calibration",
        lambda *_: Measurement(
            calibration=default_calibration(),
            missing={},
            notes=(),
            clock_ghz=1.0,
            rounds=1,
            seconds=1.0,
        ),
    )
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    assert calibrate("--json").code == 0
    (path,) = tmp_path.iterdir()
    path.write_text("[]")
    shown = calibrate("--show")
    assert shown.code == 0
    damaged, published = shown.err.splitlines()
    assert str(path) in damaged
    assert "run `cpembed calibrate` again" in damaged
    assert "nothing was measured here" in published
