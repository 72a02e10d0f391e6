from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnx")

import numpy as np
import onnx

from cpembed.driver.named import workload
from cpembed.frontends import load_model
from cpembed.ir.reference import reference
from experiments.amos2022.table2 import networks, run
from experiments.amos2022.table2.tables import COLUMNS, markdown
from tests.experiments.loading import EXPERIMENTS, committed
from tests.models.registry import TINY, write, write_int8

FOLDER = EXPERIMENTS / "amos2022/table2"


def test_committed_results_are_as_the_readme_says() -> None:
    document = committed("amos2022/table2")
    assert [row["network"] for row in document["networks"]] == list(networks.NETWORKS)
    assert [problem for row in document["networks"] for problem in run.problems(row)] == []
    assert markdown(document) == (FOLDER / "results.md").read_text()


def test_every_product_of_the_papers_networks_is_mapped() -> None:
    """With a filter axis for depthwise convolutions, a Tensor Core computes what AMOS says."""
    found = {row["network"]: row for row in committed("amos2022/table2")["networks"]}
    forms = ("shufflenet_v1", "resnet50", "mobilenet_v1_amos", "bert_base_amos", "milstm")
    tensor_core = [found[name]["columns"]["wmma_f16"] for name in forms]
    assert [c["own"] + c["otherwise"]["mapped"] for c in tensor_core] == [50, 54, 29, 84, 9]
    assert [c["own"] for c in tensor_core] == [34, 54, 15, 84, 9]
    amx = [found[name]["columns"]["amx_int8"]["mapped"] for name in forms]
    assert amx == [50, 54, 29, 84, 9]


def test_amx_alone_computes_depthwise_convolutions_with_its_factors_exchanged() -> None:
    for row in committed("amos2022/table2")["networks"]:
        amx = row["columns"]["amx_int8 alone"]
        assert amx["own"] + amx["otherwise"]["mapped"] == amx["nodes"]
        # One row of 16, and windows of at most 25 steps of 64.
        assert (amx["otherwise"]["use"] or 0) <= 25 / 64 / 16


def test_problems_name_a_product_that_is_not_mapped() -> None:
    (row,) = (row for row in committed("amos2022/table2")["networks"] if row["network"] == "milstm")
    row["columns"]["vta_1x16x16"]["mapped"] -= 1
    row["columns"]["wmma_f16"]["own"] -= 2
    assert run.problems(row) == ["milstm on vta_1x16x16: 8 of 9", "milstm on wmma_f16: 7 of 9"]


def test_a_filter_axis_changes_no_result() -> None:
    plain = workload("depthwise n=1 c=3 h=5 w=6 r=3 s=2 pad=1")
    grown = run.with_filter_axis(plain)
    assert grown.extents == {"m": 1, **plain.extents}
    random = np.random.default_rng(0)
    image, weights = (random.integers(-9, 9, o.shape).astype(o.dtype) for o in plain.inputs)
    expected = reference(plain, {"I": image, "W": weights})
    found = reference(grown, {"I": image, "W": weights[..., None]})
    assert np.array_equal(found[..., 0], expected)


def test_quantized_files_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    network = networks.NETWORKS["milstm"]
    small = networks.Network("", lambda: network.build(**TINY["milstm"]), "milstm")
    monkeypatch.setitem(networks.NETWORKS, "milstm", small)
    whole, int8 = networks.files("milstm", tmp_path)
    before = int8.stat().st_mtime_ns
    assert networks.files("milstm", tmp_path) == (whole, int8)
    assert int8.stat().st_mtime_ns == before
    names = run.multiplying(onnx.load(whole))
    totals, layers = run.counted(load_model(int8), names, COLUMNS["vta_1x16x16"])
    assert (totals["nodes"], totals["mapped"], totals["own"]) == (9, 9, 9)
    assert sum(layer["count"] for layer in layers) == 9


def test_products_for_zero_points_are_counted_apart() -> None:
    """In each of BERT's 12 blocks two of the attention's scores and one of its weighted sum."""
    (row,) = (
        row for row in committed("amos2022/table2")["networks"] if row["network"] == "bert_base"
    )
    amx = row["columns"]["amx_int8"]
    assert (amx["mapped"], amx["nodes"], amx["for_zero_points"]) == (97, 97, 36)


def test_only_a_nodes_own_multiplications_are_counted(tmp_path: Path) -> None:
    """Zero points add products to those of the float model, and no multiplications of its own."""
    pytest.importorskip("onnxruntime")
    whole, int8 = tmp_path / "net.onnx", tmp_path / "net_int8.onnx"
    write("bert_base", whole, **TINY["bert_base"])
    write_int8("bert_base", int8, **TINY["bert_base"])
    names = run.multiplying(onnx.load(whole))
    plain, zeroed = (
        run.counted(load_model(path), names, COLUMNS["vta_1x16x16"])[0] for path in (whole, int8)
    )
    assert plain["for_zero_points"] == 0 < zeroed["for_zero_points"]
    for figure in ("nodes", "mapped", "macs"):
        assert plain[figure] == zeroed[figure]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["milstm", "shufflenet_v1", "mobilenet_v1_amos"])
def test_counts_of_whole_networks_are_the_committed_ones(name: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    model = networks.NETWORKS[name].build()
    onnx.save(model, path)
    (row,) = (row for row in committed("amos2022/table2")["networks"] if row["network"] == name)
    key = "wmma_f16"
    totals, _ = run.counted(load_model(path), run.multiplying(model), COLUMNS[key])
    expected = row["columns"][key]
    for figure in ("nodes", "operators", "mapped", "own", "macs", "mapped_macs"):
        assert totals[figure] == expected[figure]
    assert totals["otherwise"]["mapped"] == expected["otherwise"]["mapped"]
