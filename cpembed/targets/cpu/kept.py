"""What was found for a workload on this machine's CPU."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path

from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.selection.candidate import Candidate
from cpembed.targets.cpu.build import schedule_space
from cpembed.targets.cpu.trials import CpuTrial, key_of
from cpembed.tuning.database import default_directory, stored
from cpembed.tuning.kept import WIDEST, Kept, TunedChoice, first_proven, is_of, kept_in


def tuned(
    workload: Computation,
    spec: HardwareSpec,
    constraints: ConstraintSet | None = None,
    *,
    identifier: str | None = None,
    directory: Path | None = None,
) -> TunedChoice[CpuTrial] | None:
    """The fastest of what tuning measured for a workload on this CPU with as many threads; None
    where it did not.

    ``constraints`` None takes trials of any set. ``identifier`` asks for this candidate.
    What was tuned for the total time is taken before what was tuned for the contraction alone.
    The candidate's program is derived and proven again; what is damaged is left out.
    """
    best = partial(
        best_kept, workload, spec, constraints, identifier=identifier, directory=directory
    )

    def require_schedule(candidate: Candidate, trial: CpuTrial) -> None:
        schedule_space(candidate.program, spec).applied(trial.knobs)

    return first_proven(workload, spec, lambda without: best(without=without), require_schedule)


def best_kept(
    workload: Computation,
    spec: HardwareSpec,
    constraints: ConstraintSet | None = None,
    *,
    identifier: str | None = None,
    directory: Path | None = None,
    without: Collection[str] = (),
) -> Kept[CpuTrial] | None:
    """What :func:`tuned` takes, without its program; ``without`` leaves trials of these keys
    out."""
    folder = directory or default_directory()
    for objective in ("total", "kernel"):
        key = key_of(workload, spec, constraints or load_constraint_set(WIDEST), objective)
        found = [
            kept
            for file in stored(folder, CpuTrial, key)
            if file.key["objective"] == objective
            and (constraints is None or is_of(file, folder, key))
            and (kept := kept_in(file, identifier, without)) is not None
        ]
        if found:
            return min(found, key=lambda kept: kept.trial.us(objective) or 0)
    return None
