"""Lowered programs compute what numpy computes, in every result form, whatever the schedule."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpembed.driver.named import workload
from cpembed.errors import LoweringError, WorkloadError
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.ir.reference import random_inputs, reference
from cpembed.targets.vta.host import HostPacking
from cpembed.targets.vta.isa import Alu, Gemm, Load, Memory, VtaConfig
from cpembed.targets.vta.lower import lower
from cpembed.targets.vta.program import Role
from cpembed.targets.vta.schedule import Schedule, occupancy
from cpembed.targets.vta.simulator import simulate
from cpembed.targets.vta.specification import vta_config
from cpembed.targets.vta.tail import Exact, Requantized, Truncated
from cpembed.targets.vta.tiles import tile_nest
from cpembed.transform.program import PackedDimension
from tests.unit.targets.vta.lowering import (
    TAILS,
    best_program,
    check,
    in_digits,
    make_spec,
    random_programs,
    random_schedule,
)

CONFIGS = {"vta_1x16x16": VtaConfig(), "vta_8x8x8": VtaConfig(log_batch=3, log_block=3)}

FIRST = [
    ("gemm m=20 n=30 k=40", "vta_1x16x16", "strict_padded"),
    ("conv2d n=1 c=32 h=8 w=8 k=32 r=3 s=3 pad=1", "vta_1x16x16", "strict"),
    ("conv2d n=3 c=20 h=13 w=14 k=32 r=3 s=3 pad=1 stride=2", "vta_8x8x8", "strict_padded"),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize("tail", TAILS, ids=str)
@pytest.mark.parametrize("words, target, constraints", FIRST)
def test_the_default_schedule_computes_the_layer(words, target, constraints, tail) -> None:
    program = best_program(words, target, constraints)
    check(lower(program, CONFIGS[target], tail=tail), program.workload)


RANDOM = [
    ("conv2d n=1 c=3 h=9 w=8 k=5 r=3 s=3 pad=1", "relaxed"),
    ("conv2d n=2 c=5 h=7 w=6 k=9 r=3 s=2 pad=1 stride=2", "flattened"),
    ("conv2d n=1 c=17 h=9 w=9 k=18 r=3 s=3 pad=2 dilation=2", "relaxed"),
    ("conv2d n=2 c=18 h=6 w=5 k=20 r=1 s=1 stride=2 layout=NHWC", "strict_padded"),
    ("conv2d n=1 c=20 h=7 w=6 k=17 r=3 s=3 pad=1 layout=NHWC", "relaxed"),
    ("conv2d n=1 c=20 h=3 w=3 k=20 r=2 s=2 pad=4", "flattened"),
    ("conv1d n=2 c=20 w=9 k=5 s=3 pad=1 dilation=3", "complete"),
    ("conv3d n=1 c=3 d=5 h=5 w=6 k=6 t=3 r=3 s=2 pad=1", "relaxed"),
    ("depthwise n=1 c=9 h=8 w=9 r=3 s=3 pad=1", "complete"),
    ("depthwise n=2 c=3 h=8 w=7 r=3 s=3 m=2 stride=2", "flattened"),
    ("gemm m=1 n=10 k=70", "complete"),
    ("transposed_conv2d n=1 c=5 h=4 w=4 k=6 r=3 s=3 stride=2", "relaxed"),
    ("grouped_fc n=3 g=2 c=20 k=17", "complete"),
    ("batched_conv2d n=2 c=3 h=5 w=5 k=4 r=3 s=3", "relaxed"),
]


def check_embeddings(words, constraints, spec, seed, programs, schedules) -> None:
    """Random embeddings, each with random schedules and one tail, half of them in digits."""
    rng = random.Random(seed)
    config = vta_config(spec)
    for program in random_programs(words, spec, constraints, programs, seed):
        chosen = program if rng.random() < 0.5 else in_digits(program, rng)
        nest = tile_nest(chosen, config)
        for _ in range(schedules):
            # A bias takes accumulators, which the random schedule does not leave.
            lowered = lower(chosen, config, random_schedule(nest, rng), rng.choice(TAILS[:3]))
            check(lowered, workload(words, target=spec), seed)


@pytest.mark.quick(3)
@pytest.mark.parametrize("target", CONFIGS)
@pytest.mark.parametrize("words, constraints", RANDOM)
def test_any_embedding_with_any_schedule_computes_the_layer(words, constraints, target) -> None:
    check_embeddings(words, constraints, load_hardware_spec(target), 1, programs=2, schedules=2)


@pytest.mark.slow
@pytest.mark.parametrize("batch, block", [(1, 2), (2, 4), (4, 16), (1, 32), (16, 16)])
@pytest.mark.parametrize("words, constraints", RANDOM)
def test_any_configuration(words, constraints, batch, block, tmp_path: Path) -> None:
    spec = make_spec(batch, block, tmp_path)
    check_embeddings(words, constraints, spec, block, programs=4, schedules=3)


@pytest.mark.parametrize("axes", [(1,), (0, 2), (3,), (0, 1, 2, 3)])
def test_a_bias_has_any_dimensions_of_the_output(axes) -> None:
    program = best_program(*FIRST[2])
    tail = Requantized(8, bias=axes)
    lowered = lower(program, CONFIGS["vta_8x8x8"], tail=tail)
    check(lowered, program.workload)
    roles = {name: tensor.role for name, tensor in lowered.tensors.items()}
    assert roles == {
        "I": Role.INPUT,
        "W": Role.WEIGHT,
        "O.bias": Role.WEIGHT,
        "O": Role.OUTPUT,
        "uops": Role.UOPS,
    }


def test_a_bias_over_dimensions_that_do_not_exist_is_refused() -> None:
    program = best_program(*FIRST[0])
    with pytest.raises(LoweringError, match=r"bias: \(2,\) are no dimensions of C"):
        lower(program, VtaConfig(), tail=Requantized(8, bias=(2,)))


def test_an_output_of_int8_is_cut_off_and_nothing_else() -> None:
    program = best_program("gemm m=9 n=16 k=32 dtype=int8,int8,int8", "vta_1x16x16", "strict")
    lowered = lower(program, VtaConfig())
    assert lowered.tail == Truncated()
    check(lowered, program.workload)
    with pytest.raises(LoweringError, match="make its output int32"):
        lower(program, VtaConfig(), tail=Exact())


@pytest.mark.slow
def test_few_micro_ops_are_loaded_again_and_again() -> None:
    """A buffer of 16 micro-ops holds no kernel whole."""
    program = best_program(*FIRST[1])
    config = replace(VtaConfig(), log_uop_buff=6)
    tiles = {"n.o": 1, "k.o": 1, "p.o": 4, "q.o": 4, "c.o": 2, "r.o": 3, "s.o": 3}
    schedule = Schedule(tiles, tuple(tiles))
    lowered = lower(program, config, schedule)
    micro = [i for i in lowered.instructions if isinstance(i, Load) and i.memory is Memory.UOP]
    assert sum(load.x for load in micro) > len(lowered.uops) > 16
    check(lowered, program.workload)


def test_fewer_than_three_accumulators_are_split_into_instructions() -> None:
    """One output tile: no micro-op may follow another in an instruction."""
    program = best_program("gemm m=1 n=16 k=160", "vta_1x16x16", "strict")
    lowered = lower(program, VtaConfig())
    products = [i for i in lowered.instructions if isinstance(i, Gemm) and not i.reset]
    assert len(products) == 10
    check(lowered, program.workload)


def test_tiles_of_zeros_are_neither_loaded_nor_multiplied() -> None:
    """With one row a tile and padding of two, some output rows are only padding."""
    program = best_program("conv2d n=1 c=16 h=4 w=4 k=16 r=1 s=1 pad=2", "vta_1x16x16", "strict")
    tiles = {loop.name: loop.extent for loop in program.loops} | {"p.o": 1}
    lowered = lower(program, VtaConfig(), Schedule(tiles, tuple(tiles)), Truncated())
    products = [i for i in lowered.instructions if isinstance(i, Gemm) and not i.reset]
    assert len(products) == 4
    # A reset does not reach the output buffer, so what no product has written the ALU touches:
    # the other four rows, and the columns of padding in these four.
    assert sum(isinstance(i, Alu) for i in lowered.instructions) == 8
    check(lowered, program.workload)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "words, tiles, far",
    [
        ("gemm m=2 n=131076 k=4", {"m.o": 2, "n.o": 200, "k.o": 2}, "acc"),
        ("gemm m=2 n=4 k=131076", {"m.o": 2, "n.o": 2, "k.o": 200}, "wgt"),
    ],
)
def test_rows_further_apart_than_the_stride_field_are_transferred_one_by_one(
    words: str, tiles: dict[str, int], far: str, tmp_path: Path
) -> None:
    """65,538 tiles in a row of the output or of the weights; 16 bits count to 65,535."""
    spec = make_spec(1, 2, tmp_path)
    (program,) = random_programs(words, spec, "strict", 1, 0)
    lowered = lower(program, vta_config(spec), Schedule(tiles, tuple(tiles)))
    assert getattr(lowered.nest, far).strides[0] == 65_538
    check(lowered, program.workload)


def test_regions_of_digits_take_the_room_of_the_largest() -> None:
    """Rows of A as two dimensions, four by four: three rows may lie in one of them or in two."""
    program = best_program("gemm m=12 n=32 k=32", "vta_1x16x16", "strict")
    operand = program.operand("A")
    rows, *others = operand.dimensions
    split = replace(
        operand,
        dimensions=(PackedDimension("m1", 3), PackedDimension("m0", 4), *others),
        source=tuple(
            index.substitute({rows.name: IndexExpr((IndexTerm("m1", 4), IndexTerm("m0")))})
            for index in operand.source
        ),
        access=(
            IndexExpr((IndexTerm("m.o", 1, 4),)),
            IndexExpr((IndexTerm("m.o", 1, 1, 4),)),
            *operand.access[1:],
        ),
    )
    program = replace(program, operands=(split, *program.operands[1:]))
    schedule = Schedule({"m.o": 3, "n.o": 2, "k.o": 1}, ("m.o", "n.o", "k.o"))
    nest = tile_nest(program, VtaConfig())
    assert occupancy(nest, schedule)[Memory.INP] == (2 * 8, 2048)
    check(lower(program, VtaConfig(), schedule), program.workload)


@pytest.mark.quick(1)
@pytest.mark.parametrize("words, target, constraints", FIRST)
def test_compiled_moves_are_those_of_numpy(words, target, constraints) -> None:
    program = best_program(words, target, constraints)
    lowered = lower(program, CONFIGS[target], tail=Exact())
    inputs = random_inputs(program.workload, 3)
    packing = HostPacking(lowered)
    image = packing.build(inputs)
    np.testing.assert_array_equal(image.dram, lowered.build(inputs).dram)
    result = packing.unpack(lowered.combine(image, simulate(image)))
    np.testing.assert_array_equal(result, reference(program.workload, inputs))


def test_a_move_of_another_array_is_refused() -> None:
    program = best_program(*FIRST[0])
    packing = HostPacking(lower(program, VtaConfig()))
    with pytest.raises(WorkloadError, match=r"operand A is float64 \(20, 40\)"):
        packing.input_copy("A", np.zeros((20, 40)))


def test_tiles_of_another_configuration_are_refused() -> None:
    program = best_program(*FIRST[0])
    with pytest.raises(LoweringError, match="no INP tile"):
        lower(program, VtaConfig(log_batch=3, log_block=3))
