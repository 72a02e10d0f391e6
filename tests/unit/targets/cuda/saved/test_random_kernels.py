"""Folders of random workloads: what a kernel stores on the generated inputs is what is expected."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest

from cpembed.codegen.epilogue import SECOND, Epilogue
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.run import run
from cpembed.runtime.worker import IN_PROCESS_VARIABLE
from cpembed.targets.cuda.remote.check import difference
from cpembed.targets.cuda.remote.load import read_manifest
from cpembed.targets.cuda.saving import target as saving_target
from cpembed.targets.cuda.saving.cases import Expected, cases_of
from tests.unit.targets.cuda.emulator.running import needs_compiler, needs_nvcc
from tests.unit.targets.cuda.saved import fake_driver

pytestmark = needs_compiler

TARGETS = (
    "mma_f16", "mma_f16_f16", "mma_bf16", "mma_s8", "mma_f8",
    "wmma_f16", "wgmma_f16", "wgmma_s8", "wgmma_f8",
)  # fmt: skip

CHAINS = ("gelu(x) + residual", "max(x, 0) + residual", "silu(x)", None)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_driver.build(tmp_path_factory.mktemp("driver"))


def random_options(seed: int) -> tuple[str, list[str], dict[str, object]]:
    """Return a target, the words of a workload and options of a run."""
    draw = random.Random(seed)
    target = draw.choice(TARGETS)
    if draw.random() < 0.5:
        words = ["gemm", *(f"{axis}={draw.randint(1, 70)}" for axis in "mnk")]
    else:
        taps, channels = draw.choice([1, 3]), draw.randint(1, 20)
        sizes = {"n": draw.randint(1, 2), "c": channels, "h": draw.randint(3, 8), "w": 6}
        sizes |= {"k": draw.randint(1, 20), "r": taps, "s": taps, "pad": draw.randint(0, 1)}
        layout = draw.choice(["NCHW", "NHWC"])
        words = ["conv2d", *(f"{n}={v}" for n, v in sizes.items()), f"layout={layout}"]
    integers = target.endswith("s8")
    output = draw.choice(["int8", "uint8", None] if integers else ["float16", "bfloat16", None])
    options: dict[str, object] = {"output": output}
    if output is not None:
        options |= {name: draw.random() < 0.4 for name in ("bias", "scale", "relu")}
        options["chain"] = draw.choice(CHAINS)
    if draw.random() < 0.4:
        options["second"] = draw.choice(["float32=x", "float16=tanh(x)", "int8=max(x, 0)"])
    return target, words, options


@needs_nvcc
@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(60))
def test_a_folder_of_a_random_kernel_checks_itself(
    seed: int, driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(IN_PROCESS_VARIABLE, "1")
    # Machine code of one architecture is enough, and nvcc takes most of the time.
    every = saving_target.architectures_of
    monkeypatch.setattr(
        saving_target, "architectures_of", lambda each, bulk: every(each, bulk=bulk)[:1]
    )
    target, words, options = random_options(seed)
    spec = hardware_spec(target)
    folder = tmp_path / "layer"
    run(workload(words, target=spec), spec, save=folder, seed=seed, **options)
    library = fake_driver.emulated(folder / "layer.cu")
    document = read_manifest(folder)
    # Which kernel is chosen depends on the machine, and so does the oldest architecture.
    capability = int(re.sub(r"\D", "", document["architectures"][0]))
    env = fake_driver.environment(
        driver,
        "run",
        FAKE_CUDA_PROGRAM=library,
        FAKE_CUDA_CAPABILITY=capability,
        FAKE_CUDA_SHARED=232448,
    )
    done = fake_driver.check_py(folder, env, "--no-time")
    assert (done.returncode, done.stderr) == (0, ""), (target, words, options, done)
    assert len(document["results"]) == 1 + ("second" in options)
    for case in document["cases"]:
        result, *_ = (case["expected"][b["name"]] for b in document["buffers"] if is_result(b))
        functions = options.get("chain") is not None
        rules = {"tolerance" if functions else "exact", "special"}
        assert result["rule"] in rules, (target, words, options)


def is_result(buffer: dict[str, object]) -> bool:
    return buffer["role"] == "output" and buffer["tensor"] != SECOND


def test_a_case_has_nan_infinities_subnormal_numbers_and_zeros_of_both_signs() -> None:
    layer = workload(["gemm", "m=64", "n=16", "k=40"], target=hardware_spec("mma_f16"))
    (case,) = (case for case in cases_of(layer, Epilogue("float16")) if case.name == "special")
    first = case.drawings["A"].array(case.shapes["A"])
    assert np.isnan(first).any()
    assert np.isposinf(first).any()
    assert np.isneginf(first).any()
    numbers = first[np.isfinite(first)]
    assert 0 < np.abs(numbers[numbers != 0]).max() < np.finfo(np.float16).smallest_normal
    zeros = np.signbit(numbers[numbers == 0])
    assert zeros.any()
    assert not zeros.all()
    (expected,) = case.results.values()
    second = case.drawings["B"].array(case.shapes["B"])
    with np.errstate(invalid="ignore"):
        right = (first.astype(np.float64) @ second.astype(np.float64)).astype(np.float16)
    np.testing.assert_array_equal(expected.array, right)
    assert expected.rule == "special"
    assert 0 < np.isnan(right).mean() < 0.5


def test_numbers_may_become_nan_beside_special_values_but_not_all_of_them() -> None:
    array = np.array([1, 2, 3, np.nan, np.inf, 6], np.float16)
    expected = Expected(array, spreads=True).to_json("")
    output = {"dtype": "float16", "itemsize": 2}

    def fault(*values: float) -> str | None:
        stored = np.array(values, np.float16).tobytes()
        return difference(stored, output, expected, array.tobytes())

    nan = float("nan")
    assert fault(1, nan, 3, nan, np.inf, nan) is None
    assert fault(nan, nan, nan, nan, nan, nan) == "all 5 elements that should be numbers are NaN"
    assert fault(1, 2, 3, 4, np.inf, 6) == "element 3 is 4, not nan"
    assert fault(1, 2, 3, nan, 65504, 6) == "element 4 is 65504, not inf"


def test_long_sums_in_float16_are_exact_by_zeros() -> None:
    """Sums of 5,000 products stay below 2,048, beyond which float16 has no odd numbers."""
    layer = workload(["gemm", "m=16", "n=16", "k=5000"], target=hardware_spec("mma_f16_f16"))
    (case, *_) = cases_of(layer, None)
    (expected,) = case.results.values()
    assert expected.rule == "exact"
    first, second = (case.drawings[name].array(case.shapes[name]) for name in ("A", "B"))
    assert (abs(first).astype(float) @ abs(second).astype(float)).max() <= 2048
    assert (first @ second == expected.array).all()
