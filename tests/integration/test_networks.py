"""Whole networks, from a model's file to a library and its results, through the command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpembed.hw.loader import load_hardware_spec
from cpembed.targets.registry import missing_for

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

CANDIDATES = ("amx_int8", "avx512_vnni", "avx_vnni", "avx2_int8")
QUICK = ("tiny",)
SLOW = (
    "resnet18",
    "resnet50",
    "mobilenet_v1",
    "mobilenet_v2",
    "efficientnet_lite0",
    "shufflenet_v1",
    "inception_v3",
    "bert_base",
    "transformer",
    "milstm",
)


@pytest.fixture(scope="module")
def target() -> str:
    """The first target that this machine executes."""
    for name in CANDIDATES:
        if not missing_for(load_hardware_spec(name)):
            return name
    pytest.skip(f"the processor has none of {', '.join(CANDIDATES)}")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes a small quantized model."""
    from tests.models.registry import TINY, write_int8

    folder = tmp_path_factory.mktemp("models")

    def written(name: str) -> Path:
        path = folder / f"{name}.onnx"
        return path if path.exists() else write_int8(name, path, **TINY[name])

    return written


def cpembed(*words: Any, code: int = 0) -> str:
    command = [sys.executable, "-m", "cpembed", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stderr
    return done.stdout


def network(model: Path, target: str, *more: Any) -> dict[str, Any]:
    return json.loads(cpembed("network", model, "--target", target, "--json", *more))


def onnx_runtime(model: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(model), options, ["CPUExecutionProvider"])
    return session.run(None, inputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_every_operator_is_what_it_is_defined_to_be(
    name: str, target: str, model: Callable[[str], Path], tmp_path: Path
) -> None:
    document = network(model(name), target, "--output", tmp_path / "out")
    assert all(operator["verified"] for operator in document["operators"])
    products = [o for o in document["operators"] if o["kind"] == "product"]
    assert all(o["embedded_on"] for o in products), [o["reason"] for o in products]
    assert document["assignment"]["proven"]
    assert document["totals"]["measured_us"] > 0
    assert document["assignment"]["cost_us"] <= document["assignment"]["channels_last_us"] + 1e-9


@pytest.mark.parametrize(
    "name", ["tiny", *(pytest.param(n, marks=pytest.mark.slow) for n in ("resnet18", "milstm"))]
)
def test_outputs_beside_those_of_onnx_runtime(
    name: str, target: str, model: Callable[[str], Path], tmp_path: Path
) -> None:
    from cpembed.frontends import load_model
    from cpembed.network.inputs import random_inputs

    path = model(name)
    inputs = random_inputs(load_model(path, None), 5)
    np.savez(tmp_path / "in.npz", **inputs)
    network(path, target, "--input", tmp_path / "in.npz", "--output", tmp_path, "--no-verify")
    found = [np.load(file) for file in sorted(tmp_path.glob("*.npy"))]
    wanted = onnx_runtime(path, inputs)
    assert len(found) == len(wanted)
    by_shape = {array.shape: array for array in wanted}
    for array in found:
        other = by_shape[array.shape]
        # A quantum here and there in eight bits, many layers deep.
        assert np.corrcoef(array.reshape(-1), other.reshape(-1))[0, 1] > 0.99


@pytest.mark.slow
def test_a_library_without_this_package(
    target: str, model: Callable[[str], Path], tmp_path: Path
) -> None:
    from cpembed.frontends import load_model
    from cpembed.network.inputs import random_inputs

    path = model("tiny")
    cpembed("build", path, "--target", target, "-o", tmp_path / "lib", "--name", "tiny")
    inputs = random_inputs(load_model(path, None), 5)
    np.savez(tmp_path / "in.npz", **inputs)
    network(path, target, "--input", tmp_path / "in.npz", "--output", tmp_path, "--no-verify")
    (wanted,) = (np.load(file) for file in tmp_path.glob("*.npy"))
    np.save(tmp_path / "image.npy", next(iter(inputs.values())))
    program = (
        "import sys, numpy as np\n"
        f"sys.path.insert(0, {str(tmp_path / 'lib')!r})\n"
        "import tiny\n"
        "with tiny.Library(threads=1) as library:\n"
        f"    (found,) = library.run(np.load({str(tmp_path / 'image.npy')!r}))\n"
        f"np.save({str(tmp_path / 'found.npy')!r}, found)\n"
        "assert not any(name.startswith(('tvm', 'cpembed')) for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=tmp_path)
    assert np.array_equal(np.load(tmp_path / "found.npy"), wanted)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_a_library_under_valgrind(model: Callable[[str], Path], tmp_path: Path) -> None:
    """For the instructions that valgrind knows: others are hidden from the compiler."""
    from cpembed.codegen.host_cpu import HIDE_VARIABLE, reported_features

    newer = ("avx512", "avx_vnni", "vaes", "vpclmul", "gfni", "sse4a", "xop", "amx")
    hidden = [name for name in reported_features() if name.startswith(newer)]
    environment = {**os.environ, HIDE_VARIABLE: ",".join(hidden)}
    words = ["build", str(model("tiny")), "--target", "avx2_int8", "-o", str(tmp_path)]
    command = [sys.executable, "-m", "cpembed", *words, "--name", "tiny", "--threads", "2"]
    subprocess.run(command, check=True, env=environment, timeout=600)
    link = ["cc", "-O1", "-Wall", "-Werror", "example.c", "-o", "example", "-L.", "-ltiny", "-lm"]
    subprocess.run([*link, "-Wl,-rpath,$ORIGIN"], check=True, cwd=tmp_path)
    run = ["valgrind", "--quiet", "--error-exitcode=9", "./example"]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_simulated_target(model: Callable[[str], Path]) -> None:
    document = network(model("tiny"), "vta_1x16x16")
    products = [o for o in document["operators"] if o["kind"] == "product"]
    assert all(o["embedded_on"] == "vta_1x16x16" and o["cycles"] > 0 for o in products)
    assert all(o["verified"] for o in products)
    # The host computes the others by their definitions: nothing is compared.
    assert all(o["verified"] is None for o in document["operators"] if o not in products)
    assert document["totals"]["total_cycles"] == sum(o["cycles"] for o in products)


@pytest.mark.slow
def test_layouts_of_a_policy_cost_no_less(target: str, model: Callable[[str], Path]) -> None:
    best = network(model("tiny"), target, "--plan-only")
    for policy in ("channels_last", "alone"):
        other = network(model("tiny"), target, "--plan-only", "--layouts", policy)
        assert other["totals"]["predicted_us"] >= best["totals"]["predicted_us"] - 1e-9


@pytest.mark.slow
def test_pairs_by_an_option(target: str, model: Callable[[str], Path], tmp_path: Path) -> None:
    """The plan, the library and ``match`` take the same pairs, or none."""
    path = model("mobilenet_v2")
    never = network(path, target, "--plan-only", "--pairs", "never")
    followers = [o for o in never["operators"] if o["not_fused"]]
    assert {o["not_fused"] for o in followers} == {"pairs are off"}
    always = network(path, target, "--pairs", "always")
    fused = [o for o in always["operators"] if o["fused_with"]]
    assert fused
    assert all(o["verified"] and o["verified_with_special_values"] for o in fused)
    others = [o for o in always["operators"] if o["not_fused"]]
    assert len(followers) == len(fused) // 2 + len(others)
    options = ("--target", target, "--pairs", "always", "--json")
    (matched,) = json.loads(cpembed("match", path, *options))["targets"]
    reasons = [str(o.get("reason")) for o in matched["operators"]]
    assert sum(reason.startswith("computed with") for reason in reasons) == len(fused) // 2
    built = json.loads(cpembed("build", path, *options, "-o", tmp_path / "library"))
    assert sum(o["fused_with"] is not None for o in built["operators"]) == len(fused)


@pytest.mark.slow
def test_wrong_inputs_are_one_line(
    target: str, model: Callable[[str], Path], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.npy"
    np.save(wrong, np.zeros((2, 2), np.float32))
    command = ("network", model("tiny"), "--target", target, "--input", wrong)
    done = subprocess.run(
        [sys.executable, "-m", "cpembed", *map(str, command)], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    wrong.write_bytes(b"no array")
    done = subprocess.run(
        [sys.executable, "-m", "cpembed", *map(str, command)], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
