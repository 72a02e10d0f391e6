"""The embedding that runs: the model's, with the moves around the kernel."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from cpembed.codegen.per_thread_packing import plan_packing
from cpembed.codegen.plan import Knobs
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import BackendUnavailable, LoweringError
from cpembed.runtime.tuning.space import Scored, Space
from cpembed.targets.capabilities import with_variants
from cpembed.targets.choice import ModelChoice, compared
from cpembed.targets.cpu.calibration import Calibration, default_calibration
from cpembed.targets.cpu.estimate import element_cost
from cpembed.targets.cpu.lowering import Lowered
from cpembed.targets.cpu.space import TIE_RATIO, Objective, copies_us
from cpembed.targets.cpu.target import schedule_space
from cpembed.targets.registry import open_target
from cpembed.targets.x86.target import X86Target
from tests.unit.targets.cpu.tuning import GEMM, LAYER, TARGET, Modelled, candidates, machine

SPEC = hardware_spec(TARGET)


def choose(
    ranked: Sequence[RankedCandidate], figures: Calibration, objective: Objective = "total"
) -> ModelChoice:
    return compared(Modelled(figures, objective), ranked)


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "2")


@pytest.mark.parametrize(
    "times, order",
    [
        ((30.0, 20.0, 25.0), [2, 3, 1]),
        ((20.3, 20.0, 25.0), [1, 2, 3]),
        ((21.0, 20.2, 20.0), [2, 3, 1]),
    ],
)
def test_the_least_total_time_is_first_and_the_order_decides_among_equals(
    monkeypatch: pytest.MonkeyPatch, times: tuple[float, ...], order: list[int]
) -> None:
    ranked = candidates(LAYER)[:3]
    given = {id(item.candidate.program): us for item, us in zip(ranked, times, strict=True)}

    class Given(Space[Knobs]):
        def __init__(self, us: float) -> None:
            self.us = us

        def ranked(self, limit: int | None = None) -> Sequence[Scored[Knobs]]:
            return [self.scored(Knobs())]

        def scored(self, schedule: Knobs) -> Scored[Knobs]:
            return Scored(self.us, schedule)

    def space(self: Modelled, lowered: Lowered) -> Given:
        return Given(given[id(lowered.program)])

    assert TIE_RATIO == Modelled.policy.tie_ratio == 1.02
    monkeypatch.setattr(Modelled, "space", space)
    found = choose(ranked, machine())
    assert [item.ranked.rank for item in found.estimates] == order
    assert (found.considered, found.refused) == (3, ())


@pytest.mark.slow
def test_an_expensive_copy_decides_for_what_is_used_in_place() -> None:
    """16 rows waste nothing of 96 and 1 row is in place: which is better is a matter of copies."""
    ranked = candidates(GEMM, "complete", 48)
    free = replace(machine(), copy_ns_per_line=0.0, launch_us=0.0, vector_line_ns=(0.0,) * 4)
    dear = replace(machine(), copy_ns_per_line=1e6)

    def copied_operands(figures: Calibration) -> float:
        return choose(ranked, figures).estimates[0].scored.parts["moves_us"]

    assert any(item.scored.parts["moves_us"] > 0 for item in choose(ranked, dear).estimates)
    assert copied_operands(dear) == 0
    assert copied_operands(free) == 0
    # Full use of the instruction with copies, half of it without.
    copied = next(r for r in ranked if not r.overheads.in_place)
    wasteful = next(r for r in ranked if r.overheads.utilisation == 0.5 and r.overheads.in_place)
    cases: tuple[tuple[Calibration, Objective, RankedCandidate], ...] = (
        (free, "total", copied),
        (dear, "kernel", copied),
        (dear, "total", wasteful),
    )
    for figures, objective, expected in cases:
        found = choose([copied, wasteful], figures, objective)
        assert found.estimates[0].ranked is expected


def test_moves_are_copies_of_what_is_not_packed_ahead() -> None:
    """The input is padded to 16 x 16 points of 64 bytes, by each thread for itself; the output has
    14 x 14 of 64 words, of which another thread wrote half."""
    program = candidates(LAYER)[0].candidate.program
    nest = schedule_space(program, SPEC).applied(Knobs())
    image, result = program.operand("I"), program.operand("O")
    assert image.elements == 16 * 16 * 64
    assert result.elements == 14 * 14 * 64
    near, far, _ = machine().cache_bytes
    packing = plan_packing(program, replace(nest, threads=2), (near / 2, far / 4), (0.0, 0.05, 1.0))
    assert packing is not None
    lines = 16 * 16 * element_cost(image) * packing.share(), 14 * 14 * 4 * element_cost(result)
    still = replace(machine(), vector_line_ns=(0.25, 0.5, 0.0, 4.0))
    figures = replace(still, copy_ns_per_line=1.0, launch_us=1e3, call_us=0.5)
    assert copies_us(program, figures, nest, packing) == pytest.approx(0.5 + sum(lines) / 1e3)
    # Much to copy is shared out.
    figures = replace(still, copy_ns_per_line=1e3, launch_us=1.0)
    assert copies_us(program, figures, nest, packing) == pytest.approx(
        1.0 + lines[0] + lines[1] / 2
    )
    figures = replace(figures, vector_line_ns=(0.25, 0.5, 2.0, 4.0))
    waited = 14 * 14 * 4 * 16 * 2.0 / 2 / 1e3
    assert copies_us(program, figures, nest, packing) == pytest.approx(
        1 + lines[0] + lines[1] / 2 + waited
    )
    # Or each thread unpacks what it wrote.
    assert copies_us(program, figures, nest, packing, {"O"}) == pytest.approx(
        1 + lines[0] + lines[1] / 2
    )


def test_moves_wait_for_what_is_in_no_near_cache() -> None:
    """An image of 12,544 bytes (14 x 14 x 64) is packed near; from beyond the second-level cache
    each of its lines takes longer, and so does each side of what a move of its own unpacks."""
    program = candidates(LAYER)[0].candidate.program
    nest = schedule_space(program, SPEC).applied(Knobs())
    figures = replace(
        machine(),
        threads=1,
        vector_line_ns=(0.0, 0.0, 3.0, 5.0),
        copy_ns_per_line=0.0,
        launch_us=0.0,
        call_us=0.0,
    )
    near, far, _ = figures.cache_bytes
    packing = plan_packing(program, replace(nest, threads=1), (near / 2, far / 4), (0.0, 0.05, 1.0))
    assert packing is not None
    image, result = 14 * 14, 14 * 14 * 4

    def waited(*cache_bytes: int) -> float:
        held = replace(figures, cache_bytes=(0, *cache_bytes))
        handed_over = result * 16 * 3.0 / 2
        return 1e3 * copies_us(program, held, nest, packing) - handed_over

    assert waited(1 << 20, 1 << 21) == pytest.approx(0)
    # The image fits, the sums of four bytes do not; two threads share their two sides.
    assert waited(1 << 15, 1 << 21) == pytest.approx(result * 3.0)
    assert waited(1 << 10, 1 << 21) == pytest.approx((image + result) * 3.0)
    assert waited(1 << 10, 1 << 11) == pytest.approx((image + result) * 5.0)


def test_what_the_instruction_cannot_execute_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ranked = candidates(LAYER)
    lower, wrong = Modelled.lower, ranked[0].candidate.program

    def refusing(self: Modelled, program: Any, epilogue: Any = None) -> Lowered:
        if program is wrong:
            raise LoweringError("rows at no constant distance")
        return lower(self, program, epilogue)

    monkeypatch.setattr(Modelled, "lower", refusing)
    found = choose(ranked, machine())
    assert (found.considered, found.refused) == (
        8,
        ((ranked[0].candidate.embedding.identifier(), "rows at no constant distance"),),
    )
    assert found.estimate_of(ranked[0]) is None
    assert found.estimate_of(ranked[1]) is not None


def test_a_target_without_a_back_end_is_an_error() -> None:
    solved = solve(workload("gemm m=16 n=16 k=16", target="gemm_16x16x16"), "gemm_16x16x16", top=1)
    with pytest.raises(BackendUnavailable, match="gemm_16x16x16"):
        open_target(solved.target)
    with pytest.raises(BackendUnavailable, match="gemm_16x16x16"):
        schedule_space(solved.embeddings[0].candidate.program, solved.target)


def test_candidates_of_another_process_are_known_by_their_ids() -> None:
    """Programs are built in the worker: what comes back is equal to what was sent, not the same."""
    target = open_target(hardware_spec("avx2_int8"))
    ranked = solve(workload("gemm m=8 n=16 k=16", target.spec), target.spec, top=3).embeddings
    model = compared(target, ranked)
    for item in ranked:
        again = pickle.loads(pickle.dumps(item))
        assert again is not item
        assert model.estimate_of(again) == model.estimate_of(item)
        assert (model.estimate_of(again) is None) == (model.why_refused(again) is not None)
    assert model.estimate_of(ranked[0]) is not None


def test_a_refused_candidate_is_said_with_its_reason() -> None:
    target = open_target(hardware_spec("avx2_int8"))
    ranked = solve(workload("gemm m=8 n=16 k=16", target.spec), target.spec, top=1).embeddings
    (name,) = (item.candidate.identifier for item in ranked)
    model = ModelChoice((), ((name, "the unit cannot read z with a stride"),))
    assert model.why_refused(ranked[0]) == "the unit cannot read z with a stride"
    assert model.estimate_of(ranked[0]) is None


@pytest.mark.parametrize(
    "words, target",
    [
        (LAYER, "amx_int8"),
        ("conv2d n=1 c=16 h=12 w=12 k=24 r=3 s=3 pad=1", "avx2_f32"),
        ("gemm m=37 n=40 k=64", "avx2_f32"),
        ("gemm m=30 n=24 k=50", "avx2_int16"),
    ],
)
@pytest.mark.parametrize("objective", ["total", "kernel"])
def test_bounds_leave_out_nothing_that_would_be_first(
    words: str, target: str, objective: Objective
) -> None:
    """Random selections and orders of candidates, with and without copies."""

    class Bounded(X86Target):
        @property
        def machine(self) -> Calibration:
            return default_calibration(2)

    spec, layer = hardware_spec(target), workload(words, target)
    every = solve(layer, target, constraints="complete", top=8).embeddings
    model = Bounded(spec, objective)
    every = tuple(with_variants(model, every, fuses=True))
    random, left_out = Random(0), 0
    for _ in range(3):
        ranked = random.sample(every, min(len(every), 4))
        complete, bounded = (compared(model, ranked, first_only=f) for f in (False, True))
        assert bounded.estimates[0].scored == complete.estimates[0].scored
        assert bounded.estimates[0].ranked is complete.estimates[0].ranked
        assert bounded.least == complete.least
        left_out += len(complete.estimates) - len(bounded.estimates)
        for item in complete.estimates:
            space = model.space(model.lower(item.ranked.candidate.program))
            assert space.least_best <= item.cost
            assert space.best_within(item.cost) == item.scored
            assert space.best_within(item.cost * 0.999) is None
    # The bounds are worth something where vectors, of which many candidates fit, copy operands.
    assert left_out or objective == "kernel" or target == "amx_int8"
