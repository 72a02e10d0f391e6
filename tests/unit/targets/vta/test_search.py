"""The search: deterministic, distinct proposals, and better than what estimates alone choose."""

from __future__ import annotations

import pytest

from cpembed.runtime.tuning.session import Search, screened
from cpembed.runtime.tuning.space import Proposal, Scored
from cpembed.targets.vta.estimate import default_schedule
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.target import VtaTuner
from cpembed.targets.vta.tuning import canonical
from tests.unit.targets.vta.tuning import designs, machine, measure, nest_of


def bumpy(proposal: Proposal[Schedule]) -> int:
    """Cycles that estimates know nothing of: large tiles of one loop are cheap."""
    return round(proposal.estimate * (2 - proposal.schedule.slots[0] / 8))


def search(trials: int, seed: int = 0) -> list[tuple[int, Proposal[Schedule]]]:
    untuned = designs()[0].space.best().schedule
    found_by = Search(designs(), untuned, seed, VtaTuner.spread)
    found: list[tuple[int, Proposal[Schedule]]] = []
    for proposal in found_by.proposals(trials):
        found.append((bumpy(proposal), proposal))
        found_by.tell(proposal, found[-1][0])
    return found


def test_the_first_proposal_is_what_runs_untuned() -> None:
    design = designs()[0]
    expected = default_schedule(nest_of(design), machine().tail, machine().memory)
    _, first = search(1)[0]
    assert (first.design, first.schedule) == (design, canonical(nest_of(design), expected))


def test_proposals_are_distinct_and_as_many_as_asked() -> None:
    found = search(40)
    assert len({proposal.key for _, proposal in found}) == len(found) == 40


@pytest.mark.slow
def test_more_trials_begin_with_the_same_ones() -> None:
    few, many = search(13), search(40)
    assert [p.key for _, p in many[:13]] == [p.key for _, p in few]


@pytest.mark.slow
def test_a_seed_decides_the_proposals() -> None:
    keys = [[proposal.key for _, proposal in search(40, seed)] for seed in (3, 3, 4)]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.slow
def test_neighbours_find_what_estimates_do_not_know() -> None:
    found = search(60)
    by_estimate = screened(designs(), 60)
    assert min(cycles for cycles, _ in found) < 0.95 * min(map(bumpy, by_estimate))


def test_a_schedule_that_cannot_be_lowered_is_a_trial_with_a_reason() -> None:
    design = designs()[0]
    _, first = search(1)[0]
    whole = {loop.name: loop.extent for loop in nest_of(design).loops}
    schedule = canonical(nest_of(design), Schedule(whole, first.schedule.order))
    wrong = Proposal(design, Scored(1.0, Schedule({**whole, "p.o": 99}, schedule.order)))
    trial = measure(wrong)
    assert trial.cycles is None
    assert "p.o" in str(trial.error)
    assert measure(first).cycles is not None
