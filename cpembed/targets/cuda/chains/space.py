"""Schedules of a chain's pairs, ranked by their estimated times on a described GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cpembed.errors import LoweringError
from cpembed.targets.cuda.chains.model import work_of
from cpembed.targets.cuda.chains.pairs import Pair, Pairs, Via
from cpembed.targets.cuda.chains.plan import ChainPlan, ChainSchedule, check
from cpembed.targets.cuda.model import Gpu, GpuEstimate, estimate
from cpembed.workloads.chains import ProductChain, RowSoftmax

WARPS: dict[Via, tuple[tuple[int, int], ...]] = {
    "registers": ((1, 1), (2, 1), (4, 1), (8, 1)),
    "shared memory": ((1, 2), (2, 2), (1, 4), (2, 4), (4, 2), (1, 8)),
}
"""Numbers of warps along rows and columns, by the place of the operand between the products."""

ROWS = (1, 2)
CHUNKS = (1, 2, 4, 8)
STAGES = (2, 3)
COLUMNS = (8, 16, 32)
"""Numbers of instruction tiles of a block along columns of the result, besides all of them."""

PAIRS = 6
"""Number of pairs whose schedules are compared: those of the fewest executions that have kernels;
of pairs of equal numbers, which differ in the order of rows, the first ones."""


@dataclass(frozen=True)
class ScoredChain:
    """A plan with its estimated time."""

    plan: ChainPlan
    estimate: GpuEstimate

    @property
    def us(self) -> float:
        return self.estimate.us


def has_kernel(pair: Pair) -> bool:
    """Return True if kernels are generated for a pair."""
    return not pair.is_swapped and pair.first.product.instruction.kind == "mma"


def ranked_plans(pairs: Pairs, gpu: Gpu) -> Sequence[ScoredChain]:
    """Return plans of a chain, the least estimate first.

    Parameters
    ----------
    pairs : Pairs
        All pairs of embeddings.
    gpu : Gpu

    Raises
    ------
    LoweringError
        If no pair has a kernel that fits, with the reason of the last one.
    """
    reason = "no pair of embeddings sees the operand between the products alike"
    scored: list[ScoredChain] = []
    for pair in list(filter(has_kernel, pairs.pairs))[:PAIRS]:
        for schedule in schedules(pairs.chain, pair):
            try:
                scored.append(score(ChainPlan(pairs.chain, pair, schedule), gpu))
            except LoweringError as error:
                reason = str(error)
    if not scored:
        raise LoweringError(f"no kernel of the chain fits {gpu.name}: {reason}")
    return sorted(scored, key=lambda item: (round(item.us, 3), item.plan.shared_bytes))


def score(plan: ChainPlan, gpu: Gpu) -> ScoredChain:
    """Return a plan with its estimate.

    Raises :class:`LoweringError` if it has no kernel, or a block does not fit.
    """
    check(plan, gpu.shared_bytes)
    return ScoredChain(plan, estimate(work_of(plan, gpu), gpu))


def schedules(chain: ProductChain, pair: Pair) -> Iterator[ChainSchedule]:
    """Yield schedules of a pair that leave no warp or stage without work."""
    second = pair.second.product
    _, rows, columns, depth = second.tiles
    ratio = second.instruction.k // pair.first.product.instruction.n
    widths = sorted({columns, *(width for width in COLUMNS if width < columns)})
    for via in pair.via:
        if via != "registers" and isinstance(chain.function, RowSoftmax):
            continue
        for warps, tiles, chunk, stages, width in itertools.product(
            WARPS[via], ROWS, CHUNKS, STAGES, widths
        ):
            block = warps[0] * tiles
            if (1 < block >= 2 * rows) or (1 < chunk >= 2 * depth) or width < warps[1]:
                continue
            if chunk * ratio % (2 * warps[1]) == 0:
                yield ChainSchedule(via, warps, tiles, chunk, width, stages)
