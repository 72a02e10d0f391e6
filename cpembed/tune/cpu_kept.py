"""What was found for a workload on this machine's CPU."""

from __future__ import annotations

from pathlib import Path

from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.embedding.embedding import Embedding
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.tune.cpu_trials import CpuTrial, key_of
from cpembed.tune.database import default_directory, stored
from cpembed.tune.kept import WIDEST, Kept, TunedChoice, is_of, kept_in, proven


def tuned(
    workload: Computation,
    spec: HardwareSpec,
    constraints: ConstraintSet | None = None,
    *,
    embedding: Embedding | None = None,
    directory: Path | None = None,
) -> TunedChoice[CpuTrial] | None:
    """The fastest of what tuning measured for a workload on this CPU with as many threads; None
    where it did not.

    ``constraints`` None takes trials of any set. ``embedding`` asks for schedules of this one only.
    What was tuned for the total time is taken before what was tuned for the contraction alone.
    The candidate's program is derived and proven again.

    Raises :class:`CpembedError` for a damaged file.
    """
    kept = best_kept(workload, spec, constraints, embedding=embedding, directory=directory)
    return None if kept is None else proven(workload, spec, kept)


def best_kept(
    workload: Computation,
    spec: HardwareSpec,
    constraints: ConstraintSet | None = None,
    *,
    embedding: Embedding | None = None,
    directory: Path | None = None,
) -> Kept[CpuTrial] | None:
    """What :func:`tuned` takes, without its program."""
    folder = directory or default_directory()
    for objective in ("total", "kernel"):
        key = key_of(workload, spec, constraints or load_constraint_set(WIDEST), objective)
        found = [
            kept
            for file in stored(folder, CpuTrial, key)
            if file.key["objective"] == objective
            and (constraints is None or is_of(file, folder, key))
            and (kept := kept_in(file, embedding)) is not None
        ]
        if found:
            return min(found, key=lambda kept: kept.trial.us(objective) or 0)
    return None
