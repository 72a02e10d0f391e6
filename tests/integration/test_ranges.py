# pyright: basic
"""One library for ranges of sizes: at random sizes, beside ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpembed.errors import WorkloadError
from cpembed.frontends import load_network
from cpembed.graph.family import Family
from cpembed.graph.graph import evaluate
from cpembed.graph.instances import Mode, openness
from cpembed.hw.loader import load_hardware_spec
from cpembed.network.family import Ranges, RunningFamily, compile_family
from cpembed.network.family_service import network_family
from cpembed.network.plan import Planning
from cpembed.network.service import NetworkRequest
from cpembed.targets.registry import missing_for

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from tests.integration.open_models import bert, cnn, gru, lstm, mlp, scan  # noqa: E402
from tests.unit.graph import test_size_relation as relation_cases  # noqa: E402

CANDIDATES = ("avx512_f32", "avx2_f32")
SIZES = 200
BATCH = {"batch": range(1, 17)}
BOTH = {**BATCH, "sequence": range(1, 65)}


@pytest.fixture(scope="module")
def target() -> str:
    """The first target that this machine executes."""
    for name in CANDIDATES:
        if not missing_for(load_hardware_spec(name)):
            return name
    pytest.skip(f"the processor has none of {', '.join(CANDIDATES)}")


def inputs_at(family: Family, sizes: tuple[int, ...], random: Any) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for name, kind in family.graph(sizes).inputs.items():
        if kind.dtype.startswith("float"):
            arrays[name] = random.normal(size=kind.shape).astype(kind.dtype)
        elif name == "lengths":
            steps = family.named(sizes)["steps"]
            arrays[name] = random.integers(1, steps + 1, kind.shape).astype(kind.dtype)
        else:
            arrays[name] = random.integers(0, 2 if name == "mask" else 50, kind.shape)
    return arrays


def compare(running: RunningFamily, family: Family, path: Path, count: int) -> None:
    """At both ends and at random sizes."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    random = np.random.default_rng(5)
    for sizes in family.random_sizes(count, 3):
        inputs = inputs_at(family, sizes, random)
        expected = dict(zip(names, session.run(None, inputs), strict=True))
        outputs = running.run(inputs)
        assert outputs.keys() == expected.keys()
        for name, array in expected.items():
            assert outputs[name].shape == array.shape
            np.testing.assert_allclose(
                outputs[name], array, rtol=2e-4, atol=2e-5, err_msg=f"{name} at {sizes}"
            )


def family_of(make: Callable[[Path], Path], folder: Path, request: Any) -> tuple[Path, Family]:
    path = make(folder / "model.onnx")
    family = load_network(path, request)
    assert isinstance(family, Family)
    return path, family


def test_rows_in_one_library(target: str, tmp_path: Path) -> None:
    path, family = family_of(mlp, tmp_path, BATCH)
    compiled = compile_family(family, target, tmp_path / "out", ranges=Ranges(1.3, 3))
    with compiled.open(threads=1) as running:
        compare(running, family, path, SIZES)
        with pytest.raises(WorkloadError, match="batch is 17, the library takes 1 to 16"):
            running(np.zeros((17, 24), np.float32))
        with pytest.raises(WorkloadError, match="the library takes float32"):
            running(np.zeros((3, 25), np.float32))
        with pytest.raises(WorkloadError, match="input x is float64"):
            running(np.zeros((3, 24)))


def test_a_recurrence_executes_as_many_steps_as_there_are(target: str, tmp_path: Path) -> None:
    path, family = family_of(gru, tmp_path, {"steps": range(1, 200)})
    request = NetworkRequest(target, tmp_path / "out", Planning(timeout=10.0), times=False)
    result = network_family(family, request, Ranges(1.3, 3))
    assert not result.wrong
    assert result.library is not None
    about = json.loads((tmp_path / "out" / f"{result.library.name}.json").read_text())
    assert about["loops"][-1]["steps"] == 199
    assert result.document["modes"] == {"steps": "padded"}
    compiled = compile_family(family, target, tmp_path / "again", ranges=Ranges(1.3, 3))
    with compiled.open(threads=1) as running:
        compare(running, family, path, SIZES)


@pytest.mark.parametrize("name", ["lstm", "scan"])
def test_recurrences_of_any_batch_and_length(name: str, target: str, tmp_path: Path) -> None:
    make = {"lstm": lstm, "scan": scan}[name]
    path, family = family_of(make, tmp_path, {"batch": range(1, 6), "steps": range(1, 41)})
    compiled = compile_family(family, target, tmp_path / "out", ranges=Ranges(2.0, 4))
    with compiled.open(threads=1) as running:
        compare(running, family, path, SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("make, request_", [(cnn, BATCH), (bert, BOTH)])
def test_networks_in_one_library(
    make: Callable[[Path], Path], request_: Any, target: str, tmp_path: Path
) -> None:
    """Every operator of every instance is compared with its definition before that."""
    path, family = family_of(make, tmp_path, request_)
    request = NetworkRequest(target, tmp_path / "out", Planning(timeout=10.0), times=False)
    result = network_family(family, request, Ranges(1.3, 5))
    assert not result.wrong
    operators = [o for i in result.document["instances"] for o in i["network"]["operators"]]
    assert all(o["verified"] and o["verified_with_special_values"] for o in operators)
    assert len(result.document["checks"]) == 8
    compiled = compile_family(family, target, tmp_path / "again", ranges=Ranges(1.3, 5))
    for threads in (1, 2):
        with compiled.open(threads=threads) as running:
            compare(running, family, path, SIZES)


def test_a_mask_hides_what_is_filled_up(tmp_path: Path) -> None:
    """Of the encoder, batches are independent, and sequences padded."""
    _, family = family_of(bert, tmp_path, BOTH)
    assert openness(family).modes == {"batch": Mode.SPLIT, "sequence": Mode.PADDED}


@pytest.mark.slow
def test_a_program_of_torch(target: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(50, 32)
            self.places = torch.nn.Parameter(torch.randn(64, 32))
            self.parts = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(3))
            self.last = torch.nn.Linear(32, 7)

        def forward(self, ids: Any, mask: Any) -> Any:
            batch, length = ids.shape
            x = self.embedding(ids) + self.places[:length]
            q, k, v = (f(x).view(batch, length, 2, 16).transpose(1, 2) for f in self.parts)
            bias = (1 - mask[:, None, None].float()) * -10000.0
            mixed = torch.softmax(q @ k.transpose(-1, -2) / 4 + bias, -1) @ v
            x = x + mixed.transpose(1, 2).reshape(batch, length, 32)
            return self.last(x), x[:, 0].tanh(), x.mean(1)

    model = Encoder().eval()
    batch, length = torch.export.Dim("batch", min=1, max=16), torch.export.Dim("n", min=1, max=64)
    example = torch.zeros((3, 7), dtype=torch.int64), torch.ones((3, 7), dtype=torch.int64)
    axes = {0: batch, 1: length}
    program = torch.export.export(model, example, dynamic_shapes={"ids": axes, "mask": axes})
    path = tmp_path / "encoder.pt2"
    torch.export.save(program, path)
    family = load_network(path, {"ids": (range(1, 17), range(1, 65))})
    assert isinstance(family, Family)
    compiled = compile_family(family, target, tmp_path / "out", ranges=Ranges(1.3, 3))
    random = np.random.default_rng(1)
    with compiled.open() as running:
        for sizes in family.random_sizes(SIZES, 2):
            ids = random.integers(0, 50, sizes)
            mask = random.integers(0, 2, sizes)
            with torch.no_grad():
                expected = model(torch.from_numpy(ids), torch.from_numpy(mask))
            outputs = running.run({"ids": ids, "mask": mask})
            for array, tensor in zip(outputs.values(), expected, strict=True):
                np.testing.assert_allclose(array, tensor.numpy(), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["softmax", "mean", "attention"])
def test_masks_in_one_library(target: str, tmp_path: Path, name: str) -> None:
    """At every size of two ranges, beside the definition at that size."""
    family = relation_cases.family(relation_cases.PADDED[name])
    compiled = compile_family(family, target, tmp_path, ranges=Ranges(1.5, 3))
    random = np.random.default_rng(4)
    with compiled.open() as running:
        for batch in range(1, 4):
            for length in range(2, 10):
                graph = family.graph((batch, length))
                x = random.normal(size=graph.inputs["x"].shape).astype(np.float32)
                (expected,) = evaluate(graph, {"x": x}, lambda n: False).values()
                np.testing.assert_allclose(running(x), expected, rtol=1e-5, atol=1e-6)
