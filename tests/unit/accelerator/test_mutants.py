"""Mistakes in programs are faults, or change an output."""

from __future__ import annotations

from collections import Counter

import pytest

from cpembed.accelerator.assembly import parse
from cpembed.accelerator.program import Program
from cpembed.hw.isa import Synchronization
from tests.compilers import needs_executor
from tests.unit.accelerator.machines import systolic
from tests.unit.accelerator.mutants import CHANGES, mutants, verdict
from tests.unit.accelerator.test_channel_orders import MACHINE as WITH_CHANNELS
from tests.unit.accelerator.test_channel_orders import SOURCE

# Two buffers each, an edge that is no multiple of the tile, a scale, and a residual sum.
PRODUCT = """
.tensor A int8 [40, 64] input
.tensor B int8 [64, 48] constant
.tensor bias int32 [48] constant
.tensor C int8 [40, 48] output
set_scale D=scale V=#0.0078125
loop i 3 {
  loop j 3 {
    mvin_bias S=bias[16*j] D=accumulator[16*(j%2)] r=min(16, 40 - 16*i) e=16
    loop k 4 {
      set_stride D=stride V=#64
      mvin S=A[1024*i + 16*k] D=scratchpad[16*(k%2)] r=min(16, 40 - 16*i) e=16
      set_stride D=stride V=#48
      mvin S=B[768*k + 16*j] D=scratchpad[64 + 16*(k%2)] r=16 e=16
      matmul A=scratchpad[16*(k%2)] B=scratchpad[64 + 16*(k%2)] C=accumulator[16*(j%2)] SIZES
    }
    mvout S=accumulator[16*(j%2)] D=C[768*i + 16*j; r=48] s=scale r=min(16, 40 - 16*i) e=16
  }
}
"""

PRODUCT = PRODUCT.replace("SIZES", "x=min(16, 40 - 16*i) y=16 z=16")

PROGRAMS: dict[str, Program] = {
    "interlocked": parse(PRODUCT, systolic()),
    "in order": parse(PRODUCT, systolic(Synchronization.IN_ORDER)),
    "channels": parse(SOURCE, WITH_CHANNELS),
}


@needs_executor
@pytest.mark.parametrize("name", PROGRAMS)
def test_mutants(name: str) -> None:
    program = PROGRAMS[name]
    assert verdict(program, program) == "same executions"
    counts = Counter[str]()
    kinds = set[str]()
    unproven: list[str] = []
    for mutant in mutants(program, seed=7, count=120):
        result = verdict(program, mutant.program)
        counts[result] += 1
        kinds.add(mutant.kind)
        if result == "equal":
            unproven.append(f"{mutant.kind}: {mutant.change}")
    # A report, shown by pytest -s.
    print(f"{name}: {dict(counts)}")
    assert len(kinds) > 12
    assert not unproven
    assert counts["fault"] > 60
    assert counts["different"]


def test_all_kinds_of_changes_occur() -> None:
    seen = {m.kind for p in PROGRAMS.values() for m in mutants(p, seed=3, count=200)}
    assert seen >= set(CHANGES) - {"other instruction"}
