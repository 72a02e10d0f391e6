"""``cpembed explore`` through the front door: interrupted, killed, resumed, and what it writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cpembed.targets import family
from tests.cli.calling import Called, Caller, in_a_process
from tests.unit.exploration import cases

SCRIPT = """
import sys
from cpembed.cli import main
from tests.unit.exploration import cases
sys.exit(main(sys.argv[1:]))
"""


class Explored:
    """Calls on a space and a suite that are written into a folder; ``log`` has a line for each
    evaluation there was."""

    def __init__(self, folder: Path, caller: Caller) -> None:
        assert family.BUILT_IN["synthetic"]
        self.folder = folder
        self.log = folder / "log"
        self._caller = caller
        cases.space(folder, seed=1, slack=0.2)
        rows = "\n".join(f"gemm m={m} n={n} k={k},{count}" for m, n, k, count in cases.SIZES)
        (folder / "suite.csv").write_text(f"layer,count\n{rows}\n")

    @property
    def words(self) -> list[str]:
        names = [str(self.folder / name) for name in ("space.toml", "suite.csv", "kept")]
        return ["explore", names[0], names[1], "--results", names[2]]

    def __call__(self, *more: str) -> Called:
        return self._caller(*self.words, *more)

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def explored(tmp_path: Path, cpembed: Caller, monkeypatch: pytest.MonkeyPatch) -> Explored:
    found = Explored(tmp_path, cpembed)
    monkeypatch.setenv("SYNTHETIC_LOG", str(found.log))
    return found


def same(document: dict[str, object]) -> dict[str, object]:
    names = ("front", "rows", "certificate", "trials", "hypervolume", "status")
    return {name: document[name] for name in names if name in document}


def test_a_report_names_points_and_how_costs_came_about(explored: Explored) -> None:
    called = explored("--top", "2")
    assert called.code == 0
    assert "the front of the space, proven for the programs" in called.out
    assert "240, of which" in called.out
    assert called.out.count("simulated") == 2


def test_a_second_call_evaluates_nothing(explored: Explored) -> None:
    first = explored("--json")
    count = len(explored.lines())
    second = explored("--json")
    assert count == len(explored.lines()) == len(set(explored.lines())) > 0
    assert same(first.json) == same(second.json)
    assert second.json["taken_from_store"] > count
    other = explored("--json", "--objectives", "time,area")
    assert other.code == 0
    assert len(explored.lines()) == len(set(explored.lines()))
    explored("--json", "--fresh")
    assert len(explored.lines()) > count


@pytest.mark.quick(1)
@pytest.mark.parametrize("method", ["exact", "nsga2"])
def test_workers_say_the_same(explored: Explored, method: str) -> None:
    alone = explored("--json", "--method", method, "--trials", "12")
    together = explored("--json", "--method", method, "--trials", "12", "--fresh", "--workers", "2")
    assert same(alone.json) == same(together.json)


@pytest.mark.quick(1)
@pytest.mark.parametrize("method", ["exact", "random"])
def test_a_killed_exploration_goes_on(
    explored: Explored, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*explored.words, "--json", "--method", method, "--trials", "60"]
    path = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": path, "SYNTHETIC_PAUSE": "0.05"}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *words], env=environment, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while len(explored.lines()) < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = explored.lines()
    assert len(before) >= 8
    resumed = explored(*words[5:])
    assert resumed.code == 0
    # What was being evaluated at the time of the kill is evaluated once more, and nothing else.
    lines = explored.lines()
    assert len(lines) - len(set(lines)) <= 1
    fresh = explored(*words[5:], "--fresh")
    assert same(resumed.json) == same(fresh.json)


@pytest.mark.slow
def test_an_interrupt_says_where_it_goes_on(explored: Explored) -> None:
    words = [*explored.words, "--json"]
    path = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": path, "SYNTHETIC_PAUSE": "0.05"}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while len(explored.lines()) < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command continues" in err
    if out:
        document = json.loads(out)
        assert document["status"] in ("unproven", "unknown")
    assert explored("--json").json["status"] == "proven"


def test_a_time_limit_ends_with_what_there_is(explored: Explored) -> None:
    called = explored("--timeout", "0.0001", "--json")
    assert called.code == 4
    assert called.json["status"] == "unknown"
    assert called.json["stopped"]


def test_what_is_written(explored: Explored) -> None:
    certificate, target = explored.folder / "c.json", explored.folder / "t.toml"
    called = explored("--json", "--certificate", str(certificate), "--save-target", str(target))
    document = called.json
    assert json.loads(certificate.read_text()) == document["certificate"]
    first = next(row for row in document["rows"] if row["number"] == document["front"][0])
    assert f"rows = {first['parameters']['rows']}\n" in target.read_text()
    number = document["front"][-1]
    shown = explored("--pick", str(number))
    assert f"Point {number}" in shown.out
    assert "software c" in shown.out
    discarded = {verdict["number"] for verdict in document["certificate"]["discarded"]}
    assert discarded | {row["number"] for row in document["rows"]} == set(range(240))


def test_limits_that_nothing_holds(explored: Explored) -> None:
    called = explored("--limit", "energy=1pJ")
    assert called.code == 3
    assert "no point of the space meets the limits" in called.out


@pytest.mark.parametrize(
    "words, code, said",
    [
        (["--limit", "power=2V"], 2, "the unit of power is one of"),
        (["--objectives", "cycles,speed"], 2, "unknown objective 'speed'"),
        (["--method", "tpe", "--certificate", "c.json"], 2, "tpe proves nothing"),
        (["--population", "5"], 2, "--population applies to nsga2"),
        (["--pick", "100000"], 2, "point 100000 was not evaluated"),
        (["--layers", "9"], 2, "layers 0 to 3"),
        (["--workers", "2", "--cluster", "tcp://nowhere:1"], 2, "only one can be given"),
    ],
)
def test_wrong_words_are_one_line(
    explored: Explored, words: list[str], code: int, said: str
) -> None:
    explored(*words).is_one_line_error(code, said)


@pytest.mark.slow
def test_a_space_that_is_not_there() -> None:
    in_a_process("explore", "nowhere.toml", "resnet50").is_one_line_error(2, "nowhere.toml")
