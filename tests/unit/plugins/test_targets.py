"""A target of another distribution: every command works on it, and what it does to its process is
one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cpembed.runtime.tuning.database import DIRECTORY_VARIABLE
from cpembed.steps import LIMIT_VARIABLE
from tests.cli.calling import Called, Caller, in_a_process
from tests.cli.schema import NUMBER, QUANTILES, RUN, TUNED, Map, assert_matches
from tests.unit.plugins.conftest import Install

MODULE = Path(__file__).with_name("unit_target.py")

TARGET = """
name = "{name}"
description = "a unit of another distribution"
source = "made up"
backend = "{name}"

[instruction]
expression = "C[y] += A[z] * B[y,z]"

[instruction.axes]
y = 4
z = 4

[operands.A]
dtype = "int8"
scope = "memory"
tile = ["z"]

[operands.B]
dtype = "int8"
scope = "memory"
tile = ["y", "z"]

[operands.C]
dtype = "int32"
scope = "memory"
tile = ["y"]

[memories.memory]

[machines.board]
source = "made up"
known = "assumed"
clock_mhz = 100

[machines.board.compute]
cycles = 1

[machines.board.memories.memory]
parent = "dram"
capacity_bytes = 4096

[machines.board.memories.dram]
read_bytes_per_cycle = 4
write_bytes_per_cycle = 4
"""

GEMM = ("gemm", "m=4", "n=8", "k=9")
WORKS = ("--target", "works")
KINDS = ("works", "aborts", "illegal", "forever", "astray", "hungry")
TRIAL = {
    "identifier": str,
    "rank": int,
    "constraints": str,
    "schedule": Map(int),
    "unit": str,
    "provenance": str,
    "estimate": NUMBER,
    "time": NUMBER,
}


@pytest.fixture(autouse=True)
def unit(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = install(
        "cpembed-unit",
        {
            "cpembed.targets": {kind: f"unit_target:{kind.title()}" for kind in KINDS}
            | {"works": "unit_target:Unit"},
            "cpembed.hw_specs": {"unit": "unit_targets"},
        },
        {
            "unit_target.py": MODULE.read_text(encoding="utf-8"),
            "unit_targets/__init__.py": "",
            **{f"unit_targets/{kind}.toml": TARGET.format(name=kind) for kind in KINDS},
        },
    )
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "tuned"))
    return folder


@pytest.fixture
def done(cpembed: Caller) -> Callable[..., Called]:
    """Calls that end well."""

    def call(*arguments: str) -> Called:
        called = cpembed(*arguments)
        assert called.code == 0, called.err
        return called

    return call


@pytest.mark.slow
def test_it_works_in_a_process_and_a_worker_of_its_own() -> None:
    called = in_a_process("run", *GEMM, *WORKS, "--json")
    assert called.code == 0, called.err
    assert (called.json["backend"], called.json["verified"]) == ("works", True)


@pytest.mark.slow
def test_it_is_listed(done: Callable[..., Called]) -> None:
    listed = {entry["name"]: entry for entry in done("targets", "--json").json["targets"]}
    for kind in KINDS:
        assert listed[kind]["available"]
        assert (listed[kind]["backend"], listed[kind]["provenance"]) == (kind, "measured")
    assert "yes (works)" in done("targets").out


@pytest.mark.slow
def test_its_kernels_are_verified_and_timed(done: Callable[..., Called]) -> None:
    document = done("run", *GEMM, *WORKS, "--seed", "5", "--json").json
    assert_matches(document, {**RUN, "latency_us": QUANTILES, "gops": NUMBER})
    assert (document["backend"], document["verified"]) == ("works", True)
    assert document["provenance"] == document["time"]["provenance"] == "measured"
    assert document["schedule"] == {"count": 2}
    model = document["model"]
    assert model["estimated"] == 4 * 8 * 9 / 1e3 / 2
    assert (model["unit"], model["provenance"]) == ("us", "estimated")


def test_solve_and_explain_know_it(done: Callable[..., Called]) -> None:
    found = done("solve", *GEMM, *WORKS, "--json").json
    assert found["count"] > 0
    chosen = done("explain", *GEMM, *WORKS, "--chosen", "--json").json
    assert (chosen["executed"], chosen["missing"], chosen["tuned"]) == ("works", [], None)
    assert chosen["schedule"] == {"count": 2}
    assert chosen["candidate"] in {entry["id"] for entry in found["embeddings"]}
    assert "on 2 of its threads" in done("explain", *GEMM, *WORKS, "--chosen").out


def test_its_machine_is_estimated(done: Callable[..., Called]) -> None:
    document = done("solve", *GEMM, *WORKS, "--rank-by", "estimate", "--json").json
    assert document["machine"] == "board"
    assert all(entry["estimate"]["us"] > 0 for entry in document["embeddings"])


@pytest.mark.slow
def test_the_tvm_plug_in_takes_it() -> None:
    from tvm.relax import op

    import cpembed.integrations.tvm
    from tests.unit.integrations.tvm.modules import module_of, random, run

    shapes = (5, 9), (9, 6)
    module = module_of(
        lambda x, w: op.matmul(x, w, out_dtype="int32"),
        x=(shapes[0], "int8"),
        w=(shapes[1], "int8"),
    )
    offload = cpembed.integrations.tvm.offload("works")
    changed = offload(module)
    assert [entry.reason for entry in offload.report.operators] == [None]
    arrays = [random(number, shape) for number, shape in enumerate(shapes)]
    assert np.array_equal(run(changed, *arrays), run(module, *arrays))


@pytest.mark.slow
def test_what_it_stores_is_asked_for_as_elsewhere(done: Callable[..., Called]) -> None:
    document = done("run", *GEMM, *WORKS, "--output", "uint8", "--relu", "--bias", "--json").json
    assert (document["verified"], document["stored"], document["relu"]) == (True, "uint8", True)


@pytest.mark.slow
def test_it_is_tuned_and_what_was_tuned_runs(done: Callable[..., Called]) -> None:
    call = ("tune", *GEMM, *WORKS, "--trials", "4", "--candidates", "2")
    document = done(*call, "--json").json
    assert_matches(document, {**TUNED, "best": TRIAL, "untuned": TRIAL})
    assert (document["unit"], document["provenance"]) == ("us", "measured")
    best = document["best"]
    assert best["schedule"]["count"] in (1, 2)
    assert best["time"] <= document["untuned"]["time"]
    assert done(*call, "--json").json["measured"] == 0
    (file,) = done("tune", "--show", "--json").json["files"]
    assert (file["current"], file["best"]["time"]) == (True, best["time"])
    lines = [line.split() for line in done(*call).out.splitlines()]
    labels = [words[0] for words in lines if words]
    assert {"tried", "untuned", "tuned", "embedding", "schedule", "kept"} <= set(labels)
    ran = done("run", *GEMM, *WORKS, "--json").json
    assert ran["tuned"]["trials"] == document["kept"]
    assert (ran["candidate"], ran["schedule"]) == (best["identifier"], best["schedule"])
    shown = done("explain", *GEMM, *WORKS, "--chosen", "--json").json
    assert shown["tuned"] == ran["tuned"]
    assert done("run", *GEMM, *WORKS, "--untuned", "--json").json["tuned"] is None


@pytest.mark.slow
def test_its_trials_are_of_its_source(done: Callable[..., Called], unit: Path) -> None:
    call = ("tune", *GEMM, *WORKS, "--trials", "2", "--candidates", "2", "--json")
    assert done(*call).json["measured"] == 2
    module = unit / "unit_target.py"
    module.write_text(module.read_text(encoding="utf-8") + "# faster\n", encoding="utf-8")
    (file,) = done("tune", "--show", "--json").json["files"]
    assert not file["current"]
    assert done("run", *GEMM, *WORKS, "--json").json["tuned"] is None
    assert done(*call).json["measured"] == 2


@pytest.mark.slow
def test_a_schedule_that_is_none_is_left_out(done: Callable[..., Called]) -> None:
    document = done(
        "tune", *GEMM, *WORKS, "--trials", "2", "--candidates", "2", "--json"
    ).json  # fmt: skip
    file = Path(document["database"])
    file.write_text(file.read_text(encoding="utf-8").replace('"count":', '"amount":'))
    assert done("run", *GEMM, *WORKS, "--json").json["tuned"] is None


def test_a_faulty_one_leaves_the_others_listed(unit: Path, done: Callable[..., Called]) -> None:
    module = unit / "unit_target.py"
    module.write_text(
        module.read_text(encoding="utf-8").replace("class Aborts", "class NoMore"),
        encoding="utf-8",
    )
    listed = {entry["name"]: entry for entry in done("targets", "--json").json["targets"]}
    assert listed["works"]["available"]
    assert not listed["aborts"]["available"]
    assert "cpembed-unit" in listed["aborts"]["missing"][0]


@pytest.mark.slow
def test_a_suite_runs_on_it(cpembed: Caller, done: Callable[..., Called], tmp_path: Path) -> None:
    call = ("bench", "amos", "--layers", "0,1", *WORKS, "--results", str(tmp_path / "rows"))
    document = done(*call, "--json").json
    runs = [row["run"] for row in document["rows"]]
    assert [(run["backend"], run["verified"], run["provenance"]) for run in runs] == [
        ("works", True, "measured")
    ] * 2
    assert document["summary"]["run"]["total_us"] > 0
    assert done(*call, "--json").json["taken_from_store"] == 2
    refused = cpembed(*call, "--baseline", "onednn")
    refused.is_one_line_error(2, "unknown baseline 'onednn'", "works is compared with none")


def test_what_it_has_not_is_one_line(cpembed: Caller, tmp_path: Path) -> None:
    for option in ("--save", "--trace"):
        called = cpembed("run", *GEMM, *WORKS, option, str(tmp_path / "file"))
        called.is_one_line_error(2, f"{option}: works", "leave it out")
    shifted = cpembed("run", *GEMM, *WORKS, "--shift", "2", "--output", "float32")
    shifted.is_one_line_error(2, "a shift, wrapping, and clipping without a scale")
    tuned = cpembed("tune", *GEMM, *WORKS, "--objective", "kernel")
    tuned.is_one_line_error(2, "works has no objective kernel", "leave it out")
    cpembed("run", *GEMM, "--target", "nowhere").is_one_line_error(2, "unknown target 'nowhere'")


@pytest.mark.parametrize(
    "kind, code, words",
    [
        pytest.param(
            "aborts",
            1,
            "building a kernel of aborts ended in SIGABRT: LLVM ERROR: no such instruction",
            marks=pytest.mark.slow,
        ),
        ("illegal", 5, "running the illegal kernel ended in SIGILL"),
        pytest.param(
            "forever", 1, "running the forever kernel took too long", marks=pytest.mark.slow
        ),
        pytest.param(
            "astray", 1, "running the astray kernel ended in SIGSEGV", marks=pytest.mark.slow
        ),
        pytest.param("hungry", 1, "running the hungry kernel ended in SIG", marks=pytest.mark.slow),
    ],
)
def test_what_ends_its_process_is_one_line(
    monkeypatch: pytest.MonkeyPatch, kind: str, code: int, words: str
) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "3")
    in_a_process("run", *GEMM, "--json", "--target", kind).is_one_line_error(code, words)


@pytest.mark.slow
def test_trials_that_end_their_process_are_trials_without_a_program() -> None:
    tuned = in_a_process("tune", *GEMM, "--target", "illegal", "--trials", "2", "--json")
    tuned.is_one_line_error(5, "no schedule has a program", "ended in SIGILL")


@pytest.mark.slow
def test_a_suite_goes_on_with_the_next_row(tmp_path: Path) -> None:
    call = ("bench", "amos", "--layers", "0-5", "--target", "aborts", "--results", str(tmp_path))
    called = in_a_process(*call, "--json")
    assert called.code == 1
    rows = called.json["rows"]
    assert [row["index"] for row in rows] == list(range(6))
    ended = [row for row in rows if row["error"] is not None]
    assert 0 < len(ended) < 6
    assert {row["error"]["type"] for row in ended} == {"CrashError"}
