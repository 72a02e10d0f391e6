"""Trials on a CPU: measured times, and what they depend on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from cpembed.codegen.host_cpu import cpu_model
from cpembed.codegen.plan import Knobs
from cpembed.codegen.runtime import thread_count
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime.measurement.environment import versions
from cpembed.runtime.measurement.runner import Quantiles
from cpembed.runtime.tuning.database import Trial, problem_key, sources_digest
from cpembed.stores import LARGEST, Natural, Positive, Time
from cpembed.targets.cpu.choice import Objective
from cpembed.wording import duration

_PACKAGE = Path(__file__).resolve().parents[2]


class CpuTrial(Trial, frozen=True):
    """A schedule of an embedding and its times in microseconds, None where it has no kernel.

    ``estimate_us`` and ``estimated_moves_us`` are the model's, of the contraction and of packing
    and unpacking. ``latency_us`` is the contraction alone; ``packing_us``, of what is not packed
    ahead, and ``unpacking_us`` are medians, as the first schedule of an embedding that was timed
    shares them out. ``whole_us`` is one call of all three, where that was timed: threads can pack
    for themselves, inside the kernel. ``ratio`` is what tuning minimises over the same of the
    file's first trial, by way of the best one so far, beside which the trial was timed interleaved.
    ``noisy``: the machine had other work, or the times varied. ``rejected``: clearly slower in the
    first rounds, and not timed any further. ``final``: the number of the search of this file after
    which the trial was timed again, beside the best others; 0 for the first times. ``in_place`` are
    the operands that the program keeps as they are.
    """

    kind = "cpu"

    knobs: Knobs
    estimate_us: Positive
    estimated_moves_us: Time
    latency_us: Quantiles | None
    packing_us: Time | None
    unpacking_us: Time | None
    ratio: Positive | None
    noisy: bool
    rejected: bool
    final: Natural = 0
    in_place: tuple[str, ...] = ()
    whole_us: Quantiles | None = None

    def flaw(self) -> str | None:
        for name, times in (("latency_us", self.latency_us), ("whole_us", self.whole_us)):
            if times is not None and not 0 < times.p10 <= times.median <= times.p90 <= LARGEST:
                return f"{name}: not the quantiles of a time"
        if self.latency_us is None and self.ratio is not None:
            return "latency_us: none, but a ratio"
        if list(self.in_place) != self.identifier.split("+")[1:]:
            return f"in_place: not that of {self.identifier}"
        return super().flaw()

    @property
    def operands_in_place(self) -> tuple[str, ...]:
        return self.in_place

    @property
    def key(self) -> str:
        return f"{self.identifier} {schedule_key(self.knobs)}"

    @property
    def cost(self) -> float | None:
        return self.ratio

    @property
    def decision(self) -> int:
        return self.final

    @property
    def is_measured(self) -> bool:
        return self.ratio is not None and not self.rejected

    @property
    def moves_us(self) -> float:
        return (self.packing_us or 0.0) + (self.unpacking_us or 0.0)

    @property
    def total_us(self) -> float | None:
        """The contraction with packing and unpacking."""
        if self.whole_us is not None:
            return self.whole_us.median
        return None if self.latency_us is None else self.latency_us.median + self.moves_us

    def us(self, objective: Objective) -> float | None:
        """What tuning minimises, by medians of its own rounds."""
        if self.latency_us is None or objective == "kernel":
            return None if self.latency_us is None else self.latency_us.median
        return self.total_us

    def figure(self, objective: str | None) -> float | None:
        return self.us("kernel" if objective == "kernel" else "total")

    @property
    def estimated(self) -> float:
        return self.estimate_us + self.estimated_moves_us

    def document(self) -> dict[str, Any]:
        return super().document() | {"knobs": schedule_json(self.knobs)}

    def standing(self, objective: str | None = None) -> str:
        ratio = 1 / (self.ratio or 1)
        time = duration(self.figure(objective) or 0)
        what = "" if objective is None else f" {objective}"
        return f"best {time}{what}, {ratio:.3f} times as fast as untuned"

    @classmethod
    def is_current(cls, key: Mapping[str, Any]) -> bool:
        here = _machine_key(key.get("executor"))
        return all(key.get(name) == value for name, value in here.items())


def schedule_json(schedule: Knobs) -> dict[str, Any]:
    """A schedule in documents: under the older names too, until 0.2."""
    document: dict[str, Any] = msgspec.to_builtins(schedule)
    return document | {
        "blocks": document["register_tiles"],
        "columns_outermost": schedule.columns_outermost,
        "panels": document["cache_tiles"],
        "streams": schedule.non_temporal,
        "parts": schedule.split_k,
    }


def schedule_key(knobs: Knobs) -> str:
    """What no two schedules of an embedding share."""
    parts = (
        sorted(knobs.register_tiles.items()),
        knobs.loop_order,
        sorted(knobs.cache_tiles.items()),
        knobs.non_temporal,
        *([knobs.split_k] if knobs.split_k > 1 else []),
    )
    return repr(parts)


def key_of(
    workload: Computation, spec: HardwareSpec, constraints: ConstraintSet, objective: Objective
) -> dict[str, Any]:
    """Everything that the trials of a file depend on."""
    return {
        **problem_key(workload, spec, constraints),
        "kind": CpuTrial.kind,
        "objective": objective,
        **_machine_key(spec.backend),
    }


def _machine_key(backend: str | None) -> dict[str, Any]:
    """This machine, and what generates kernels here."""
    return {
        "executor": backend,
        "cpu": cpu_model(),
        "threads": thread_count(),
        "version": versions()["cpembed"],
        "tvm": versions()["apache-tvm"],
        "backend": _sources_digest(backend),
    }


@cache
def _sources_digest(backend: str | None) -> str:
    """Of what kernels are generated by: under one version of the package, times change with these
    sources and figures only. Every CPU's model falls back on figures of :mod:`..x86`."""
    folders = {"kernel", "targets/cpu", "targets/x86", f"targets/{backend}"}
    found = (path for name in folders for path in (_PACKAGE / name).rglob("*"))
    return sources_digest(path for path in found if path.suffix in (".py", ".toml"))
