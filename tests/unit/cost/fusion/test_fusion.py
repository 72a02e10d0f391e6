"""Fused schedules against a simulation element by element and against all schedules of a block."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cpembed.cost.fusion.block import Block, BlockOperator
from cpembed.cost.fusion.operator_costs import OperatorCosts
from cpembed.cost.fusion.schedule import Evaluation, FusedLoop, Sequence, part_operators, unfused
from cpembed.cost.fusion.search import fuse
from cpembed.cost.machine.estimate import estimate_program
from cpembed.cost.machine.objective import Objective
from cpembed.cost.machine.search import ROWS
from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.errors import SpecError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.hw.machine import Hierarchy, Overlapping
from cpembed.transform.program import DerivedProgram

CHAIN = ("T[a,b] += X[a,c] * W[c,b]", "U[a,d] += T[a,b] * V[b,d]", "Y[a,e] += U[a,d] * Z[d,e]")

TARGET = """
name = "unit"
description = "One product a cycle"
source = "Made up"
constraints = "in_place_padded"

[instruction]
expression = "C[x,y] += A[x,z] * B[z,y]"
axes = { x = 1, y = 2, z = 1 }

[operands]
A = { dtype = "int8", scope = "near", tile = ["x", "z"] }
B = { dtype = "int8", scope = "near", tile = ["z", "y"] }
C = { dtype = "int8", scope = "near", tile = ["x", "y"] }

[memories.near]
capacity_bytes = 16

[machines.deep]
source = "Made up"
known = "assumed"
clock_mhz = 100

[machines.deep.compute]
cycles = 1
latency_cycles = 0
energy_pj = 1

[machines.deep.memories.near]
parent = "chip"
read_pj_per_byte = 1
write_pj_per_byte = 1

[machines.deep.memories.chip]
parent = "dram"
capacity_bytes = 64
read_bytes_per_cycle = 4
write_bytes_per_cycle = 4
read_pj_per_byte = 2
write_pj_per_byte = 3

[machines.deep.memories.dram]
read_bytes_per_cycle = 1
write_bytes_per_cycle = 1
half_duplex = true
read_pj_per_byte = 20
write_pj_per_byte = 30
"""


@pytest.fixture(scope="module", name="spec")
def _spec(tmp_path_factory: pytest.TempPathFactory) -> HardwareSpec:
    path = tmp_path_factory.mktemp("fusion") / "unit.toml"
    path.write_text(TARGET)
    return load_hardware_spec(path)


_PROGRAMS: dict[tuple[str, ...], DerivedProgram] = {}


def program(text: str, extents: dict[str, int], spec: HardwareSpec) -> DerivedProgram:
    words = (text, *(f"{axis}={extent}" for axis, extent in extents.items() if axis in text))
    if words not in _PROGRAMS:
        solved = solve(workload(words, target=spec), spec, top=1)
        _PROGRAMS[words] = solved.embeddings[0].candidate.program
    return _PROGRAMS[words]


def chain(spec: HardwareSpec, extents: dict[str, int], capacity: int, count: int) -> Block:
    """Return the first products of a chain on a machine with some capacity on chip."""
    machine = spec.machines["deep"]
    memories = dict(machine.memories)
    memories["chip"] = replace(memories["chip"], capacity_bytes=capacity)
    machine = replace(machine, memories=memories)
    operators = [
        BlockOperator.of_program(f"op{n}", program(text, extents, spec), machine)
        for n, text in enumerate(CHAIN[:count])
    ]
    return Block("chain", tuple(operators))


def random_chain(spec: HardwareSpec, rng: random.Random, count: int) -> Block:
    extents = {axis: rng.choice((2, 4, 6)) for axis in "abcde"}
    block = chain(spec, extents, rng.choice((24, 40, 80, 200)), count)
    return replace(block, outputs=frozenset(rng.choice(([], ["T"]))))


# ------------------------------------------------------------------------------------ simulation


Ranges = dict[tuple[int, str], range]


def simulated_bytes(block: Block, schedule: Sequence) -> float:
    """Return the bytes that a schedule moves, whose operators hold everything they touch.

    Every element is followed: those of resident tensors are on chip until the end of their stay.
    """
    moved = 0.0
    full = {key: range(extent) for key, extent in block.extents.items()}

    def touched(number: int, name: str, ranges: Ranges) -> set[tuple[int, ...]]:
        tensor = block.operators[number].tensor(name)
        assert tensor is not None
        return set(itertools.product(*(ranges[number, axis] for axis in tensor.axes)))

    def run(sequence: Sequence, ranges: Ranges, here: frozenset[str]) -> None:
        nonlocal moved
        places = list(zip(sequence.parts, sequence.resident, strict=True))
        for place, (part, names) in enumerate(places):
            before = places[place - 1][1] if place else frozenset[str]()
            for name in names - before:
                stay = [part]
                for later, live in places[place + 1 :]:
                    if name not in live:
                        break
                    stay.append(later)
                operators = [n for p in stay for n in part_operators(p)]
                source = block.producers.get(name, -1)
                users = [n for n in operators if block.operators[n].tensor(name) is not None]
                if source not in operators:
                    moved += len(touched(users[0], name, ranges))
                elif name in block.results or any(
                    n not in operators for n in block.readers.get(name, ())
                ):
                    moved += len(touched(source, name, ranges))
            if isinstance(part, FusedLoop):
                extent = len(ranges[next(iter(part.axes))])
                for begin in range(0, extent, part.tile):
                    inner = {
                        key: value[begin : begin + part.tile] if key in part.axes else value
                        for key, value in ranges.items()
                    }
                    run(part.body, inner, here | names)
                continue
            for tensor in block.operators[part].tensors:
                if tensor.name not in here | names:
                    moved += len(touched(part, tensor.name, ranges))

    run(schedule, full, frozenset())
    return moved


@pytest.mark.parametrize("seed", range(12))
def test_bytes_are_those_of_a_simulated_run(spec: HardwareSpec, seed: int) -> None:
    rng = random.Random(seed)
    block = random_chain(spec, rng, 3)
    costs = OperatorCosts(replace_capacity(block, 10_000), Objective.BYTES, 64)
    evaluation, every = Evaluation(costs), list(schedules(block))
    for schedule in rng.sample(every, min(len(every), 40)):
        uses = evaluation.uses(schedule)
        assert uses is not None
        assert evaluation.value(uses) == simulated_bytes(block, schedule)


def replace_capacity(block: Block, capacity: int) -> Block:
    """Return a block on a machine with another capacity on chip."""

    def changed(machine: Hierarchy) -> Hierarchy:
        chip = replace(machine.memories["chip"], capacity_bytes=capacity)
        return replace(machine, memories={**machine.memories, "chip": chip})

    operators = (replace(o, machine=changed(o.machine)) for o in block.operators)
    return replace(block, operators=tuple(operators))


# -------------------------------------------------------------------------------- all schedules


def schedules(block: Block) -> Iterator[Sequence]:
    """Yield all schedules with one loop around the operators of a part.

    Tensors that are read later stay on chip, or not; a loop's body keeps its intermediates.
    """
    count = len(block.operators)
    for cuts in itertools.product((False, True), repeat=count - 1):
        groups, group = list[list[int]](), [0]
        for number, is_cut in enumerate(cuts, start=1):
            if is_cut:
                groups.append(group)
                group = []
            group.append(number)
        groups.append(group)
        yield from grouped_schedules(block, groups)


def grouped_schedules(block: Block, groups: list[list[int]]) -> Iterator[Sequence]:
    loops = [list(group_parts(block, group)) for group in groups]
    stays = [name for name in block.readers if crosses(block, groups, name)]
    for parts in itertools.product(*loops):
        for size in range(len(stays) + 1):
            for names in itertools.combinations(stays, size):
                yield Sequence(tuple(parts), tuple(live(block, groups, names)))


def crosses(block: Block, groups: list[list[int]], name: str) -> bool:
    source = block.producers.get(name)
    return source is not None and not any(
        source in group and block.readers[name][-1] in group for group in groups
    )


def live(block: Block, groups: list[list[int]], names: tuple[str, ...]) -> Iterator[frozenset[str]]:
    for group in groups:
        yield frozenset(
            name
            for name in names
            if block.producers[name] <= group[-1] and block.readers[name][-1] >= group[0]
        )


def group_parts(block: Block, group: list[int]) -> Iterator[int | FusedLoop]:
    if len(group) == 1:
        yield group[0]
        return
    inside = [
        frozenset(
            name
            for name, source in block.producers.items()
            if source in group
            and source <= number
            and any(number <= reader <= group[-1] for reader in block.readers.get(name, ()))
        )
        for number in group
    ]
    for axes in block.joint_axes(group[0], group[-1]):
        if any(block.operators[n].axes[axis].is_reduction for n, axis in axes):
            continue
        extent, granule = block.extents[next(iter(axes))], block.granule(axes)
        for tile in range(granule, extent, granule):
            yield FusedLoop(axes, tile, Sequence(tuple(group), tuple(inside)))


@pytest.mark.parametrize("objective", [Objective.BYTES, Objective.ENERGY, Objective.CYCLES])
def test_no_schedule_costs_less(spec: HardwareSpec, objective: Objective) -> None:
    optimal = 0
    for seed in range(8):
        block = random_chain(spec, random.Random(seed), 3)
        fused = fuse(block, objective, rows=512)
        evaluation = Evaluation(OperatorCosts(block, objective, 512))
        values = (evaluation.uses(schedule) for schedule in schedules(block))
        least = min(evaluation.value(uses) for uses in values if uses is not None)
        assert fused.bound <= least * (1 + 1e-9)
        assert fused.bound <= fused.cost <= fused.unfused_cost
        optimal += fused.cost <= least * (1 + 1e-4)
    assert optimal == 8


def test_unfused_operators_cost_what_they_cost_alone(spec: HardwareSpec) -> None:
    extents = {"a": 6, "b": 4, "c": 6, "d": 4, "e": 2}
    block = chain(spec, extents, 40, 2)
    evaluation = Evaluation(OperatorCosts(block, Objective.ENERGY, ROWS))
    uses = evaluation.uses(unfused(block))
    assert uses is not None
    for number, text in enumerate(CHAIN[:2]):
        alone = estimate_program(
            program(text, extents, spec),
            block.operators[number].machine,
            objective="energy",
        )
        assert uses[number].energy == pytest.approx(alone.cost)


@pytest.mark.parametrize("overlap", [Overlapping.NONE, Overlapping.DOUBLE_BUFFER])
def test_machines_that_wait_for_transfers(spec: HardwareSpec, overlap: Overlapping) -> None:
    block = chain(spec, {"a": 6, "b": 4, "c": 6, "d": 4, "e": 2}, 200, 3)
    machine = block.operators[0].machine
    chip = replace(machine.memories["chip"], overlap=overlap)
    machine = replace(machine, memories={**machine.memories, "chip": chip})
    block = replace(block, operators=tuple(replace(o, machine=machine) for o in block.operators))
    fused = fuse(block, Objective.CYCLES)
    assert fused.bound <= fused.cost <= fused.unfused_cost


def test_more_capacity_never_costs_more(spec: HardwareSpec) -> None:
    extents = {"a": 6, "b": 4, "c": 6, "d": 4, "e": 2}
    costs = [
        fuse(chain(spec, extents, capacity, 3), Objective.ENERGY, rows=512).cost
        for capacity in (24, 40, 80, 160, 320)
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[0]


def test_axes_that_are_tiled_jointly(spec: HardwareSpec) -> None:
    block = chain(spec, dict.fromkeys("abcde", 4), 80, 3)
    names = [sorted(axis for _, axis in axes) for axes in block.joint_axes(0, 1)]
    # b indexes T in both; d and c are of one operator alone. Sums over b end in the last one.
    assert sorted(names) == [["a", "a"], ["b", "b"]]
    assert [sorted(axes) for axes in block.joint_axes(0, 2)] == [[(0, "a"), (1, "a"), (2, "a")]]


def test_operators_in_a_wrong_order_are_named(spec: HardwareSpec) -> None:
    block = chain(spec, dict.fromkeys("abcde", 4), 80, 2)
    with pytest.raises(SpecError, match="op1 reads T before op0 computes it"):
        Block("wrong", tuple(reversed(block.operators)))


def test_memories_that_units_do_not_share_are_named(spec: HardwareSpec) -> None:
    block = chain(spec, dict.fromkeys("abcde", 4), 80, 2)
    machine = block.operators[0].machine
    memories = {
        name: replace(memory, units=2 if memory.parent else 1)
        for name, memory in machine.memories.items()
    }
    operators = tuple(
        replace(o, machine=replace(machine, memories=memories)) for o in block.operators
    )
    with pytest.raises(SpecError, match="chip is 2 memories"):
        fuse(replace(block, operators=operators), Objective.CYCLES)
