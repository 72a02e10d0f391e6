"""Folders of random workloads: what a kernel stores on the generated inputs is what is expected."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.run import run
from cpembed.targets.cuda import compiling
from cpembed.targets.cuda.cases import cases_of
from cpembed.targets.cuda.executor import COMPILER
from cpembed.targets.cuda.remote.load import read_manifest
from tests.unit.targets.cuda.saved import fake_driver

pytestmark = pytest.mark.skipif(bool(COMPILER.missing()), reason="the executor misses something")

SUMS = {"mma_f16": "float32", "mma_f16_f16": "float16", "mma_bf16": "float32", "mma_s8": "int32"}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_driver.build(tmp_path_factory.mktemp("driver"))


def random_options(seed: int) -> tuple[str, list[str], dict[str, object]]:
    """Return a target, the words of a workload and options of a run."""
    draw = random.Random(seed)
    target = draw.choice([*SUMS, "wmma_f16", "wgmma_f16"])
    if draw.random() < 0.5:
        words = ["gemm", *(f"{axis}={draw.randint(1, 70)}" for axis in "mnk")]
    else:
        taps, channels = draw.choice([1, 3]), draw.randint(1, 20)
        sizes = {"n": draw.randint(1, 2), "c": channels, "h": draw.randint(3, 8), "w": 6}
        sizes |= {"k": draw.randint(1, 20), "r": taps, "s": taps, "pad": draw.randint(0, 1)}
        layout = draw.choice(["NCHW", "NHWC"])
        words = ["conv2d", *(f"{n}={v}" for n, v in sizes.items()), f"layout={layout}"]
    integers = target == "mma_s8"
    output = draw.choice(["int8", "uint8", None] if integers else ["float16", "bfloat16", None])
    options: dict[str, object] = {"output": output}
    if output is not None:
        options |= {name: draw.random() < 0.4 for name in ("bias", "scale", "relu")}
    return target, words, options


@pytest.mark.skipif(compiling.compiler() is None, reason="nvcc is not on the path")
@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(60))
def test_a_folder_of_a_random_kernel_checks_itself(seed: int, driver: Path, tmp_path: Path) -> None:
    target, words, options = random_options(seed)
    spec = hardware_spec(target)
    folder = tmp_path / "layer"
    run(workload(words, target=spec), spec, save=folder, seed=seed, **options)
    library = fake_driver.emulated(folder / "layer.cu")
    capability = 90 if target.startswith("wgmma") else 80
    env = fake_driver.environment(
        driver,
        "run",
        FAKE_CUDA_PROGRAM=library,
        FAKE_CUDA_CAPABILITY=capability,
        FAKE_CUDA_SHARED=232448,
    )
    done = fake_driver.check_py(folder, env, "--no-time")
    assert (done.returncode, done.stderr) == (0, ""), (target, words, options, done)
    rules = {case["expected"]["rule"] for case in read_manifest(folder)["cases"]}
    assert rules == {"exact"}, (target, words, options)


def test_long_sums_in_float16_are_exact_by_zeros() -> None:
    """Sums of 5,000 products stay below 2,048, beyond which float16 has no odd numbers."""
    layer = workload(["gemm", "m=16", "n=16", "k=5000"], target=hardware_spec("mma_f16_f16"))
    (case, *_) = cases_of(layer, None)
    assert case.exact
    first, second = (case.drawings[name].array(case.shapes[name]) for name in ("A", "B"))
    assert (abs(first).astype(float) @ abs(second).astype(float)).max() <= 2048
    assert (first @ second == case.result).all()
