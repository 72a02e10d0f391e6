"""``cpembed targets`` and ``cpembed operators``; what the program says of itself."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from cpembed.cli import SUBCOMMANDS
from cpembed.hw.isa_reader import available_instruction_sets
from cpembed.hw.loader import available_targets
from cpembed.workloads.operators import OPERATORS
from tests.cli.calling import Caller, in_a_process


@pytest.mark.usefixtures("bare_cpu")
def test_targets_say_what_is_missing_here(cpembed: Caller) -> None:
    listed = {target["name"]: target for target in cpembed("targets", "--json").json["targets"]}
    assert tuple(listed) == available_targets()
    amx = listed["amx_int8"]
    assert amx["available"] is False
    assert "amx_tile" in amx["missing"][0]
    assert amx["axes"]["x"] == {"min": 1, "max": 16, "step": 1}
    assert amx["dtypes"]["A"] == ["uint8", "int8"]
    assert listed["wmma_f16"]["backend"] == "cuda"
    assert listed["vta_1x16x16"]["backend"] == "vta"
    vta, dot = listed["vta_1x16x16"], listed["dot"]
    assert (vta["available"], vta["simulated"], vta["missing"]) == (True, True, [])
    assert (dot["simulated"], dot["missing"]) == (False, ["no back end executes dot yet"])
    text = cpembed("targets").out
    assert all(name in text for name in listed)
    assert "simulated (vta)" in text


def test_accelerators_are_listed_beside_the_targets(cpembed: Caller) -> None:
    listed = {a["name"]: a for a in cpembed("targets", "--json").json["accelerators"]}
    assert tuple(listed) == available_instruction_sets()
    gemmini = listed["gemmini"]
    assert gemmini["memories"]["scratchpad"] == {"rows": 16_384, "row_bytes": 16, "banks": 4}
    assert gemmini["instructions"]["compute"] == "C[x, y] += (A[x, z] * W[z, y])"
    text = cpembed("targets").out
    assert all(name in text for name in listed)


def test_a_single_instruction_takes_no_accelerator(cpembed: Caller) -> None:
    called = cpembed("layouts", "gemm", "m=8", "n=8", "k=8", "--target", "gemmini")
    assert called.code == 2
    assert "describes an accelerator of several instructions" in called.err
    assert called.err.count("\n") == 1


def test_a_target_whose_features_are_there_is_available(
    cpembed: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPEMBED_ASSUME_CPU_FEATURES", "avx512f,avx512_vnni")
    listed = {target["name"]: target for target in cpembed("targets", "--json").json["targets"]}
    assert (listed["avx512_vnni"]["available"], listed["avx512_vnni"]["missing"]) == (True, [])


def test_every_operator_is_listed_with_its_parameters(cpembed: Caller) -> None:
    listed = {o["name"]: o for o in cpembed("operators", "--json").json["operators"]}
    assert listed.keys() == OPERATORS.keys()
    names = [parameter["name"] for parameter in listed["gemm"]["parameters"]]
    assert names == [parameter.name for parameter in OPERATORS["gemm"].parameters]
    text = cpembed("operators").out
    assert all(name in text for name in listed)
    assert "deepbench" in text


def test_help_lists_every_subcommand(cpembed: Caller) -> None:
    called = cpembed("--help")
    assert called.code == 0
    assert all(f"\n  {name} " in called.out for name in SUBCOMMANDS)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_has_help(cpembed: Caller, name: str) -> None:
    called = cpembed(name, "--help")
    assert called.code == 0
    assert f"Usage: cpembed {name}" in called.out


@pytest.mark.parametrize("group", [(), ("vta",)])
def test_no_line_about_a_subcommand_is_cut_off(cpembed: Caller, group: tuple[str, ...]) -> None:
    assert "..." not in cpembed(*group, "--help").out.partition("Commands:")[2]


def test_the_module_is_the_command() -> None:
    called = in_a_process("--version")
    assert (called.code, called.out) == (0, f"cpembed, version {version('cpembed')}\n")
