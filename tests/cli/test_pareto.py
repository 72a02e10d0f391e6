"""``cpembed solve --pareto``: exactly the candidates that no other one dominates."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.cost.ranking import objectives
from cpembed.driver.named import workload
from cpembed.driver.solve import pareto, solve
from tests.cli.calling import Caller
from tests.cli.schema import SOLVE, assert_matches

LAYERS = [
    ("conv2d n=1 c=3 h=10 w=12 k=16 r=3 s=3 pad=1", "amx_int8", "in_place_padded"),
    ("conv2d n=2 c=6 h=9 w=12 k=20 r=3 s=2 stride=2", "vta_1x16x16", "relaxed"),
    ("conv1d n=2 c=6 w=11 k=20 s=5 stride=2", "vta_8x8x8", "relaxed"),
]


def dominated(point: tuple[int, ...], points: list[tuple[int, ...]]) -> bool:
    """By definition, over all pairs."""
    return any(
        other != point and all(a <= b for a, b in zip(other, point, strict=True))
        for other in points
    )


@pytest.mark.parametrize("words, target, constraints", LAYERS)
def test_the_front_is_that_of_all_candidates(words: str, target: str, constraints: str) -> None:
    layer = workload(words, target)
    every = solve(layer, target, constraints=constraints, top=None).embeddings
    points = [objectives(item) for item in every]
    assert len(set(points)) > 1, "the layer decides nothing"
    expected = [
        (item.rank, item.candidate.embedding.identifier())
        for item, point in zip(every, points, strict=True)
        if not dominated(point, points)
    ]
    found = pareto(layer, target, constraints=constraints)
    assert [
        (item.rank, item.candidate.embedding.identifier()) for item in found.candidates
    ] == expected
    assert found.solved.complete
    assert found.solved.count == len(every)


def test_a_front_can_have_several_points() -> None:
    words, target, constraints = LAYERS[0]
    found = pareto(workload(words, target), target, constraints=constraints).candidates
    points = {objectives(item) for item in found}
    assert len(points) > 1
    assert found[0].rank == 1
    assert found[-1].rank > len(found)


def test_objectives_count_bytes() -> None:
    target = "gemm_16x16x16"
    best = pareto(
        workload("gemm m=24 n=40 k=96", target), target, constraints="strict_padded"
    ).candidates[0]
    cost = objectives(best)
    sizes = {o.name: (o.elements, o.dtype) for o in best.candidate.program.operands}
    width = {"float16": 2, "float32": 4, "int8": 1, "int32": 4}
    assert cost.footprint_bytes == sum(n * width[dtype] for n, dtype in sizes.values())
    assert cost.executed_macs == 32 * 48 * 96


def test_json_says_that_it_is_a_front(cpembed: Caller) -> None:
    words, target, constraints = LAYERS[0]
    options = ("--target", target, "--constraints", constraints, "--pareto")
    called = cpembed("solve", *words.split(), *options, "--json")
    assert (called.code, called.err) == (0, "")
    document = called.json
    assert_matches(document, SOLVE)
    assert document["pareto"] is True
    assert document["count"] > len(document["embeddings"])
    for entry in document["embeddings"]:
        assert entry["objectives"]["moved_bytes"] == entry["packing_bytes"]
        assert entry["objectives"].keys() == {"executed_macs", "moved_bytes", "footprint_bytes"}
    text = cpembed("solve", *words.split(), *options).out
    assert f"{len(document['embeddings'])} candidates of {document['count']} in MACs" in text
    assert all(entry["id"] in text for entry in document["embeddings"])


def test_nothing_fits_is_said_as_without_the_option(cpembed: Caller) -> None:
    words = ("gemm", "m=4", "n=8", "k=64", "--target", "vta_1x16x16", "--constraints", "strict")
    called = cpembed("solve", *words, "--pareto")
    assert called.code == 3
    assert "proven infeasible" in called.err
    assert cpembed("solve", *words, "--pareto", "--json").json["embeddings"] == []


@pytest.mark.parametrize("other", [("--all",), ("--top", "2")])
def test_a_front_is_not_cut(cpembed: Caller, other: tuple[str, ...]) -> None:
    words = ("gemm", "m=4", "n=16", "k=64", "--target", "vta_1x16x16", "--pareto")
    what = f"of {other[0]} and --pareto only one can be given"
    cpembed("solve", *words, *other).is_one_line_error(2, what, "--help")


def test_embeddings_that_are_no_axis_maps_are_no_candidates(
    cpembed: Caller, tmp_path: Path
) -> None:
    free = tmp_path / "free.toml"
    free.write_text("[dataflow]\n[all_different]\n")
    spec = Path("hw_specs/vta_1x16x16.toml").read_text(encoding="utf-8")
    target = tmp_path / "tiny.toml"
    target.write_text(spec.replace("y = 16", "y = 2").replace("z = 16", "z = 2"))
    words = ("gemm", "m=1", "n=3", "k=2", "--target", str(target), "--constraints", str(free))
    document = cpembed("solve", *words, "--all", "--json").json
    irregular = document["irregular"]
    assert 0 < irregular < document["count"]
    text = cpembed("solve", *words, "--all").out
    assert "more candidate" not in text
    assert f"{irregular} embeddings left out" in text
