"""Schedules: which are legal, how they are estimated, and what the default reaches."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from cpembed.errors import LoweringError
from cpembed.targets.vta.bounds import bounds
from cpembed.targets.vta.estimate import (
    default_schedule,
    forms,
    ranked_schedules,
    region_tiles,
    store_cycles,
    tile_sizes,
)
from cpembed.targets.vta.isa import Finish, Gemm, Load, Memory, Store, VtaConfig
from cpembed.targets.vta.lower import Addresses, emit, lower
from cpembed.targets.vta.program import VtaProgram
from cpembed.targets.vta.schedule import Schedule, check_schedule, occupancy, region_of, steps
from cpembed.targets.vta.tail import Requantized, Truncated
from cpembed.targets.vta.tiles import TileNest, tile_nest, with_bias
from cpembed.targets.vta.timing import MemorySystem, time_program
from cpembed.targets.vta.uop_loops import trimmed_tiles
from tests.unit.targets.vta.lowering import best_program, check, random_schedule, schedules
from tests.unit.targets.vta.tensorir import emit_through_tensorir, tensorir_source

CONV = ("conv2d n=1 c=32 h=8 w=8 k=32 r=3 s=3 pad=1", "vta_1x16x16", "strict")
TAIL = Requantized(9)
MEMORY = MemorySystem()


def nest_of(words: str, constraints: str = "strict") -> TileNest:
    return tile_nest(best_program(words, "vta_1x16x16", constraints), VtaConfig())


def cycles(nest: TileNest, schedule: Schedule, memory: MemorySystem = MEMORY) -> int:
    emitted = emit(nest, schedule, TAIL, Addresses(0, 0, (0,), 0))
    image = VtaProgram(nest.config, emitted.instructions, np.zeros(0, np.uint8), {})
    return time_program(image, memory, checked=False).cycles


@pytest.mark.parametrize(
    "change, message",
    [
        ({"order": ("k.o",)}, "is no order of the loops"),
        (
            {"order": ("c.o", "n.o", "k.o", "p.o", "q.o", "r.o", "s.o")},
            "reduction loops stand inside",
        ),
        ({"tiles": {"k.o": 3}}, "loop k.o of extent 2 has the tile 3"),
        ({"threads": 3}, "3 threads: 1 or 2"),
        ({"thread_loop": "c.o"}, "two threads over a spatial loop"),
        ({"slots": (0, 1)}, "1 or more"),
        ({"slots": (30, 1)}, "tiles take 3000 elements of INP, which has 2048"),
    ],
)
def test_an_illegal_schedule_is_refused_in_words(change, message) -> None:
    nest = nest_of(CONV[0])
    tiles = {"n.o": 1, "k.o": 2, "p.o": 8, "q.o": 8, "c.o": 1, "r.o": 3, "s.o": 3}
    legal = Schedule(tiles, tuple(tiles))
    check_schedule(nest, legal)
    if "tiles" in change:
        change = {"tiles": tiles | change["tiles"]}
    elif "thread_loop" not in change:
        change = {"thread_loop": None, **change}
    with pytest.raises(LoweringError, match=message):
        check_schedule(nest, replace(legal, **change))


@pytest.mark.parametrize("seed", range(12))
def test_steps_cover_the_loops_once_and_begin_and_end_each_output_tile(seed: int) -> None:
    nest = nest_of("conv2d n=2 c=32 h=5 w=4 k=48 r=2 s=3 pad=1")
    schedule = random_schedule(nest, random.Random(seed))
    points: list[tuple[int, ...]] = []
    open_tiles: dict[int, tuple[object, ...]] = {}
    for step in steps(nest, schedule):
        ranges = [range(first, first + size) for first, size in step.tile.values()]
        points += itertools.product(*ranges)
        output = tuple(step.tile[name] for name in ("n.o", "k.o", "p.o", "q.o"))
        if step.begins:
            assert step.thread not in open_tiles
            open_tiles[step.thread] = output
        assert open_tiles[step.thread] == output
        if step.ends:
            del open_tiles[step.thread]
    assert not open_tiles
    assert len(points) == len(set(points)) == np.prod(list(nest.extents.values()))


def test_every_listed_schedule_is_legal_and_computes_the_layer() -> None:
    program = best_program("gemm m=4 n=48 k=32", "vta_1x16x16", "strict")
    nest = tile_nest(program, VtaConfig())
    found = list(schedules(nest))
    assert len(found) == len({str(schedule) for schedule in found}) > 100
    for schedule in random.Random(0).sample(found, 12):
        check(lower(program, VtaConfig(), schedule), program.workload)


def test_tiles_are_even_cuts_and_always_have_one_iteration_and_the_whole_loop() -> None:
    sizes = tile_sizes(nest_of(CONV[0]))
    assert sizes["p.o"] == [1, 2, 3, 4, 8]
    many = tile_sizes(nest_of("conv2d n=64 c=2048 h=112 w=112 k=2048 r=5 s=5 pad=2"))
    assert np.prod([len(choices) for choices in many.values()]) <= 1 << 16
    assert {name: (c[0], c[-1]) for name, c in many.items()}["p.o"] == (1, 112)


LAYERS = [
    "conv2d n=1 c=128 h=28 w=28 k=128 r=3 s=3 pad=1",
    "conv2d n=1 c=256 h=14 w=14 k=256 r=3 s=3 pad=1 stride=2",
    "conv2d n=1 c=128 h=28 w=28 k=256 r=1 s=1 stride=2",
    "conv2d n=2 c=64 h=19 w=23 k=96 r=5 s=5 pad=2",
    "gemm m=64 n=512 k=512",
    "gemm m=1 n=1024 k=512",
]


@pytest.mark.parametrize("words", LAYERS)
def test_default_schedules_are_near_the_bound_that_no_schedule_beats(words: str) -> None:
    """The timed simulator's cycles are 7 % above the bound at most, apart from products with zero
    padding, which few schedules can skip, and the last STORE, which nothing overlaps."""
    nest = nest_of(words)
    schedule = default_schedule(nest, TAIL, MEMORY)
    taken = cycles(nest, schedule)
    bound = bounds(nest, TAIL, MEMORY)
    padding = np.prod(list(nest.extents.values())) - bound.gemm
    assert bound.busiest_module <= taken
    sizes = {name: np.array([size]) for name, size in schedule.tiles.items()}
    last_store = int(store_cycles(region_tiles(nest.acc, sizes), nest.config, MEMORY)[0])
    assert taken <= 1.07 * max(bound.compute + padding, bound.read, bound.write) + last_store


@pytest.mark.quick(3)
@pytest.mark.parametrize("words", LAYERS)
def test_the_estimate_of_good_schedules_is_near_the_simulated_time(words: str) -> None:
    nest = nest_of(words)
    for estimated, schedule in ranked_schedules(nest, TAIL, 5, MEMORY):
        assert estimated == pytest.approx(cycles(nest, schedule), rel=0.06)


def test_two_threads_hide_the_transfers_that_one_waits_for() -> None:
    """Public figures of VTA on this layer: the core is busy 94 % of the time with two virtual
    threads and 78 % with one, on the RTL; one thread's share depends on the tiles."""
    nest = nest_of(LAYERS[0])
    tiles = {"n.o": 1, "k.o": 2, "p.o": 14, "q.o": 14, "c.o": 1, "r.o": 3, "s.o": 3}
    two = Schedule(tiles, ("k.o", "n.o", "p.o", "q.o", "c.o", "r.o", "s.o"), trim=False)
    one = replace(two, threads=1, slots=(1, 1))
    products = np.prod(list(nest.extents.values()))
    assert products / cycles(nest, two) == pytest.approx(0.94, abs=0.01)
    assert 0.7 < products / cycles(nest, one) < 0.8


def test_no_schedule_beats_the_bound_even_where_tiles_of_zeros_are_skipped() -> None:
    nest = nest_of("conv2d n=1 c=16 h=6 w=6 k=16 r=3 s=3 pad=2")
    tiles = dict.fromkeys(nest.extents, 1) | {"q.o": 8, "s.o": 3}
    order = tuple(nest.extents)
    for schedule in (default_schedule(nest, TAIL, MEMORY), Schedule(tiles, order)):
        assert cycles(nest, schedule) >= bounds(nest, TAIL, MEMORY).busiest_module


@pytest.mark.parametrize("bits", [128, 256, 512])
def test_no_schedule_beats_the_bound_on_buses_that_hold_several_tiles(bits: int) -> None:
    memory = MemorySystem(bus_bits=bits)
    nest = nest_of("gemm m=1 n=1024 k=512")
    bound = bounds(nest, TAIL, memory)
    assert bound.busiest_module <= cycles(nest, default_schedule(nest, TAIL, memory), memory)
    # All operands once: INP's tiles have 16 bytes, WGT's 256.
    assert bound.read == (32 * 16 + 32 * 64 * 256) // (bits // 8)


@pytest.mark.parametrize("bits", [64, 128, 256, 512])
@pytest.mark.parametrize("tiles", [1, 40, 100])
def test_the_estimated_cycles_of_a_store_are_those_of_one_in_a_piece(bits, tiles) -> None:
    memory, config = MemorySystem(bus_bits=bits), VtaConfig()
    code = (Store(Memory.OUT, 0, 0, 1, tiles, tiles), Load(Memory.UOP, 0, 0, 0, 0, 0), Finish())
    timing = time_program(
        VtaProgram(config, code, np.zeros(0, np.uint8), {}), memory, checked=False
    )
    taken = (timing.event("done") - timing.event("issued"))[0]
    assert store_cycles(np.array([tiles]), config, memory)[0] == taken


def test_a_layer_that_fits_nowhere_is_refused() -> None:
    program = best_program("gemm m=4 n=48 k=32", "vta_1x16x16", "strict")
    # One accumulator, which the bias takes.
    nest = with_bias(tile_nest(program, replace(VtaConfig(), log_acc_buff=6)), (1,))
    with pytest.raises(LoweringError, match="single tiles exceed the buffers"):
        default_schedule(nest, TAIL, MEMORY)


def test_the_halo_is_added_by_loads_and_not_stored() -> None:
    nest = nest_of(CONV[0])
    assert nest.inp.shape == (1, 2, 8, 8)
    tile = {name: (0, extent) for name, extent in nest.extents.items()}
    boxes = region_of(nest.inp, tile).loads
    assert {(b.y_before, b.y_after, b.x_before, b.x_after) for b in boxes} == {(1, 1, 1, 1)}
    assert [(b.y, b.x, b.x_stride, b.sram, b.dram) for b in boxes] == [
        (8, 8, 8, 0, 0),
        (8, 8, 8, 100, 64),
    ]


def test_rows_that_a_stride_skips_are_not_stored() -> None:
    nest = nest_of(LAYERS[2])
    assert nest.inp.shape == (1, 8, 14, 14)


def test_contiguous_dimensions_are_one_transfer() -> None:
    nest = nest_of("gemm m=8 n=48 k=64")
    tile = {"m.o": (2, 4), "n.o": (0, 3), "k.o": (0, 4)}
    (inp,) = region_of(nest.inp, tile).loads
    assert (inp.y, inp.x, inp.dram) == (1, 16, 8)
    (wgt,) = region_of(nest.wgt, tile | {"k.o": (1, 2)}).loads
    assert (wgt.y, wgt.x, wgt.x_stride, wgt.dram) == (3, 2, 4, 1)


def test_operands_that_stay_are_loaded_once() -> None:
    """All weights fit: one LOAD, whatever the number of output tiles."""
    nest = nest_of("conv2d n=4 c=32 h=8 w=8 k=32 r=3 s=3 pad=1")
    tiles = {"n.o": 1, "k.o": 2, "p.o": 4, "q.o": 8, "c.o": 2, "r.o": 3, "s.o": 3}
    emitted = emit(nest, Schedule(tiles, tuple(tiles)), Truncated(), Addresses(0, 0, (0,), 0))
    loads = [i for i in emitted.instructions if isinstance(i, Load)]
    assert sum(load.memory is Memory.WGT for load in loads) == 1
    assert sum(isinstance(i, Store) for i in emitted.instructions) == 8


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("words", [CONV[0], "gemm m=7 n=80 k=48"])
def test_the_tensorir_function_records_the_same_program(words: str, seed: int) -> None:
    nest = nest_of(words)
    schedule = random_schedule(nest, random.Random(seed))
    addresses = Addresses(64, 128, (4096,), 65536)
    direct = emit(nest, schedule, TAIL, addresses)
    recorded = emit_through_tensorir(nest, schedule, TAIL, addresses)
    assert recorded.instructions == direct.instructions
    np.testing.assert_array_equal(recorded.uops, direct.uops)


def test_the_tensorir_text_is_a_nest_of_runtime_calls() -> None:
    nest = nest_of("gemm m=7 n=80 k=48")
    text = tensorir_source(nest, Schedule({"m.o": 2, "n.o": 5, "k.o": 3}, ("m.o", "n.o", "k.o")))
    assert "for m_o_0 in T.serial(4):" in text
    assert "m_o_0 * 2, T.min(2, 7 - m_o_0 * 2), n_o_1 * 5, 5, k_o_2 * 3, 3" in text
    for operation in ("reset", "load", "multiply", "finish"):
        assert f'T.call_packed("cpembed.vta.{operation}"' in text


def test_occupancy_counts_threads_and_slots() -> None:
    nest = nest_of(CONV[0])
    tiles = {"n.o": 1, "k.o": 2, "p.o": 4, "q.o": 8, "c.o": 1, "r.o": 3, "s.o": 3}
    schedule = Schedule(tiles, tuple(tiles), slots=(3, 2))
    assert occupancy(nest, schedule) == {
        Memory.INP: (3 * 6 * 10, 2048),
        Memory.WGT: (2 * 2 * 9, 1024),
        Memory.ACC: (2 * 2 * 4 * 8, 2048),
    }


def test_the_tuner_has_both_orders_one_thread_and_two() -> None:
    found = list(forms(nest_of(CONV[0])))
    assert {form.threads for form in found} == {1, 2}
    assert {form.thread_loop for form in found} == {None, "k.o", "p.o", "q.o"}
    assert {form.order[0] for form in found} == {"k.o", "n.o"}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "words",
    [
        "conv2d n=1 c=16 h=7 w=6 k=16 r=3 s=3 pad=1",
        "conv2d n=1 c=16 h=9 w=5 k=16 r=3 s=2 pad=3 stride=2 dilation=2",
        "conv2d n=1 c=16 h=6 w=6 k=16 r=1 s=1 pad=2",
        "conv1d n=2 c=16 w=9 k=16 s=5 pad=2",
    ],
)
def test_trimmed_parts_have_every_product_with_the_image_once(words: str, seed: int) -> None:
    """By enumeration of the points of random tiles."""
    nest = nest_of(words)
    assert nest.inp.padded_x is not None
    rng = random.Random(seed)
    names = list(nest.extents)
    for step in itertools.islice(steps(nest, random_schedule(nest, rng)), 20):
        parts = trimmed_tiles(nest.inp, step.tile)
        found = [point for part in parts for point in points_of(part, names)]
        assert len(found) == len(set(found))
        kept = {point for point in points_of(step.tile, names) if is_stored(nest, names, point)}
        assert kept == {point for point in found if is_stored(nest, names, point)}
        if parts != [step.tile]:
            assert kept == set(found)


def points_of(tile, names: list[str]) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(tile[n][0], sum(tile[n])) for n in names)))


def is_stored(nest: TileNest, names: list[str], point: tuple[int, ...]) -> bool:
    values = dict(zip(names, point, strict=True))
    positions = [index.evaluate(values) for index in nest.inp.access]
    return all(0 <= at < n for at, n in zip(positions, nest.inp.shape, strict=True))


def test_a_step_is_trimmed_where_that_is_faster() -> None:
    """Of 441 products of a 7x7 image 361 are with the image: eight more instructions, of 10 cycles
    each, pay for leaving out the others of four channels, and not of one."""
    order = tuple(nest_of(CONV[0]).extents)
    for channels, instructions, products in ((64, 9, 4 * 361), (16, 1, 441)):
        nest = nest_of(f"conv2d n=1 c=16 h=7 w=7 k={channels} r=3 s=3 pad=1")
        schedule = Schedule(dict(nest.extents), order, threads=1, slots=(1, 1))
        emitted = emit(nest, schedule, TAIL, Addresses(0, 0, (0,), 0))
        gemms = [i for i in emitted.instructions if isinstance(i, Gemm) and not i.reset]
        executed = sum((g.uop_end - g.uop_begin) * g.outer * g.inner for g in gemms)
        assert (len(gemms), executed) == (instructions, products)
