"""Cycles of a tiling and their causes, on small machines and on those that ship."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpembed.cost.machine.estimate import Estimate, estimate_program, machine_of
from cpembed.cost.machine.search import best_tilings
from cpembed.cost.machine.times import compute_time, memory_times
from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.hw.loader import load_hardware_spec
from cpembed.hw.machine import ComputeUnit, Hierarchy, Overlapping, TransferUnit
from tests.unit.cost.machine.simulated import gemm, machine


def changed(hierarchy: Hierarchy, name: str, **fields: object) -> Hierarchy:
    memory = replace(hierarchy.memories[name], **fields)
    return replace(hierarchy, memories={**hierarchy.memories, name: memory})


def totals(hierarchy: Hierarchy) -> tuple[float, float, float, float]:
    """Computing, reading, writing, together, of 4 x 4 x 4 that fits: 16 + 16 bytes in, 64 out."""
    nest = gemm(4, 4, 4)
    tilings = best_tilings(nest, hierarchy).tilings
    computing = compute_time(tilings, nest, hierarchy).longest
    (time,) = memory_times(tilings, nest, hierarchy, computing)
    parts = (time.computing, time.reading, time.writing, time.total)
    computing_cycles, reading, writing, total = (float(part[0]) for part in parts)
    return computing_cycles, reading, writing, total


def test_the_longest_counts_where_all_goes_beside_each_other() -> None:
    assert totals(machine(64)) == (65, 32 / 2, 64 / 1, 65)
    assert totals(changed(machine(64), "dram", write_bytes=0.5)) == (65, 16, 128, 128)


def test_a_bus_for_both_directions_takes_their_sum() -> None:
    assert totals(changed(machine(64), "dram", half_duplex=True)) == (65, 16, 64, 80)


def test_what_one_unit_below_can_have() -> None:
    """The two factors come from memories of their own: each has its limit."""
    assert totals(changed(machine(64), "dram", child_read_bytes=0.1))[1] == pytest.approx(160 + 16)


def test_transfers_that_wait_add_up_with_their_latency() -> None:
    waits = machine(64, overlap=Overlapping.NONE)
    assert totals(changed(waits, "dram", latency_cycles=7)) == (65, 16 + 2 * 7, 64 + 7, 166)


def test_one_tile_overlaps_with_nothing() -> None:
    """Half of a double buffer holds all: or it is cut, and the parts overlap."""
    total = totals(machine(128, overlap=Overlapping.DOUBLE_BUFFER))[3]
    assert 65 < total < 65 + 16 + 64


def test_executions_and_loads_are_issued_one_after_the_other() -> None:
    hierarchy = machine(64)
    for name in "abc":
        hierarchy = changed(hierarchy, name, transfer_unit=TransferUnit.TILE)
    nest = gemm(4, 4, 4)
    free = compute_time(best_tilings(nest, hierarchy).tilings, nest, hierarchy)
    assert free.issuing[0] == 0
    slow = replace(hierarchy, compute=ComputeUnit(1.0, 1.0, issues_per_cycle=0.5))
    # 64 executions, 16 loads of each factor, 16 stores.
    assert compute_time(best_tilings(nest, slow).tilings, nest, slow).issuing[0] == (64 + 48) / 0.5


def shipped(words: str, target: str, name: str | None = None) -> Estimate:
    spec = load_hardware_spec(target)
    result = solve(workload(words, target=spec), spec, constraints="in_place_padded", top=1)
    return estimate_program(result.embeddings[0].candidate.program, machine_of(spec, name))


def test_a_large_product_is_not_far_from_the_peak() -> None:
    estimate = shipped("gemm m=4096 n=4096 k=4096", "wmma_f16", "a100")
    least = 2 * 4096**3 / 312e6
    assert least <= estimate.us < 1.4 * least
    assert [level.memories for level in estimate.tiling[1:]] == [("shared",), ("l2",)]
    assert estimate.tiling[0].units > 300


def test_the_newer_machine_is_faster() -> None:
    words = "gemm m=2048 n=2048 k=2048"
    assert shipped(words, "wmma_f16", "h100").us < shipped(words, "wmma_f16", "a100").us


def test_a_product_by_a_vector_is_bound_by_memory() -> None:
    estimate = shipped("gemm m=16 n=16384 k=16384", "wmma_f16", "a100")
    # The matrix is read once, at 1555 GB/s.
    assert estimate.us > 2 * 16384**2 / 1555e3
    assert estimate.bound == "read from dram"


def test_cores_share_rows_and_columns() -> None:
    spec = load_hardware_spec("amx_int8")
    result = solve(
        workload("gemm m=3584 n=3584 k=3584", target=spec), spec, constraints="in_place_padded"
    )
    program = result.embeddings[0].candidate.program
    every = machine_of(spec)
    single = {name: replace(memory, units=1) for name, memory in every.memories.items()}
    one_core = estimate_program(program, replace(every, memories=single))
    all_cores = estimate_program(program, every)
    assert all_cores.tiling[0].units == 56
    assert 40 < one_core.cycles / all_cores.cycles <= 56
    # Results stay in tiles while two of each factor are loaded for four products.
    assert one_core.bound == "compute"
    assert one_core.cycles == pytest.approx(224**2 * 56 * 16, rel=0.05)


def test_a_factor_that_streams_comes_with_each_execution() -> None:
    """4 x 4 x 4 takes A 64 times, whatever tiles and orders are: a byte each; B and C once."""
    streams = changed(machine(64), "a", transfer_unit=TransferUnit.EXECUTION)
    for name in "bc":
        streams = changed(streams, name, transfer_unit=TransferUnit.TILE)
    assert totals(streams)[1:3] == ((64 + 16) / 2, 64 / 1)
    # What has no room to be kept comes more often, unless it streams anyway.
    small = replace(
        streams, memories={n: replace(m, capacity_bytes=4) for n, m in streams.memories.items()}
    )
    assert totals(small)[1] >= (64 + 16) / 2
