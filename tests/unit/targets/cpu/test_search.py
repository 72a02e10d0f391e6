"""The search on a CPU: deterministic, distinct proposals of several embeddings, better than what
the model alone chooses."""

from __future__ import annotations

import pytest

from cpembed.runtime.tuning.session import FIRST, Search
from cpembed.targets.cpu.target import CpuTuner
from tests.unit.targets.cpu.tuning import LAYER, CpuProposal, designs, kernels, proposal

LARGE = "gemm m=2048 n=2048 k=1024"


def bumpy(proposal: CpuProposal) -> float:
    """Microseconds that the model knows nothing of: small panels are fast."""
    return proposal.estimate * (1 + min(proposal.schedule.cache_tiles.values(), default=128) / 128)


def search(trials: int, seed: int = 0, words: str = LAYER) -> list[tuple[float, CpuProposal]]:
    every = designs(words)
    searched = Search(every, kernels(every[0])[3], seed, CpuTuner.spread)
    found: list[tuple[float, CpuProposal]] = []
    for proposed in searched.proposals(trials):
        found.append((bumpy(proposed), proposed))
        searched.tell(proposed, found[-1][0])
    return found


def keys(found: list[tuple[float, CpuProposal]]) -> list[str]:
    return [proposal.key for _, proposal in found]


@pytest.mark.slow
def test_the_first_proposal_is_what_runs_untuned() -> None:
    design = designs()[0]
    _, first = search(1)[0]
    assert first.design.identifier == design.identifier
    assert first.schedule == kernels(design)[3]


@pytest.mark.slow
def test_several_families_are_among_the_first() -> None:
    """Those whose estimate is not hopeless."""
    best: dict[str, float] = {}
    for design in designs():
        family = repr(design.candidate.embedding.family)
        us = design.space.ranked()[0].cost
        best[family] = min(best.get(family, us), us)
    families = {family for family, us in best.items() if us <= 2.0 * min(best.values())}
    assert 1 < len(families) < min(len(best), FIRST)
    first = [proposal for _, proposal in search(1 + len(families))[1:]]
    assert {repr(p.design.candidate.embedding.family) for p in first} == families
    estimates = [proposal.estimate for proposal in first]
    assert estimates == sorted(estimates)
    assert estimates[0] == min(proposal.estimate for _, proposal in search(60))


def test_proposals_are_distinct_and_as_many_as_asked() -> None:
    assert len(set(keys(search(40)))) == 40


@pytest.mark.slow
def test_more_trials_begin_with_the_same_ones() -> None:
    assert keys(search(40))[:13] == keys(search(13))


@pytest.mark.slow
def test_a_seed_decides_the_proposals() -> None:
    first, again, other = (keys(search(40, seed)) for seed in (3, 3, 4))
    assert first == again != other


@pytest.mark.slow
def test_neighbours_find_what_the_model_does_not_know() -> None:
    found = search(60, words=LARGE)
    proposed = [proposal(design, knobs) for design in designs(LARGE) for knobs in kernels(design)]
    ranked = [found for found in proposed if found is not None]
    best = sorted(ranked, key=lambda proposal: proposal.estimate)[:60]
    assert min(us for us, _ in found) < min(map(bumpy, best))
