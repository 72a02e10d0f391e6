"""What is packed for a GPU: layers, mappings, files, and that they compute the layers."""

from __future__ import annotations

import ast
import ctypes
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import building, choosing, pack, suites, tvm_rules
from benchmarks.gpu.remote import data
from benchmarks.gpu.remote.driver import Driver, Kernels
from benchmarks.gpu.suites import PackedLayer
from cpembed.embedding.embedding import Digit, Embedding
from cpembed.errors import LoweringError, WorkloadError
from cpembed.ir.reference import random_inputs, reference
from cpembed.targets.cuda.executor import COMPILER
from tests.experiments.gpu_driver import EmulatedLibrary

needs_compiler = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the path")
needs_executor = pytest.mark.skipif(
    bool(COMPILER.missing()), reason=f"missing: {', '.join(COMPILER.missing())}"
)

SMALL = (
    PackedLayer("small", "small:windows", "conv2d n=1 c=3 h=5 w=5 k=8 r=3 s=3 pad=1 layout=NHWC",
                "mma_f16", "float16"),
    PackedLayer("small", "small:product int8", "gemm m=40 n=24 k=64", "mma_s8", "int32"),
)  # fmt: skip
LARGER = PackedLayer(
    "small", "small:conv", "conv2d n=2 c=32 h=6 w=6 k=24 r=3 s=3 pad=1 stride=2 layout=NHWC",
    "mma_f16", "float16",
)  # fmt: skip


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on the path")
    root = tmp_path_factory.mktemp("pack") / "small"
    assert pack.pack(root, list(SMALL), 2, dlight=False) == {}
    return root


def layer_documents(root: Path) -> list[dict]:
    slugs = json.loads((root / "pack.json").read_text())["layers"]
    return [json.loads((root / "layers" / f"{slug}.json").read_text()) for slug in slugs]


# ------------------------------------------------------------------------------------ the layers


def test_suites_hold_what_they_say() -> None:
    assert len(suites.layers(("amos12",))) == 24
    assert len(suites.layers(("unit16",))) == 16
    assert len(suites.layers(("deepbench",))) == 108
    every = suites.layers()
    assert len({layer.slug for layer in every}) == len(every)
    assert sum(layer.suite == "deepbench" for layer in every) == 18
    assert {layer.words.split()[1] for layer in suites.layers(("amos12",))} == {"n=1", "n=16"}
    with pytest.raises(WorkloadError, match="unknown suite 'resnet'"):
        suites.layers(("resnet",))


def test_a_part_of_deepbench_has_its_applications() -> None:
    from cpembed.workloads.suites import suite

    found = [layer.application for layer in suite("deepbench")]
    part = set(found[:: suites.DEEPBENCH_STEP])
    assert {application for application in found if found.count(application) > 1} == part


def family(x: str, z: str, used: int = 16) -> Embedding:
    digits = {axis: tuple(Digit(a, 1) for a in axes) for axis, axes in (("x", x), ("z", z))}
    digits |= {"y": (Digit("k", 8),)}
    return Embedding({}, {"x": used, "y": 8, "z": used}, digits)


@pytest.mark.parametrize(
    "words, x, z, im2col, fuse_hw",
    [
        ("n=2 c=3 h=6 w=6", "npq", "crs", True, False),
        ("n=2 c=3 h=6 w=6", "pq", "crs", False, False),
        ("n=2 c=3 h=6 w=6", "pq", "c", False, True),
        ("n=2 c=3 h=6 w=6", "npq", "c", False, False),
        # Of whole tiles of channels the rest of the window is outside, wherever it is written.
        ("n=2 c=32 h=6 w=6", "npq", "c", True, False),
        # So are images of whole tiles of pixels.
        ("n=2 c=32 h=8 w=8", "pq", "c", True, True),
        ("n=1 c=3 h=6 w=6", "pq", "crs", True, False),
        ("n=2 c=32 h=6 w=6", "q", "c", False, False),
    ],
)
def test_fixed_mappings_are_told_by_what_they_compute(
    words: str, x: str, z: str, im2col: bool, fuse_hw: bool
) -> None:
    text = f"conv2d {words} k=16 r=3 s=3 pad=1 layout=NHWC"
    given = building.computation(PackedLayer("", "", text, "mma_f16", "float16"))
    assert choosing.is_im2col(family(x, z), given) == im2col
    assert choosing.is_fuse_hw(family(x, z), given) == fuse_hw


def test_axes_around_whole_tiles_change_nothing() -> None:
    """Tiles of (n, p, q) fused are those of (p, q) where an image has whole tiles, by counting."""
    for rows, size in ((32, 16), (36, 16), (48, 8)):
        fused = np.arange(3 * rows)
        padded = np.pad(fused, (0, -len(fused) % size), constant_values=-1).reshape(-1, size)
        each = [np.pad(part, (0, -rows % size), constant_values=-1).reshape(-1, size)
                for part in fused.reshape(3, rows)]  # fmt: skip
        same = np.array_equal(padded, np.concatenate(each))
        extents = {"n": 3, "p": rows // 4, "q": 4}
        assert choosing._fuses(("p", "q"), ("n", "p", "q"), extents, size) == same


@pytest.mark.slow
def test_kernels_of_a_layer_differ_and_are_the_best_first() -> None:
    layer = LARGER
    found = choosing.select(building.computation(layer), layer.target, layer.stored, 3)
    chosen = {role: item for item in found for role in item.roles}
    assert {"chosen 1", "chosen 2", "chosen 3", "im2col", "fuse_hw"} == set(chosen)
    costs = [chosen[f"chosen {place}"].estimated_us for place in (1, 2, 3)]
    assert costs == sorted(costs)
    assert costs[0] <= min(item.estimated_us for item in found)
    given = building.computation(layer)
    assert choosing.is_im2col(chosen["im2col"].ranked.candidate.embedding, given)
    assert choosing.is_fuse_hw(chosen["fuse_hw"].ranked.candidate.embedding, given)


def test_a_workload_without_a_kernel_says_why() -> None:
    layer = PackedLayer("", "", "depthwise n=1 c=8 h=4 w=4 r=3 s=3", "mma_f16", "float16")
    with pytest.raises(LoweringError, match="no kernel of mma_f16"):
        choosing.select(building.computation(layer), layer.target, "float16", 1)


# ------------------------------------------------------------------------------------- the files


@needs_compiler
def test_a_pack_has_every_file_that_it_names(packed: Path) -> None:
    for layer in layer_documents(packed):
        assert layer["variants"]
        for variant in layer["variants"]:
            folder = packed / variant["folder"]
            assert {path.name for path in folder.iterdir()} == {
                *("kernel.cu", "kernel.json", "kernel.sm_80.cubin", "kernel.sm_90.cubin")
            }
            assert variant["estimated_us"] > 0
        roles = [r for v in layer["variants"] for r in (v["name"], *v["also"])]
        wanted = {"chosen 1", "chosen 2"}
        wanted |= {"im2col", "fuse_hw"} if layer["kind"] == "conv2d" else set()
        assert sorted(roles) == sorted(wanted)


@needs_compiler
def test_the_order_of_arguments_is_that_of_the_text(packed: Path) -> None:
    types = {"half": "float16", "float": "float32", "signed char": "int8", "int": "int32"}
    seen = 0
    for path in sorted(packed.glob("kernels/*/kernel.json")):
        text = path.with_suffix(".cu").read_text()
        for kernel in json.loads(path.read_text())["kernels"]:
            declared = re.search(rf"\b{kernel['name']}\(([^)]*)\)", text)
            assert declared is not None
            found = [
                (name, types[kind.strip()])
                for kind, name in re.findall(
                    r"([\w ]+?)\* __restrict__ (\w+?)_ptr", declared.group(1)
                )
            ]
            assert found == [(a["name"], a["dtype"]) for a in kernel["arguments"]]
            seen += 1
    assert seen >= 4


@needs_compiler
def test_what_is_there_is_not_built_again(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.stat().st_mtime_ns for path in packed.glob("kernels/*/*")}

    def never(*_: object) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(pack, "select", never)
    assert pack.pack(packed, list(SMALL), 2, dlight=False) == {}
    assert {path: path.stat().st_mtime_ns for path in packed.glob("kernels/*/*")} == before
    victim = packed / layer_documents(packed)[0]["variants"][0]["folder"]
    hidden = victim.with_name("hidden")
    victim.rename(hidden)
    with pytest.raises(AssertionError, match="built again"):
        pack.pack(packed, list(SMALL), 2, dlight=False)
    hidden.rename(victim)


@needs_compiler
def test_a_file_holds_what_a_run_needs_and_nothing_else(packed: Path, tmp_path: Path) -> None:
    (packed / "kernels" / ".draft-left").mkdir(exist_ok=True)
    (packed / "kernels" / ".draft-left" / "kernel.cu").write_text("half written")
    size = pack.zipped(packed, tmp_path / "small.zip")
    assert size < 2**20
    with zipfile.ZipFile(tmp_path / "small.zip") as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "remote")
    assert len(names) == len(set(names))
    assert not any("draft" in name or "__pycache__" in name for name in names)
    assert {"run.py", "pack.json", "benchmarks/gpu/remote/main.py"} <= set(names)
    for layer in layer_documents(tmp_path / "remote"):
        for variant in layer["variants"]:
            assert (tmp_path / "remote" / variant["folder"] / "kernel.sm_90.cubin").is_file()
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(tmp_path / "remote" / "run.py"), "--help"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "--only" in done.stdout


def test_what_runs_there_needs_nothing_of_the_package() -> None:
    allowed = {"numpy", "torch", "triton", "benchmarks", *sys.stdlib_module_names}
    files = sorted((pack.FOLDER / "remote").glob("*.py"))
    assert len(files) > 8
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] in allowed, (path.name, name)
                assert not name.startswith("benchmarks") or name.startswith("benchmarks.gpu.remote")


def test_without_a_compiler_nothing_is_packed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert pack.main(["-o", str(tmp_path / "pack")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "pack").exists()


@needs_compiler
def test_an_interrupted_call_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pack, "select", interrupted)
    assert pack.main(["-o", str(tmp_path / "p.zip"), "--only", "unit16:3"]) == 130
    assert "is not built again" in capsys.readouterr().err
    assert not (tmp_path / "p.zip").exists()


# -------------------------------------------------------------------------- what is computed


def run_by_name(root: Path, layer: dict, variant: dict, arrays: dict) -> np.ndarray:
    """Through the pack's documents and loader, kernels executed here."""
    kernels = Kernels(Driver(EmulatedLibrary(root)), root / variant["folder"], "sm_80")
    memory = {
        name: np.full(elements, 77, np.uint8).astype(dtype)
        for name, (elements, dtype) in kernels.parameters().items()
    }
    for name, parameter in variant["reads"].items():
        memory[parameter] = np.ascontiguousarray(arrays[name]).reshape(-1)
    pointers = {name: array.ctypes.data for name, array in memory.items()}
    kernels.launch(pointers, variant["prepares"])
    rest = [k["name"] for k in kernels.kernels if k["name"] not in variant["prepares"]]
    kernels.launch(pointers, rest)
    return memory[variant["writes"]]


def exact(layer: dict, arrays: dict) -> data.Exact:
    """By the package's own reference."""
    given = building.computation(PackedLayer("", "", layer["words"], layer["target"], ""))
    wide = given.with_dtypes(dict.fromkeys((o.name for o in given.operands), "float64"))
    values = {name: array.astype(np.float64) for name, array in arrays.items()}
    magnitudes = {name: np.abs(array) for name, array in values.items()}
    return data.Exact(reference(wide, values), reference(wide, magnitudes))


def check_kernels(root: Path) -> int:
    """How many variants there are; all of them compute their layers."""
    tried = 0
    for layer in layer_documents(root):
        arrays = data.inputs(layer)
        right = exact(layer, arrays)
        other = exact(layer, data.inputs(layer, 2))
        for variant in layer["variants"]:
            found = run_by_name(root, layer, variant, arrays)
            judged = data.judge(found, right, layer)
            assert judged.right, (layer["name"], variant["name"], str(judged))
            assert not data.judge(found, other, layer).right
            tried += 1
    return tried


@needs_compiler
@needs_executor
def test_packed_kernels_compute_their_layers(packed: Path) -> None:
    assert check_kernels(packed) >= 4


@pytest.mark.slow
@needs_compiler
@needs_executor
def test_packed_convolutions_compute_their_layers(tmp_path: Path) -> None:
    assert pack.pack(tmp_path, [LARGER], 4, dlight=False) == {}
    assert check_kernels(tmp_path) >= 4


def test_inputs_are_those_of_the_package() -> None:
    for layer in (*SMALL, LARGER):
        given = building.computation(layer)
        expected = random_inputs(given, building.SEED)
        found = data.inputs(building.layer_document(layer, given))
        assert {name: (a.dtype, a.tobytes()) for name, a in found.items()} == {
            name: (a.dtype, a.tobytes()) for name, a in expected.items()
        }


# ----------------------------------------------------------------------------------- TVM's rules


def rule_layer(words: str, target: str = "mma_f16", stored: str = "float16") -> dict:
    layer = PackedLayer("", "", words, target, stored)
    return building.layer_document(layer, building.computation(layer))


@pytest.mark.slow
def test_tvms_rules_make_kernels_whose_launch_is_known() -> None:
    found = tvm_rules.scheduled(rule_layer("gemm m=128 n=256 k=128"))
    assert "mma" in found.source
    (kernel,) = found.kernels
    rows, columns = 128, 256
    blocks = kernel["grid"][0] * kernel["grid"][1] * kernel["grid"][2]
    assert (rows * columns) % blocks == 0
    assert kernel["block"][0] == 32
    assert kernel["dynamic_shared_bytes"] > 0
    assert [(a["name"], a["elements"]) for a in kernel["arguments"]] == [
        ("A", 128 * 128),
        ("B", 128 * 256),
        ("C", 128 * 256),
    ]


@pytest.mark.slow
def test_the_rule_for_bytes_fails_as_shipped_and_not_repaired() -> None:
    layer = rule_layer("gemm m=128 n=128 k=128", "mma_s8", "int32")
    with pytest.raises(LoweringError, match="dlight has no kernel"):
        tvm_rules.scheduled(layer)
    assert "mma" in tvm_rules.scheduled(layer, repaired=True).source


@needs_executor
def test_kernels_of_tvms_rules_compute_convolutions() -> None:
    """Those that use no Tensor Core are plain CUDA, which the executor runs."""
    from cpembed.targets.cuda.executor import Launch, compile_text

    layer = rule_layer("conv2d n=1 c=5 h=7 w=6 k=8 r=3 s=3 pad=1 stride=2 layout=NHWC")
    made = tvm_rules.scheduled(layer)
    arrays = data.inputs(layer)
    memory = {name: array.reshape(-1) for name, array in arrays.items()}
    memory["C"] = np.zeros(int(np.prod(layer["output"]["shape"])), np.float16)
    program = compile_text(made.source)
    for kernel in made.kernels:
        (gx, gy, gz), (bx, by, bz) = kernel["grid"], kernel["block"]
        launch = Launch(kernel["name"], (gx, gy, gz), (bx, by, bz), kernel["dynamic_shared_bytes"])
        program.run(launch, [memory[a["name"]] for a in kernel["arguments"]])
    judged = data.judge(memory["C"], exact(layer, arrays), layer)
    assert judged.right, str(judged)


def test_pointers_reach_the_kernel_in_its_order() -> None:
    """Whatever order the buffers are given in."""
    seen: list[list[int]] = []

    class Library:
        def cuLaunchKernel(self, *given: object) -> int:
            arguments = given[-2]
            seen.append(
                [
                    ctypes.cast(arguments[n], ctypes.POINTER(ctypes.c_void_p))[0]  # type: ignore[index]
                    for n in range(2)
                ]
            )
            return 0

    kernels = Kernels.__new__(Kernels)
    kernels.driver = Driver(Library())
    kernels.kernels = [
        {
            "name": "product_kernel",
            "grid": [1, 2, 3],
            "block": [32, 1, 1],
            "dynamic_shared_bytes": 0,
            "arguments": [{"name": "C"}, {"name": "A"}],
        }
    ]
    kernels._functions = [ctypes.c_void_p(1)]
    kernels.launch({"A": 0x1000, "C": 0x2000}, ["product_kernel"])
    kernels.launch({"C": 0x2000, "A": 0x1000}, ["product_kernel"])
    assert seen == [[0x2000, 0x1000]] * 2
