"""Which embeddings a CPU's model chooses among."""

from __future__ import annotations

import pytest

from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.options import WIDER, SearchOptions
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import TopCandidates, searches, solve
from cpembed.embedding.constraint_set import Weights
from cpembed.targets.base import CONSIDERED
from cpembed.targets.capabilities import Weighing, with_variants
from cpembed.targets.choice import choices, compared
from cpembed.targets.cpu import calibration
from cpembed.targets.cpu.calibration import model_constants
from cpembed.targets.cpu.space import CONSIDERED_ON_CPU, PRODUCTS, machine_weights, shortlist
from cpembed.targets.cpu.variants import OVER_WINDOWS
from cpembed.targets.registry import open_target
from tests.unit.targets.cpu.tuning import TARGET, Modelled, machine

SPEC = hardware_spec(TARGET)
STEM = "conv2d n=1 c=3 h=32 w=32 k=64 r=7 s=7 stride=2 pad=3 layout=NHWC"


@pytest.fixture(autouse=True)
def usual_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    monkeypatch.setattr(calibration, "load_calibration", lambda *_: None)
    calibration.calibration.cache_clear()


@pytest.mark.slow
def test_few_channels_fill_the_instruction_together_with_a_row_of_the_window() -> None:
    layer, target = workload(STEM, target=TARGET), open_target(SPEC)

    def weights_here(first: SolveResult) -> Weights | None:
        assert isinstance(target, Weighing)
        return target.weights(first.embeddings)

    first, second = searches(
        layer, SPEC, SearchOptions(), TopCandidates(CONSIDERED), reweigh=weights_here
    )
    plain, fused = first.embeddings, second.embeddings
    assert {ranked.constraints for ranked in fused} == {WIDER}
    # Ranked by what overheads cost here.
    assert second.constraints.weights == weights_here(first) != first.constraints.weights
    ranked = choices(target, with_variants(target, [*plain, *fused]))
    chosen = next(c for c in ranked if "over" not in c.ranked.constraints)
    assert chosen.ranked.constraints == WIDER
    assert chosen.to_json(target)["model"]["constraints"] == WIDER
    assert ("s", "c") in chosen.ranked.embedding.flattened.values()
    assert chosen.ranked.overheads.utilisation == 3 * plain[0].overheads.utilisation
    # Whole windows fill it even better: 3 steps of 64 for 147 instead of 7 for 7 times 21.
    windows = next(c for c in ranked if c.candidate.constraints.endswith(OVER_WINDOWS))
    assert ("r", "s", "c") in windows.candidate.embedding.flattened.values()
    assert windows.candidate.overheads.utilisation == 7 * plain[0].overheads.utilisation


@pytest.mark.parametrize("layer", ["gemm m=64 n=64 k=64", "gemm m=14 n=64 k=64"])
def test_where_the_instruction_is_well_used_nothing_is_searched(layer: str) -> None:
    def never(first: SolveResult) -> None:
        raise AssertionError

    typed = workload(layer, target=TARGET)
    found = searches(typed, SPEC, SearchOptions(), TopCandidates(CONSIDERED), reweigh=never)
    assert len(found) == 1


def test_weights_of_a_machine_are_times() -> None:
    """What an element costs to copy, in units of a multiply-accumulate's."""
    found = solve(workload("gemm m=64 n=64 k=64", target=TARGET), SPEC, top=1).embeddings
    modelled = compared(Modelled(machine()), found).estimates[0]
    weights = machine_weights(modelled, machine())
    per_mac = modelled.scored.parts[PRODUCTS] * 1e3 / (64 * 64 * 64)
    assert weights.mac == 1.0
    assert weights.data == pytest.approx(
        machine().copy_ns_per_line / 64 / 2 * model_constants().scattered / per_mac
    )


def test_axes_that_can_be_read_as_they_lie_are_among_what_the_model_chooses_from() -> None:
    """At 7 by 7 points, tiles of two image axes are the best by their overheads, and all of them
    move each operand."""
    layer = workload("conv2d n=1 c=64 h=7 w=7 k=64 r=1 s=1 layout=NHWC", target=TARGET)
    every = solve(layer, SPEC, constraints="in_place_padded", top=CONSIDERED_ON_CPU)
    chosen = shortlist(every.embeddings)
    best = [item.candidate.embedding.family["x"] for item in every.embeddings[:CONSIDERED]]
    assert ("q",) not in best
    assert chosen[:CONSIDERED] == every.embeddings[:CONSIDERED]
    assert ("q",) in [item.candidate.embedding.family["x"] for item in chosen[CONSIDERED:]]
    assert [item.rank for item in chosen] == sorted(item.rank for item in chosen)
