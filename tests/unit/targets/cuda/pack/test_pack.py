"""``cpembed bench --pack``: its files, and its programs on a driver that executes kernels here."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cpembed.driver import bench_pack
from cpembed.runtime.tuning.database import DIRECTORY_VARIABLE
from cpembed.runtime.worker import IN_PROCESS_VARIABLE
from cpembed.targets.cuda.pack import ceiling_text, packing
from tests.cli.calling import Caller
from tests.unit.targets.cuda.emulator.running import needs_compiler, needs_nvcc
from tests.unit.targets.cuda.saved import fake_driver

pytestmark = [
    needs_nvcc,
    needs_compiler,
]

LAYERS = """layer
conv2d n=1 c=3 h=5 w=5 k=8 r=3 s=3 pad=1 layout=NHWC
gemm m=40 n=24 k=64
"""


def pack_again(folder: Path) -> int:
    from cpembed.cli import main

    command = ["bench", str(folder / "mine.csv"), "--target", "mma_f16", "--output", "float16"]
    return main([*command, "--pack", str(folder / "pack.zip")])


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of ``pack.zip``, beside it."""
    folder = tmp_path_factory.mktemp("packed")
    (folder / "mine.csv").write_text(LAYERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(IN_PROCESS_VARIABLE, "1")
        assert pack_again(folder) == 0
    return folder


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_driver.build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def remote(packed: Path, tmp_path: Path) -> Path:
    """The pack as it is on another machine."""
    with zipfile.ZipFile(packed / "pack.zip") as archive:
        archive.extractall(tmp_path / "remote")
    return tmp_path / "remote"


def run(
    remote: Path, driver: Path, behaviour: str, *arguments: str, **further: str
) -> subprocess.CompletedProcess[str]:
    """Run the pack's program; kernels are executed as their texts say."""
    programs: list[str] = []
    if behaviour == "run":
        for text in sorted(remote.glob("layers/*/*/*.cu")):
            library = fake_driver.emulated(text)
            programs.append(f"{text.with_suffix('.sm_80.cubin')} {library}\n")
    (remote / "programs").write_text("".join(programs))
    env = fake_driver.environment(
        driver, behaviour, FAKE_CUDA_PROGRAMS=remote / "programs", **further
    )
    command = [sys.executable, "-E", "-S", str(remote / "run.py"), "--seconds", "0", *arguments]
    return fake_driver.call(command, env)


def results(remote: Path) -> dict[str, Any]:
    return json.loads((remote / "results" / "results.json").read_text())


# ------------------------------------------------------------------------------------- the files


def test_a_pack_has_every_file_that_it_names(remote: Path) -> None:
    slugs = json.loads((remote / "pack.json").read_text())["layers"]
    assert slugs == ["mine-csv-0-mma-f16", "mine-csv-1-mma-f16"]
    for slug in slugs:
        folder = remote / "layers" / slug
        layer = json.loads((folder / "layer.json").read_text())
        roles = [r for v in layer["variants"] for r in (v["name"], *v["also"])]
        expected = {"chosen 1", "chosen 2", "chosen 3"}
        expected |= {"im2col", "fuse_hw"} if layer["kind"] == "conv2d" else set()
        assert sorted(roles) == sorted(expected)
        # A layout that a line names is the layer's, whatever the table's is.
        assert (layer["kind"] != "conv2d") or "q + s - 1, c] *" in layer["request"]["workload"]
        for variant in layer["variants"]:
            manifest = json.loads(
                (folder / variant["folder"] / f"{variant['folder']}.json").read_text()
            )
            files = [image["file"] for image in manifest["images"]] + [manifest["source"]]
            files += [e["sample"] for case in manifest["cases"] for e in case["expected"].values()]
            assert all((folder / variant["folder"] / file).is_file() for file in files)
            assert variant["estimated_us"] > 0
    assert {path.name for path in (remote / "ceilings").iterdir()} == {*ceiling_text.NAMES}


def test_parameters_are_in_the_order_of_the_text(remote: Path) -> None:
    texts = sorted(remote.glob("layers/*/*/*.cu"))
    assert len(texts) >= 4
    for path in texts:
        text, manifest = path.read_text(), json.loads(path.with_suffix(".json").read_text())
        for kernel in manifest["kernels"]:
            declared = re.search(rf"\b{kernel['name']}\(([^)]*)\)", text)
            assert declared is not None
            names = re.findall(r"\* __restrict__ (\w+?)_ptr", declared[1])
            assert names == [parameter["buffer"] for parameter in kernel["parameters"]]


def test_what_is_there_is_not_packed_again(
    packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(IN_PROCESS_VARIABLE, "1")
    files = sorted((packed / "pack").glob("layers/*/*/*"))
    before = [path.stat().st_mtime_ns for path in files]

    def never(*_: object) -> None:
        raise AssertionError("packed again")

    monkeypatch.setattr(packing, "select", never)
    assert pack_again(packed) == 0
    assert [path.stat().st_mtime_ns for path in files] == before
    victim = files[0].parent
    victim.rename(victim.with_name("hidden"))
    try:
        assert pack_again(packed) != 0
        assert "packed again" in capsys.readouterr().err
    finally:
        victim.with_name("hidden").rename(victim)


def test_programs_need_the_standard_library_and_no_more(remote: Path) -> None:
    neighbours = {path.stem for path in remote.glob("*.py")}
    for path in sorted(remote.glob("*.py")):
        allowed = neighbours | set(sys.stdlib_module_names)
        if path.stem in packing.LIBRARIES:
            allowed |= {"torch", "triton"}
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            # A tensor of torch that is passed in brings its module with it.
            assert {name.split(".")[0] for name in names} <= allowed | {"torch"}, path.name


# ----------------------------------------------------------------------------------- the programs


def test_right_kernels_are_timed_and_read_back(
    remote: Path, driver: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run(remote, driver, "run")
    assert (done.returncode, done.stderr) == (0, ""), done
    document = results(remote)
    assert document["device"]["device"] == "fake GPU"
    assert {"copy_bytes_per_s", "nothing_us"} <= document["device"]["ceilings"].keys()
    for layer in document["layers"]:
        assert {v["name"] for v in layer["variants"]} == set(layer["times"])
        assert layer["wrong"] == layer["failed"] == {}
    called = Caller(capsys)("bench", str(remote / "results" / "results.json"))
    assert called.code == 0
    assert "Tensor Core kernels on fake GPU" in called.out
    assert "| mine.csv:1 | chosen 1 | 10.0 |" in called.out


def test_measured_times_are_what_later_runs_take(
    remote: Path,
    driver: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "trials"))
    monkeypatch.setenv(IN_PROCESS_VARIABLE, "1")
    assert run(remote, driver, "run", FAKE_CUDA_THREADS_US="0.001").returncode == 0
    document = results(remote)
    (layer,) = (entry for entry in document["layers"] if entry["name"] == "mine.csv:1")
    # The slowest one for the model is the fastest: no default can explain the choice.
    layer["times"]["chosen 3"]["us"] = 0.5
    path = remote / "results" / "results.json"
    path.write_text(json.dumps(document))
    call = Caller(capsys)
    taken = call("tune", "--results", str(path), "--json")
    assert taken.code == 0, taken
    told = json.loads(taken.out)
    numbers = [len(entry["times"]) for entry in document["layers"]]
    assert (list(told["stored"].values()), told["refused"]) == (numbers, {})
    again = json.loads(call("tune", "--results", str(path), "--json").out)
    assert set(again["stored"].values()) == {0}
    words = ["gemm", "m=40", "n=24", "k=64", "--target", "mma_f16", "--output", "float16"]
    ran = json.loads(call("run", *words, "--json").out)
    (fastest,) = (v for v in layer["variants"] if v["name"] == "chosen 3")
    assert ran["schedule"] == fastest["program"]["schedule"]
    assert ran["tuned"]["trials"] == len(layer["times"])
    # A time of another text is none of this kernel's.
    fastest["program"]["text"] = "0" * 64
    path.write_text(json.dumps(document))
    refused = call("tune", "--results", str(path), "--database", str(tmp_path / "other"))
    assert refused.code == 1
    assert "generated differently now: pack it again" in refused.out


def test_a_wrong_kernel_is_reported_and_never_timed(remote: Path, driver: Path) -> None:
    (text,) = remote.glob("layers/mine-csv-1-*/kernel2/kernel2.cu")
    spoiled, count = re.subn(r"cpembed_mma_\w+\([^;{]*\);", "(void)0;", text.read_text(), count=1)
    assert count == 1
    text.write_text(spoiled)
    done = run(remote, driver, "run", "--only", "mine.csv:1")
    assert done.returncode == 1, done
    (layer,) = results(remote)["layers"]
    assert set(layer["times"]) == {"chosen 1", "chosen 3"}
    assert re.match(r"integers: element \d+ is ", layer["wrong"]["chosen 2"])


def test_a_kernel_that_fails_is_named_and_the_others_are_timed(remote: Path, driver: Path) -> None:
    done = run(remote, driver, "run", "--only", "csv:1", FAKE_CUDA_FAULT="kernel1_product")
    assert done.returncode == 1, done
    (layer,) = results(remote)["layers"]
    assert set(layer["times"]) == {"chosen 2", "chosen 3"}
    said = "kernel1_product is not launched: cuLaunchKernel: an illegal memory access"
    assert layer["failed"]["chosen 1"].startswith(said)


@pytest.mark.parametrize(
    "behaviour, said",
    [
        ("none", "error: cuInit: no CUDA-capable device is detected"),
        ("memory", "error: cuMemAlloc_v2: out of memory"),
    ],
)
def test_without_a_usable_device_the_run_is_an_error(
    remote: Path, driver: Path, behaviour: str, said: str
) -> None:
    done = run(remote, driver, behaviour)
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


def call_without_programs(
    remote: Path, driver: Path, behaviour: str
) -> subprocess.CompletedProcess[str]:
    """Images are loaded, and none is executed."""
    env = fake_driver.environment(driver, behaviour)
    command = [sys.executable, "-E", "-S", str(remote / "run.py"), "--seconds", "0"]
    return fake_driver.call(command, env)


def test_launches_that_are_refused_are_an_error(remote: Path, driver: Path) -> None:
    done = call_without_programs(remote, driver, "refuse")
    assert (done.returncode, done.stdout) == (1, ""), done
    assert re.fullmatch(r"error: .*is not launched: cuLaunchKernel.*\n", done.stderr)


def test_launches_that_do_nothing_are_no_times(remote: Path, driver: Path) -> None:
    assert call_without_programs(remote, driver, "idle").returncode == 1
    for layer in results(remote)["layers"]:
        assert layer["times"] == {}
        assert set(layer["wrong"]) == {v["name"] for v in layer["variants"]}


# -------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    "option",
    [
        ["--baseline", "onednn"], ["--no-run"], ["--fresh"], ["--backend", "generic"],
        ["--untuned"], ["--threads", "2"], ["--seed", "3"], ["--method", "explicit"],
    ],
)  # fmt: skip
def test_options_that_change_no_pack_are_refused(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", "gemm", "--target", "mma_f16", "--pack", str(tmp_path / "p"), *option]
    called = Caller(capsys)(*command)
    called.is_one_line_error(2, option[0], "does not change a pack", "leave it out")
    assert not (tmp_path / "p").exists()


def test_targets_without_kernels_for_elsewhere_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    called = Caller(capsys)(
        "bench", "gemm", "--target", "vta_1x16x16", "--pack", str(tmp_path / "p")
    )
    called.is_one_line_error(called.code, "vta_1x16x16", "leave --pack out")
    assert called.code != 0


@pytest.mark.parametrize(
    "text",
    [
        "no json", "[]", "{}", '{"layers": []}', '{"layers": [{"target": "mma_f16"}]}',
        '{"layers": [{"target": "vta_1x16x16"}]}', '{"layers": [{"target": "../x"}]}',
    ],
)  # fmt: skip
def test_files_that_hold_no_results_are_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results.json").write_text(text)
    called = Caller(capsys)("bench", str(tmp_path / "results.json"))
    called.is_one_line_error(called.code)
    assert called.code != 0


def test_a_time_that_is_none_is_refused(remote: Path, driver: Path) -> None:
    from cpembed.errors import CpembedError

    assert run(remote, driver, "run").returncode == 0
    document = results(remote)
    document["layers"][0]["times"]["chosen 1"]["us"] = 0
    path = remote / "damaged.json"
    path.write_text(json.dumps(document))
    with pytest.raises(CpembedError, match="times are positive"):
        bench_pack.measured(path)
