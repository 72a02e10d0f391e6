"""The space of the tuner: names of schedules, neighbours, and the screening by estimates."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from cpembed.runtime.tuning.session import screened
from cpembed.runtime.tuning.space import distinct
from cpembed.targets.vta.lower import lower
from cpembed.targets.vta.schedule import Schedule, check_schedule
from cpembed.targets.vta.timing import time_program
from cpembed.targets.vta.tuning import canonical, neighbour
from tests.unit.targets.vta.lowering import schedules
from tests.unit.targets.vta.tuning import (
    LOW_CHANNEL,
    SMALL,
    designs,
    machine,
    nest_of,
    space_of,
)


def some_schedules(count: int, seed: int) -> list[Schedule]:
    """Random legal schedules, the wider space of neighbours included."""
    design, source = designs()[0], random.Random(seed)
    found: list[Schedule] = []
    enumerated = list(schedules(nest_of(design)))
    while len(found) < count:
        schedule = source.choice(enumerated)
        for _ in range(source.randrange(4)):
            schedule = neighbour(nest_of(design), schedule, source)
        if space_of(design).estimated(schedule) < float("inf"):
            found.append(schedule)
    return found


@pytest.mark.slow
def test_a_canonical_schedule_is_the_same_program() -> None:
    design = designs()[0]
    renamed = 0
    # Names are changed only where nothing else is: thread loops of one tile, too many slots, the
    # order of loops that are not cut.
    for schedule in some_schedules(25, seed=1):
        wasteful = Schedule(
            schedule.tiles,
            schedule.order,
            schedule.threads,
            schedule.thread_loop or ("p.o" if schedule.tiles["p.o"] == 8 else None),
            (schedule.slots[0] + 1, schedule.slots[1] + 1),
        )
        for one in (schedule, wasteful):
            if space_of(design).estimated(one) == float("inf"):
                continue
            other = canonical(nest_of(design), one)
            renamed += other != one
            program = design.candidate.program
            ours = lower(program, machine().config, one, machine().tail)
            theirs = lower(program, machine().config, other, machine().tail)
            assert ours.instructions == theirs.instructions, one
    assert renamed > 5


def test_neighbours_are_schedules_of_the_nest_and_all_knobs_move() -> None:
    design, source = designs()[0], random.Random(0)
    start = screened([design], 1)[0].schedule
    moved: set[str] = set()
    for _ in range(300):
        found = neighbour(nest_of(design), start, source)
        for knob in ("tiles", "order", "threads", "thread_loop", "slots"):
            if getattr(found, knob) != getattr(start, knob):
                moved.add(knob)
        if space_of(design).estimated(found) < float("inf"):
            check_schedule(nest_of(design), found)
    assert {"tiles", "order", "thread_loop", "slots"} <= moved


@pytest.mark.slow
def test_screening_finds_the_smallest_estimates_of_all_designs() -> None:
    few = designs(SMALL)
    found = screened(few, 6)
    every = [
        space_of(design).estimated(schedule)
        for design in few
        for schedule in schedules(nest_of(design))
    ]
    assert found[0].estimate == min(every)
    assert [p.estimate for p in found] == sorted(p.estimate for p in found)
    assert len({p.key for p in found}) == len(found)
    assert max(Counter(p.design.identifier for p in found).values()) == 6


def test_no_schedule_of_a_design_beats_its_bound() -> None:
    for design in designs(LOW_CHANNEL)[:2]:
        for schedule in list(schedules(nest_of(design)))[:: max(1, 4000)]:
            lowered = lower(
                design.candidate.program,
                machine(LOW_CHANNEL).config,
                schedule,
                machine(LOW_CHANNEL).tail,
            )
            cycles = time_program(lowered.empty_image(), machine(LOW_CHANNEL).memory).cycles
            assert cycles >= space_of(design).bounds.busiest_module


def test_embeddings_with_one_tile_nest_are_one_design() -> None:
    first, *others = designs(LOW_CHANNEL)
    assert distinct([first, first]) == [first]
    found = distinct([first, *others])
    assert found[0] is first
    kinds = {(space_of(d).bounds.gemm, nest_of(d).loops) for d in found}
    assert len(kinds) == len(
        {(space_of(d).bounds.gemm, nest_of(d).loops) for d in (first, *others)}
    )


@pytest.mark.parametrize("limit", [1, 3])
def test_screening_keeps_to_its_limit(limit: int) -> None:
    """So many of each embedding."""
    found = screened(designs(), limit)
    counts = Counter(proposal.design.identifier for proposal in found)
    assert set(counts.values()) == {limit}
    assert len(counts) <= len(designs())
