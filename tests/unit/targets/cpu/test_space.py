"""The space of a search on a CPU: names of schedules, neighbours, embeddings that differ."""

from __future__ import annotations

import random

import pytest

from cpembed.codegen.plan import Knobs
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.runtime.tuning.session import Search
from cpembed.runtime.tuning.space import distinct
from cpembed.targets.cpu.calibration import default_calibration
from cpembed.targets.cpu.schedules import apply_knobs
from cpembed.targets.cpu.target import schedule_space
from tests.unit.targets.cpu.tuning import (
    LAYER,
    CpuDesign,
    CpuProposal,
    candidates,
    design_of,
    designs,
    kernels,
    proposal,
    space_of,
)

LARGE = "gemm m=2048 n=2048 k=1024"


def start(words: str = LAYER) -> CpuProposal:
    design = designs(words)[0]
    found = proposal(design, kernels(design)[0])
    assert found is not None
    return found


def neighbour(
    parent: CpuProposal, every: list[CpuDesign], source: random.Random
) -> CpuProposal | None:
    """As a search makes them; None where a schedule does not fit."""
    return Search(every, parent.schedule, 0)._neighbour(parent, source)


@pytest.mark.quick(1)
@pytest.mark.parametrize("words", [LAYER, LARGE])
def test_neighbours_fit_and_everything_moves(words: str) -> None:
    source, every = random.Random(0), designs(words)
    first = start(words)
    moved: set[str] = set()
    for _ in range(300):
        found = neighbour(first, every, source)
        if found is None:
            continue
        schedules = space_of(found.design).schedules
        apply_knobs(schedules.nest, schedules.model, found.schedule)
        parts = found.scored.parts
        assert found.estimate == parts["us"] + parts["moves_us"]
        if found.design is not first.design:
            moved.add("embedding")
        elif found.schedule.register_tiles != first.schedule.register_tiles:
            moved.add("blocks")
        elif found.schedule.columns_outermost != first.schedule.columns_outermost:
            moved.add("order")
        elif found.schedule.cache_tiles != first.schedule.cache_tiles:
            moved.add("panels")
        elif found.schedule.non_temporal != first.schedule.non_temporal:
            moved.add("streams")
    assert {"embedding", "blocks", "order"} <= moved
    # Panels matter where there is more data than the near caches hold.
    assert ("panels" in moved) == (words == LARGE)
    assert ("streams" in moved) == space_of(first.design).schedules.model.streams


@pytest.mark.slow
def test_panels_are_added_doubled_halved_and_removed_in_whole_blocks() -> None:
    source, design = random.Random(1), designs(LARGE)[0]
    loop = space_of(design).loops[0][0]
    parent = proposal(design, Knobs({loop.origin: 3}, "columns", {loop.origin: 12}))
    assert parent is not None
    assert loop.extent == 128
    sizes: set[int | None] = set()
    for _ in range(400):
        found = neighbour(parent, [design], source)
        if found is not None and found.schedule.register_tiles == parent.schedule.register_tiles:
            sizes.add(found.schedule.cache_tiles.get(loop.origin))
    assert {None, 6, 12, 24} <= sizes
    assert all(size is None or size % 3 == 0 for size in sizes)


@pytest.mark.slow
def test_a_canonical_schedule_is_the_same_kernel() -> None:
    space, source = space_of(designs()[0]), random.Random(2)
    schedules = space.schedules
    loops = [loop for loops in space.loops for loop in loops]
    renamed = 0
    for _ in range(60):
        blocks = {loop.origin: source.choice((1, 1, 2)) for loop in loops}
        panels = {loop.origin: source.choice((loop.extent, loop.extent + 3)) for loop in loops}
        knobs = Knobs(blocks, source.random() < 0.5, panels)
        other = space.canonical(knobs)
        renamed += other != knobs
        assert space.canonical(other) == other
        try:
            expected = apply_knobs(schedules.nest, schedules.model, knobs)
        except LoweringError:
            continue
        assert apply_knobs(schedules.nest, schedules.model, other) == expected
    assert renamed > 30


@pytest.mark.slow
def test_a_schedule_on_another_embedding_keeps_its_blocks() -> None:
    first, second = (space_of(design) for design in designs()[:2])
    knobs = Knobs({first.loops[0][0].origin: 3, first.loops[1][0].origin: 2}, "rows")
    found = second.transferred(knobs, first)
    assert found is not None
    assert found.register_tiles == {second.loops[0][0].origin: 3, second.loops[1][0].origin: 2}
    assert found.columns_outermost is False
    wide = Knobs({first.loops[1][0].origin: first.loops[1][0].extent})
    small = second.loops[1][0]
    moved = second.transferred(wide, first)
    assert moved is not None
    assert moved.register_tiles == {small.origin: small.extent}


def test_embeddings_of_one_kernel_are_one_design() -> None:
    """Of axes that are fused with one of a single step, and digits of other names, the kernels and
    what is copied are the same: so are all estimates."""
    every = [design_of(ranked) for ranked in candidates(LAYER, "complete", 16)]
    found = distinct(every)
    assert distinct([*found, *every]) == found
    assert 1 < len(found) < len(every)

    def estimates(design: CpuDesign) -> tuple[object, ...]:
        return tuple(estimate for estimate, _ in space_of(design).schedules.ranked())

    assert {estimates(d) for d in found} == {estimates(d) for d in every}


@pytest.mark.parametrize(
    "words, target",
    [
        ("conv2d n=1 c=16 h=12 w=12 k=24 r=3 s=3 pad=1", "avx2_f32"),
        ("conv2d n=1 c=8 h=9 w=9 k=16 r=5 s=5 pad=2 stride=2", "avx2_f32"),
        ("conv2d n=1 c=3 h=112 w=112 k=48 r=3 s=3 pad=1", "avx2_f32"),
        ("gemm m=37 n=40 k=64", "avx2_f32"),
        ("gemm m=2000 n=1000 k=8", "avx2_f32"),
        ("gemm m=4 n=16 k=4096", "avx2_int8"),
        (LAYER, "amx_int8"),
        (LARGE, "amx_int8"),
    ],
)
def test_few_schedules_are_the_first_of_all(words: str, target: str) -> None:
    """What a lower bound leaves out would not have been among them."""
    layer = workload(words, target)
    spec = hardware_spec(target)
    for found in solve(layer, target, constraints="in_place_padded", top=3).embeddings:
        machine = default_calibration(2)
        every = schedule_space(found.candidate.program, spec, machine).ranked()
        for limit in (1, 5, 24):
            few = schedule_space(found.candidate.program, spec, machine)
            assert few.ranked(limit) == every[:limit]
        schedules = schedule_space(found.candidate.program, spec, machine)
        assert all(schedules.least_us(knobs) <= estimate.us for estimate, knobs in every)
        # The bound is worth something: of the best schedule it is no tenth of the time.
        fastest, knobs = every[0]
        assert schedules.least_us(knobs) > fastest.us / 10
