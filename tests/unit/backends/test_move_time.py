"""Moves whose parts stay with the threads that compute with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpembed.api.solve import hardware_spec, solve, workload
from cpembed.backends.contract import Knobs
from cpembed.backends.kernel import build, schedule_space
from cpembed.backends.move_time import kept_near, move_us, threads_worth
from cpembed.backends.nest import Nest
from cpembed.backends.program_nest import in_order
from cpembed.backends.x86.calibration import default_calibration
from cpembed.backends.x86.features import missing_features
from cpembed.ir.reference import random_inputs, reference
from cpembed.transform.program import DerivedProgram

VNNI = hardware_spec("avx512_vnni")
BATCHED = "batched_gemm b=6 m=20 n=50 k=30 trans_b=1"


def program_of(words: str) -> DerivedProgram:
    (ranked, *_) = solve(workload(words.split(), target=VNNI), VNNI, top=1).embeddings
    return ranked.candidate.program


def nest_of(words: str, **blocks: int) -> Nest:
    knobs = Knobs({f"{axis}.o": size for axis, size in blocks.items()}, columns_outermost=False)
    return schedule_space(program_of(words), VNNI).applied(knobs)


def test_equal_parts_of_the_outermost_dimension_are_kept_near() -> None:
    """A batch is outermost of all; six fall into equal parts of two and three threads."""
    nest = nest_of(BATCHED, m=4, n=2)
    assert kept_near(nest, 2) == kept_near(nest, 3) == {0, 1, 2}
    assert kept_near(nest, 4) == kept_near(nest, 1) == frozenset()
    # Rows of the first factor and of the results, all columns of the second.
    assert kept_near(nest_of("gemm m=20 n=50 k=30", m=5), 2) == {0, 2}
    # Blocks of six, six, five and five rows: either thread would move eleven.
    assert kept_near(nest_of("gemm m=22 n=50 k=30", m=6), 2) == frozenset()
    # A padded image has more rows than are computed.
    image = nest_of("conv2d n=1 c=32 h=8 w=8 k=32 r=3 s=3 pad=1 layout=NHWC")
    assert kept_near(image, 2) == {2}


def test_what_is_kept_near_is_not_handed_over() -> None:
    factor = in_order(program_of(BATCHED))[1]
    machine = replace(default_calibration(2), launch_us=1.0, copy_ns_per_line=2.0)
    assert threads_worth(factor, machine, 2) == 1
    assert threads_worth(factor, machine, 2, near=True) == 2
    assert move_us(factor, machine, 2, near=True) < move_us(factor, machine, 2)


@pytest.mark.skipif(bool(missing_features(VNNI)), reason="this CPU has no AVX512-VNNI")
@pytest.mark.parametrize("threads", ["2", "3", "4"])
def test_either_way_moves_the_same(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", threads)
    program = program_of(BATCHED)
    inputs = random_inputs(program.workload, 3)
    built = build(program, VNNI, backend="native")
    assert np.array_equal(built.run_whole(inputs, ()), reference(program.workload, inputs))
