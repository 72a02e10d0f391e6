"""What runs beside a GPU, without one: judging, rounds, the worker's ends, tables; with torch, the
whole worker on a driver that executes kernels here."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import building, pack
from benchmarks.gpu.remote import data, main, report
from benchmarks.gpu.remote.conversation import Conversation
from benchmarks.gpu.remote.driver import Driver, DriverError, architecture
from benchmarks.gpu.remote.timing import LEAST_ROUNDS, MOST_ROUNDS, Samples, rounds
from benchmarks.gpu.suites import PackedLayer
from cpembed.runtime.measurement.verification import Expected
from cpembed.targets.cuda.executor import COMPILER
from tests.experiments.gpu_driver import EmulatedLibrary

# ------------------------------------------------------------------------------------- judging


def layer_of(words: str, target: str = "mma_f16", stored: str = "float16") -> dict[str, Any]:
    layer = PackedLayer("", "", words, target, stored)
    return building.layer_document(layer, building.computation(layer))


def float_case(stored: str) -> tuple[dict[str, Any], data.Exact, np.ndarray]:
    """A layer, its sums, and what a right kernel stores."""
    layer = layer_of("gemm m=12 n=10 k=64", stored=stored)
    arrays = {name: array.astype(np.float64) for name, array in data.inputs(layer).items()}
    sums = arrays["A"] @ arrays["B"]
    exact = data.Exact(sums, np.abs(arrays["A"]) @ np.abs(arrays["B"]))
    return layer, exact, sums.astype(np.float32).astype(stored)


@pytest.mark.parametrize("stored", ["float16", "float32"])
def test_a_float_is_right_within_its_roundings_and_no_further(stored: str) -> None:
    layer, exact, found = float_case(stored)
    assert data.judge(found, exact, layer).right
    wrong = found.copy()
    wrong[3, 4] += 0.02
    judged = data.judge(wrong, exact, layer)
    assert not judged.right
    assert judged.place == 34
    for value in (np.nan, np.inf):
        wrong[3, 4] = value
        assert not data.judge(wrong, exact, layer).right


def test_a_product_that_is_left_out_is_noticed() -> None:
    """The smallest mistake of a kernel: one step of the depth is missing, in one element."""
    layer, exact, _ = float_case("float16")
    arrays = {name: array.astype(np.float64) for name, array in data.inputs(layer).items()}
    found = exact.sums.copy()
    step = int(np.argmax(np.abs(arrays["A"][0] * arrays["B"][:, 0])))
    found[0, 0] -= arrays["A"][0, step] * arrays["B"][step, 0]
    judged = data.judge(found.astype(np.float16), exact, layer)
    assert not judged.right
    assert judged.place == 0


def test_libraries_may_add_in_the_stored_type() -> None:
    layer, exact, _ = float_case("float16")
    arrays = data.inputs(layer)
    sums = np.zeros((12, 10), np.float16)
    for step in range(64):
        sums = sums + arrays["A"][:, step, None] * arrays["B"][None, step]
    assert data.judge(sums, exact, layer, loose=True).right
    assert not data.judge(sums, exact, layer).right


def test_integers_are_right_bit_for_bit() -> None:
    layer = layer_of("gemm m=5 n=6 k=32", "mma_s8", "int32")
    arrays = {name: array.astype(np.float64) for name, array in data.inputs(layer).items()}
    sums = arrays["A"] @ arrays["B"]
    exact = data.Exact(sums, np.abs(sums))
    assert data.judge(sums.astype(np.int32), exact, layer).right
    assert not data.judge(sums.astype(np.int32) + np.eye(5, 6, dtype=np.int32), exact, layer).right
    with pytest.raises(ValueError, match="29 elements, not 30"):
        data.judge(np.zeros(29, np.int32), exact, layer)


def test_the_judge_is_no_stricter_than_the_packages_own() -> None:
    words = "conv2d n=1 c=8 h=5 w=5 k=4 r=3 s=3 pad=1 layout=NHWC"
    given = building.computation(PackedLayer("", "", words, "mma_f16", "float32"))
    layer = layer_of(words, stored="float32")
    arrays = data.inputs(layer)
    expected = Expected(given, arrays)
    tolerance = expected.judge(expected.result).tolerance
    assert tolerance <= 2 * (layer["depth"] + 1) * 2.0**-24


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


def test_machine_code_is_chosen_by_the_major_version() -> None:
    assert architecture((8, 9)) == "sm_80"
    with pytest.raises(DriverError, match=r"the device is 7\.5"):
        architecture((7, 5))


def test_what_the_driver_says_is_passed_on() -> None:
    driver = Driver(EmulatedLibrary(Path("/nowhere")))
    assert driver.version() == "13.1"
    with pytest.raises(DriverError, match=r"cuModuleLoadData: no such image \(200\)"):
        driver.call("cuModuleLoadData", None, b"")


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
        say(event="right", name=name, worst=0.5)
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
            {"name": "chosen 1", "also": []},
            {"name": "chosen 2", "also": ["fuse_hw"]},
            {"name": "im2col", "also": []},
        ],
        "rules": [{"name": "dlight as shipped", "failed": "its rule fails"}],
        "times": times(**us),
        "wrong": {},
        "failed": {},
        "trouble": None,
    }


DEVICE = {
    "device": "a device", "capability": [8, 0], "multiprocessors": 108, "driver": "1.2",
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
    assert found["of_ceiling"] == pytest.approx(5e9 / 3e-6 / 2e15)


def test_a_layer_without_times_is_in_the_table_without_numbers() -> None:
    bad = entry("unit16:1") | {"wrong": {"chosen 1": "element 5"}, "trouble": "timing: ended"}
    text = report.markdown({"device": DEVICE, "layers": [entry(chosen_1=[2.0], cuDNN=[3.0]), bad]})
    assert "| unit16:0 | chosen 1 | 2.0 | 1.00 | 1.50 |" in text
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
        document = entry(name) | {"slug": slug, "words": "", "kind": "gemm", "output": {}}
        (tmp_path / "layers" / f"{slug}.json").write_text(json.dumps(document))
    (tmp_path / "pack.json").write_text(json.dumps({"format": 1, "layers": slugs, "packed": {}}))
    monkeypatch.setattr(main, "_WORKER", WORKER.replace("ceilings={}", f"**{DEVICE!r}").replace(
        'device="none", ', "").replace('"us": 1.0', '"us": 1.0, "samples": [1.0]'))  # fmt: skip
    written: list[int] = []
    write = main.write

    def noted(folder: Path, document: dict[str, Any]) -> None:
        written.append(len(document["layers"]))
        write(folder, document)

    monkeypatch.setattr(main, "write", noted)
    status = main.main(["--pack", str(tmp_path), "--output", str(tmp_path / "out")])
    assert status == 1
    assert written == [1, 2]
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["device"]["device"] == "a device"
    assert found["layers"][1]["failed"] == {"b": "checking: its process ended by signal 11"}
    assert "b: failed" in (tmp_path / "out" / "results.md").read_text()
    out = capsys.readouterr().out
    assert "1/2 good: a 1.0 us" in out
    assert "1 kernels wrong or failed" in out
    assert main.main(["--pack", str(tmp_path), "--only", "nothing"]) == 1


# ------------------------------------------------------------------------ the worker, with torch


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    if shutil.which("nvcc") is None or COMPILER.missing():
        pytest.skip("nvcc, or what the executor needs, is not there")
    root = tmp_path_factory.mktemp("worker")
    layers = [
        PackedLayer("s", "s:conv", "conv2d n=1 c=3 h=5 w=5 k=8 r=3 s=3 pad=1 stride=2 layout=NHWC",
                    "mma_f16", "float16"),
        PackedLayer("s", "s:product", "gemm m=40 n=24 k=64", "mma_s8", "int32"),
    ]  # fmt: skip
    assert pack.pack(root, layers, 2, dlight=False) == {}
    return root


def worker_on(root: Path, library: EmulatedLibrary) -> tuple[Any, list[dict[str, Any]]]:
    from benchmarks.gpu.remote.worker import Worker

    said: list[dict[str, Any]] = []

    def clock(run: Any) -> float:
        run()
        return 1.0

    return Worker(root, 0.0, said.append, Driver(library), clock, "sm_80", "cpu"), said


def events(said: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {answer["name"]: answer for answer in said if answer["event"] == kind}


def test_a_workers_contenders_are_checked_then_timed(packed: Path) -> None:
    for slug in json.loads((packed / "pack.json").read_text())["layers"]:
        layer = json.loads((packed / "layers" / f"{slug}.json").read_text())
        worker, said = worker_on(packed, EmulatedLibrary(packed))
        worker.layer(slug, [])
        wanted = {v["name"] for v in layer["variants"]} | {
            "cuDNN" if layer["kind"] == "conv2d" else "cuBLAS"
        }
        assert set(events(said, "right")) == wanted
        assert not events(said, "wrong")
        assert set(said[-1]["times"]) == wanted
        assert len(said[-1]["times"]["chosen 1"]["samples"]) == LEAST_ROUNDS


def test_a_wrong_kernel_is_reported_and_never_timed(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The product is not launched, so its result is what the memory held."""
    slug = json.loads((packed / "pack.json").read_text())["layers"][0]
    library = EmulatedLibrary(packed)
    monkeypatch.setattr(library, "cuLaunchKernel", lambda *_: 0)
    worker, said = worker_on(packed, library)
    worker.layer(slug, [])
    assert "chosen 1" in events(said, "wrong")
    assert set(said[-1]["times"]) == {"cuDNN"}


def test_a_kernel_that_fails_ends_the_worker_by_name(packed: Path) -> None:
    slug = json.loads((packed / "pack.json").read_text())["layers"][0]
    library = EmulatedLibrary(packed)
    library.broken.add("product_kernel")
    worker, said = worker_on(packed, library)
    with pytest.raises(SystemExit):
        worker.layer(slug, [])
    assert events(said, "failed")["chosen 1"]["reason"] == "cuLaunchKernel: illegal address (700)"
    again, said = worker_on(packed, EmulatedLibrary(packed))
    again.layer(slug, ["chosen 1"])
    assert "chosen 1" not in said[-1]["times"]


def test_what_is_written_behind_a_result_is_noticed() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.gpu.remote.implementations import GUARD_BYTES, Buffers

    given = torch.zeros(4, dtype=torch.float16)
    buffers = Buffers({"A": (4, "float16"), "C": (3, "float32")}, {"A": given}, "cpu")
    assert buffers.pointers["A"] == given.data_ptr()
    assert buffers.array("C", "float32").shape == (3,)
    assert buffers.overwritten() == []
    buffers.memory["C"][12 + GUARD_BYTES - 1] = 0
    assert buffers.overwritten() == ["C"]
    with pytest.raises(ValueError, match="A has 4 elements, not 5"):
        Buffers({"A": (5, "float16")}, {"A": given}, "cpu")


@pytest.mark.parametrize("words", [
    "conv2d n=2 c=3 h=7 w=9 k=4 r=3 s=5 pad=1 stride=2,1 layout=NHWC",
    "conv2d n=1 c=4 h=9 w=9 k=4 r=3 s=3 pad=2 dilation=2 layout=NHWC",
])  # fmt: skip
def test_the_reference_there_is_the_packages(words: str) -> None:
    pytest.importorskip("torch")
    from benchmarks.gpu.remote.reference import exact
    from cpembed.ir.reference import reference

    layer = layer_of(words)
    given = building.computation(PackedLayer("", "", words, "mma_f16", "float16"))
    arrays = data.inputs(layer)
    wide = given.with_dtypes(dict.fromkeys((o.name for o in given.operands), "float64"))
    expected = reference(wide, {name: a.astype(np.float64) for name, a in arrays.items()})
    found = exact(layer, arrays, "cpu")
    np.testing.assert_allclose(found.sums, expected, rtol=1e-12, atol=1e-12)
    assert (found.magnitudes >= np.abs(found.sums) - 1e-12).all()
