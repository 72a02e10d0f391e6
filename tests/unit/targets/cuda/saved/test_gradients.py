"""Gradients of strided convolutions: kernels of all phases, which store into one tensor."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.cli import main
from cpembed.driver.gradients import named_gradient, names_gradient
from cpembed.driver.named import hardware_spec, workload
from cpembed.ir.reference import random_inputs, reference
from cpembed.runtime.worker import IN_PROCESS_VARIABLE
from cpembed.targets.cuda import compiling, joined
from tests.unit.targets.cuda.emulator.running import needs_compiler
from tests.unit.targets.cuda.saved import fake_driver


def scattered(words: dict[str, int], inputs: dict[str, NDArray[np.int8]]) -> NDArray[np.int64]:
    """The gradient by its definition: each output row returns what it got to the image row."""
    gradient, weights = (array.astype(np.int64) for array in inputs.values())
    image = np.zeros((words["n"], words["h"], words["w"], words["c"]), np.int64)
    rows, columns = gradient.shape[1:3]
    taps = itertools.product(range(rows), range(columns), range(words["r"]), range(words["s"]))
    for p, q, r, s in taps:
        h = words["stride"] * p + words["dilation"] * r - words["pad"]
        w = words["stride"] * q + words["dilation"] * s - words["pad"]
        if 0 <= h < words["h"] and 0 <= w < words["w"]:
            image[:, h, w] += gradient[:, p, q] @ weights[:, r, s]
    return image


@pytest.mark.parametrize("seed", range(40))
def test_the_phases_in_their_places_are_the_gradient(seed: int) -> None:
    draw = random.Random(seed)
    taps = draw.randint(1, 4)
    sizes = {"n": draw.randint(1, 2), "c": 2, "h": draw.randint(6, 9), "w": draw.randint(6, 9)}
    sizes |= {"k": 3, "r": taps, "s": draw.randint(1, taps), "stride": draw.randint(2, 4)}
    sizes |= {"pad": draw.randint(0, 1), "dilation": draw.choice([1, 1, 2])}
    if (taps - 1) * sizes["dilation"] + 1 > min(sizes["h"], sizes["w"]):
        sizes["dilation"] = 1
    words = ["conv2d_dgrad", *(f"{name}={value}" for name, value in sizes.items()), "layout=NHWC"]
    assert names_gradient(words)
    gradient = named_gradient(words, hardware_spec("mma_s8"))
    first, _ = next(iter(gradient.parts.values()))
    inputs = random_inputs(first, seed)
    total = np.zeros(gradient.shape, np.int64)
    for part, placement in gradient.parts.values():
        rows = placement.view(total.reshape(-1), part.output.shape)
        assert not rows.any()
        rows[...] = reference(part, inputs)
    np.testing.assert_array_equal(total, scattered(sizes, inputs))


@pytest.mark.parametrize(
    "words, is_phased",
    [
        ("conv2d_dgrad n=1 stride=2", True),
        ("conv2d_dgrad n=1 stride=1,2", True),
        ("conv2d_dgrad n=1 stride=1", False),
        ("conv2d_dgrad n=1 stride=2 phase=0,1", False),
        ("conv2d_wgrad n=1 stride=2", False),
        ("", False),
    ],
)
def test_a_stride_without_a_phase_is_all_phases(words: str, is_phased: bool) -> None:
    assert names_gradient(words) is is_phased


RUNS = {
    "covered": ("h=5 w=6 r=3 s=3 pad=1 stride=2 layout=NHWC", "mma_f16", ["--output", "float16"]),
    "gaps": ("h=6 w=7 r=1 s=2 stride=2,3", "mma_s8", []),
    "groups": ("h=5 w=5 r=2 s=2 stride=2 groups=2 layout=NHWC", "wgmma_f16", ["--relu"]),
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_driver.build(tmp_path_factory.mktemp("driver"))


@needs_compiler
@pytest.mark.quick(2)
@pytest.mark.parametrize("name", RUNS)
def test_one_command_makes_and_saves_all_phases(
    name: str, driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(IN_PROCESS_VARIABLE, "1")
    every = compiling.architectures_of
    for module in (compiling, joined):
        monkeypatch.setattr(
            module, "architectures_of", lambda each, bulk=False: every(each, bulk=bulk)[:1]
        )
    settings, target, options = RUNS[name]
    words = ["conv2d_dgrad", "n=1", "c=8", "k=9", *settings.split()]
    folder = tmp_path / "grad"
    saved = ["run", *words, "--target", target, *options, "--save", str(folder), "--seed", "3"]
    if name == "covered":
        built = ["-o", str(tmp_path), "--name", "grad", "--torch"]
        saved = ["build", *words, "--target", target, *options, *built]
    assert main(saved) == 0
    is_built = name == "covered"
    assert (folder / "grad_torch.py").exists() == (tmp_path / "README.md").exists() == is_built
    document = json.loads((folder / "grad.json").read_text())
    outputs = [buffer for buffer in document["buffers"] if buffer["role"] == "output"]
    inputs = [buffer["tensor"] for buffer in document["buffers"] if buffer["role"] == "input"]
    assert len(outputs) == 1
    assert sorted(inputs) == ["G", "W"]
    assert ("grad_zero" in {kernel["name"] for kernel in document["kernels"]}) == (name == "gaps")
    if compiling.compiler() is None:
        return
    env = fake_driver.environment(
        driver,
        "run",
        FAKE_CUDA_PROGRAM=fake_driver.emulated(folder / "grad.cu"),
        FAKE_CUDA_CAPABILITY=90,
        FAKE_CUDA_SHARED=232448,
    )
    done = fake_driver.check_py(folder, env, "--no-time")
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "right: integers (exact)" in done.stdout


def test_targets_that_place_nothing_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["conv2d_dgrad", "n=1", "c=16", "h=6", "w=6", "k=16", "r=1", "s=1", "stride=2"]
    assert main(["run", *words, "--target", "vta_1x16x16"]) == 5
    said = capsys.readouterr().err
    assert "computes one phase of a gradient at a time: name it (phase=0,1)" in said
    assert workload([*words, "phase=0,0"]).output.shape == (1, 16, 3, 3)
