"""Model files through ``cpembed match`` and ``bench``: the front end, the passes, the searches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("onnx")

from cpembed.frontends import load_model
from cpembed.graph.passes import prepare
from tests.cli.calling import Caller
from tests.models.registry import TINY, write

VTA = ("--target", "vta_1x16x16")


@pytest.fixture
def cpembed(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write("resnet18", tmp_path / "net.onnx", **TINY["resnet18"])


def test_every_convolution_of_a_model_is_matched(cpembed: Caller, model: Path) -> None:
    import onnx

    nodes = Counter(node.op_type for node in onnx.load(model).graph.node)
    (found,) = cpembed("match", str(model), *VTA, "--json").json["targets"]
    assert found["totals"]["products"] == nodes["Conv"] + nodes["Gemm"] == 21
    # The model is float32, which the target would multiply if it were quantized.
    assert found["totals"]["embedded"] == 0
    assert found["totals"]["distinct"] < 21
    assert found["totals"]["retyped"] == 21
    prepared = prepare(load_model(model), first="int8", second="int8")
    assert [o["name"] for o in found["operators"]] == [o.name for o in prepared.operators]


@pytest.mark.slow
def test_the_distinct_products_of_a_model_are_a_suite(
    cpembed: Caller, model: Path, tmp_path: Path
) -> None:
    where = ("--results", str(tmp_path))
    (matched,) = cpembed("match", str(model), *VTA, "--json").json["targets"]
    document = cpembed("bench", str(model), *VTA, *where, "--no-run", "--json").json
    assert document["suite"] == "net.onnx"
    assert len(document["rows"]) == matched["totals"]["distinct"]
    assert sum(row["count"] for row in document["rows"]) == 21
    assert sum(row["count"] * row["macs"] for row in document["rows"]) == matched["totals"]["macs"]
    once = min(range(len(document["rows"])), key=lambda n: document["rows"][n]["macs"])
    ran = cpembed("bench", str(model), *VTA, *where, "--layers", str(once), "--json").json
    assert ran["rows"][0]["run"]["verified"]


def test_what_is_no_model_is_one_line(cpembed: Caller, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"not a model")
    cpembed("match", str(path), *VTA).is_one_line_error(2, "net.onnx")
    cpembed("bench", str(path), *VTA).is_one_line_error(2, "net.onnx")
    cpembed("bench", str(tmp_path / "gone.onnx"), *VTA).is_one_line_error(2, "gone.onnx")
