"""``cpembed match`` as a person or a script sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cpembed.cli.models import SECONDS
from cpembed.driver.named import hardware_spec
from cpembed.graph.graph import Graph
from cpembed.network import match as match_module
from cpembed.network.build import uniquely_named
from cpembed.network.plan import SEARCH_LIMIT
from tests.cli.calling import Caller
from tests.cli.schema import NUMBER, Map, assert_matches
from tests.unit.network.networks import network

VTA = ("--target", "vta_1x16x16")
PRODUCTS = {
    "first": "gemm m=8 n=32 k=32",
    "again": "gemm m=8 n=32 k=32",
    "largest": "C[m,n] max= A[m,k] * B[k,n] m=8 n=16 k=16",
}
TOTALS = {
    "operators": int,
    "mapped": int,
    "products": int,
    "embedded": int,
    "stopped": int,
    "failed": int,
    "on_alternatives": int,
    "distinct": int,
    "retyped": int,
    "macs": int,
    "embedded_macs": int,
    "utilisation": NUMBER,
    "utilisation_by_macs": NUMBER,
    "moved_bytes": int,
    "times": Map({"amount": NUMBER, "unit": str, "layers": int}),
}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Graph], Path]:
    """A file that is read as a network, which needs no preparing."""

    def written(graph: Graph) -> Path:
        path = tmp_path / "model.onnx"
        path.write_bytes(b"")
        for reader in ("load_model", "load_network"):
            monkeypatch.setattr(f"cpembed.frontends.{reader}", lambda path, *args, **options: graph)
        monkeypatch.setattr(
            match_module, "prepared_and_named", lambda graph, _: uniquely_named(graph)
        )
        return path

    return written


def test_a_table_has_a_row_an_operator_and_totals(
    cpembed: Caller, model: Callable[[Graph], Path]
) -> None:
    called = cpembed("match", str(model(network("net", PRODUCTS))), *VTA)
    assert called.code == 0, called
    lines = called.out.splitlines()
    assert lines[0].split() == [
        "operator",
        "kind",
        "MACs",
        "on",
        "mapping",
        "used",
        "estimate",
        "reason",
    ]
    rows = {line.split()[0]: line for line in lines[2:8]}
    assert set(rows) == {*PRODUCTS, *(f"{name}/neg" for name in PRODUCTS)}
    assert "vta_1x16x16" in rows["first"]
    assert "100.0%" in rows["first"]
    assert rows["first/neg"].endswith("no product")
    assert "net on vta_1x16x16: 2 of 6 operators embedded" in called.out
    assert "2 of 3 embedded; 2 distinct" in called.out


def test_the_document_says_the_same(cpembed: Caller, model: Callable[[Graph], Path]) -> None:
    called = cpembed("match", str(model(network("net", PRODUCTS))), *VTA, "--json")
    document = called.json
    assert (document["network"], document["operators"]) == ("net", 6)
    (found,) = document["targets"]
    assert_matches(found["totals"], TOTALS)
    assert found["totals"]["embedded"] == 2
    first, _, _, _, largest, negated = found["operators"]
    assert first["embedded_on"] == "vta_1x16x16"
    assert first["family"] == {"x": [], "y": ["n"], "z": ["k"]}
    assert first["estimated"]["unit"] == "us"
    assert largest["embedded_on"] is None
    assert largest["reason"]
    assert negated["reason"] == "no product"


def test_several_targets_stand_beside_each_other(
    cpembed: Caller, model: Callable[[Graph], Path]
) -> None:
    path = str(model(network("net", PRODUCTS)))
    called = cpembed("match", path, *VTA, "--target", "gemm_16x16x16")
    assert called.code == 0, called
    assert called.out.splitlines()[0].split() == [
        "product", "MACs", "vta_1x16x16", "time", "gemm_16x16x16", "time",
    ]  # fmt: skip
    (row,) = [line for line in called.out.splitlines() if line.startswith("first")]
    # 8 of 16 rows of the larger unit.
    assert "100.0%" in row
    assert "50.0%" in row
    assert [line.split()[1:4] for line in called.out.splitlines() if " of 3 " in line][:2] == [
        ["2", "of", "3"]
    ] * 2


def test_targets_of_one_name_are_refused(
    cpembed: Caller, model: Callable[[Graph], Path], tmp_path: Path
) -> None:
    """Tables and documents know a target by its name."""
    path, file = str(model(network("net", PRODUCTS))), tmp_path / "other.toml"
    text = Path(hardware_spec("gemm_16x16x16").path).read_text(encoding="utf-8")
    file.write_text(text.replace('"gemm_16x16x16"', '"vta_1x16x16"'), encoding="utf-8")
    called = cpembed("match", path, *VTA, "--target", str(file))
    called.is_one_line_error(2, str(file), "vta_1x16x16", "another name")


def test_names_of_a_model_are_no_markup(cpembed: Caller, model: Callable[[Graph], Path]) -> None:
    graph = network("[red]net[/red]", {"[bold]a[/bold]": PRODUCTS["first"]})
    called = cpembed("match", str(model(graph)), *VTA)
    assert "[bold]a[/bold]" in called.out
    assert "[red]net[/red]" in called.out


@pytest.mark.parametrize("shape", ["x", "=1,2", "x=1,b", "x=-1"])
def test_a_malformed_shape_is_refused(
    cpembed: Caller, model: Callable[[Graph], Path], shape: str
) -> None:
    path = str(model(network("net", PRODUCTS)))
    cpembed("match", path, *VTA, "--shape", shape).is_one_line_error(2, shape, "NAME=1,3,224,224")


def test_shapes_reach_the_reader(
    cpembed: Caller, model: Callable[[Graph], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = network("net", PRODUCTS)
    path = model(graph)
    seen: list[object] = []

    def load(path: Path, shapes: object, outputs: object, *, constants: object) -> Graph:
        seen.append((shapes, constants))
        return graph

    monkeypatch.setattr("cpembed.frontends.load_model", load)
    cpembed("match", str(path), *VTA, "--shape", "ids=1,128", "--shape", "scale=")
    cpembed("match", str(path), *VTA, "--set", "on=true", "--set", "n=1,2", "--set", "t=a.npy")
    assert seen == [
        ({"ids": (1, 128), "scale": ()}, {}),
        (None, {"on": True, "n": [1, 2], "t": Path("a.npy")}),
    ]


def test_the_command_has_the_time_limit_of_the_library() -> None:
    assert SECONDS == SEARCH_LIMIT


def test_a_missing_file_and_a_wrong_target_are_one_line(
    cpembed: Caller, model: Callable[[Graph], Path]
) -> None:
    cpembed("match", "nowhere.onnx", *VTA).is_one_line_error(2, "nowhere.onnx")
    path = str(model(network("net", PRODUCTS)))
    cpembed("match", path, "--target", "nowhere").is_one_line_error(2, "nowhere")


def test_an_empty_network_is_a_result(cpembed: Caller, model: Callable[[Graph], Path]) -> None:
    graph = replace(network("net", PRODUCTS), operators=(), outputs=())
    called = cpembed("match", str(model(graph)), *VTA)
    assert called.code == 0, called
    assert "0 of 0 embedded" in called.out


def test_an_interruption_ends_in_one_line(
    cpembed: Caller, model: Callable[[Graph], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(match_module, "match_in_worker", interrupted)
    called = cpembed("match", str(model(network("net", PRODUCTS))), *VTA)
    assert (called.code, called.out) == (130, "")
    assert called.err.split("\n")[-2:] == ["cpembed: interrupted", ""]


def test_products_of_one_name_are_rows_of_their_own(
    cpembed: Caller, model: Callable[[Graph], Path]
) -> None:
    """As where a pass makes several products of one."""
    graph = network("net", {"a": PRODUCTS["first"], "b": "gemm m=8 n=24 k=16"})
    first, _, second, last = graph.operators
    operators = (first, replace(second, name="a"), last)
    path = str(model(replace(graph, operators=operators)))
    called = cpembed("match", path, *VTA, "--target", "gemm_16x16x16")
    used = [line.split()[2:] for line in called.out.splitlines() if line.startswith("a ")]
    assert "100.0%" in used[0]
    assert "75.0%" in used[1]


def test_a_plan_takes_no_option_of_runs(cpembed: Caller, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"")
    called = cpembed("network", str(path), "--plan-only", "--save", str(tmp_path / "library"))
    called.is_one_line_error(2, "--plan-only", "leave --save out")
