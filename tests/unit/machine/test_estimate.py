"""Estimates of derived programs on described machines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpembed.api.solve import solve, workload
from cpembed.errors import SpecError, TransformError
from cpembed.hw.level_tables import Overlapping
from cpembed.hw.levels import Hierarchy
from cpembed.hw.loader import load_hardware_spec
from cpembed.machine.estimate import estimate_program, machine_of
from cpembed.provenance import Provenance
from cpembed.transform.program import DerivedProgram

VTA = load_hardware_spec("vta_1x16x16")


def program(words: str, target: str = "vta_1x16x16") -> DerivedProgram:
    found = solve(workload(words, target=target), target, "in_place_padded", top=1)
    return found.embeddings[0].candidate.program


def with_memories(machine: Hierarchy, **fields: object) -> Hierarchy:
    """All memories but main memory changed."""
    changed = {
        name: memory if memory.parent is None else replace(memory, **fields)
        for name, memory in machine.memories.items()
    }
    return replace(machine, memories=changed)


def test_a_small_product_is_loaded_computed_and_stored() -> None:
    """64 x 64 x 64 is 1024 executions of 1x16x16."""
    found = estimate_program(program("gemm m=64 n=64 k=64"), machine_of(VTA))
    (level,) = found.levels
    # Two operands of 4096 bytes, 8 a cycle, each after the delay; 4 bytes an element of the output.
    whole = [1024 + 3, 2 * (4096 / 8 + 16), 4 * 4096 / 8 + 16]
    assert level.computing == whole[0]
    assert level.reading >= whole[1]
    assert level.writing >= whole[2]
    # Cut into rows, which overlap, but for the first and the last ones.
    assert level.writing < found.cycles < sum(whole)
    assert found.bound == "write to dram"
    assert found.us == found.cycles / 100
    assert found.provenance is Provenance.ESTIMATED
    assert found.exact


def test_a_large_product_is_bound_by_computing() -> None:
    found = estimate_program(program("gemm m=512 n=512 k=512"), machine_of(VTA))
    assert found.bound == "compute"
    assert 512**3 / 256 < found.cycles < 1.05 * 512**3 / 256


def test_transfers_that_do_not_overlap_add_up() -> None:
    nest, machine = program("gemm m=256 n=256 k=256"), machine_of(VTA)
    beside = estimate_program(nest, machine)
    alone = estimate_program(nest, with_memories(machine, overlap=Overlapping.NONE))
    (level,) = alone.levels
    assert alone.cycles == pytest.approx(level.computing + level.reading + level.writing)
    assert alone.cycles > beside.cycles
    assert estimate_program(nest, with_memories(machine, banks=1)).cycles == pytest.approx(
        alone.cycles
    )


def test_smaller_buffers_never_help() -> None:
    nest, machine = program("gemm m=256 n=256 k=256"), machine_of(VTA)
    machines = [with_memories(machine, capacity_bytes=1024 * size) for size in (64, 16, 4, 1)]
    cycles = [estimate_program(nest, small).cycles for small in machines]
    assert cycles == sorted(cycles)
    assert cycles[0] < cycles[-1]


def test_coarser_transfers_never_help() -> None:
    nest, machine = program("conv2d n=1 c=16 h=14 w=14 k=16 r=3 s=3"), machine_of(VTA)
    cycles = [
        estimate_program(nest, with_memories(machine, granule_bytes=g)).cycles for g in (1, 64, 512)
    ]
    assert cycles == sorted(cycles)
    assert cycles[0] < cycles[-1]


def test_results_that_are_waited_for() -> None:
    """One output tile: every execution waits for the one before."""
    found = estimate_program(program("gemm m=1 n=16 k=1600"), machine_of(VTA))
    assert found.levels[0].computing == 3 * 100 + 3


def test_packing_is_a_line_of_its_own() -> None:
    packed = program("conv2d n=1 c=64 h=14 w=14 k=64 r=3 s=3 pad=1")
    every, ahead = (
        estimate_program(packed, machine_of(VTA), ahead=names) for names in ((), ("W",))
    )
    # 36,864 bytes read and as many written, beside each other.
    assert every.packing_us["W"] == 36_864 / 8 / 100
    assert "W" not in ahead.packing_us
    assert every.cycles == ahead.cycles
    assert every.total_us == ahead.total_us + every.packing_us["W"]


def test_an_estimate_is_a_document() -> None:
    found = estimate_program(program("gemm m=64 n=64 k=64"), machine_of(VTA)).to_json()
    assert found["provenance"] == "estimated"
    assert {"machine", "cycles", "us", "packing_us", "total_us", "bound"} <= found.keys()
    assert found["levels"][0]["memory"] == "dram"
    assert found["tiling"][0]["memories"] == ["vta.inp", "vta.wgt", "vta.acc"]


def test_a_target_without_figures_says_what_to_add() -> None:
    with pytest.raises(SpecError, match=r"requantize has no figures .* add \[machines.NAME\] with"):
        machine_of(load_hardware_spec("requantize"))
    with pytest.raises(SpecError, match="vta_1x16x16 has no machine 'zcu'; it has pynq_z1"):
        machine_of(VTA, "zcu")


def test_a_memory_that_is_too_small_is_named() -> None:
    machine = with_memories(machine_of(VTA), capacity_bytes=64)
    with pytest.raises(TransformError, match=r"one execution takes 256 bytes of vta\.wgt"):
        estimate_program(program("gemm m=64 n=64 k=64"), machine)
