"""Energy by level: figures of the file, of tables where it has none, counted by plans and runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpembed.accelerator.energy import INSTRUCTIONS, energy_table
from cpembed.accelerator.workload import plan_document, run_workload, workload_plans
from cpembed.cost.machine.technology import technology
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.workloads.naming import parse_workload
from tests.compilers import needs_executor


def test_figures_of_the_file_count_before_those_of_tables() -> None:
    machine = load_instruction_set("gemmini")
    table = energy_table(machine)
    assert table.byte_pj["dram"] == 162
    assert table.execution_pj["compute"] == 1229
    assert table.sources["dram"] == "the file"
    # 256 bytes of weights, which the file has no figure for.
    array = technology("45nm").nearest_sram(256)
    expected = (array.read_pj_per_byte + array.write_pj_per_byte) / 2
    assert table.byte_pj["array"] == expected
    assert table.sources["array"] == "45nm: SRAM, banks of 256 bytes"


def test_arithmetic_without_figures_is_that_of_the_table() -> None:
    """Horowitz: 0.2 pJ to multiply bytes and 0.1 pJ to add int32, for each of 16 x 16 x 16."""
    machine = load_instruction_set("gemmini")
    compute = replace(machine.instructions["compute"], energy_pj=None)
    memories = {n: replace(m, energy_pj_per_byte=None) for n, m in machine.memories.items()}
    instructions = {**machine.instructions, "compute": compute}
    table = energy_table(replace(machine, instructions=instructions, memories=memories))
    assert table.execution_pj["compute"] == pytest.approx(16**3 * (0.2 + 0.1))
    # A move computes nothing.
    assert table.execution_pj["mvin_a"] == 0
    # 1300 pJ for 64 bits of DRAM.
    assert table.byte_pj["dram"] == 1300 / 8
    assert table.sources["dram"] == "45nm: DRAM"
    assert set(table.byte_pj) == {
        name for name, memory in machine.memories.items() if memory.kind != "register"
    }


@needs_executor
@pytest.mark.parametrize("words", ["gemm m=33 n=20 k=18", "gemm m=16 n=64 k=32"])
def test_a_plan_has_the_energy_of_its_run(words: str) -> None:
    machine, workload = load_instruction_set("gemmini"), parse_workload(words.split())
    document = plan_document(workload_plans(workload, machine), machine)
    run = run_workload(workload, machine)
    levels = run.total("energy")
    planned = document["energy_by_level_pj"]
    for name in (INSTRUCTIONS, "dram", "scratchpad", "accumulator"):
        assert planned[name] == pytest.approx(levels[name])
    moved = {(e["memory"], e["direction"]): e["bytes"] for e in document["bytes"]}
    dram = moved["dram", "read"] + moved["dram", "written"]
    assert planned["dram"] == pytest.approx(162 * dram)
