"""Suites that are packed for a GPU, and kernels of TVM's own rules."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.gpu import pack, suites, tvm_rules
from cpembed.errors import LoweringError, WorkloadError
from cpembed.targets.cuda.emulator.executor import COMPILER, Launch, compile_text
from cpembed.targets.cuda.remote.check import difference
from cpembed.targets.cuda.saving.cases import cases_of

needs_compiler = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the path")
needs_executor = pytest.mark.skipif(
    bool(COMPILER.missing()), reason=f"missing: {', '.join(COMPILER.missing())}"
)


def test_suites_hold_what_they_say() -> None:
    assert len(suites.layers(("amos12",))) == 24
    assert len(suites.layers(("unit16",))) == 16
    assert len(suites.layers(("deepbench",))) == 108
    every = suites.layers()
    assert len({layer.layer(1).slug for layer in every}) == len(every)
    assert sum(layer.suite == "deepbench" for layer in every) == 18
    assert {layer.words.split()[1] for layer in suites.layers(("amos12",))} == {"n=1", "n=16"}
    with pytest.raises(WorkloadError, match="unknown suite 'resnet'"):
        suites.layers(("resnet",))


def test_a_machine_is_that_of_all_layers() -> None:
    layers = suites.layers(("unit16",), "h100")
    assert {layer.layer(1).request["machine"] for layer in layers} == {"h100"}


def test_a_part_of_deepbench_has_its_applications() -> None:
    from cpembed.workloads.suites import suite

    found = [layer.application for layer in suite("deepbench")]
    part = set(found[:: suites.DEEPBENCH_STEP])
    assert {application for application in found if found.count(application) > 1} == part


def test_without_a_compiler_nothing_is_packed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert pack.main(["-o", str(tmp_path / "pack"), "--only", "unit16:3"]) == 1
    assert "nvcc is not on the path" in capsys.readouterr().err
    assert not (tmp_path / "pack" / "pack.json").exists()


@needs_compiler
def test_an_interrupted_call_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pack, "write_pack", interrupted)
    assert pack.main(["-o", str(tmp_path / "p.zip"), "--only", "unit16:3"]) == 130
    assert "is not built again" in capsys.readouterr().err
    assert not (tmp_path / "p.zip").exists()


@pytest.mark.slow
@needs_compiler
def test_rules_are_packed_beside_the_kernels(tmp_path: Path) -> None:
    item = suites.item("s", "s:0", "gemm m=128 n=128 k=128", "mma_f16", "float16")
    result = pack.pack([item], tmp_path, 1, dlight=True)
    assert result.failed == {}
    folder = tmp_path / "layers" / result.slugs[0]
    (rule,) = json.loads((folder / "layer.json").read_text())["rules"]
    assert rule == {"name": "dlight as shipped", "folder": "shipped", "tensor_core": True}
    manifest = json.loads((folder / "shipped" / "shipped.json").read_text())
    assert {image["architecture"] for image in manifest["images"]} >= {"compute_80", "sm_80"}


# ----------------------------------------------------------------------------------- TVM's rules


@pytest.mark.slow
def test_tvms_rules_make_kernels_whose_launch_is_known() -> None:
    item = suites.item("", "", "gemm m=128 n=256 k=128", "mma_f16", "float16")
    found = tvm_rules.scheduled(item)
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
    item = suites.item("", "", "gemm m=128 n=128 k=128", "mma_s8", "int32")
    with pytest.raises(LoweringError, match="dlight has no kernel"):
        tvm_rules.scheduled(item)
    assert "mma" in tvm_rules.scheduled(item, repaired=True).source


@needs_executor
def test_kernels_of_tvms_rules_compute_convolutions() -> None:
    """Those that use no Tensor Core are plain CUDA, which the executor runs."""
    import numpy as np

    words = "conv2d n=1 c=5 h=7 w=6 k=8 r=3 s=3 pad=1 stride=2 layout=NHWC"
    item = suites.item("", "", words, "mma_f16", "float16")
    made = tvm_rules.scheduled(item)
    case = cases_of(item.workload, item.layer(1).epilogue)[0]
    memory = {
        name: drawing.array(case.shapes[name]).reshape(-1)
        for name, drawing in case.drawings.items()
    }
    (result,) = case.results.values()
    memory["C"] = np.zeros(result.array.size, np.float16)
    program = compile_text(made.source)
    for kernel in made.kernels:
        (gx, gy, gz), (bx, by, bz) = kernel["grid"], kernel["block"]
        launch = Launch(kernel["name"], (gx, gy, gz), (bx, by, bz), kernel["dynamic_shared_bytes"])
        program.run(launch, [memory[a["name"]] for a in kernel["arguments"]])
    expected = result.to_json("")
    output = {"dtype": "float16", "itemsize": 2}
    assert difference(memory["C"].tobytes(), output, expected, result.sample()) is None
