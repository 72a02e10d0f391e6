"""Floors: what a program is said to do at least, against the programs themselves."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpembed.errors import LoweringError
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.index import IndexExpr
from cpembed.targets.vta import bounds as vta_bounds
from cpembed.targets.vta.bounds import Floors, bounds
from cpembed.targets.vta.energy import energy_counts, work_of
from cpembed.targets.vta.isa import Memory
from cpembed.targets.vta.lower import lower
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.specification import vta_config
from cpembed.targets.vta.tail import Exact, Requantized, Tail, Truncated
from cpembed.targets.vta.tiles import TileNest, tile_nest
from cpembed.targets.vta.timing import MemorySystem, time_program
from cpembed.transform.program import DerivedProgram
from tests.unit.targets.vta.lowering import TAILS, make_spec, random_programs, random_schedule

LAYERS = (
    ("gemm m=9 n=20 k=40", "relaxed"),
    ("conv2d n=1 c=5 h=9 w=11 k=7 r=3 s=3 pad=1", "complete"),
    ("conv2d n=2 c=24 h=13 w=13 k=20 r=5 s=5 pad=2 stride=2", "complete"),
    ("conv2d n=1 c=3 h=20 w=20 k=17 r=7 s=7 pad=3 stride=2", "fused"),
    ("depthwise n=1 c=32 h=12 w=12 r=3 s=3 pad=1 stride=2", "complete"),
)
PARTLY_READ = (
    ("conv2d n=1 c=64 h=13 w=13 k=16 r=2 s=2 pad=0 stride=3", "complete"),  # rows skipped
    ("O[2*p,k] += I[p,c]*W[c,k] p=5 k=40 c=40", "complete"),  # rows not written
    ("conv2d n=1 c=64 h=1 w=1 k=64 r=3 s=3 pad=1", "strict_padded"),  # weights on padding only
    ("conv2d n=1 c=128 h=1 w=1 k=16 r=1 s=1 pad=5", "strict_padded"),  # outputs of zeros first
    # Steps that load what no product reads.
    ("conv2d n=1 c=64 h=1 w=1 k=32 r=2 s=2 pad=4 dilation=3 stride=2", "strict_padded"),
)
"""Layers of which a program need not read or write everything, or not wait for it."""
BUSES = (
    MemorySystem(),
    MemorySystem(40, 128, 8),
    MemorySystem(0, 512, 16),
    MemorySystem(3, 256, 2),
)


def check_floor(
    program: DerivedProgram, config, tail: Tail, memory: MemorySystem, rng: random.Random
) -> None:
    lowered = lower(program, config, None, tail)
    schedule = random_schedule(lowered.nest, rng)
    schedule = replace(schedule, reuse=rng.random() < 0.8, trim=rng.random() < 0.8)
    if rng.random() < 0.3:
        schedule = lowered.schedule
    try:
        image = lower(program, config, schedule, tail).empty_image()
    except LoweringError:
        return
    floor = Floors(lowered.nest, tail, memory).floor(schedule)
    timing, work = time_program(image, memory), work_of(image)
    assert floor.cycles <= timing.cycles
    assert floor.work.products <= work.products == timing.gemm_cycles
    # Transfers are what they are, whatever is left out of products.
    for kind in (Memory.INP, Memory.WGT, Memory.OUT):
        assert floor.work.moved[kind] == work.moved[kind]
        assert work.moved[kind] * config.element_bytes(kind) == timing.bytes[kind.name]
    assert floor.work.resets <= work.resets
    assert floor.work.operations <= work.operations
    lower_counts, exact = energy_counts(floor.work, config), energy_counts(work, config)
    assert all(lower_counts[name] <= value for name, value in exact.items())
    least = bounds(lowered.nest, tail, memory)
    assert least.busiest_module <= timing.cycles
    assert least.gemm <= work.products
    size = {kind: config.element_bytes(kind) for kind in Memory}
    read = sum(work.moved[kind] * size[kind] for kind in (Memory.INP, Memory.WGT))
    # Each operand's last beat may be a part of one.
    assert least.read <= read // memory.beat_bytes + 2


@pytest.mark.quick(1)
@pytest.mark.parametrize("target", ["vta_1x16x16", "vta_8x8x8"])
@pytest.mark.parametrize("words, constraints", LAYERS)
def test_no_program_does_less_than_its_floor(words, constraints, target) -> None:
    rng = random.Random(f"{words} {target}")
    spec = load_hardware_spec(target)
    for program in random_programs(words, spec, constraints, 6, 3):
        for _ in range(2):
            check_floor(program, vta_config(spec), rng.choice(TAILS[:3]), rng.choice(BUSES), rng)


@pytest.mark.slow
@pytest.mark.parametrize("batch, block", [(1, 4), (1, 32), (2, 8), (4, 16), (16, 4)])
@pytest.mark.parametrize("words, constraints", LAYERS)
def test_floors_of_many_programs(words, constraints, batch, block, tmp_path: Path) -> None:
    rng = random.Random(f"{words} {batch} {block}")
    spec = make_spec(batch, block, tmp_path)
    for program in random_programs(words, spec, constraints, 60, 5):
        for _ in range(3):
            check_floor(program, vta_config(spec), rng.choice(TAILS[:3]), rng.choice(BUSES), rng)


@pytest.mark.quick(1)
@pytest.mark.parametrize("words, constraints", PARTLY_READ)
def test_nothing_counts_that_no_program_has_to_do(words, constraints) -> None:
    rng = random.Random(words)
    spec = load_hardware_spec("vta_1x16x16")
    programs = random_programs(words, spec, constraints, 4, 1)
    for program in itertools.islice(itertools.cycle(programs), 40):
        check_floor(program, vta_config(spec), rng.choice(TAILS[:3]), rng.choice(BUSES), rng)


@pytest.mark.parametrize(
    "layer, tail, order, tiles, threads, slots",
    [
        # Outputs of zeros are stored while the first operands are loaded.
        (PARTLY_READ[3], Requantized(9), "q p n k s r c", "1 1 1 5 8 1 1", 2, (2, 1)),
        (PARTLY_READ[3], Requantized(9), "k n p q s c r", "1 1 1 9 8 1 1", 2, (1, 3)),
        # Nothing waits for what no product reads.
        (PARTLY_READ[4], Truncated(), "q p n k s c r", "1 2 1 3 2 2 1", 2, (1, 2)),
        (PARTLY_READ[4], Requantized(9), "p n k q r s c", "1 2 2 3 2 1 1", 1, (2, 1)),
    ],
)
def test_nothing_waits_that_need_not(layer, tail, order, tiles, threads, slots) -> None:
    spec, memory = load_hardware_spec("vta_1x16x16"), MemorySystem()
    words, constraints = layer
    (program,) = random_programs(words, spec, constraints, 1, 0)
    names = [f"{name}.o" for name in "nkpqcrs"]
    sizes = dict(zip(names, map(int, tiles.split()), strict=True))
    schedule = Schedule(sizes, tuple(f"{n}.o" for n in order.split()), threads, None, slots)
    lowered = lower(program, vta_config(spec), schedule, tail)
    cycles = time_program(lowered.empty_image(), memory).cycles
    assert Floors(lowered.nest, tail, memory).floor(schedule).cycles <= cycles


def test_the_floor_of_the_default_schedule_is_near(tmp_path: Path) -> None:
    """Where modules overlap, hardly anything is left out of account."""
    spec = load_hardware_spec("vta_1x16x16")
    words = "conv2d n=1 c=64 h=28 w=28 k=64 r=3 s=3 pad=1"
    (program,) = random_programs(words, spec, "strict", 1, 0)
    tail = Requantized(9)
    lowered = lower(program, vta_config(spec), None, tail)
    cycles = time_program(lowered.empty_image()).cycles
    floor = Floors(lowered.nest, tail, MemorySystem()).floor(lowered.schedule)
    assert cycles <= 1.04 * floor.cycles


def products(nest: TileNest) -> int:
    """By a walk of all points of the loops."""
    count = 0
    for place in itertools.product(*map(range, nest.extents.values())):
        values = dict(zip(nest.extents, place, strict=True))
        at = [index.evaluate(values) for index in nest.inp.access]
        count += all(0 <= x < size for x, size in zip(at, nest.inp.shape, strict=True))
    return count


def sheared(nest: TileNest) -> TileNest:
    """Its rows also move by the first loop of its columns."""
    packed, (row, column) = nest.inp.packed, [k for k, s in enumerate(nest.inp.shape) if s > 1]
    access = list(packed.access)
    access[row] = IndexExpr((*access[row].terms, access[column].terms[0]), access[row].constant)
    return replace(nest, inp=replace(nest.inp, packed=replace(packed, access=tuple(access))))


def test_products_that_multiply_more_than_zeros_are_counted() -> None:
    """Also where dimensions of the input share a loop."""
    spec = load_hardware_spec("vta_1x16x16")
    words = "conv2d n=1 c=3 h=9 w=7 k=7 r=3 s=3 pad=1 stride=2"
    (padded,) = random_programs(words, spec, "strict_padded", 1, 0)
    nest = tile_nest(padded, vta_config(spec))
    others = random_programs(words, spec, "complete", 12, 3)
    nests = [nest, sheared(nest), *(tile_nest(one, vta_config(spec)) for one in others)]
    assert products(nests[1]) < products(nests[0]) < math.prod(nest.extents.values())
    for one in nests:
        assert bounds(one, Exact(), MemorySystem()).gemm == products(one)


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 7])
def test_slots_hold_what_was_used_last(slots: int) -> None:
    """Against a list that is searched and reordered."""
    rng = random.Random(slots)
    for _ in range(200):
        kinds, length = rng.randint(1, 9), rng.randint(1, 60)
        walked = [rng.randrange(kinds) if rng.random() < 0.4 else k % kinds for k in range(length)]
        region = np.array(walked)
        region = region[np.append(True, region[1:] != region[:-1])]
        held: list[int] = []
        expected: list[bool] = []
        for number in region.tolist():
            expected.append(number not in held)
            held = [*(other for other in held if other != number), number][-slots:]
        assert vta_bounds._misses(region, slots).tolist() == expected


def test_all_bits_are_stored_four_times() -> None:
    spec = load_hardware_spec("vta_1x16x16")
    (program,) = random_programs("gemm m=4 n=16 k=16", spec, "strict", 1, 0)
    image = lower(program, vta_config(spec), None, Exact()).empty_image()
    assert work_of(image).moved[Memory.OUT] == 4 * 4
