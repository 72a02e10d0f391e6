"""The space of a search on a CPU: names of schedules, neighbours, embeddings that differ."""

from __future__ import annotations

import random

import pytest

from cpembed.api.solve import hardware_spec
from cpembed.errors import LoweringError
from cpembed.kernel.plan import Knobs
from cpembed.targets.cpu.register_blocks import apply_knobs
from cpembed.targets.cpu.space import (
    CpuProposal,
    canonical,
    design_of,
    distinct,
    neighbour,
    proposal,
    transferred,
)
from tests.unit.targets.cpu.tuning import LAYER, TARGET, candidates, designs, machine

LARGE = "gemm m=2048 n=2048 k=1024"


def start(words: str = LAYER) -> CpuProposal:
    design = designs(words)[0]
    found = proposal(design, design.ranked[0][1], "total")
    assert found is not None
    return found


@pytest.mark.parametrize("words", [LAYER, LARGE])
def test_neighbours_fit_and_everything_moves(words: str) -> None:
    source, every = random.Random(0), designs(words)
    first = start(words)
    moved: set[str] = set()
    for _ in range(300):
        found = neighbour(first, every, "total", source)
        if found is None:
            continue
        apply_knobs(found.design.space.nest, found.design.space.model, found.knobs)
        assert found.estimate == found.kernel.us + found.moves_us
        if found.design is not first.design:
            moved.add("embedding")
        elif found.knobs.blocks != first.knobs.blocks:
            moved.add("blocks")
        elif found.knobs.columns_outermost != first.knobs.columns_outermost:
            moved.add("order")
        elif found.knobs.panels != first.knobs.panels:
            moved.add("panels")
        elif found.knobs.streams != first.knobs.streams:
            moved.add("streams")
    assert {"embedding", "blocks", "order"} <= moved
    # Panels matter where there is more data than the near caches hold.
    assert ("panels" in moved) == (words == LARGE)
    assert ("streams" in moved) == first.design.space.model.streams


def test_panels_are_added_doubled_halved_and_removed_in_whole_blocks() -> None:
    source, design = random.Random(1), designs(LARGE)[0]
    loop = design.loops[0][0]
    parent = proposal(design, Knobs({loop.origin: 3}, True, {loop.origin: 12}), "total")
    assert parent is not None
    assert loop.extent == 128
    sizes: set[int | None] = set()
    for _ in range(400):
        found = neighbour(parent, [design], "total", source)
        if found is not None and found.knobs.blocks == parent.knobs.blocks:
            sizes.add(found.knobs.panels.get(loop.origin))
    assert {None, 6, 12, 24} <= sizes
    assert all(size is None or size % 3 == 0 for size in sizes)


def test_a_canonical_schedule_is_the_same_kernel() -> None:
    design, source = designs()[0], random.Random(2)
    loops = [loop for loops in design.loops for loop in loops]
    renamed = 0
    for _ in range(60):
        blocks = {loop.origin: source.choice((1, 1, 2)) for loop in loops}
        panels = {loop.origin: source.choice((loop.extent, loop.extent + 3)) for loop in loops}
        knobs = Knobs(blocks, source.random() < 0.5, panels)
        other = canonical(design, knobs)
        renamed += other != knobs
        assert canonical(design, other) == other
        try:
            expected = apply_knobs(design.space.nest, design.space.model, knobs)
        except LoweringError:
            continue
        assert apply_knobs(design.space.nest, design.space.model, other) == expected
    assert renamed > 30


def test_a_schedule_on_another_embedding_keeps_its_blocks() -> None:
    first, second, *_ = designs()
    knobs = Knobs({first.loops[0][0].origin: 3, first.loops[1][0].origin: 2}, False)
    found = transferred(knobs, first, second)
    assert found.blocks == {second.loops[0][0].origin: 3, second.loops[1][0].origin: 2}
    assert found.columns_outermost is False
    wide = Knobs({first.loops[1][0].origin: first.loops[1][0].extent})
    small = second.loops[1][0]
    assert transferred(wide, first, second).blocks == {small.origin: small.extent}


def test_embeddings_of_one_kernel_are_one_design() -> None:
    """Of axes that are fused with one of a single step, and digits of other names, the kernels and
    what is copied are the same: so are all estimates."""
    spec = hardware_spec(TARGET)
    every = [design_of(r, spec, machine()) for r in candidates(LAYER, "complete", 16)]
    found = distinct(every)
    assert distinct([*found, *every]) == found
    assert 1 < len(found) < len(every)

    def estimates(design: object) -> tuple[object, ...]:
        assert hasattr(design, "ranked")
        return tuple(estimate for estimate, _ in design.ranked)

    assert {estimates(d) for d in found} == {estimates(d) for d in every}
