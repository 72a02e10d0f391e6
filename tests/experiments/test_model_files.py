"""The check of a folder of ONNX files: right, wrong, refused, damaged and slow ones; resuming."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx import helper, numpy_helper

from benchmarks import model_files
from benchmarks.model_inputs import Declared, candidates, perturbed

FLOAT = onnx.TensorProto.FLOAT


def _write(
    path: Path, operator: str, sizes: list[Any], domain: str = "", **attributes: Any
) -> None:
    node = helper.make_node(operator, ["x", "w"], ["y"], domain=domain, **attributes)
    weights = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    graph = helper.make_graph(
        [node],
        "test",
        [helper.make_tensor_value_info("x", FLOAT, sizes)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(weights, "w")],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("nobody", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def _checked(folder: Path, output: Path, *options: str) -> tuple[str, list[dict[str, Any]]]:
    command = [sys.executable, "-m", "benchmarks.model_files", str(folder), "-o", str(output)]
    process = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    return process.stdout, [json.loads(line) for line in output.read_text().splitlines()]


def test_a_folder_is_read_and_compared_and_a_second_run_repeats_nothing(tmp_path: Path) -> None:
    folder, output = tmp_path / "models", tmp_path / "results.jsonl"
    folder.mkdir()
    _write(folder / "open.onnx", "MatMul", ["batch", 8])
    _write(folder / "strange.onnx", "Strange", [2, 8], "nobody")
    (folder / "damaged.onnx").write_bytes(b"\x08\x07\x12garbage")
    text, results = _checked(folder, output, "--definitions")
    by_file = {result["file"]: result for result in results}
    assert by_file["open.onnx"]["shapes"] == {"x": [1, 8]}
    assert by_file["open.onnx"]["right"] is True
    assert "nobody.Strange" in by_file["strange.onnx"]["refusal"]
    assert "damaged.onnx" in by_file["damaged.onnx"]["refusal"]
    assert "3 files: 1 read, 1 compared with onnxruntime, 1 right." in text
    again, results = _checked(folder, output, "--definitions")
    assert len(results) == 3
    assert again.splitlines()[:3] == text.splitlines()[:3]


def test_a_file_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    folder, output = tmp_path / "models", tmp_path / "results.jsonl"
    folder.mkdir()
    _write(folder / "slow.onnx", "MatMul", [2, 8])
    text, (result,) = _checked(folder, output, "--definitions", "--seconds", "0.01")
    assert result["ended"] == "stopped after 0 s"
    assert "1 files: 0 read" in text


def test_results_that_were_cut_off_or_ended_at_a_limit_are_made_again(tmp_path: Path) -> None:
    folder, output = tmp_path / "models", tmp_path / "results.jsonl"
    folder.mkdir()
    _write(folder / "slow.onnx", "MatMul", [2, 8])
    _checked(folder, output, "--definitions", "--seconds", "0.01")
    (line,) = output.read_text().splitlines()
    output.write_text(f"{line}\n{line[:40]}")
    command = [sys.executable, "-m", "benchmarks.model_files", str(folder), "-o", str(output)]
    text = subprocess.run([*command, "--definitions"], capture_output=True, text=True).stdout
    assert "1 files: 1 read" in text
    assert json.loads(output.read_text().splitlines()[-1])["right"] is True


def test_a_wrong_result_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    _write(path, "MatMul", [2, 8])
    reference = model_files.Reference(path)
    inputs = {"x": np.random.default_rng(1).normal(size=(2, 8)).astype(np.float32)}
    expected = reference.run(inputs)["y"]
    assert model_files.comparison(reference, inputs, {"y": expected})["right"]
    wrong = expected + np.float32(0.01) * np.abs(expected).max()
    assert not model_files.comparison(reference, inputs, {"y": wrong})["right"]
    assert not model_files.comparison(reference, inputs, {"y": expected[:1]})["right"]
    special = np.where(np.arange(8).reshape(2, 4) == 3, np.nan, expected).astype(np.float32)
    assert not model_files.comparison(reference, inputs, {"y": special})["right"]


def test_open_sizes_are_those_of_images_and_sequences() -> None:
    image = Declared("image", "float32", ("batch", "channels", "rows", "columns"))
    last = Declared("image", "float32", (None, None, None, 3))
    ids, edges = Declared("ids", "int64", ("N", "T")), Declared("e", "int64", (2, "num_edges"))
    first = next(iter(candidates([image, last], {})))
    assert first.shapes["image"] == (1, 224, 224, 3)
    assert next(iter(candidates([ids, edges], {}))).shapes == {"ids": (1, 64), "e": (2, 64)}
    rate = Declared("rate", "int64", ())
    bound = next(iter(candidates([ids, rate], {"ids": [2, 5], "rate": 8})))
    assert bound.open_shapes == {"ids": (2, 5)}
    assert bound.arrays(1)["ids"].shape == (2, 5)
    assert bound.arrays(1)["rate"] == 8


def test_a_perturbation_is_one_of_the_last_bit() -> None:
    x = np.random.default_rng(2).normal(size=100).astype(np.float32)
    changed = perturbed({"x": x, "n": np.arange(3)}, 1)
    assert 0 < np.abs(changed["x"] - x).max() <= np.spacing(np.abs(x).max())
    np.testing.assert_array_equal(changed["n"], np.arange(3))
