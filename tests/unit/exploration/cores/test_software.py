"""Software of cores: what is left out is never the best."""

from __future__ import annotations

import itertools
import math
import random
from contextlib import suppress

import numpy as np
import pytest

from cpembed.cost.machine.sampling import tilings_for
from cpembed.cost.machine.search import best_tilings
from cpembed.cost.machine.times import cycles
from cpembed.errors import TransformError
from cpembed.exploration.cores import family
from cpembed.exploration.cores.description import DOUBLE, SINGLE, Core
from cpembed.ir.computation import Computation
from cpembed.targets.family import Value
from tests.unit.exploration.cores.points import CONV, FAMILY, layer, point


def fastest(core: Core, workload: Computation) -> float:
    """Of all embeddings with all tilings, for the point's own machine."""
    found = [math.inf]
    for program in family._distinct(core, workload, None)[1]:
        for name in (SINGLE,) if core.banks == 1 else (SINGLE, DOUBLE):
            machine = family._machine(core, name)
            with suppress(TransformError):
                every = tilings_for(program.nest, [machine], 200_000, beam=10**6)
                found.append(float(cycles(every, program.nest, machine).min()))
    return min(found)


@pytest.mark.parametrize("bits, latency", [(1024, 100), (128, 3000), (8, 0)])
@pytest.mark.parametrize("words", ["gemm m=9 n=4 k=3", "gemm m=5 n=4 k=3"])
def test_no_tiling_in_fewer_transfers_is_lost(words: str, bits: int, latency: int) -> None:
    """Rows that move the same bytes differ in their transfers, each of which waits for memory."""
    small = {"pe_rows": 2, "scratchpad_kib": 1, "bank_bits": 16, "dma_burst_bytes": 1}
    here = {"local_kib": 0, "banks": 1, "dma_bits": bits, "dram_latency_cycles": latency}
    core = Core.at(point(**small | here))
    machine = family._machine(core, SINGLE)
    for program in family._distinct(core, FAMILY.typed(layer(words)), None)[1]:
        best = best_tilings(program.nest, machine)
        every = cycles(
            tilings_for(program.nest, [machine], 200_000, beam=10**6), program.nest, machine
        )
        # The search may also hold slices of one operand inside another one's tile.
        assert best.bound <= best.cost <= every.min() * (1 + 1e-9)


POINTS = list(itertools.product((1, 2, 5), (8, 32, 128, 1024), (0, 100, 3000)))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "words, changed",
    [
        ("gemm m=9 n=4 k=3", {"local_kib": 0}),
        ("gemm m=5 n=4 k=3", {"local_kib": 1}),
        ("conv2d n=1 c=3 h=5 w=6 k=5 r=3 s=2", {"local_kib": 0, "dataflow": "ws"}),
        ("gemm m=17 n=5 k=6", {"local_kib": 0, "pe_columns": 1}),
        ("gemm m=6 n=5 k=4", {"local_kib": 1, "dataflow": "ws"}),
        ("conv2d n=1 c=2 h=6 w=5 k=3 r=3 s=3", {"local_kib": 0, "dma_burst_bytes": 8}),
    ],
)
def test_a_points_software_is_the_fastest_for_its_own_dma(
    words: str, changed: dict[str, Value]
) -> None:
    """Against all embeddings, tile sizes and orders of small layers, from an analysis of another
    point of the group."""
    small = {"pe_rows": 2, "scratchpad_kib": 1, "bank_bits": 16, "dma_burst_bytes": 1}
    workload = FAMILY.typed(layer(words))
    analysis = FAMILY.analyse(point(**small | changed), workload)
    rng = random.Random(words)
    for banks, bits, latency in rng.sample(POINTS, 4):
        here = {"banks": banks, "dma_bits": bits, "dram_latency_cycles": latency}
        core = Core.at(point(**small | changed | here))
        best = analysis.best(core)
        assert best is not None
        assert best.activity is not None
        assert best.activity.cycles == pytest.approx(fastest(core, workload), rel=1e-9), here


def test_a_front_is_what_nothing_is_below() -> None:
    rng = np.random.default_rng(4)
    for rows, columns in ((5, 2), (300, 3), (700, 4)):
        table = rng.integers(0, 6, (rows, columns)).astype(np.float64)
        kept = {tuple(row) for row in table[family._front(table)].tolist()}
        expected = {
            tuple(one)
            for one in np.unique(table, axis=0).tolist()
            if not any((row <= one).all() and (row < one).any() for row in table)
        }
        assert kept == expected
        assert len(family._front(table)) == len(kept)


def test_exchanged_factors_on_a_square_array_are_one_program() -> None:
    """Of 8 x 8 rows and columns it does not matter which factor is which, of 8 x 4 it does."""
    workload = FAMILY.typed(CONV)
    square = family._distinct(Core.at(point()), workload, None)
    oblong = family._distinct(Core.at(point(pe_columns=4)), workload, None)
    assert len(square[1]) * 2 <= square[0]
    assert len(oblong[1]) > len(square[1])


def test_one_bank_is_never_double_buffered() -> None:
    analysis = FAMILY.analyse(point(), FAMILY.typed(CONV))
    assert {s.machine for s in analysis.software} == {SINGLE, DOUBLE}
    (one,) = FAMILY.choices(point(banks=1), analysis)
    (eight,) = FAMILY.choices(point(banks=8), analysis)
    assert "single-buffered" in one.words
    assert "double-buffered" in eight.words
