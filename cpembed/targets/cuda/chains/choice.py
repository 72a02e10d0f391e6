"""Choice of a chain's kernel, in terms that reports and documents show."""

from __future__ import annotations

from collections import Counter
from typing import Any

from cpembed.embedding.coupling import Coupling, Mismatch
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.targets.chains import ChainCandidate, ChainChoice, PairCount
from cpembed.targets.cuda.chains.apart import ApartPlan, plan_apart
from cpembed.targets.cuda.chains.model import UnfusedTimes, estimate_apart
from cpembed.targets.cuda.chains.pairs import Pair, Pairs, find_pairs, prove
from cpembed.targets.cuda.chains.plan import ChainPlan
from cpembed.targets.cuda.chains.space import ScoredChain, has_kernel, ranked_plans
from cpembed.targets.cuda.model import Gpu
from cpembed.workloads.chains import ProductChain

MAX_CANDIDATES = 5
"""Maximum number of kernels of a choice, each of another pair or place of the operand between."""


def choose(chain: ProductChain, spec: HardwareSpec, gpu: Gpu) -> ChainChoice:
    """Pair the embeddings of a chain's products, and rank kernels of them.

    Parameters
    ----------
    chain : ProductChain
    spec : HardwareSpec
    gpu : Gpu
        GPU that times are estimated for.

    Raises
    ------
    LoweringError
        If the instruction fits one of the products in no way.
    """
    pairs = find_pairs(chain, spec)
    candidates: list[ChainCandidate] = []
    unavailable = ""
    pair = next((pair for pair in pairs.pairs if not pair.is_swapped), None)
    try:
        plans = _distinct(ranked_plans(pairs, gpu))
        candidates = [_candidate(scored) for scored in plans]
        pair = plans[0].plan.pair
    except LoweringError as error:
        unavailable = str(error)
    unfused = None if pair is None else _unfused(chain, pair, gpu)
    return ChainChoice(
        embeddings=pairs.embeddings,
        counts=_counts(pairs),
        coupling=_coupling_text(pairs),
        candidates=tuple(candidates),
        unavailable=unavailable,
        unfused=None if unfused is None else _unfused_candidate(*unfused),
        apart_us={} if unfused is None else unfused[1].by_kernel,
        stored_bytes=0 if unfused is None else unfused[1].stored_bytes,
        machine=gpu.name,
    )


def _unfused(chain: ProductChain, pair: Pair, gpu: Gpu) -> tuple[ApartPlan, UnfusedTimes] | None:
    """Return kernels apart; None if the operand between them is too large for them."""
    try:
        plan = plan_apart(chain, pair, gpu)
    except LoweringError:
        return None
    prove(pair)
    return plan, estimate_apart(plan, gpu)


def _unfused_candidate(plan: ApartPlan, times: UnfusedTimes) -> ChainCandidate:
    by_kernel = times.by_kernel
    busiest = max(by_kernel, key=lambda name: by_kernel[name])
    return _described(plan, "global memory", sum(by_kernel.values()), busiest)


def _distinct(plans: Any) -> list[ScoredChain]:
    """Return the fastest plan of each pair and place of the operand between."""
    first: dict[tuple[str, str, str], ScoredChain] = {}
    for scored in plans:
        plan = scored.plan
        sides = (plan.pair.first, plan.pair.second)
        key = (*(side.ranked.identifier for side in sides), plan.schedule.via)
        first.setdefault(key, scored)
    return list(first.values())[:MAX_CANDIDATES]


def _candidate(scored: ScoredChain) -> ChainCandidate:
    plan = scored.plan
    prove(plan.pair)
    return _described(plan, plan.schedule.via, scored.us, scored.estimate.bound.removesuffix("_us"))


def _described(plan: ChainPlan | ApartPlan, via: str, us: float, bound: str) -> ChainCandidate:
    return ChainCandidate(
        products=(plan.pair.first.ranked, plan.pair.second.ranked),
        via=via,
        schedule=plan.schedule_text,
        estimated_us=us,
        bound_by=bound,
        plan=plan,
    )


def _counts(pairs: Pairs) -> tuple[PairCount, ...]:
    """Return the number of pairs by outcome and reason, those in registers first."""
    counted: Counter[tuple[str, str, bool]] = Counter()
    for pair in pairs.pairs:
        kernels = has_kernel(pair)
        if isinstance(pair.coupling, Mismatch):
            counted["shared memory", pair.coupling.reason, kernels] += 1
        else:
            counted["registers", "", kernels] += 1
    order = sorted(counted.items(), key=lambda item: (item[0][0] != "registers", not item[0][2]))
    rows = [
        PairCount(outcome=outcome, reason=reason, pairs=number, kernels=kernels)
        for (outcome, reason, kernels), number in order
    ]
    rows += [
        PairCount(outcome="rejected", reason=reason, pairs=number, kernels=False)
        for reason, number in pairs.rejected.most_common()
    ]
    return tuple(rows)


def _coupling_text(pairs: Pairs) -> str:
    """Return how registers couple in the first pair whose registers do."""
    for pair in pairs.pairs:
        if isinstance(pair.coupling, Coupling) and not pair.is_swapped:
            coupling = pair.coupling
            order = "in order"
            if not coupling.is_ordered:
                order = "in the order " + " ".join(map(str, coupling.order))
            tiles = coupling.results[0] * coupling.results[1]
            return (
                f"{tiles} tiles of sums are {coupling.factors[0] * coupling.factors[1]} of the "
                f"factor, {order}"
            )
    return ""
