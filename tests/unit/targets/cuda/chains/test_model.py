"""Estimates of chains: what fusion saves, and what the emulator counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpembed.driver.chains import named_chain, solve_chain
from cpembed.driver.named import hardware_spec
from cpembed.errors import BackendUnavailable
from cpembed.targets.cuda.chains.apart import plan_apart
from cpembed.targets.cuda.chains.model import UnfusedTimes, estimate_apart, work_of
from cpembed.targets.cuda.chains.pairs import find_pairs
from cpembed.targets.cuda.chains.plan import ChainSchedule
from cpembed.targets.cuda.chains.space import CLOSE_RATIO, ranked_plans, score
from cpembed.targets.cuda.model import gpu
from cpembed.workloads.chains import ProductChain
from tests.unit.targets.cuda.chains.generated import chain_of, group_plan_of, kernels_of, plan_of
from tests.unit.targets.cuda.emulator.running import needs_compiler

A100 = gpu(hardware_spec("mma_f16"), "a100")


def test_long_attention_is_fused_and_wide_layers_are_not() -> None:
    """Scores of 1,024 keys are eight times the bytes of a head; layers of a wide model are bound by
    products, which a chain computes with smaller tiles."""
    heads = solve_chain(named_chain("attention b=8 h=16 q=1024 k=1024 d=64", "mma_f16"), "mma_f16")
    assert heads.choice.fuses
    layers = solve_chain(named_chain("mlp m=4096 k=1024 n=4096 p=1024", "mma_f16"), "mma_f16")
    assert not layers.choice.fuses


def test_stored_bytes_are_those_of_scores_and_weights() -> None:
    """Each written once and read once: scores as they are summed, what is multiplied in the type
    of the factors."""
    chain = chain_of("attention b=2 h=4 q=64 k=96 d=32")
    assert apart_of(chain).stored_bytes == 2 * (4 + 2) * (2 * 4 * 64 * 96)
    layers = chain_of("mlp m=64 k=32 n=96 p=32")
    assert apart_of(layers).stored_bytes == 2 * 2 * (64 * 96)


def apart_of(chain: ProductChain) -> UnfusedTimes:
    pairs = find_pairs(chain, hardware_spec("mma_f16")).pairs
    pair = next(pair for pair in pairs if not pair.is_swapped)
    return estimate_apart(plan_apart(chain, pair, A100), A100)


def test_a_window_leaves_the_chunks_that_it_covers() -> None:
    words = "attention b=1 h=1 q=1024 k=1024 d=64 causal"
    schedule = ChainSchedule("registers", (4, 1), 1, 4, 8)
    window = work_of(plan_of(chain_of(f"{words} window=128"), schedule), A100)
    # Rows 64 n to 64 n + 63 look at keys from 64 n - 127: two chunks of 64 before their own.
    expected = [n + 1 - max(0, 64 * n - 127) // 64 for n in range(16)]
    assert window.steps == round(sum(expected) / 16)


@pytest.mark.parametrize(
    "words, target",
    [
        ("attention b=1 h=32 kv=8 q=1 k=8192 d=128", "mma_f16"),
        ("attention b=1 h=8 kv=1 q=4 k=9000 d=64", "wgmma_f16"),
    ],
)
def test_few_queries_of_many_keys_are_split(words: str, target: str) -> None:
    """Decoding: a block for each head would leave most multiprocessors idle."""
    choice = solve_chain(named_chain(words, target), target).choice
    best = choice.candidates[0].plan
    assert best.schedule.splits > 1
    assert choice.fuses
    spec = hardware_spec(target)
    unsplit = replace(best, schedule=replace(best.schedule, splits=1))
    assert score(unsplit, gpu(spec)).us > 2 * choice.candidates[0].estimated_us


def test_a_causal_mask_halves_the_chunks() -> None:
    words = "attention b=1 h=1 q=1024 k=1024 d=64"
    schedule = ChainSchedule("registers", (4, 1), 1, 4, 8)
    every = work_of(plan_of(chain_of(words), schedule), A100)
    causal = work_of(plan_of(chain_of(f"{words} causal"), schedule), A100)
    assert every.steps == 16
    # Blocks of 64 rows over chunks of 64 keys have 1, 2, … 16 chunks.
    assert causal.steps == round(sum(range(1, 17)) / 16)
    assert causal.fetch == every.fetch


@needs_compiler
@pytest.mark.parametrize("words", ["attention b=1 h=2 q=64 k=128 d=32", "mlp m=64 k=64 n=128 p=64"])
def test_products_are_those_that_the_emulator_counts(words: str) -> None:
    chain = chain_of(words)
    columns = chain.second.output.shape[-1] // 8
    plan = plan_of(chain, ChainSchedule("registers", (2, 1), 1, 2, columns))
    kernels = kernels_of(plan)
    kernels.run(chain.random_inputs(0))
    products = sum(kernels.kernel_counters["chain_kernel"].mma.values())
    work = work_of(plan, A100)
    depth = plan.first.tiles[3]
    of_a_step = plan.column_tiles * depth + plan.schedule.columns * plan.schedule.chunk
    assert products == work.blocks * work.warps * work.steps * of_a_step
    cycles = of_a_step * A100.product_cycles
    assert work.compute.tensor == cycles


@needs_compiler
@pytest.mark.parametrize(
    "words, columns",
    [("attention b=1 h=2 q=128 k=256 d=64", 8), ("attention b=1 h=1 q=200 k=250 d=80 e=72", 9)],
)
def test_warp_groups_read_and_load_what_the_emulator_counts(words: str, columns: int) -> None:
    schedule = ChainSchedule("registers", (2, 1), 1, 4, columns)
    plan = group_plan_of(chain_of(words), np.random.default_rng(0), lambda *_: schedule, number=0)
    kernels = kernels_of(plan)
    kernels.run(plan.chain.random_inputs(0))
    counters = kernels.kernel_counters["chain_kernel"]
    work = work_of(plan, gpu(hardware_spec("wgmma_f16")))
    chunks = work.blocks * work.steps
    # Every warp of a group counts an instruction.
    of_a_chunk = plan.first.tiles[3] + schedule.chunk
    assert sum(counters.mma.values()) == chunks * plan.groups * 4 * of_a_chunk
    assert counters.wgmma_wavefronts == chunks * work.compute.shared
    assert counters.wgmma_wavefronts == counters.wgmma_wavefronts_least
    loaded = chunks * work.fetch.bytes + work.blocks * plan.rows_panels.transaction_bytes
    assert counters.bulk_load_image_bytes == loaded


def test_plans_are_ranked_by_their_estimates() -> None:
    chain = chain_of("attention b=2 h=4 q=128 k=128 d=64")
    plans = ranked_plans(find_pairs(chain, hardware_spec("mma_f16")), A100)
    least = min(p.us for p in plans)
    close, others = [[p for p in plans if (p.us > CLOSE_RATIO * least) == far] for far in (0, 1)]
    assert list(plans) == [*close, *others]
    # Those that are as good as the best are in the order of their products.
    executed = [p.plan.pair.executed for p in close]
    assert executed == sorted(executed)
    assert [p.us for p in others] == sorted(p.us for p in others)
    worse = replace(plans[0].plan, schedule=ChainSchedule("registers", (1, 1), 1, 1, 8))
    assert score(worse, A100).us >= plans[0].us


def test_scores_need_not_fit_memory() -> None:
    """They are never stored: 8,192 keys of 8,192 queries of 64 heads are 2^32."""
    chain = chain_of("attention b=1 h=64 q=8192 k=8192 d=64")
    assert chain.first.output.elements == 2**32
    choice = solve_chain(chain, "mma_f16").choice
    assert choice.candidates
    assert choice.fuses
    assert not choice.apart_us


def test_other_targets_make_no_kernels_of_chains() -> None:
    with pytest.raises(BackendUnavailable, match="avx2_int8 makes no kernels of chains"):
        solve_chain(chain_of("mlp m=8 k=8 n=8 p=8 dtype=int8"), "avx2_int8")
