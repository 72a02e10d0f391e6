"""Schedules of a chain's pairs, ranked by their estimated times on a described GPU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cpembed.errors import LoweringError
from cpembed.targets.cuda.chains.group_plan import GroupPlan, legal_columns
from cpembed.targets.cuda.chains.model import work_of
from cpembed.targets.cuda.chains.pairs import Pair, Pairs, Via
from cpembed.targets.cuda.chains.plan import MAX_SPLITS, ChainPlan, ChainSchedule, check
from cpembed.targets.cuda.lower import TiledProduct
from cpembed.targets.cuda.model import Gpu, GpuEstimate, estimate
from cpembed.targets.cuda.multistage.space import leaves_half_idle
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

GROUPS = (1, 2, 3)
"""Numbers of consumer groups of a block."""

GROUP_CHUNKS = (1, 2, 4, 6, 8, 11)
"""Numbers of instruction tiles along the second product's depth in a stage of warp groups."""

SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of blocks that share the chunks of a block of results, besides 1."""

CLOSE_RATIO = 1.02
"""Ratio of estimated times up to which they count as equal to the least."""

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
    return not pair.is_swapped and pair.first.product.instruction.kind != "wmma"


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
    if pairs.pairs:
        reason = "no kernels are generated for the pairs that see the operand between them alike"
    scored: list[ScoredChain] = []
    for pair in list(filter(has_kernel, pairs.pairs))[:PAIRS]:
        for schedule in schedules(pairs.chain, pair):
            try:
                scored += with_splits(plan_of(pairs.chain, pair, schedule), gpu)
            except LoweringError as error:
                reason = str(error)
    if not scored:
        raise LoweringError(f"no kernel of the chain fits {gpu.name}: {reason}")
    # Estimates so close to the least are no reason for more products, as of padded rows: small
    # chains take as long as their launch.
    close = CLOSE_RATIO * min(item.us for item in scored)

    def rank(item: ScoredChain) -> tuple[float, ...]:
        executed = item.plan.pair.executed
        return max(item.us, close), executed, round(item.us, 3), item.plan.shared_bytes

    return sorted(scored, key=rank)


def score(plan: ChainPlan, gpu: Gpu) -> ScoredChain:
    """Return a plan with its estimate.

    Raises :class:`LoweringError` if it has no kernel, or a block does not fit.
    """
    check(plan, gpu.shared_bytes)
    return ScoredChain(plan, estimate(work_of(plan, gpu), gpu))


def plan_of(chain: ProductChain, pair: Pair, schedule: ChainSchedule) -> ChainPlan:
    """Return the plan of a schedule, of warps or of warp groups.

    Parameters
    ----------
    chain : ProductChain
    pair : Pair
    schedule : ChainSchedule
    """
    is_group = pair.first.product.instruction.kind == "wgmma"
    return (GroupPlan if is_group else ChainPlan)(chain, pair, schedule)


def with_splits(plan: ChainPlan, gpu: Gpu) -> Iterator[ScoredChain]:
    """Yield a plan, and those in which blocks share its chunks if there are too few blocks.

    Raises :class:`LoweringError` if it has no kernel, or a block does not fit.
    """
    yield score(plan, gpu)
    blocks = math.prod(plan.blocks)
    for splits in SPLITS:
        # Each part has a chunk, and no more blocks are made than run together.
        if splits <= min(plan.chunks, MAX_SPLITS) and blocks * splits <= 4 * gpu.multiprocessors:
            schedule = replace(plan.schedule, splits=splits)
            yield score(replace(plan, schedule=schedule), gpu)


def schedules(chain: ProductChain, pair: Pair) -> Iterator[ChainSchedule]:
    """Yield schedules of a pair that leave no warp or stage without work."""
    second = pair.second.product
    _, rows, columns, depth = second.tiles
    if second.instruction.kind == "wgmma":
        yield from _group_schedules(second)
        return
    ratio = second.instruction.k // pair.first.product.instruction.n
    widths = sorted({columns, *(width for width in COLUMNS if width < columns)})
    for via in pair.via:
        if via != "registers" and isinstance(chain.function, RowSoftmax):
            continue
        for warps, tiles, chunk, stages, width in itertools.product(
            WARPS[via], ROWS, CHUNKS, STAGES, widths
        ):
            block = warps[0] * tiles
            idle = leaves_half_idle(block, rows) or leaves_half_idle(chunk, depth)
            if idle or width < warps[1]:
                continue
            if chunk * ratio % (2 * warps[1]) == 0:
                yield ChainSchedule(via, warps, tiles, chunk, width, stages)


def _group_schedules(product: TiledProduct) -> Iterator[ChainSchedule]:
    """Yield schedules of warp groups for the second product."""
    _, rows, columns, depth = product.tiles
    widths = {
        legal_columns(product.instruction, columns),
        *(width for width in COLUMNS if width < columns),
    }
    for groups, chunk, stages, width in itertools.product(
        GROUPS, GROUP_CHUNKS, STAGES, sorted(widths)
    ):
        if not (leaves_half_idle(groups, rows) or leaves_half_idle(chunk, depth)):
            yield ChainSchedule("registers", (groups, 1), 1, chunk, width, stages)
