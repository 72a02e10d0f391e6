"""Trials on a VTA: simulated cycles, and what they depend on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.measure.environment import versions
from cpembed.stores import Count, Positive
from cpembed.targets.vta.schedule import Schedule
from cpembed.targets.vta.tail import Tail
from cpembed.tuning.database import Trial, problem_key, sources_digest

_MODEL = Path(__file__).resolve().parent
"""Lowering and timing: under one version of the package, cycles change with these sources only."""


class VtaTrial(Trial, frozen=True):
    """A schedule of an embedding and its simulated cycles, None where it has no program.

    ``lower_bound`` is the larger of the embedding's GEMM and DMA cycles, ``busiest_module`` the
    cycles that its busiest module needs. ``estimate`` is None where it is not finite.
    """

    kind = "vta"

    schedule: Schedule
    estimate: Positive | None
    cycles: Count | None
    lower_bound: Count
    busiest_module: Count

    def flaw(self) -> str | None:
        schedule = self.schedule
        if sorted(schedule.order) != sorted(schedule.tiles):
            return "schedule.order: not an order of the tiles' loops"
        if schedule.thread_loop is not None and schedule.thread_loop not in schedule.tiles:
            return f"schedule.thread_loop: {schedule.thread_loop} is no loop"
        return super().flaw()

    @property
    def key(self) -> str:
        return f"{self.identifier} {self.schedule!r}"

    @property
    def cost(self) -> float | None:
        return self.cycles

    @property
    def estimated(self) -> float | None:
        return self.estimate

    def standing(self, objective: str | None = None) -> str:
        cycles = self.cycles or 0
        ratio = cycles / self.lower_bound
        return f"best {cycles:,} cycles, {ratio:.3f} times what GEMM or DMA alone takes"

    @classmethod
    def is_current(cls, key: Mapping[str, Any]) -> bool:
        return (key["version"], key.get("model")) == (versions()["cpembed"], _model_digest())


def result_form(tail: Tail) -> str:
    """What of a tail cycles depend on: operations of each phase, and dimensions of the bias.

    >>> from cpembed.targets.vta.tail import Exact, Requantized
    >>> result_form(Requantized(9)), result_form(Exact())
    ('requantized: SHR MIN MAX', 'exact:; SHR; SHR; SHR')
    """
    phases = ";".join(" ".join(("", *(op.name for op, _ in phase))) for phase in tail.phases)
    bias = f" with bias over {', '.join(map(str, tail.bias))}" if tail.bias else ""
    return f"{type(tail).__name__.lower()}{bias}:{phases}"


def key_of(
    workload: Computation, spec: HardwareSpec, tail: Tail, constraints: ConstraintSet
) -> dict[str, Any]:
    """Everything that the trials of a file depend on."""
    return {
        **problem_key(workload, spec, constraints),
        "kind": VtaTrial.kind,
        "form": result_form(tail),
        "version": versions()["cpembed"],
        "model": _model_digest(),
    }


@cache
def _model_digest() -> str:
    return sources_digest(_MODEL.rglob("*.py"))
