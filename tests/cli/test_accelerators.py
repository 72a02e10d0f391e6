"""Workloads and networks on accelerators that instruction sets describe, through the front door."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calling import Caller
from tests.compilers import needs_executor

TINY = str(Path(__file__).parents[1] / "targets" / "tiny_accelerator.toml")


@needs_executor
@pytest.mark.parametrize(
    "workload",
    [
        ("gemm", "m=13", "n=9", "k=21"),
        ("gemm", "m=64", "n=32", "k=16"),
        ("conv2d", "n=1", "c=8", "h=7", "w=6", "k=8", "r=3", "s=3", "pad=1", "layout=NHWC"),
        ("conv2d", "n=1", "c=16", "h=9", "w=9", "k=8", "r=1", "s=1", "stride=2", "layout=NHWC"),
    ],
)
def test_a_workload_is_planned_proven_and_emulated(
    cpembed: Caller, workload: tuple[str, ...]
) -> None:
    document = cpembed("run", *workload, "--target", TINY, "--seed", "3", "--json").json
    assert document["provenance"] == "emulated"
    assert document["verified"] is True
    assert document["max_error"] == 0
    assert all(program["proven"] for program in document["programs"])
    assert document["bound_cycles"] <= document["cycles"]
    assert sum(document["unit_cycles"].values()) <= 3 * document["cycles"]
    moved = {(e["memory"], e["direction"]): e["bytes"] for e in document["bytes"]}
    if workload[0] == "gemm":
        m, n, k = (int(word[2:]) for word in workload[1:])
        # Each input is read once at least, and each sum of four bytes is stored once.
        assert moved["main", "read"] >= m * k + k * n
        assert moved["main", "write"] >= 4 * m * n


@needs_executor
def test_the_report_names_the_proof(cpembed: Caller) -> None:
    text = cpembed("run", "gemm", "m=8", "n=8", "k=8", "--target", TINY).out
    assert "yes, bit for bit equal to the reference" in text
    assert "proven       yes" in text


def test_what_no_instruction_computes_is_infeasible_with_the_reason(cpembed: Caller) -> None:
    called = cpembed("run", "gemm", "m=8", "n=8", "k=8", "dtype=float32", "--target", TINY)
    assert called.code == 3
    assert called.err.count("\n") == 1
    assert "float32" in called.err


def test_options_of_processors_are_refused(cpembed: Caller, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"")
    called = cpembed("network", str(model), "--target", TINY, "--threads", "2")
    assert called.code == 2
    assert "--threads" in called.err


@pytest.mark.parametrize(
    "option", [("run", "--output", "int8"), ("run", "--timeout", "3"), ("solve", "--pareto")]
)
def test_options_of_searches_are_refused(cpembed: Caller, option: tuple[str, ...]) -> None:
    command, *words = option
    called = cpembed(command, "gemm", "m=8", "n=8", "k=8", "--target", TINY, *words)
    assert called.code == 2
    assert f"{words[0]} means nothing for" in called.err


def test_solve_lists_the_instructions_that_compute_a_workload(cpembed: Caller) -> None:
    call = ("solve", "gemm", "m=64", "n=32", "k=16", "--target", TINY)
    document = cpembed(*call, "--json").json
    (match, *_) = document["matches"]
    assert match["instruction"] == "product"
    # One execution multiplies 8 x 8 by 8 x 8, on as many rows as the machine takes at once.
    assert match["executions"] * 64 * 64 >= 64 * 32 * 16
    assert "product" in cpembed(*call).out
    called = cpembed("solve", "gemm", "m=8", "n=8", "k=8", "dtype=float32", "--target", TINY)
    assert called.code == 3


@needs_executor
def test_explore_costs_a_layer_as_run_estimates_it(cpembed: Caller) -> None:
    """Where nothing sets sums to zero, the layer is left out with the reason."""
    vary = (
        "--vary",
        "memories.main.bytes_per_cycle=4,8",
        "--vary",
        "instructions.zero_sums=present,absent",
    )
    call = ("explore", TINY, "unit16", "--layers", "15", *vary, "--fresh", "--json")
    document = cpembed(*call).json
    costs = {
        row["parameters"]["memories.main.bytes_per_cycle"]: row["cycles"]
        for row in document["rows"]
        if row["parameters"]["instructions.zero_sums"] == "present"
    }
    layer = document["layers"][0]["layer"].split()
    estimated = cpembed("run", *layer, "--target", TINY, "--json").json["estimated_cycles"]
    # The file has eight bytes a cycle.
    assert costs[8] == estimated
    assert costs[4] >= costs[8]
    # No point without zeros is a result, and the document says why.
    assert len(document["rows"]) == 2
    assert "begins O in sums with 0" in str(document)


@pytest.mark.parametrize(
    "vary, said",
    [
        ("memories.scratchpad.rows=abc", "is a string ('abc'), must be an integer"),
        ("constants.dim=8,x", "'x' is no number"),
        ("constants.dimm=8", "there is no constants.dimm; allowed there: dim"),
        ("instructions.mvin_c=absent", "there is no instructions.mvin_c"),
    ],
)
def test_wrong_keys_of_an_instruction_set_are_one_line(
    cpembed: Caller, vary: str, said: str
) -> None:
    called = cpembed("explore", "gemmini", "unit16", "--layers", "15", "--vary", vary)
    assert called.code == 2
    assert said in called.err
    assert called.err.count("\n") == 1


def test_solve_estimates_what_run_plans(cpembed: Caller) -> None:
    call = ("solve", "gemm", "m=8", "n=8", "k=8", "--target", TINY, "--estimate")
    plan = cpembed(*call, "--json").json["plan"]
    assert plan["cycles"] >= plan["bound_cycles"] > 0
    out = cpembed(*call).out
    assert f"estimated  {plan['cycles']:,.0f} cycles" in out
    assert "dram" not in plan["energy_by_level_pj"]
    assert plan["energy_by_level_pj"]["main"] == 20 * sum(
        each["bytes"] for each in plan["bytes"] if each["memory"] == "main"
    )
