"""``cpembed bench`` as a person or a script sees it: streams, exit codes, resumption."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cpembed.codegen.compiled import CompiledKernel
from cpembed.driver import bench as api
from cpembed.driver import bench_maker
from cpembed.driver.bench_maker import RowMaker
from tests.cli.calling import Called, Caller
from tests.cli.schema import NUMBER, QUANTILES, Map, assert_matches

VTA = ("--target", "vta_1x16x16")


SOLVED = {
    "constraints": str,
    "status": str,
    "complete": bool,
    "count": int,
    "families": int,
    "seconds": {"model": NUMBER, "solve": NUMBER, "total": NUMBER},
}
SEARCHES = {
    "constraints": str,
    "embedded": int,
    "not_embedded": int,
    "reasons": [{"axes": [str], "constraints": [str], "text": str, "layers": [int]}],
    "seconds": {"median": NUMBER, "max": NUMBER, "max_layer": int, "sum": NUMBER},
}
DOCUMENT = {
    "suite": str,
    "target": str,
    "instruction": str,
    "constraints": str,
    "layout": str,
    "seed": int,
    "rows": [
        {
            "index": int,
            "label": str,
            "application": str,
            "count": int,
            "macs": int,
            "date": str,
            "seconds": NUMBER,
            "strict": {**SOLVED},
            "best": {
                **SOLVED,
                "embedding": {
                    "id": str,
                    "mapping": str,
                    "axes": Map([{"axis": str, "count": int, "stride": int}]),
                    "utilisation": NUMBER,
                    "mac_overhead": NUMBER,
                    "data_overhead": NUMBER,
                    "calls": int,
                    "in_place": [str],
                },
            },
        }
    ],
    "summary": {
        "layers": int,
        "strict": SEARCHES,
        "best": SEARCHES,
        "run": {
            "executed": int,
            "verified": int,
            "failed_verification": [int],
            "backends": Map(int),
        },
        "errors": [{"index": int, "type": str, "message": str}],
    },
    "counted": Map(str),
    "not_run": [str],
    "machine": {"cpu": str, "cores": int, "threads": int, "system": str},
    "versions": Map(str),
    "date": str,
    "taken_from_store": int,
    "store": str,
}
GENERIC_RUN = {
    "backend": str,
    "verified": bool,
    "max_error": NUMBER,
    "latency_us": type(None),
    "generic_latency_us": QUANTILES,
    "packing_us": NUMBER,
    "unpacking_us": NUMBER,
    "whole_us": QUANTILES,
    "packed_ahead": [str],
    "missing": [str],
    "noisy": bool,
}
SIMULATED_RUN = {
    **{name: GENERIC_RUN[name] for name in ("backend", "verified", "max_error", "noisy")},
    "latency_us": type(None),
    "gops": type(None),
    "packing_us": NUMBER,
    "unpacking_us": NUMBER,
    "packed_ahead": [str],
    "output": str,
    "shift": int,
    "simulated_cycles": int,
    "clock_mhz": NUMBER,
    "simulated_us": NUMBER,
    "simulated_gops": NUMBER,
    "gemm_utilisation": NUMBER,
    "lower_bound_cycles": int,
    "lower_bound_ratio": NUMBER,
    "busiest_module_ratio": NUMBER,
}


@pytest.fixture
def bench(cpembed: Caller, tmp_path: Path) -> Callable[..., Called]:
    def call(*arguments: str) -> Called:
        return cpembed("bench", "deepbench", *VTA, "--results", str(tmp_path), *arguments)

    return call


def test_a_table_on_stdout_and_the_rest_on_stderr(
    bench: Callable[..., Called], tmp_path: Path
) -> None:
    called = bench("--layers", "0,12", "--no-run")
    assert (called.code, called.err) == (0, "")
    for part in (
        "y←k:16 z←c:16",
        "no: axis z (16, reduction)",
        "1/2 embedded",
        "2/2 embedded",
        "median",
        "Not embedded under strict",
    ):
        assert part in called.out

    called = bench("--layers", "0-1,12", "--no-run")
    assert called.code == 0
    assert called.err.count("\n") == 1
    assert f"2 of 3 rows taken from {tmp_path}" in called.err
    assert "2 layers (0, 1)" in called.out


def test_a_target_without_back_end_is_solved_only(cpembed: Caller, tmp_path: Path) -> None:
    target = ("--target", "gemm_16x16x16", "--results", str(tmp_path))
    called = cpembed("bench", "deepbench", *target, "--layers", "12")
    assert called.code == 0
    assert called.err.count("\n") == 1
    assert "no back end executes gemm_16x16x16 yet: searching only; --backend generic" in called.err
    native = cpembed("bench", "deepbench", *target, "--backend", "native")
    native.is_one_line_error(5, "no back end executes gemm_16x16x16")


@pytest.mark.slow
def test_a_simulated_target_has_cycles(bench: Callable[..., Called]) -> None:
    called = bench("--layers", "41", "--json")
    assert (called.code, called.err) == (0, "")
    assert_matches(called.json, DOCUMENT)
    assert_matches(called.json["rows"][0]["run"], SIMULATED_RUN)
    assert called.json["summary"]["run"]["simulated"]["layers"] == 1
    table = bench("--layers", "41").out
    assert "simulated cycles" in table
    assert "cycles over the least" in table


def test_json_is_one_document(bench: Callable[..., Called]) -> None:
    called = bench("--layers", "12", "--no-run", "--layout", "NHWC", "--json")
    assert (called.code, called.err) == (0, "")
    assert_matches(called.json, DOCUMENT)
    assert (called.json["suite"], called.json["layout"]) == ("deepbench", "NHWC")
    assert called.json["rows"][0]["run"] is None
    assert called.json["summary"]["strict"]["embedded"] == 1


def test_portable_code_verifies_and_has_a_time_of_its_own(bench: Callable[..., Called]) -> None:
    called = bench("--layers", "6", "--backend", "generic", "--json")
    assert (called.code, called.err) == (0, "")
    assert_matches(called.json, DOCUMENT)
    assert_matches(called.json["rows"][0]["run"], GENERIC_RUN)
    assert called.json["summary"]["run"]["verified"] == 1


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--layers", "200"], "deepbench has layers 0 to 107"),
        (["--layers", "x"], "neither 3 nor 3-7"),
        (["--constraints", "strickt"], "did you mean strict"),
        (["--layout", "NCWH"], "NCHW"),
        (["--seed", "-1"], "seed"),
    ],
)
def test_wrong_arguments_are_one_line(
    bench: Callable[..., Called], arguments: list[str], said: str
) -> None:
    bench(*arguments).is_one_line_error(2, said)


def test_unknown_suites_and_targets(cpembed: Caller) -> None:
    cpembed("bench", "nosuch", *VTA).is_one_line_error(2, "'nosuch': use deepbench")
    cpembed("bench", "deepbench", "--target", "nosuch").is_one_line_error(2, "nosuch")


@pytest.mark.slow
def test_a_wrong_kernel_is_loud_and_exits_1(
    bench: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = CompiledKernel.run

    def wrong(self: CompiledKernel, inputs: Any) -> Any:
        return honest(self, inputs) + 1

    monkeypatch.setattr(CompiledKernel, "run", wrong)
    called = bench("--layers", "41", "--backend", "generic")
    assert called.code == 1
    assert "layer 41 (conv2d n=1 c=1" in called.err
    assert "VERIFICATION FAILED" in called.err
    assert "WRONG" in called.out
    assert "layers 41" in called.out


def test_a_bug_in_one_layer_shows_its_place_and_the_others_are_done(
    bench: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = bench_maker.solve

    def solve(workload: Any, *arguments: Any, **options: Any) -> Any:
        if workload.extents["c"] == 128:
            raise ZeroDivisionError("oops")
        return make(workload, *arguments, **options)

    monkeypatch.setattr(bench_maker, "solve", solve)
    called = bench("--layers", "12,48", "--no-run")
    assert called.code == 1
    assert "ZeroDivisionError: oops" in called.err
    assert "Traceback" in called.err
    assert "1/2 embedded" in called.out


def test_an_interruption_says_how_to_resume(
    bench: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = RowMaker.row

    def row(self: RowMaker, layer: Any, *, progress: Any) -> Any:
        if layer.index == 48:
            raise KeyboardInterrupt
        return make(self, layer, progress=progress)

    with monkeypatch.context() as patch:
        patch.setattr(RowMaker, "row", row)
        called = bench("--layers", "12,48", "--no-run", "--fresh", "--json")
    called.is_one_line_error(
        130, "interrupted: 1 of 2 rows are kept in", "the same command without --fresh resumes"
    )
    called = bench("--layers", "12,48", "--no-run")
    assert called.code == 0
    assert "1 of 2 rows taken from" in called.err


def _read_all(terminal: int, into: list[bytes]) -> None:
    # Linux: reading fails once the other end is closed.
    with contextlib.suppress(OSError):
        while chunk := os.read(terminal, 65536):
            into.append(chunk)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal and SIGINT are POSIX")
def test_control_c_in_a_terminal_keeps_what_is_complete(tmp_path: Path) -> None:
    """The real signal, at a moment of its own choosing, with the progress bar on."""
    command = [sys.executable, "-m", "cpembed", "bench", "deepbench", *VTA, "--no-run"]
    command += ["--results", str(tmp_path), "--json"]
    terminal, other_end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "150"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=other_end, env=environment, text=True
    )
    os.close(other_end)
    shown: list[bytes] = []
    # A terminal that nobody reads holds 4 KiB, and then the program waits for it.
    reader = threading.Thread(target=_read_all, args=(terminal, shown))
    reader.start()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        stores = list(tmp_path.glob("*.jsonl"))
        if stores and stores[0].read_bytes().count(b"\n") > 5:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    reader.join()
    os.close(terminal)
    if process.returncode == 0:
        pytest.skip("all rows were complete before the signal came: the machine is busy")
    assert process.returncode == 130
    assert out == ""
    assert b"rows are kept in" in b"".join(shown)
    assert b"Traceback" not in b"".join(shown)
    resumed = api.open_bench("deepbench", VTA[1], execute=False, results=tmp_path)
    assert 5 <= resumed.reused < 108
