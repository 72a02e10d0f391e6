"""Programs of a pack beside a GPU, without one: rounds, the worker's ends, tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpembed.targets.cuda.remote import report, run
from cpembed.targets.cuda.remote.conversation import Conversation
from cpembed.targets.cuda.remote.timing import LEAST_ROUNDS, MOST_ROUNDS, Samples, rounds

# -------------------------------------------------------------------------------------- rounds


def test_every_contender_is_in_every_round_and_begins_in_turn() -> None:
    order: list[str] = []
    now = iter(np.arange(1000.0)).__next__
    contenders = {name: (lambda name=name: order.append(name)) for name in "abc"}

    def clock(run: Any) -> float:
        run()
        return float(len(order))

    found = rounds(contenders, clock, 10.0, now)
    count = len(found.us["a"])
    assert LEAST_ROUNDS <= count <= MOST_ROUNDS
    assert len(order) == 3 * count
    in_rounds = [order[n : n + 3] for n in range(0, len(order), 3)]
    assert all(sorted(each) == ["a", "b", "c"] for each in in_rounds)
    assert ["".join(each) for each in in_rounds[:4]] == ["abc", "bca", "cab", "abc"]


@pytest.mark.parametrize("seconds, count", [(0.0, LEAST_ROUNDS), (1e9, MOST_ROUNDS)])
def test_rounds_have_limits(seconds: float, count: int) -> None:
    found = rounds({"a": lambda: None}, lambda _: 1.0, seconds)
    assert len(found.us["a"]) == count


def test_ratios_are_of_the_same_round() -> None:
    """A slow moment slows both: the ratio of medians would say 1.5."""
    found = Samples({"a": [2.0, 20.0, 3.0], "b": [1.0, 10.0, 2.0]})
    assert found.ratio("a", "b") == 2.0


# -------------------------------------------------------------------------- the worker's ends

WORKER = """
import json, os, sys, time
def say(**answer): print(json.dumps(answer), flush=True)
say(event="ready")
for line in sys.stdin:
    task = json.loads(line)
    if task["task"] == "device":
        say(event="done", device="none", ceilings={})
        continue
    behaviour = json.loads(task["slug"])
    times = {}
    for name, what in behaviour.items():
        if name in task["skip"]: continue
        say(event="trying", name=name, what="checking")
        if what == "dies": os.kill(os.getpid(), 11)
        if what == "hangs": time.sleep(60)
        if what == "poisons":
            say(event="failed", name=name, reason="illegal address"); sys.exit(3)
        if what == "wrong": say(event="wrong", name=name, reason="element 3"); continue
        if what == "unloadable": say(event="failed", name=name, reason="no image"); continue
        say(event="right", name=name)
        times[name] = {"us": 1.0}
    say(event="trying", name="", what="timing")
    if "late" in behaviour.values(): sys.exit(7)
    say(event="done", times=times, about={})
"""


def conversation(patience: float = 5.0) -> Conversation:
    return Conversation([sys.executable, "-c", WORKER], patience, 20.0)


def test_kernels_that_end_the_worker_are_named_and_the_others_timed() -> None:
    behaviour = {
        "a": "right", "b": "dies", "c": "wrong", "d": "poisons", "e": "unloadable", "f": "right",
    }  # fmt: skip
    with conversation() as worker:
        assert worker.device() == {"device": "none", "ceilings": {}}
        found = worker.layer(json.dumps(behaviour))
        assert set(found.times) == {"a", "f"}
        assert found.wrong == {"c": "element 3"}
        assert found.failed == {
            "b": "checking: its process ended by signal 11",
            "d": "illegal address",
            "e": "no image",
        }
        assert found.trouble is None
        assert set(worker.layer(json.dumps({"g": "right"})).times) == {"g"}


def test_a_kernel_that_hangs_is_given_up() -> None:
    with conversation(patience=1.0) as worker:
        found = worker.layer(json.dumps({"a": "right", "b": "hangs", "c": "right"}))
    assert set(found.times) == {"a", "c"}
    assert found.failed == {"b": "checking: no answer in 1 s"}


def test_an_end_that_is_no_kernels_fault_is_said_once() -> None:
    with conversation() as worker:
        found = worker.layer(json.dumps({"a": "late"}))
        assert found.trouble == "timing: its process ended with status 7"
        assert found.times == {}
        assert set(worker.layer(json.dumps({"g": "right"})).times) == {"g"}


def test_a_worker_that_does_not_start_is_an_error() -> None:
    with (
        Conversation([sys.executable, "-c", "import sys; sys.exit(4)"], 5.0, 5.0) as worker,
        pytest.raises(RuntimeError, match="does not start: its process ended with status 4"),
    ):
        worker.device()


# ------------------------------------------------------------------------------------- tables


def times(**us: list[float]) -> dict[str, Any]:
    return {
        name.replace("_", " "): {"us": float(np.median(values)), "samples": values}
        for name, values in us.items()
    }


def entry(name: str = "unit16:0", **us: list[float]) -> dict[str, Any]:
    return {
        "suite": "unit16",
        "name": name,
        "target": "mma_f16",
        "macs": 5_000_000_000,
        "variants": [
            {"name": "chosen 1", "also": [], "estimated_us": 1.5},
            {"name": "chosen 2", "also": ["fuse_hw"], "estimated_us": 1.5},
            {"name": "im2col", "also": [], "estimated_us": 1.5},
        ],
        "rules": [{"name": "dlight as shipped", "failed": "its rule fails"}],
        "times": times(**us),
        "wrong": {},
        "failed": {},
        "trouble": None,
    }


DEVICE = {
    "device": "a device", "capability": [8, 0], "multiprocessors": 108, "driver_version": "1.2",
    "clock_mhz": 1410.0,
    "cuda_driver": "13.1", "torch": "2", "cuda_of_torch": "13", "cudnn": 9, "triton": None,
    "python": "3.12",
    "ceilings": {"copy_bytes_per_s": 1.5e12, "nothing_us": 2.0, "mma_f16_macs_per_s": 1e14},
}  # fmt: skip


def test_figures_are_ratios_to_the_best_kernel() -> None:
    found = report.figures(
        entry(chosen_1=[4.0, 4.0], chosen_2=[2.0, 4.0], im2col=[6.0, 6.0], cuDNN=[3.0, 12.0]),
        {"mma_f16_macs_per_s": 2e15},
    )
    assert found["best"] == "chosen 2"
    assert found["chosen"] == pytest.approx((2 + 1) / 2)
    assert found["im2col"] == pytest.approx((3 + 1.5) / 2)
    assert found["fuse_hw"] == pytest.approx(1.0)
    assert found["cuDNN"] == pytest.approx((1.5 + 3) / 2)
    assert found["Triton"] is None
    assert found["estimate"] == pytest.approx(1.5 / 3)
    assert found["of_ceiling"] == pytest.approx(5e9 / 3e-6 / 2e15)


def test_a_layer_without_times_is_in_the_table_without_numbers() -> None:
    bad = entry("unit16:1") | {"wrong": {"chosen 1": "element 5"}, "trouble": "timing: ended"}
    text = report.markdown({"device": DEVICE, "layers": [entry(chosen_1=[2.0], cuDNN=[3.0]), bad]})
    assert "| unit16:0 | chosen 1 | 2.0 | 1.00 | 0.75 | 1.50 |" in text
    assert "| unit16:1 | none |" in text
    assert "- unit16:1, chosen 1: a wrong result: element 5" in text
    assert "- unit16:1: timing: ended" in text
    assert "- unit16:0, dlight as shipped: not packed: its rule fails" in text
    assert "1.50 (1)" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_a_run_writes_after_every_layer_and_counts_what_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = {"good": {"a": "right"}, "bad": {"b": "dies"}}
    (tmp_path / "layers").mkdir()
    slugs: list[str] = []
    for name, behaviour in layers.items():
        slug = json.dumps(behaviour)
        slugs.append(slug)
        document = entry(name) | {
            "slug": slug, "words": "", "kind": "gemm", "machine": "a100", "bytes": 5,
            "epilogue": None, "storing": None, "constraints": [],
        }  # fmt: skip
        (tmp_path / "layers" / slug).mkdir()
        (tmp_path / "layers" / slug / "layer.json").write_text(json.dumps(document))
    (tmp_path / "pack.json").write_text(json.dumps({"format": 2, "layers": slugs, "packed": {}}))
    worker = WORKER.replace("ceilings={}", f"**{DEVICE!r}").replace('device="none", ', "")
    (tmp_path / "worker.py").write_text(worker.replace('"us": 1.0', '"us": 1.0, "samples": [1.0]'))
    monkeypatch.setattr(run, "__file__", str(tmp_path / "run.py"))
    written: list[int] = []
    write = run.write

    def noted(folder: Path, document: dict[str, Any]) -> None:
        written.append(len(document["layers"]))
        write(folder, document)

    monkeypatch.setattr(run, "write", noted)
    status = run.main(["--pack", str(tmp_path), "--output", str(tmp_path / "out")])
    assert status == 1
    assert written == [1, 2]
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["device"]["device"] == "a device"
    assert found["layers"][1]["failed"] == {"b": "checking: its process ended by signal 11"}
    assert "b: failed" in (tmp_path / "out" / "results.md").read_text()
    out = capsys.readouterr().out
    assert "1/2 good: a 1.0 us" in out
    assert "1 kernels wrong or failed" in out
    assert run.main(["--pack", str(tmp_path), "--only", "nothing"]) == 1
