"""Points of an instruction set's file: what depends on what a point removes goes with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from cpembed.accelerator.family import AcceleratorFamily
from cpembed.errors import LoweringError
from cpembed.exploration.explore import ExploreResult, open_exploration
from cpembed.exploration.options import ExploreOptions
from cpembed.exploration.space_file import read_space
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.runtime.cluster import open_workers

NPU = Path(__file__).parents[3] / "examples" / "accelerator" / "npu.toml"


def explored(vary: list[str], folder: Path, target: str = "gemmini") -> ExploreResult:
    table = folder / "layers.csv"
    table.write_text("layer\ngemm m=40 n=30 k=20\n")
    exploration = open_exploration(target, str(table), vary=vary, results=folder)
    with open_workers() as workers:
        for _ in exploration.run(workers):
            pass
    return exploration.result()


def test_registers_go_with_the_instructions_that_read_them(tmp_path: Path) -> None:
    result = explored(["instructions.mvin_b=present,absent"], tmp_path)
    family = result.space.family
    points = {str(p.point["instructions.mvin_b"]): p for p in result.evaluated}
    (layer,) = points["absent"].layers
    (reason,) = layer.choice.details["absent"]
    assert "memories.stride_b: is set by config_stride_b and no instruction reads it" in reason
    # The point's file is one that the reader takes, and has the cycles of the point.
    path = tmp_path / "point.toml"
    path.write_text(family.specification(points["absent"].point))
    machine = load_instruction_set(str(path))
    whole = load_instruction_set("gemmini")
    assert set(whole.instructions) - set(machine.instructions) == {"mvin_b", "config_stride_b"}
    assert set(whole.memories) - set(machine.memories) == {"stride_b"}
    assert points["absent"].costs.cycles >= points["present"].costs.cycles


def test_instructions_without_room_are_left_out_and_named(tmp_path: Path) -> None:
    result = explored(["memories.scratchpad.rows=512,16384"], tmp_path)
    points = {p.point["memories.scratchpad.rows"]: p for p in result.evaluated}
    (small,), (large,) = points[512].layers, points[16384].layers
    assert not large.choice.details["absent"]
    (reason,) = small.choice.details["absent"]
    assert reason.startswith("instructions.mvout_pool3_scratchpad.operands.S.rows: takes 8,001")
    # Room never costs cycles.
    assert points[16384].costs.cycles <= points[512].costs.cycles


def test_an_operator_that_lacks_an_instruction_without_room_names_both(tmp_path: Path) -> None:
    """One pooling of the guide's machine may read 33 x 33 rows of an image in its buffer."""
    node = helper.make_node(
        "MaxPool", ["x"], ["y"], name="pool", kernel_shape=[3, 3], strides=[2, 2]
    )
    x = helper.make_tensor_value_info("x", TensorProto.INT8, [1, 16, 33, 33])
    y = helper.make_tensor_value_info("y", TensorProto.INT8, [1, 16, 16, 16])
    graph = helper.make_graph([node], "pool", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "pool.onnx").write_bytes(model.SerializeToString())
    family = read_space(NPU, ExploreOptions(vary=["memories.buffer.rows=512"])).family
    assert isinstance(family, AcceleratorFamily)
    (layer,) = family.suite(str(tmp_path / "pool.onnx"), None).layers
    with pytest.raises(LoweringError, match="the host executes it") as caught:
        family.analyse({"memories.buffer.rows": 512}, family.typed(layer))
    place = "instructions.store_maximum.operands.S.rows: takes"
    assert f"left out of this machine: {place}" in str(caught.value)


@pytest.mark.parametrize("dim, least", [(8, 4), (16, 1), (32, 1)])
def test_the_mesh_is_one_key(tmp_path: Path, dim: int, least: int) -> None:
    """A mesh of 8 x 8 needs at least 5 x 4 x 3 products of 8 rows each."""
    (point,) = explored([f"constants.dim={dim}"], tmp_path).evaluated
    (layer,) = point.layers
    counts = layer.choice.details["instructions"]
    executions = counts.get("compute", 0) + counts["compute_first"]
    assert executions >= -(-40 // dim) * -(-30 // dim) * -(-20 // dim)
    assert layer.costs.cycles >= executions * least
