"""Moves of the shipped machines: chains between memories, and what sets registers."""

from __future__ import annotations

from cpembed.accelerator.moves import MoveKind, move_chains, moves
from cpembed.hw.isa_reader import load_instruction_set


def test_gemmini_reaches_its_array_by_its_scratchpad() -> None:
    machine = load_instruction_set("gemmini")
    chains = move_chains(machine, "dram", "array", "int8")
    assert chains[0].memories == ("dram", "scratchpad", "array")
    assert [m.instruction.name for m in chains[0].moves][1] == "preload"
    costs = [chain.cycles_per_element for chain in chains]
    assert costs == sorted(costs)


def test_a_broadcast_repeats_along_the_rows() -> None:
    machine = load_instruction_set("gemmini")
    chains = move_chains(machine, "dram", "accumulator", "int32", MoveKind.BROADCAST)
    assert {c.moves[-1].instruction.name for c in chains} >= {"mvin_bias", "mvin_sums"}
    assert all(c.moves[-1].repeated == ("r",) for c in chains)


def test_a_transposition_exchanges_rows_and_lanes() -> None:
    machine = load_instruction_set("qkv_attention")
    chains = move_chains(machine, "hbm", "d1", "bfloat16", MoveKind.TRANSPOSE)
    assert str(chains[0]) == "load_cm"
    assert not move_chains(
        load_instruction_set("gemmini"), "dram", "array", "int8", MoveKind.TRANSPOSE
    )


def test_products_and_conversions_that_lose_values_are_no_moves() -> None:
    names = {m.instruction.name for m in moves(load_instruction_set("gemmini"))}
    assert names.isdisjoint({"compute", "mvout", "mvout_relu", "mvin_add", "zero"})
