"""A design space of MetaSchedule: the ranked embeddings of a function with their schedules."""
# pyright: basic

from __future__ import annotations

import itertools
from typing import Any

from tvm import ir
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.space_generator import PySpaceGenerator
from tvm.target import Target

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import LoweringError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.integrations.tvm.choice import Machine
from cpembed.integrations.tvm.designs import design, recognised
from cpembed.integrations.tvm.kernels import closed_kernels_of

DESIGNS = 64
"""Designs that a space has at most, by default."""


def schedule_space(
    target: str | HardwareSpec,
    *,
    constraints: str | ConstraintSet | None = None,
    limit: int = DESIGNS,
) -> Any:
    """A ``SpaceGenerator``: the designs of a function are the ranked embeddings with the target's
    schedules of them, of each embedding the best by its estimates first; none where nothing embeds.
    It is searched by the strategy ``replay-func``.

    Raises as :meth:`~cpembed.integrations.tvm.choice.Machine.of`.
    """
    return _Space(Machine.of(target, constraints), limit)


@derived_object
class _Space(PySpaceGenerator):
    def __init__(self, machine: Machine, limit: int) -> None:
        super().__init__()
        self.sch_rules, self.postprocs, self.mutator_probs = [], [], {}
        self.machine, self.limit = machine, limit
        self.target: Any = None
        """None: the one whose scope is open."""
        self.made: list[tuple[Any, list[Any]]] = []

    def _initialize_with_tune_context(self, context: Any) -> None:
        self.target = context.target

    def generate_design_space(self, mod: ir.IRModule) -> list[Any]:
        # The strategy asks again for each trial.
        found = next((made for known, made in self.made if known.same_as(mod)), None)
        if found is None:
            found = self._designs(mod)
            self.made.append((mod, found))
        return [schedule.copy() for schedule in found]

    def _designs(self, mod: ir.IRModule) -> list[Any]:
        target = self.target or Target.current(allow_none=False)
        try:
            function, fused = recognised(mod)
            kernels = closed_kernels_of(self.machine, fused)
            return [
                design(mod, function, kernel, target)
                for kernel in itertools.islice(kernels, self.limit)
            ]
        except (LoweringError, WorkloadError):
            return []

    def clone(self) -> Any:
        return _Space(self.machine, self.limit)
