"""Estimates of derived programs on described machines."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from cpembed.cost.machine.estimate import contiguous_elements, estimate_program, machine_of
from cpembed.cost.machine.nest import TileOperand, executed_share, execution_nest
from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.errors import SpecError, TransformError
from cpembed.hw.loader import load_hardware_spec
from cpembed.hw.machine import Hierarchy, Layouts, Overlapping
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.provenance import Provenance
from cpembed.transform.program import DerivedProgram

VTA = load_hardware_spec("vta_1x16x16")


def program(words: str, target: str = "vta_1x16x16") -> DerivedProgram:
    result = solve(workload(words, target=target), target, constraints="in_place_padded", top=1)
    return result.embeddings[0].candidate.program


def with_memories(machine: Hierarchy, **fields: object) -> Hierarchy:
    """All memories but main memory changed."""
    changed = {
        name: memory if memory.parent is None else replace(memory, **fields)
        for name, memory in machine.memories.items()
    }
    return replace(machine, memories=changed)


def test_a_small_product_is_loaded_computed_and_stored() -> None:
    """64 x 64 x 64 is 1024 executions of 1x16x16."""
    estimate = estimate_program(program("gemm m=64 n=64 k=64"), machine_of(VTA))
    (level,) = estimate.levels
    # Two operands of 4096 bytes, 8 a cycle, each after the delay; 4 bytes an element of the output.
    parts = [1024 + 3, 2 * (4096 / 8 + 16), 4 * 4096 / 8 + 16]
    assert level.computing == parts[0]
    assert level.reading >= parts[1]
    assert level.writing >= parts[2]
    # Cut into rows, which overlap, but for the first and the last ones.
    assert level.writing < estimate.cycles < sum(parts)
    assert estimate.bound == "write to dram"
    assert estimate.us == estimate.cycles / 100
    assert estimate.provenance is Provenance.ESTIMATED
    # A bound knows tiles and slices, but not how the first transfers depend on their number.
    assert estimate.least_cost <= estimate.cycles <= 1.1 * estimate.least_cost


def test_a_large_product_is_bound_by_computing() -> None:
    estimate = estimate_program(program("gemm m=512 n=512 k=512"), machine_of(VTA))
    assert estimate.bound == "compute"
    assert 512**3 / 256 < estimate.cycles < 1.05 * 512**3 / 256


def test_transfers_that_do_not_overlap_add_up() -> None:
    nest, machine = program("gemm m=256 n=256 k=256"), machine_of(VTA)
    overlapped = estimate_program(nest, machine)
    serial = estimate_program(nest, with_memories(machine, overlap=Overlapping.NONE))
    (level,) = serial.levels
    assert serial.cycles == pytest.approx(level.computing + level.reading + level.writing)
    assert serial.cycles > overlapped.cycles
    assert estimate_program(nest, with_memories(machine, banks=1)).cycles == pytest.approx(
        serial.cycles
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
    estimate = estimate_program(program("gemm m=1 n=16 k=1600"), machine_of(VTA))
    assert estimate.levels[0].computing == 3 * 100 + 3


def test_packing_is_a_line_of_its_own() -> None:
    packed = program("conv2d n=1 c=64 h=14 w=14 k=64 r=3 s=3 pad=1")
    every, ahead = (
        estimate_program(packed, machine_of(VTA), ahead=names) for names in ((), ("W",))
    )
    # 36,864 bytes, none of them beside its neighbour, in beats of 8; writing goes beside reading.
    assert contiguous_elements(packed.operand("W")) == pytest.approx(1, rel=1e-3)
    assert every.packing_us["W"] == pytest.approx(36_864 / 100, rel=1e-3)
    assert "W" not in ahead.packing_us
    assert every.cycles == ahead.cycles
    assert every.total_us == pytest.approx(ahead.total_us + every.packing_us["W"])


@pytest.mark.parametrize(
    "words, target, names",
    [
        ("conv2d n=1 c=8 h=6 w=6 k=32 r=3 s=3 pad=1", "avx512_vnni", "IWO"),
        ("gemm m=24 n=40 k=96", "gemm_16x16x16", "ABC"),
        ("conv2d n=2 c=3 h=5 w=5 k=16 r=3 s=3", "vta_1x16x16", "IWO"),
    ],
)
def test_pieces_are_contiguous_in_both_layouts(words: str, target: str, names: str) -> None:
    derived = program(words, target)
    for operand in (derived.operand(name) for name in names):
        if operand.elements > 2048:
            continue
        flat: list[int] = []
        for place in itertools.product(*(range(d.extent) for d in operand.dimensions)):
            at = dict(zip((d.name for d in operand.dimensions), place, strict=True))
            address = 0
            for index, extent in zip(operand.source, operand.original_shape, strict=True):
                address = address * extent + index.evaluate(at)
            flat.append(address)
        pieces = 1 + sum(b != a + 1 for a, b in itertools.pairwise(flat))
        assert contiguous_elements(operand) == len(flat) / pieces
        if operand.is_identity:
            assert pieces == 1


def test_an_estimate_is_a_document() -> None:
    document = estimate_program(program("gemm m=64 n=64 k=64"), machine_of(VTA)).to_json()
    assert document["provenance"] == "estimated"
    assert {"machine", "cycles", "us", "packing_us", "total_us", "bound"} <= document.keys()
    assert document["levels"][0]["memory"] == "dram"
    assert document["tiling"][0]["memories"] == ["vta.inp", "vta.wgt", "vta.acc"]


def test_a_target_without_figures_says_what_to_add() -> None:
    with pytest.raises(SpecError, match=r"requantize has no figures .* add \[machines.NAME\] with"):
        machine_of(load_hardware_spec("requantize"))
    with pytest.raises(SpecError, match="vta_1x16x16 has no machine 'zcu'; it has pynq_z1"):
        machine_of(VTA, "zcu")


def test_a_memory_that_is_too_small_is_named() -> None:
    machine = with_memories(machine_of(VTA), capacity_bytes=64)
    with pytest.raises(TransformError, match=r"one execution takes 256 bytes of vta\.wgt"):
        estimate_program(program("gemm m=64 n=64 k=64"), machine)


def counted_share(derived: DerivedProgram) -> float:
    """Execution by execution, element by element."""
    inputs = {operand.name for operand in derived.workload.inputs}
    total = executed = 0
    for loops in itertools.product(*(range(loop.extent) for loop in derived.loops)):
        at = dict(zip((loop.name for loop in derived.loops), loops, strict=True))
        useful = True
        for operand in (operand for operand in derived.operands if operand.name in inputs):
            executes = False
            for inner in itertools.product(*(range(a.extent) for a in derived.instruction_axes)):
                where = {
                    **at,
                    **dict(zip((a.name for a in derived.instruction_axes), inner, strict=True)),
                }
                packed = [index.evaluate(where) for index in operand.access]
                names = dict(zip((d.name for d in operand.dimensions), packed, strict=True))
                executes = executes or all(
                    0 <= source.evaluate(names) < size
                    for source, size in zip(operand.source, operand.original_shape, strict=True)
                )
            useful = useful and executes
        total += 1
        executed += useful
    return executed / total


@pytest.mark.parametrize(
    "words, target, constraints",
    [
        ("conv2d n=1 c=4 h=5 w=5 k=4 r=3 s=3 pad=1", "pointwise_conv", "in_place_padded"),
        ("conv2d n=1 c=16 h=4 w=4 k=16 r=3 s=3 pad=2", "vta_1x16x16", "in_place_padded"),
        ("conv2d n=2 c=3 h=4 w=4 k=16 r=3 s=3 pad=1 stride=2", "avx512_vnni", "fused"),
        ("gemm m=5 n=20 k=7", "avx512_vnni", "in_place_padded"),
    ],
)
def test_executions_on_padding_alone_are_left_out(
    words: str, target: str, constraints: str
) -> None:
    result = solve(workload(words, target=target), target, constraints=constraints, top=4)
    shares = [executed_share(item.candidate.program) for item in result.embeddings]
    counted = [counted_share(item.candidate.program) for item in result.embeddings]
    assert shares == pytest.approx(counted)
    assert ("pad" in words) == (min(shares) < 1)


def test_bytes_by_memory_are_those_that_are_moved() -> None:
    """64 x 64 x 64 fits: two operands of 4096 bytes in, sums of 4 bytes out, each once."""
    estimate = estimate_program(program("gemm m=64 n=64 k=64"), machine_of(VTA))
    (level,) = estimate.levels
    assert level.read_bytes >= 2 * 4096
    assert level.written_bytes == 4 * 4096
    (document,) = estimate.to_json()["levels"]
    assert document["read_bytes"] == level.read_bytes
    assert document["written_bytes"] == level.written_bytes


def test_operands_as_they_come_are_not_packed_but_move_by_their_own_rows() -> None:
    """A window of 3 x 3 in an image of 16 channels: where images are packed for each tap, a tile of
    one row of pixels is nine rows; as it comes it is three rows, each a piece."""
    packed = program("conv2d n=1 c=16 h=16 w=16 k=16 r=3 s=3")
    machine = replace(machine_of(VTA), layouts=Layouts.ORIGINAL)
    estimate = estimate_program(packed, machine)
    assert estimate.packing_us == {}
    assert estimate_program(packed, machine_of(VTA)).packing_us
    (image,) = (o for o in execution_nest(packed, Layouts.ORIGINAL).operands if o.name == "I")
    sizes = {loop.name: np.ones(1) for loop in packed.loops}
    sizes |= {axis.name: np.full(1, float(axis.extent)) for axis in packed.instruction_axes}
    sizes |= {"q.o": np.full(1, 14.0), "r.o": np.full(1, 3.0), "s.o": np.full(1, 3.0)}
    assert image.elements(sizes) == 16 * 3 * 16
    assert image.moved_bytes(sizes, 1) == 16 * 3 * 16


def test_elements_between_which_others_lie_are_pieces_of_their_own() -> None:
    """Every second of 32 elements: 16 bytes in granules of one, 31 where a granule spans two."""
    index = IndexExpr.sum([IndexTerm("x", 2)])
    operand = TileOperand("A", "a", 1, 1, ((index, 64),), frozenset("x"), False)
    sizes = {"x": np.full(1, 16.0)}
    assert operand.moved_bytes(sizes, 1) == 16
    assert operand.moved_bytes(sizes, 2) == 32
