"""``cpembed solve --estimate``: times by the description of a machine, and ranking by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.cost.machine.estimate import Estimate
from cpembed.driver.estimate import estimate
from cpembed.driver.named import workload
from cpembed.targets.family import open_family
from tests.cli.calling import Caller
from tests.cli.schema import NUMBER, SOLVE, Map, assert_matches

ESTIMATE = {
    "machine": str,
    "provenance": str,
    "cycles": NUMBER,
    "us": NUMBER,
    "packing_us": Map(NUMBER),
    "total_us": NUMBER,
    "bound": str,
    "levels": [
        {
            "memory": str,
            "computing_cycles": NUMBER,
            "read_bytes": NUMBER,
            "written_bytes": NUMBER,
            "reading_cycles": NUMBER,
            "writing_cycles": NUMBER,
            "cycles": NUMBER,
        }
    ],
    "tiling": [{"memories": [str], "tile": Map(int), "order": [str], "units": int}],
    "exact": bool,
}

LAYER = ("conv2d", "n=1", "c=60", "h=28", "w=28", "k=64", "r=3", "s=3", "pad=1")
SET = ("--target", "vta_1x16x16", "--constraints", "fused")


def test_json_has_an_estimate_for_each_candidate(cpembed: Caller) -> None:
    called = cpembed("solve", *LAYER, *SET, "--estimate", "--json")
    assert (called.code, called.err) == (0, "")
    document = called.json
    assert_matches(document, SOLVE)
    assert (document["machine"], document["ranked_by"]) == ("pynq_z1", "overheads")
    assert [entry["rank"] for entry in document["embeddings"]] == [1, 2, 3, 4, 5]
    for entry in document["embeddings"]:
        assert_matches(entry["estimate"], ESTIMATE)
        assert entry["estimate"]["provenance"] == "estimated"
        assert "W" not in entry["estimate"]["packing_us"]
    assert "estimate" not in cpembed("solve", *LAYER, *SET, "--json").json["embeddings"][0]


def test_the_fastest_come_first_under_their_own_ranks(cpembed: Caller) -> None:
    everything = ("--rank-by", "estimate", "--all", "--json")
    document = cpembed("solve", *LAYER, *SET, *everything).json
    times = [entry["time"]["total_us"] for entry in document["embeddings"]]
    ranks = [entry["rank"] for entry in document["embeddings"]]
    assert times == sorted(times)
    assert sorted(ranks) == list(range(1, len(ranks) + 1))
    assert ranks != sorted(ranks)
    assert document["considered"] == len(ranks) == document["count"]
    best = cpembed("solve", *LAYER, *SET, *everything[:2], "--top", "2", "--json").json
    assert [entry["rank"] for entry in best["embeddings"]] == ranks[:2]


def test_the_set_with_the_fastest_candidate_is_taken() -> None:
    """What uses more of the instruction is not what is done first: images are packed for it."""
    layer = workload("conv2d n=1 c=20 h=14 w=14 k=64 r=3 s=3 pad=1", "vta_1x16x16")
    by_use = estimate(layer, "vta_1x16x16")
    by_time = estimate(layer, "vta_1x16x16", rank_by="estimate")
    assert by_use.solved.constraints.name == "fused"
    first, fastest = by_use.estimates[0], by_time.estimates[0]
    assert isinstance(first, Estimate)
    assert isinstance(fastest, Estimate)
    assert fastest.total_us <= first.total_us


def test_a_target_without_figures_is_one_line(cpembed: Caller) -> None:
    words = ("solve", "gemm", "m=16", "n=16", "k=16", "--target", "avx512_int8")
    for option in (("--estimate",), ("--rank-by", "estimate"), ("--machine", "m")):
        called = cpembed(*words, *option)
        called.is_one_line_error(
            2, "avx512_int8 has no figures", "[machines.NAME]", "source, known"
        )


def test_an_unknown_machine_is_one_line(cpembed: Caller) -> None:
    called = cpembed("solve", *LAYER, *SET, "--machine", "zcu104")
    called.is_one_line_error(2, "vta_1x16x16 has no machine 'zcu104'; it has pynq_z1")


@pytest.mark.parametrize("option", [("--estimate",), ("--rank-by", "estimate")])
def test_a_front_has_no_times(cpembed: Caller, option: tuple[str, ...]) -> None:
    called = cpembed("solve", *LAYER, *SET, "--pareto", *option)
    called.is_one_line_error(2, "--pareto weighs no times", "--help")


def test_nothing_fits_is_said_as_without_the_option(cpembed: Caller) -> None:
    words = ("gemm", "m=4", "n=8", "k=64", "--target", "vta_1x16x16", "--constraints", "strict")
    called = cpembed("solve", *words, "--estimate")
    assert called.code == 3
    assert "proven infeasible" in called.err
    assert cpembed("solve", *words, "--estimate", "--json").json["embeddings"] == []


def test_a_candidate_that_does_not_fit_says_so(
    cpembed: Caller, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("small")
    text = """
name = "small"
description = "a unit whose cache is too small"
source = "made up"
[instruction]
expression = "C[x,y] += A[x,z] * B[z,y]"
axes = { x = 4, y = 4, z = 4 }
[operands]
A = { dtype = "int8", scope = "r", tile = ["x", "z"] }
B = { dtype = "int8", scope = "r", tile = ["z", "y"] }
C = { dtype = "int32", scope = "r", tile = ["x", "y"] }
[memories.r]
[machines.m]
source = "made up"
known = "assumed"
clock_mhz = 1
compute = { cycles = 1 }
[machines.m.memories]
r = { parent = "l1" }
l1 = { parent = "dram", capacity_bytes = 64, read_bytes_per_cycle = 1, write_bytes_per_cycle = 1 }
dram = { read_bytes_per_cycle = 1, write_bytes_per_cycle = 1 }
"""
    path = folder / "small.toml"
    path.write_text(text, encoding="utf-8")
    words = ("gemm", "m=8", "n=8", "k=8", "--target", str(path), "--estimate")
    reason = "one execution takes 96 bytes of l1, which has room for 64"
    assert reason in cpembed("solve", *words).out
    entry = cpembed("solve", *words, "--json").json["embeddings"][0]
    assert (entry["estimate"], entry["estimate_missing"]) == (None, reason)


@pytest.mark.slow
def test_a_machine_that_takes_operands_as_they_come_packs_nothing(
    cpembed: Caller, tmp_path: Path
) -> None:
    """A core, as a space's point is saved."""
    family = open_family("core")
    given = {p.name: p.default for p in family.parameters if p.default is not None}
    given |= {"intrinsic": "gemm", "pe_rows": 8, "scratchpad_kib": 64, "banks": 4}
    target = tmp_path / "core.toml"
    target.write_text(family.specification(given))
    layer = ("conv2d", "n=1", "c=16", "h=10", "w=10", "k=16", "r=3", "s=3", "pad=1")
    called = cpembed("solve", *layer, "--target", str(target), "--estimate")
    assert (called.code, called.err) == (0, "")
    assert (
        "nothing is packed: transfers fetch boxes of the operands in their original layouts"
        in called.out
    )
    assert "packing" not in called.out
    document = cpembed("solve", *layer, "--target", str(target), "--estimate", "--json").json
    assert document["machine"] == "double_buffered"
    assert all(entry["estimate"]["packing_us"] == {} for entry in document["embeddings"])
