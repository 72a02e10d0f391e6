"""The hand-written strategy: its programs compute the layer, and its knobs are TVM's."""

from __future__ import annotations

import pytest

from cpembed.driver.named import workload
from cpembed.errors import LoweringError
from cpembed.hw.loader import load_hardware_spec
from cpembed.targets.vta.isa import Load, Memory
from cpembed.targets.vta.lower import LoweredVta, lower
from cpembed.targets.vta.schedule import occupancy
from cpembed.targets.vta.specification import vta_config
from cpembed.targets.vta.tail import requantized_for
from cpembed.targets.vta.tiles import TileNest, tile_nest
from cpembed.targets.vta.timing import MemorySystem, time_program
from experiments.rieber2021.reference import (
    Knobs,
    ranked_knobs,
    reference_knobs,
    reference_program,
    reference_schedule,
)
from tests.unit.targets.vta.test_lower import check

LAYERS = [
    ("conv2d n=1 c=48 h=12 w=10 k=64 r=3 s=3 pad=1", "vta_1x16x16"),
    ("conv2d n=2 c=3 h=14 w=14 k=60 r=3 s=5 stride=2", "vta_1x16x16"),
    ("conv2d n=1 c=16 h=8 w=8 k=32 r=3 s=3 pad=1", "vta_8x8x8"),
]


def nest_of(words: str, target: str) -> TileNest:
    spec = load_hardware_spec(target)
    program = reference_program(workload(words, target=target), spec.instruction)
    return tile_nest(program, vta_config(spec))


def lowered(words: str, target: str, knobs: Knobs) -> LoweredVta:
    spec = load_hardware_spec(target)
    program = reference_program(workload(words, target=target), spec.instruction)
    config = vta_config(spec)
    return lower(program, config, reference_schedule(tile_nest(program, config), knobs))


@pytest.mark.quick(1)
@pytest.mark.parametrize("words, target", LAYERS)
def test_programs_compute_the_layer(words: str, target: str) -> None:
    """With one thread, two over filters and two over rows, and several tiles of everything."""
    layer = workload(words, target=target)
    known = reference_knobs(nest_of(words, target))
    for threads in ((1, 1), (2, 1), (1, 2)):
        knobs = [k for k in known if (k.oc_nthread, k.h_nthread) == threads]
        for one in (knobs[0], knobs[len(knobs) // 2], knobs[-1]):
            check(lowered(words, target, one), layer)


@pytest.mark.parametrize("words, target", LAYERS)
def test_knobs_divide_the_layer_and_their_threads_fit(words: str, target: str) -> None:
    nest = nest_of(words, target)
    loops = {loop.name.split(".")[0]: loop.extent for loop in nest.loops}
    known = reference_knobs(nest)
    assert len(set(known)) == len(known) > 0
    for knobs in known:
        assert loops["p"] % (knobs.tile_h * knobs.h_nthread) == 0
        assert loops["k"] % (knobs.tile_co * knobs.oc_nthread) == 0
        assert loops["q"] % knobs.tile_w == loops["c"] % knobs.tile_ci == 0
        assert knobs.threads <= 2
        schedule = reference_schedule(nest, knobs)
        assert all(need <= have for need, have in occupancy(nest, schedule).values())


def test_every_step_loads_its_image_and_its_weights() -> None:
    """4 tiles of rows, 2 of filters, 3 of channels: 24 loads of weights, though 6 differ."""
    program = lowered(*LAYERS[0], Knobs(tile_h=3, tile_w=10, tile_ci=1, tile_co=2, h_nthread=2))
    loads = [i for i in program.instructions if isinstance(i, Load)]
    weights = [load for load in loads if load.memory is Memory.WGT]
    assert len(weights) == len([load for load in loads if load.memory is Memory.INP]) == 24
    assert len({load.dram for load in weights}) == 6
    # Each thread has its half of the buffer.
    assert len({load.sram for load in weights}) == 2


def test_channels_are_the_innermost_of_the_outer_loops_then_columns_filters_rows() -> None:
    knobs = Knobs(tile_h=6, tile_w=5, tile_ci=1, tile_co=2)
    program = lowered(*LAYERS[0], knobs)
    tensors = {tensor.name: tensor for tensor in program.nest.factors}
    weights = [
        load.dram * 256 - program.tensors["W"].offset
        for load in program.instructions
        if isinstance(load, Load) and load.memory is Memory.WGT
    ]
    blocks, channels = (tensors["W"].strides[k] * 256 for k in (0, 1))
    first = [c * channels for c in range(3)]
    second = [2 * blocks + at for at in first]
    assert [at for at in weights if at in {*first, *second}] == 2 * [
        *first,
        *first,
        *second,
        *second,
    ]


def test_the_ranking_is_close_to_the_simulator() -> None:
    words, target = "conv2d n=1 c=64 h=28 w=28 k=64 r=3 s=3 pad=1", "vta_1x16x16"
    spec = load_hardware_spec(target)
    assert spec.machine is not None
    memory = MemorySystem.from_machine(spec.machine)
    tail = requantized_for(workload(words, target=target))
    nest = nest_of(words, target)
    ranked = ranked_knobs(nest, tail, 8, memory)
    assert [cycles for cycles, _ in ranked] == sorted(cycles for cycles, _ in ranked)
    for estimate, knobs in ranked:
        image = lowered(words, target, knobs).empty_image()
        assert estimate == pytest.approx(time_program(image, memory).cycles, rel=0.1)


def test_another_operator_is_refused() -> None:
    spec = load_hardware_spec("vta_1x16x16")
    with pytest.raises(LoweringError, match="the reference strategy takes conv2d"):
        reference_program(workload("gemm m=4 n=16 k=16", target=spec), spec.instruction)
