"""Folders of ``cpembed build``: their programs on drivers without a GPU, which refuse, do nothing,
or execute the kernels here."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from cpembed.cli import main
from cpembed.codegen.epilogue import Epilogue
from cpembed.driver.named import hardware_spec
from cpembed.runtime.worker import IN_PROCESS_VARIABLE
from cpembed.targets.cuda import compiling
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedSchedule
from cpembed.targets.cuda.warp_specialized.target import HopperTarget
from cpembed.targets.registry import open_target
from tests.unit.targets.cuda.emulator.running import needs_compiler, needs_nvcc
from tests.unit.targets.cuda.saved import fake_driver
from tests.unit.targets.cuda.warp_specialized.products import lowered

pytestmark = needs_compiler

BEHAVIOURS = {
    "none": r"no CUDA-capable device",
    "memory": r"out of memory",
    "refuse": r"layer_\w+.*invalid argument",
    "idle": r"wrong result for integers: element 0 is .*, not ",
}
"""Error of a program on each driver that does not execute."""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_driver.build(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product of float16 with a bias, whose second factor is packed."""
    root = tmp_path_factory.mktemp("saved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(IN_PROCESS_VARIABLE, "1")
        words = ["gemm", "m=24", "n=40", "k=72", "--target", "mma_f16"]
        options = ["--output", "float16", "--bias", "--name", "layer", "-o", str(root)]
        assert main(["build", *words, *options]) == 0
    return root / "layer"


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def manifest(folder: Path) -> dict:
    return json.loads((folder / "layer.json").read_text())


def assert_one_error(done: subprocess.CompletedProcess[str], pattern: str) -> None:
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr.startswith("error: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert re.search(pattern, done.stderr), done.stderr


# ------------------------------------------------------------------------------------- check.py


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
@needs_nvcc
def test_check_py_fails_in_one_line(folder: Path, driver: Path, behaviour: str) -> None:
    done = fake_driver.check_py(folder, fake_driver.environment(driver, behaviour))
    assert_one_error(done, BEHAVIOURS[behaviour])


def test_without_a_driver_check_py_says_so(folder: Path, tmp_path: Path) -> None:
    # A file of that name that is no library: this machine may have a driver.
    (tmp_path / "libcuda.so.1").write_text("none")
    done = fake_driver.check_py(folder, fake_driver.environment(tmp_path, "run"))
    assert_one_error(done, "this machine has no CUDA driver")


def run_py(folder: Path, driver: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    library = fake_driver.emulated(folder / "layer.cu")
    env = fake_driver.environment(driver, "run", FAKE_CUDA_PROGRAM=library)
    return fake_driver.check_py(folder, env, *arguments)


@needs_nvcc
def test_right_kernels_pass_and_are_timed(folder: Path, driver: Path, tmp_path: Path) -> None:
    done = run_py(folder, driver, "--json", str(tmp_path / "results.json"))
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "right: integers (exact), large (exact), special (special)" in done.stdout
    assert "10.000 us median of 100 calls" in done.stdout
    assert "L2 flushed before each" in done.stdout
    document = json.loads((tmp_path / "results.json").read_text())
    (result,) = document["results"]
    # Two bytes of each element of A, B and the result, and four of the bias, in 10 us.
    moved = 2 * (24 * 72 + 72 * 40 + 24 * 40) + 4 * 40
    assert result["gb_per_s"] == pytest.approx(moved / 10e-6 / 1e9)
    assert document["machine"]["device"] == "fake GPU"


def damaged(folder: Path, pattern: str, replacement: str) -> None:
    text = (folder / "layer.cu").read_text()
    changed, count = re.subn(pattern, replacement, text, count=1)
    assert count == 1
    (folder / "layer.cu").write_text(changed)


WRONG: dict[str, Callable[[Path], None]] = {
    # The last stage of the depth is left out.
    "a lost product": lambda f: damaged(f, r"(cpembed_mma_\w+)\(([^;{]*)\);", r"((void)0);"),
    # Results of a row go to the next one.
    "a shifted store": lambda f: damaged(f, r"(cpembed_store_(\d+)\(\()(&\(C_ptr\[)", r"\1\3 8 + "),
}


@pytest.mark.parametrize("name", WRONG)
@needs_nvcc
def test_wrong_kernels_fail(copy: Path, driver: Path, name: str) -> None:
    WRONG[name](copy)
    done = run_py(copy, driver)
    assert_one_error(done, r"wrong result for integers: element \d+ is|write behind the end of C")


@needs_nvcc
def test_times_of_nothing_are_no_times(copy: Path, driver: Path) -> None:
    """Launches that stop working after the comparison are noticed."""
    text = (copy / "check.py").read_text()
    spoiled = text.replace("kernels.launch(memory.addresses, kernels.computes)", "pass")
    (copy / "check.py").write_text(spoiled)
    assert_one_error(run_py(copy, driver), "wrong result after 100 timed calls: element 0 is")


def test_inputs_that_are_not_those_of_the_manifest_are_noticed(copy: Path, driver: Path) -> None:
    document = manifest(copy)
    document["cases"][0]["inputs"]["A"]["seed"] += 1
    (copy / "layer.json").write_text(json.dumps(document))
    if not document["images"]:
        pytest.skip("nvcc is not on the path")
    assert_one_error(run_py(copy, driver), "A of integers is not as it was saved")


DAMAGES: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "a seed that is a list": (("cases", 0, "inputs", "A", "seed"), []),
    "no values": (("cases", 0, "inputs", "A", "values"), []),
    "a value that is a text": (("cases", 0, "inputs", "A", "values", 0), "x"),
    "a case that is none": (("cases", 0, "expected", "C"), "x"),
    "a parameter that is a number": (("kernels", 0, "parameters", 0), 0),
    "a grid of halves": (("kernels", 0, "grid", 0), 1.5),
    "a block that is a text": (("kernels", 1, "block", 0), "x"),
    "a block of four sizes": (("kernels", 1, "block"), [32, 1, 1, 1]),
    "shared memory that is a text": (("kernels", 1, "dynamic_shared_bytes"), "x"),
    "more elements than there are": (("buffers", 0, "elements"), 10**30),
    "fewer than none": (("buffers", 0, "elements"), -1),
}


@pytest.mark.parametrize("damage", DAMAGES)
@needs_nvcc
def test_a_damaged_manifest_is_one_error(copy: Path, driver: Path, damage: str) -> None:
    *path, last = DAMAGES[damage][0]
    document: Any = manifest(copy)
    entry = document
    for name in path:
        entry = entry[name]
    entry[last] = DAMAGES[damage][1]
    (copy / "layer.json").write_text(json.dumps(document))
    assert_one_error(run_py(copy, driver), "")


@needs_nvcc
def test_a_manifest_of_many_brackets_is_one_error(copy: Path, driver: Path) -> None:
    (copy / "layer.json").write_text("[" * 100_000)
    assert_one_error(run_py(copy, driver), "layer.json")


# ------------------------------------------------------------------------------------- check.cu


@pytest.fixture(scope="module")
def program(folder: Path, driver: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``check.cu`` with the runtime of a fake driver."""
    if compiling.compiler() is None:
        pytest.skip("nvcc is not on the path")
    path = tmp_path_factory.mktemp("program") / "check"
    options = ["-std=c++17", "-O1", "-arch=sm_80", "-cudart", "none", f"-L{driver}", "-lcudart"]
    command = ["nvcc", *options, "-o", str(path), str(folder / "check.cu")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done
    return path


def run_c(
    program: Path, folder: Path, driver: Path, behaviour: str
) -> subprocess.CompletedProcess[str]:
    library = fake_driver.emulated(folder / "layer.cu")
    env = fake_driver.environment(driver, behaviour, FAKE_CUDA_PROGRAM=library)
    return subprocess.run(
        [str(program)], env=env, cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_check_cu_fails_in_one_line(
    program: Path, folder: Path, driver: Path, behaviour: str
) -> None:
    assert_one_error(run_c(program, folder, driver, behaviour), BEHAVIOURS[behaviour])


def test_check_cu_generates_and_compares_as_check_py_does(
    program: Path, folder: Path, driver: Path
) -> None:
    done = run_c(program, folder, driver, "run")
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "fake GPU, sm_80" in done.stdout
    assert "right: integers (exact), large (exact), special (special)" in done.stdout
    assert "10.000 us median of 100 calls" in done.stdout


def test_check_cu_notices_a_wrong_result(
    program: Path, folder: Path, copy: Path, driver: Path
) -> None:
    """The emulated kernels are another text's, so that the program need not be compiled again."""
    WRONG["a lost product"](copy)
    library = fake_driver.emulated(copy / "layer.cu")
    env = fake_driver.environment(driver, "run", FAKE_CUDA_PROGRAM=library)
    done = subprocess.run(
        [str(program)], env=env, cwd=folder, capture_output=True, text=True, check=False
    )
    assert_one_error(done, r"wrong result for integers: element \d+ is")


@pytest.mark.slow
@needs_nvcc
def test_the_makefile_builds_a_program_that_needs_a_driver(copy: Path) -> None:
    """The runtime that nvcc links has no driver here, or one without a device."""
    if shutil.which("nvidia-smi") is not None:
        pytest.skip("this machine may have a GPU")
    done = subprocess.run(["make", "check"], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "error: cudaGetDeviceCount" in done.stderr


# --------------------------------------------------------------------------- names, and the files


@pytest.mark.slow
@needs_nvcc
def test_two_kernels_are_linked_into_one_program(folder: Path, tmp_path: Path) -> None:
    text = (folder / "layer.cu").read_text()
    for name in ("layer", "other"):
        renamed = re.sub(r"\blayer_(?=pack_B\b|product\b|shared\b)", f"{name}_", text)
        (tmp_path / f"{name}.cu").write_text(renamed)
    (tmp_path / "main.cu").write_text("int main() { return 0; }\n")
    for options in ([], ["-rdc=true"]):
        command = ["nvcc", "-std=c++17", "-arch=sm_80", *options, "-o", str(tmp_path / "program")]
        command += [str(tmp_path / f"{name}.cu") for name in ("layer", "other", "main")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done


@pytest.mark.slow
@needs_nvcc
def test_texts_of_several_kernels_are_one_translation_unit(
    folder: Path, warp_groups: Path, tmp_path: Path
) -> None:
    """Of kernels that share some functions, with other alignments of shared memory."""
    for number, source in enumerate((folder, warp_groups, folder)):
        text = (source / "layer.cu").read_text()
        (tmp_path / f"k{number}.cu").write_text(re.sub(r"\blayer_", f"k{number}_", text))
    names = [f"k{number}_product" for number in range(3)]
    for order in ((0, 1, 2), (1, 2, 0)):
        lines = [f'#include "k{number}.cu"\n' for number in order]
        uses = " ".join(f"if (!(void*){name}) return 1;" for name in names)
        (tmp_path / "all.cu").write_text("".join(lines) + f"int main() {{ {uses} return 0; }}\n")
        options = ["-std=c++17", "-gencode", "arch=compute_90a,code=sm_90a"]
        command = ["nvcc", *options, "-o", str(tmp_path / "all"), str(tmp_path / "all.cu")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done


@needs_nvcc
def test_every_file_of_the_manifest_is_there(folder: Path) -> None:
    document = manifest(folder)
    architectures = {image["architecture"] for image in document["images"]}
    assert {"compute_80", "sm_80", "sm_86", "sm_89", "sm_90"} <= architectures
    names = [image["file"] for image in document["images"]] + [document["source"]]
    names += [e["sample"] for case in document["cases"] for e in case["expected"].values()]
    assert all((folder / name).is_file() for name in names)
    assert [kernel["name"] for kernel in document["kernels"]] == ["layer_pack_B", "layer_product"]
    assert all(buffer["alignment"] == 16 for buffer in document["buffers"])


def test_expected_results_are_those_of_numpy(folder: Path) -> None:
    """By the generator of the folder and a product of numpy, not by the package's reference."""
    check = module(folder, "check")
    document = manifest(folder)
    sizes = {b["name"]: b for b in document["buffers"]}
    for case in document["cases"]:
        arrays = {
            name: np.frombuffer(
                check.generated(spec, sizes[name]["elements"], sizes[name]["itemsize"]),
                sizes[name]["dtype"],
            ).reshape(sizes[name]["shape"])
            for name, spec in case["inputs"].items()
        }
        factors = [a.astype(np.float64) for n, a in arrays.items() if n != "Bias"]
        with np.errstate(over="ignore", invalid="ignore"):
            right = (factors[0] @ factors[1] + arrays["Bias"]).astype(np.float16)
        expected = case["expected"]["C"]
        sample = np.fromfile(folder / expected["sample"], np.float16)
        step = expected["sample_step"]
        assert np.array_equal(right.reshape(-1)[::step], sample, equal_nan=True)
        output = sizes["C"] | {"itemsize": 2}
        assert check.difference(right.tobytes(), output, expected, sample.tobytes()) is None
        for place in np.flatnonzero(np.abs(right) < 1000)[[0, 17, -1]].tolist():
            wrong = right.copy().reshape(-1)
            wrong[place] += 1
            said = check.difference(wrong.tobytes(), output, expected, sample.tobytes())
            assert said == f"element {place} is {wrong[place]:g}, not {right.reshape(-1)[place]:g}"


def module(folder: Path, name: str) -> ModuleType:
    """Import a program of the folder as a person does who is in it."""
    before = list(sys.path)
    for each in ("load", "check"):
        sys.modules.pop(each, None)
    sys.path.insert(0, str(folder))
    try:
        return __import__(name)
    finally:
        sys.path[:] = before


# -------------------------------------------------------------------------------------- load.py


def test_the_folder_is_of_the_standard_library_alone(folder: Path) -> None:
    script = "import load, check, sys; sys.exit(any(m in sys.modules for m in ('numpy', 'torch')))"
    command = [sys.executable, "-E", "-S", "-c", script]
    assert subprocess.run(command, cwd=folder, check=False).returncode == 0


@pytest.mark.parametrize(
    "capability, architecture",
    [
        ((8, 0), "sm_80"), ((8, 6), "sm_86"), ((8, 7), "sm_86"), ((9, 0), "sm_90"),
        ((10, 3), "sm_100"), ((11, 0), "compute_80"), ((12, 1), "sm_120"), ((13, 0), "compute_80"),
        ((7, 5), None),
    ],
)  # fmt: skip
def test_the_image_is_the_nearest_that_runs(
    capability: tuple[int, int], architecture: str | None
) -> None:
    from cpembed.targets.cuda.remote.load import select_image

    names = ("compute_80", *compiling.ARCHITECTURES)
    image = select_image([{"architecture": name} for name in names], capability)
    assert (None if image is None else image["architecture"]) == architecture


def test_images_of_one_architecture_run_there_only() -> None:
    from cpembed.targets.cuda.remote.load import select_image

    images = [{"architecture": name} for name in ("sm_90a", "compute_90a")]
    assert select_image(images, (9, 0)) == {"architecture": "sm_90a"}
    assert select_image(images, (10, 0)) is None


@needs_nvcc
def test_what_the_device_lacks_is_named(folder: Path, driver: Path) -> None:
    env = fake_driver.environment(driver, "run", FAKE_CUDA_SHARED=1024)
    said = r"layer_product needs \d+ bytes of shared memory a block, fake GPU has 1024"
    assert_one_error(fake_driver.check_py(folder, env), said)
    env = fake_driver.environment(driver, "run", FAKE_CUDA_CAPABILITY=75, PATH="")
    said = "has compute_80, sm_80, .*, and fake GPU is of sm_75: put nvcc on the path"
    assert_one_error(fake_driver.check_py(folder, env), said)


@needs_nvcc
def test_an_address_that_is_not_aligned_is_refused(folder: Path, driver: Path) -> None:
    env = fake_driver.environment(driver, "run", FAKE_CUDA_UNALIGNED=1)
    said = r"layer_pack_B: B\w* at 0x\w+ is no multiple of 16 bytes"
    assert_one_error(fake_driver.check_py(folder, env), said)


@needs_nvcc
def test_without_images_nvcc_compiles_for_the_device(copy: Path, driver: Path) -> None:
    document = manifest(copy)
    for image in document["images"]:
        (copy / image["file"]).unlink()
    document["images"] = []
    (copy / "layer.json").write_text(json.dumps(document))
    env = fake_driver.environment(driver, "idle", PATH="")
    said = "has nothing compiled, and fake GPU is of sm_80: put nvcc on the path"
    assert_one_error(fake_driver.check_py(copy, env), said)
    done = run_py(copy, driver)
    assert done.returncode == 0, done
    assert "layer.sm_80.cubin" in done.stdout


class Given:
    """Stands for a tensor of torch."""

    def __init__(self, shape: tuple[int, ...], dtype: str, where: str = "cuda") -> None:
        self.shape, self.dtype, self.is_cuda = shape, f"torch.{dtype}", where == "cuda"
        self.device = type("Device", (), {"index": 0, "__str__": lambda _: where})()

    def data_ptr(self) -> int:
        return 4096

    def is_contiguous(self) -> bool:
        return True


@pytest.mark.parametrize(
    "tensor, said",
    [
        (Given((24, 72), "float16", "cpu"), "A is on cpu, not on the GPU 0: move it there"),
        (Given((24, 72), "float32"), "A is of float32, not of float16"),
        (Given((72, 24), "float16"), r"A has the shape \[72, 24\], not \[24, 72\]"),
        (np.zeros((24, 72), np.float16), "A is no tensor on a GPU: ndarray"),
    ],
)
def test_operands_that_do_not_fit_are_refused(folder: Path, tensor: object, said: str) -> None:
    from cpembed.targets.cuda.remote.load import CudaError, Kernels

    kernels = Kernels.__new__(Kernels)
    kernels.device = type("Device", (), {"index": 0})()
    (buffer,) = (b for b in manifest(folder)["buffers"] if b["tensor"] == "A")
    with pytest.raises(CudaError, match=said):
        kernels._address(tensor, buffer)


# ------------------------------------------------------------------------------------ the numbers


def test_generated_numbers_are_those_of_the_table() -> None:
    from cpembed.targets.cuda.remote.check import PERIOD, generated

    spec = {"seed": 3, "values": [5, 6, 7], "rare": [1000], "rare_one_in": 500}
    data = np.frombuffer(generated(spec, 3 * PERIOD + 5, 2), np.uint16)
    assert set(data.tolist()) == {5, 6, 7, 1000}
    assert np.array_equal(data[:PERIOD], data[PERIOD : 2 * PERIOD])
    counts = [(data == value).mean() for value in (5, 6, 7)]
    assert all(math.isclose(share, 1 / 3, abs_tol=0.01) for share in counts)
    assert 0.001 < (data == 1000).mean() < 0.003


# --------------------------------------------------------------------------- kernels of warp groups


@pytest.fixture(scope="module")
def warp_groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product of warp groups, one of whose factors comes by a tensor map."""
    root = tmp_path_factory.mktemp("warp_groups")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(IN_PROCESS_VARIABLE, "1")
        words = ["gemm", "m=64", "n=64", "k=64", "--target", "wgmma_f16", "--output", "float16"]
        assert main(["build", *words, "--name", "layer", "-o", str(root)]) == 0
    return root / "layer"


@needs_nvcc
def test_tensor_maps_are_encoded_by_the_driver(warp_groups: Path, driver: Path) -> None:
    document = manifest(warp_groups)
    kinds = {p["kind"] for kernel in document["kernels"] for p in kernel["parameters"]}
    assert "tensor_map" in kinds
    assert [image["architecture"] for image in document["images"]] == ["compute_90a", "sm_90a"]
    library = fake_driver.emulated(warp_groups / "layer.cu")
    hopper = {"FAKE_CUDA_CAPABILITY": 90, "FAKE_CUDA_SHARED": 232448}
    env = fake_driver.environment(driver, "run", FAKE_CUDA_PROGRAM=library, **hopper)
    done = fake_driver.check_py(warp_groups, env)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "right: integers (exact), large (exact), special (special)" in done.stdout


STREAMED = SpecializedSchedule(
    1, (1, 8), 2, 3, ("tensor", "tensor"), blocks=4, streamed=True, store_buffers=1
)


@needs_nvcc
@pytest.mark.parametrize("stays", [True, False])
def test_a_streamed_kernel_leaves_its_counters_cleared(
    stays: bool, driver: Path, tmp_path: Path
) -> None:
    """Counters are cleared before all calls, so that a second call counts on from what is left."""
    target = open_target(hardware_spec("wgmma_f16"))
    assert isinstance(target, HopperTarget)
    _, product = lowered("gemm m=150 n=64 k=160", "wgmma_f16", "fused", 0, Epilogue("float16"))
    folder = tmp_path / "layer"
    target.save(target.build(product, STREAMED), folder)
    document = manifest(folder)
    assert [k["name"] for k in document["kernels"] if k["prepares"]] == ["layer_clear"]
    (maps,) = (
        {p["buffer"] for p in kernel["parameters"] if p["kind"] == "tensor_map"}
        for kernel in document["kernels"]
        if kernel["name"] == "layer_product"
    )
    assert maps == {"A", "B", "C"}
    text = (folder / "layer.cu").read_text()
    if stays:
        # The last block of a tile leaves the count of its parts.
        text, count = re.subn(r"(cpembed_store_4\(\(&\(Counters_ptr.*?), \(\(int\).*?\);", "", text)
        assert count == 1
        (folder / "layer.cu").write_text(text)
    library = fake_driver.emulated(folder / "layer.cu")
    hopper = {"FAKE_CUDA_CAPABILITY": 90, "FAKE_CUDA_SHARED": 232448}
    env = fake_driver.environment(driver, "run", FAKE_CUDA_PROGRAM=library, **hopper)
    done = fake_driver.check_py(folder, env)
    if stays:
        assert done.returncode == 1
        assert done.stderr.startswith("error: ")
        return
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "right: integers (exact), large (exact), special (special)" in done.stdout


@pytest.mark.slow
@needs_nvcc
def test_clusters_are_launched_as_clusters(
    driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(IN_PROCESS_VARIABLE, "1")
    words = ["gemm", "m=512", "n=768", "k=768", "--target", "wgmma_f16", "--output", "float16"]
    assert main(["build", *words, "--name", "layer", "-o", str(tmp_path)]) == 0
    folder = tmp_path / "layer"
    assert any(kernel["cluster"] != [1, 1, 1] for kernel in manifest(folder)["kernels"])
    library = fake_driver.emulated(folder / "layer.cu")
    hopper = {"FAKE_CUDA_CAPABILITY": 90, "FAKE_CUDA_SHARED": 232448}
    env = fake_driver.environment(driver, "run", FAKE_CUDA_PROGRAM=library, **hopper)
    done = fake_driver.check_py(folder, env, "--no-time")
    assert (done.returncode, done.stderr) == (0, ""), done


@needs_nvcc
def test_warp_groups_run_on_their_architecture_alone(warp_groups: Path, driver: Path) -> None:
    env = fake_driver.environment(driver, "run", FAKE_CUDA_CAPABILITY=100, FAKE_CUDA_SHARED=232448)
    said = "layer is for sm_90a alone, and fake GPU is of sm_100"
    assert_one_error(fake_driver.check_py(warp_groups, env), said)
    assert "-gencode arch=compute_90a,code=sm_90a" in (warp_groups / "Makefile").read_text()


@pytest.mark.slow
@needs_nvcc
def test_check_cu_of_warp_groups_compiles(warp_groups: Path, tmp_path: Path) -> None:
    options = ["-std=c++17", "-O1", "-gencode", "arch=compute_90a,code=sm_90a"]
    command = ["nvcc", *options, "-o", str(tmp_path / "check"), str(warp_groups / "check.cu")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done


@needs_nvcc
def test_a_later_device_compiles_the_ptx(folder: Path, driver: Path) -> None:
    library = fake_driver.emulated(folder / "layer.cu")
    env = fake_driver.environment(
        driver, "run", FAKE_CUDA_PROGRAM=library, FAKE_CUDA_CAPABILITY=110
    )
    done = fake_driver.check_py(folder, env)
    assert done.returncode == 0, done
    assert "sm_110" in done.stdout
    assert "layer.compute_80.ptx" in done.stdout


@pytest.mark.parametrize("is_new", [False, True])
def test_an_interrupted_call_leaves_a_folder_as_it_was(
    is_new: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier manifest would describe other results than those beside it."""
    root = tmp_path / "out"
    if not is_new:
        shutil.copytree(folder, root / "layer")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv(IN_PROCESS_VARIABLE, "1")
    monkeypatch.setattr("cpembed.targets.cuda.saving.folder.save_kernels", interrupted)
    words = ["gemm", "m=24", "n=40", "k=72", "--target", "mma_f16"]
    options = ["--output", "float16", "--bias", "--name", "layer", "-o", str(root)]
    assert main(["build", *words, *options]) == 130
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert [path.name for path in root.iterdir()] == ([] if is_new else ["layer"])
