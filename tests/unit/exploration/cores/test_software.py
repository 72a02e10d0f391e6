"""Software of cores: what is left out is never the best."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from cpembed.exploration.cores import software
from cpembed.exploration.cores.description import DOUBLE, SINGLE, Core
from tests.unit.exploration.cores.points import CONV, FAMILY, point


@pytest.mark.parametrize("dataflow", ["os", "ws"])
def test_tilings_that_are_left_out_are_nowhere_faster(dataflow: str) -> None:
    """Against all that were found, for bandwidths and latencies far apart."""
    core = Core.of(point(dataflow=dataflow))
    workload = FAMILY.typed(CONV)
    analysis = software.analyse(core, workload)
    known = replace(core, dma_bits=128, dram_latency_cycles=100, banks=1)
    every = list(software._searched(known, workload))
    assert sum(s.tilings.rows for s in analysis.software) < sum(s.tilings.rows for s in every)
    for banks, bits, latency in itertools.product((1, 2, 5, 16), (8, 64, 512), (0, 1000)):
        given = replace(core, banks=banks, dma_bits=bits, dram_latency_cycles=latency)
        fewest = min(
            float(software._cycles(s.tilings, s.nest, software._machine(given, s.machine))[0].min())
            for s in every
            if s.machine == SINGLE or banks > 1
        )
        best = analysis.best(given)
        assert best is not None
        assert best.activity is not None
        assert best.activity.cycles == pytest.approx(fewest, rel=1e-9)


def test_exchanged_factors_on_a_square_array_are_one_program() -> None:
    """Of 8 x 8 rows and columns it does not matter which factor is which, of 8 x 4 it does."""
    workload = FAMILY.typed(CONV)
    square = software._distinct(Core.of(point()), workload, None)
    oblong = software._distinct(Core.of(point(pe_columns=4)), workload, None)
    assert len(square[1]) * 2 <= square[0]
    assert len(oblong[1]) > len(square[1])


def test_one_bank_is_never_double_buffered() -> None:
    analysis = FAMILY.analyse(point(), FAMILY.typed(CONV))
    assert {s.machine for s in analysis.software} == {SINGLE, DOUBLE}
    (one,) = FAMILY.choices(point(banks=1), analysis)
    (eight,) = FAMILY.choices(point(banks=8), analysis)
    assert "single-buffered" in one.words
    assert "double-buffered" in eight.words
