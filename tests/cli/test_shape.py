"""``cpembed shape`` as a person or a script sees it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cpembed.exploration.shapes.shape import Shape, instruction_of, template
from cpembed.hw.loader import load_hardware_spec
from tests.cli.calling import Caller
from tests.cli.schema import NUMBER, Map, assert_matches
from tests.models.registry import write_int8

NOTHING = type(None)
LAYER = {
    "index": int,
    "label": str,
    "count": int,
    "macs": int,
    "shape": [int],
    "executions": int,
    "utilisation": NUMBER,
    "packing_bytes": int,
    "in_place": [str],
    "exchanged": bool,
    "first_of_ties": bool,
    "layouts": NOTHING,
    "embedding": {
        "id": str,
        "family": Map([str]),
        "operands": Map(str),
        "extents": Map(int),
        "axes": Map([{"axis": str, "count": int, "stride": int}]),
    },
}
DOCUMENT = {
    "suite": str,
    "constraints": str,
    "macs": int,
    "shapes": int,
    "powers_of_two": bool,
    "smallest": int,
    "bytes_per_execution": NOTHING,
    "buffer_bytes": NOTHING,
    "total_macs": NOTHING,
    "layouts": bool,
    "proven": bool,
    "gap": NUMBER,
    "cost": NUMBER,
    "bound": NUMBER,
    "executions": int,
    "packing_bytes": int,
    "ideal": int,
    "utilisation": NUMBER,
    "best": [{"shape": [int], "macs": int, "layers": int, "executions": int}],
    "equal": [],
    "runner_up": {"shapes": [[int]], "cost": NUMBER, "proven": bool},
    "within": NOTHING,
    "compared": int,
    "not_dominated": int,
    "searched": NOTHING,
    "layers": [LAYER],
    "left_out": [],
    "copies": NOTHING,
    "seconds": NUMBER,
}


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.fixture
def suite(tmp_path: Path) -> str:
    file = tmp_path / "layers.csv"
    rows = ("gemm m=12 n=10 k=20,2", "conv2d n=1 c=3 h=7 w=6 k=7 r=3 s=3,1", "gemm m=1 n=77 k=9,3")
    file.write_text("layer,count\n" + "\n".join(rows) + "\n")
    return str(file)


def test_the_document(call: Caller, suite: str) -> None:
    found = call("shape", suite, "--macs", "32", "--json")
    assert (found.code, found.err) == (0, "")
    document = found.json
    assert_matches(document, DOCUMENT)
    assert document["proven"]
    assert document["gap"] == 0
    assert document["cost"] == document["bound"] == document["executions"]
    assert document["executions"] == sum(r["executions"] * r["count"] for r in document["layers"])
    assert document["runner_up"]["cost"] >= document["executions"] >= document["ideal"]


@pytest.mark.slow
def test_the_document_is_the_same_on_every_machine(call: Caller, suite: str) -> None:
    """Also by two workers: a golden document of the best two shapes."""
    words = ("shape", suite, "--macs", "32", "--shapes", "2", "--json")
    serial, parallel = call(*words).json, call(*words, "--workers", "2").json
    for document in (serial, parallel):
        del document["seconds"]
    assert serial == parallel
    golden = Path(__file__).parent.parent / "golden" / "shape_two.json"
    assert serial == json.loads(golden.read_text(encoding="utf-8"))


def test_the_tables(call: Caller, suite: str) -> None:
    found = call("shape", suite, "--macs", "32", "--shapes", "2")
    assert (found.code, found.err) == (0, "")
    for words in ("best embedding", "executions", "proven", "not dominated", "runner-up", "ideal"):
        assert words in found.out


@pytest.mark.quick(2)
@pytest.mark.parametrize("words", [(), ("--shapes", "2"), ("--packing", "64", "--powers")])
def test_what_costs_little_more_is_listed(call: Caller, suite: str, words: tuple[str, ...]) -> None:
    asked = ("shape", suite, "--macs", "12", *words, "--within", "20")
    document = call(*asked, "--json").json
    within, best = document["within"], document["cost"]
    assert (within["percent"], within["complete"]) == (20, True)
    costs = [one["cost"] for one in within["sets"]]
    assert costs == sorted(costs)
    assert costs[0] == best
    assert costs[-1] <= 1.2 * best
    assert [one["more"] for one in within["sets"]] == pytest.approx([c / best - 1 for c in costs])
    assert [b["shape"] for b in document["best"]] in [one["shapes"] for one in within["sets"]]
    if document["runner_up"]["cost"] <= 1.2 * best:
        assert document["runner_up"]["cost"] in costs
    found = call(*asked)
    kind = "sets? of shapes" if "--shapes" in words else "shapes?"
    assert re.search(rf"Within 20 % of the best: {len(costs)} {kind}, the complete list", found.out)


def test_layouts_list_single_shapes_alone(call: Caller, model: str) -> None:
    words = ("shape", model, "--macs", "16", "--packing", "64", "--layouts", "--within", "5")
    found = call(*words, "--shapes", "2")
    assert found.code == 2
    assert "--within with --layouts lists single shapes: leave --shapes out" in found.err
    within = call(*words, "--powers", "--json").json["within"]
    assert within["complete"]
    assert within["sets"][0]["more"] == 0


@pytest.mark.parametrize("count", ["1", "2"])
def test_saved_targets_solve_to_the_same_executions(
    call: Caller, suite: str, tmp_path: Path, count: str
) -> None:
    file = tmp_path / "best.toml"
    words = ("shape", suite, "--macs", "32", "--shapes", count)
    document = call(*words, "--save", str(file), "--json")
    found = document.json
    names = [str(Shape(*item["shape"])) for item in found["best"]]
    files = [file] if count == "1" else [tmp_path / f"best_{name}.toml" for name in names]
    assert len(names) == int(count)
    assert all(str(path) in document.err for path in files)
    targets = {tuple(item["shape"]): path for item, path in zip(found["best"], files, strict=True)}
    for layer in found["layers"]:
        target = str(targets[tuple(layer["shape"])])
        how = ("--target", target, "--weights", "1,0", "--top", "1", "--json")
        best = call("solve", *layer["label"].split(), *how).json
        assert best["constraints"] == "in_place_padded"
        assert best["embeddings"][0]["calls"] == layer["executions"]
        assert best["embeddings"][0]["id"] == layer["embedding"]["id"]
        assert best["embeddings"][0]["packing_bytes"] == layer["packing_bytes"]


def test_a_saved_target_is_the_instruction_that_was_searched(
    call: Caller, suite: str, tmp_path: Path
) -> None:
    file = tmp_path / "best.toml"
    (best,) = call(
        "shape", suite, "--macs", "30", "--constraints", "strict", "--save", str(file), "--json"
    ).json["best"]
    loaded, shape = load_hardware_spec(file), Shape(*best["shape"])
    assert loaded.instruction == instruction_of(shape, template())
    assert loaded.constraints == "strict"
    assert loaded.memories == template().memories


def test_layers_that_no_shape_embeds_are_left_out(call: Caller, tmp_path: Path) -> None:
    file = tmp_path / "mixed.csv"
    file.write_text(
        'layer\n"depthwise n=1 c=4 h=6 w=6 r=3 s=3"\n"gemm m=8 n=8 k=8"\n'
        '"O[m,n] max= A[m,k] * B[k,n] m=4 n=4 k=4"\n'
    )
    found = call("shape", str(file), "--macs", "64", "--smallest", "2")
    assert found.code == 0
    assert "Left out" in found.out
    assert "depthwise" in found.out
    assert "max" in found.out
    document = call("shape", str(file), "--macs", "64", "--smallest", "2", "--json").json
    assert [item["index"] for item in document["left_out"]] == [0, 2]
    assert [row["index"] for row in document["layers"]] == [1]


def test_no_layer_embeds(call: Caller, tmp_path: Path) -> None:
    file = tmp_path / "none.csv"
    file.write_text('layer\n"O[m,n] max= A[m,k] * B[k,n] m=4 n=4 k=4"\n')
    found = call("shape", str(file), "--macs", "64")
    assert found.code == 3
    assert "no shape embeds any layer" in found.err
    assert call("shape", str(file), "--macs", "64", "--json").json["best"] == []


@pytest.mark.slow
def test_shapes_that_are_as_good_are_listed(call: Caller) -> None:
    """Rows and columns of a square product are the same to it."""
    words = ("shape", "resnet18", "--macs", "16", "--constraints", "complete")
    found = call(*words, "--json").json
    (best,) = found["best"]
    assert best["shape"] not in found["equal"]
    assert [best["shape"][1], best["shape"][0], best["shape"][2]] in found["equal"]
    assert "as good" in call(*words).out


@pytest.mark.slow
def test_packing_counts(call: Caller, suite: str) -> None:
    words = ("shape", suite, "--macs", "16", "--powers", "--packing", "32")
    document = call(*words, "--json").json
    assert document["proven"]
    assert document["cost"] == document["executions"] + document["packing_bytes"] / 32
    assert document["not_dominated"] is None
    assert document["searched"] > 0
    text = call(*words).out
    assert "as an execution" in text
    assert "total" in text


def test_limits_on_tiles_and_on_all_shapes(call: Caller, suite: str) -> None:
    free = call("shape", suite, "--macs", "32", "--shapes", "2", "--json").json
    tiles = call("shape", suite, "--macs", "32", "--buffer", "40", "--json").json
    (best,) = tiles["best"]
    x, y, z = best["shape"]
    assert x * z + z * y + 4 * x * y <= 40
    assert tiles["compared"] < free["compared"]
    shared = call("shape", suite, "--macs", "32", "--shapes", "3", "--total-macs", "40", "--json")
    document = shared.json
    assert document["proven"]
    assert sum(item["macs"] for item in document["best"]) <= 40
    assert document["executions"] >= free["executions"]
    impossible = call("shape", suite, "--macs", "32", "--buffer", "3")
    assert impossible.code == 3
    assert "allow larger tiles" in impossible.err


@pytest.mark.parametrize(
    "words, parts",
    [
        (("nonsense", "--macs", "16"), ("unknown suite 'nonsense'",)),
        (("resnet18", "--macs", "0"), ("--macs",)),
        (("resnet18", "--macs", "16", "--shapes", "0"), ("--shapes",)),
        (("resnet18", "--macs", "16", "--constraints", "nonsense"), ("nonsense",)),
        (("resnet18", "--macs", "16", "--smallest", "3"), ("allow smaller extents",)),
        (("resnet18", "--macs", "9999999"), ("1,048,576",)),
        (("resnet18", "--macs", "1000000"), ("powers of two",)),
        (("resnet18", "--macs", "16", "--save", "best.txt"), (".toml",)),
        (("resnet18", "--macs", "16", "--save", "/nowhere/best.toml"), ("/nowhere",)),
        (("resnet18",), ("--macs",)),
    ],
)
def test_wrong_input_is_one_line(
    call: Caller, words: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    call("shape", *words).is_one_line_error(2, *parts)


def test_a_file_that_cannot_be_written_leaves_nothing(
    call: Caller, suite: str, tmp_path: Path
) -> None:
    folder = tmp_path / "best_32x1x1.toml"
    found = call("shape", suite, "--macs", "32", "--save", str(tmp_path / "missing" / "b.toml"))
    found.is_one_line_error(2, "missing")
    assert not folder.exists()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_int8("tiny", tmp_path_factory.mktemp("models") / "tiny.onnx"))


@pytest.mark.slow
def test_layouts_between_the_layers_of_a_model(call: Caller, model: str) -> None:
    """Copies cost no more than packing each layer by itself, and the sum is what was minimised."""
    words = ("shape", model, "--macs", "64", "--powers", "--packing", "32", "--json")
    alone, kept = call(*words).json, call(*words, "--layouts").json
    assert kept["layouts"]
    assert kept["proven"]
    assert kept["cost"] <= alone["cost"]
    moved = sum(copy["moved_bytes"] for copy in kept["copies"])
    assert kept["packing_bytes"] == moved
    assert kept["cost"] == kept["executions"] + moved / 32
    assert all(len(row["layouts"]) >= 2 for row in kept["layers"])
    assert sum(row["count"] for row in kept["layers"]) == sum(r["count"] for r in alone["layers"])


def test_the_table_of_layouts(call: Caller, model: str) -> None:
    found = call("shape", model, "--macs", "64", "--powers", "--packing", "32", "--layouts")
    assert (found.code, found.err) == (0, "")
    assert "reads and writes" in found.out
    assert "copies" in found.out


@pytest.mark.parametrize(
    "words, message",
    [
        (("resnet50", "--packing", "32"), "a list of layers: layouts between them need a model"),
        (("resnet50",), "--layouts needs --packing"),
    ],
)
def test_layouts_need_a_model_and_a_cost(
    call: Caller, words: tuple[str, ...], message: str
) -> None:
    found = call("shape", *words, "--macs", "16", "--powers", "--layouts")
    assert found.code == 2
    assert message in found.err
    assert found.out == ""
