"""Intel AMX tile products."""

from __future__ import annotations

from cpembed.backends.contract import KernelPlan
from cpembed.errors import LoweringError
from cpembed.transform.program import DerivedProgram


def plan(program: DerivedProgram, threads: int) -> KernelPlan:
    raise LoweringError("not yet")
