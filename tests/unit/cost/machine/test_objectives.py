"""Objectives, energies and the limit of the search, against counts by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from cpembed.cost.machine.estimate import estimate_program, machine_of
from cpembed.cost.machine.objective import Cost, Objective, Price
from cpembed.cost.machine.search import best_tilings
from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.errors import SpecError
from cpembed.hw.loader import load_hardware_spec
from cpembed.hw.machine import Hierarchy
from cpembed.transform.program import DerivedProgram
from tests.unit.cost.machine.simulated import gemm, machine
from tests.unit.cost.machine.test_invariants import random_extents, random_machine, random_product

VTA = load_hardware_spec("vta_1x16x16")


@pytest.fixture(scope="module")
def program() -> DerivedProgram:
    """Return 64 x 64 x 64, 1024 executions of 1 x 16 x 16."""
    result = solve(workload("gemm m=64 n=64 k=64", target=VTA), VTA, top=1)
    return result.embeddings[0].candidate.program


def with_energies(hierarchy: Hierarchy) -> Hierarchy:
    """Return a machine of one, 10 and 100 pJ: an execution, a buffer's byte, main memory's."""
    memories = {
        name: replace(
            memory,
            read_pj_per_byte=100.0 if memory.parent is None else 10.0,
            write_pj_per_byte=100.0 if memory.parent is None else 10.0,
        )
        for name, memory in hierarchy.memories.items()
    }
    compute = replace(hierarchy.compute, energy_pj=1.0)
    return replace(hierarchy, memories=memories, compute=compute)


def test_energy_is_of_executions_and_of_each_byte(program: DerivedProgram) -> None:
    """All fits: factors of 4096 bytes come once, sums of 16,384 bytes leave once."""
    estimate = estimate_program(program, with_energies(machine_of(VTA)), objective="energy")
    executions, inputs, outputs = 1024, 4096, 4 * 4096
    assert estimate.energy_pj["compute"] == executions
    assert estimate.energy_pj["dram"] == 100 * (2 * inputs + outputs)
    # Filled once, and a row of 16 for each execution; a block of 256 for each.
    assert estimate.energy_pj["vta.inp"] == 10 * (inputs + executions * 16)
    assert estimate.energy_pj["vta.wgt"] == 10 * (inputs + executions * 256)
    # Sums of 16 elements are written by each execution, and read by all but the first of four.
    reads, writes = (executions - executions // 4) * 64, executions * 64
    assert estimate.energy_pj["vta.acc"] == 10 * (reads + writes + outputs)
    assert estimate.cost == pytest.approx(sum(estimate.energy_pj.values()))
    assert estimate.exact


def test_each_objective_has_the_least_of_its_own(program: DerivedProgram) -> None:
    hierarchy = machine_of(VTA)
    small = {
        name: memory if memory.parent is None else replace(memory, capacity_bytes=1024)
        for name, memory in hierarchy.memories.items()
    }
    hierarchy = replace(hierarchy, memories=small)
    estimates = {
        objective: estimate_program(program, hierarchy, objective=objective)
        for objective in ("cycles", "bytes", "energy", "edp")
    }
    for estimate in estimates.values():
        energy = sum(estimate.energy_pj.values())
        (level,) = estimate.levels
        assert estimates["cycles"].cost <= estimate.cycles * 1.005
        assert estimates["bytes"].cost <= level.read_bytes + level.written_bytes
        assert estimates["energy"].cost <= energy * (1 + 1e-9)
        assert estimates["edp"].cost <= energy * estimate.cycles * 1.005


def test_an_objective_without_figures_is_named() -> None:
    spec = load_hardware_spec("wmma_bf16")
    result = solve(workload("gemm m=32 n=32 k=32", target=spec), spec, top=1)
    program = result.embeddings[0].candidate.program
    assert estimate_program(program, machine_of(spec)).energy_pj == {}
    with pytest.raises(SpecError, match="has no energies: technology 45nm has no figures"):
        estimate_program(program, machine_of(spec), objective="energy")


def test_slices_of_a_streamed_operand_make_room_for_the_others() -> None:
    """A buffer of 20 for 8 x 8 x 8 of one byte each: of the sums 4 x 4 stay, while slices of one
    iteration of both factors pass, 4 + 1 at a time."""
    shared = machine(10**6, 21, units=(1, 1))
    memories = dict(shared.memories)
    for name in "abc":
        memories[name] = replace(memories[name], parent="m1")
    nest = gemm(8, 8, 8)
    sums = replace(nest.operands[2], element_bytes=1, held_bytes=1)
    nest = replace(nest, operands=(*nest.operands[:2], sums))
    prices = {name: Price(0.0, 0.0) for name in memories} | {"m1": Price(1.0, 1.0)}
    best = best_tilings(
        nest, replace(shared, memories=memories), cost=Cost(Objective.BYTES, prices)
    )
    # Each factor comes twice, once for each block of rows or columns; sums leave once.
    assert best.cost == 2 * 64 + 2 * 64 + 64
    assert best.exact


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(n, marks=pytest.mark.slow) for n in range(8, 100))]
)
def test_more_work_of_the_search_never_costs_more(seed: int) -> None:
    rng = random.Random(2000 + seed)
    hierarchy = random_machine(rng, 30)
    nest = random_product(*random_extents(rng, hierarchy))
    costs = [best_tilings(nest, hierarchy, rows).cost for rows in (8, 64, 100, 512)]
    assert np.all(np.diff(costs) <= 1e-9)
