"""Model files through ``cpembed match`` and ``bench``: the front end, the passes, the searches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

from cpembed.frontends import load_model
from cpembed.graph.passes import prepare
from cpembed.hw.loader import load_hardware_spec
from cpembed.targets.registry import missing_for
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


def test_an_attention_is_matched_as_a_network_runs_it(cpembed: Caller, tmp_path: Path) -> None:
    if missing := missing_for(load_hardware_spec("avx2_f32")):
        pytest.skip(missing)
    import onnx

    nodes = [
        onnx.helper.make_node("MatMul", ["q", "k"], ["scores"]),
        onnx.helper.make_node("Softmax", ["scores"], ["shares"], axis=-1),
        onnx.helper.make_node("MatMul", ["shares", "v"], ["y"]),
    ]
    shapes = {"q": (1, 4, 16, 8), "k": (1, 4, 8, 16), "v": (1, 4, 16, 8), "y": (1, 4, 16, 8)}
    q, k, v, y = (onnx.helper.make_tensor_value_info(n, 1, shape) for n, shape in shapes.items())
    graph = onnx.helper.make_graph(nodes, "attention", [q, k, v], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    path = tmp_path / "attention.onnx"
    path.write_bytes(model.SerializeToString())
    target = ("--target", "avx2_f32", "--json")
    (found,) = cpembed("match", str(path), *target).json["targets"]
    plan = cpembed("network", str(path), *target, "--plan-only").json
    assert [o["label"] for o in plan["operators"]] == ["attention"]
    assert [o["label"] for o in found["operators"]] == ["attention"]
    assert found["totals"]["products"] == found["totals"]["embedded"] == 2
    assert found["totals"]["macs"] == 2 * 4 * 16 * 16 * 8
    (time,) = found["totals"]["times"].values()
    assert time["amount"] == plan["totals"]["predicted_us"]


def test_a_weight_only_product_is_not_called_no_product(cpembed: Caller, tmp_path: Path) -> None:
    import onnx

    packed = onnx.numpy_helper.from_array(np.ones((16, 1, 16), np.uint8), "packed")
    scales = onnx.numpy_helper.from_array(np.ones(16, np.float32), "scales")
    node = onnx.helper.make_node(
        "MatMulNBits", ["x", "packed", "scales"], ["y"], domain="com.microsoft", K=32, N=16,
        bits=4, block_size=32,
    )  # fmt: skip
    x, y = (onnx.helper.make_tensor_value_info(n, 1, (2, w)) for n, w in (("x", 32), ("y", 16)))
    graph = onnx.helper.make_graph([node], "packed", [x], [y], [packed, scales])
    versions = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "packed.onnx"
    model = onnx.helper.make_model(graph, opset_imports=versions)
    path.write_bytes(model.SerializeToString())
    if missing := missing_for(load_hardware_spec("avx2_f32")):
        pytest.skip(missing)
    called = cpembed("match", str(path), "--target", "avx2_f32")
    assert called.code == 0, called.err
    assert "weight-only product" in called.out
    assert "none of" not in called.out


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
