"""What was found for a workload on a VTA."""

from __future__ import annotations

from pathlib import Path

from cpembed.backends.vta.tail import Tail
from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.embedding.embedding import Embedding
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.tune.database import default_directory, stored
from cpembed.tune.kept import WIDEST, Kept, TunedChoice, is_of, kept_in, proven
from cpembed.tune.vta_trials import VtaTrial, key_of


def tuned(
    workload: Computation,
    spec: HardwareSpec,
    tail: Tail,
    constraints: ConstraintSet | None = None,
    *,
    embedding: Embedding | None = None,
    directory: Path | None = None,
) -> TunedChoice[VtaTrial] | None:
    """The fastest of what tuning measured for a workload on a target; None where it did not.

    ``constraints`` None takes trials of any set. ``embedding`` asks for schedules of this one only.
    The candidate's program is derived and proven again.

    Raises :class:`CpembedError` for a damaged file.
    """
    kept = best_kept(workload, spec, tail, constraints, embedding=embedding, directory=directory)
    return None if kept is None else proven(workload, spec, kept)


def best_kept(
    workload: Computation,
    spec: HardwareSpec,
    tail: Tail,
    constraints: ConstraintSet | None = None,
    *,
    embedding: Embedding | None = None,
    directory: Path | None = None,
) -> Kept[VtaTrial] | None:
    """What :func:`tuned` takes, without its program."""
    folder = directory or default_directory()
    key = key_of(workload, spec, tail, constraints or load_constraint_set(WIDEST))
    found = [
        kept
        for file in stored(folder, VtaTrial, key)
        if constraints is None or is_of(file, folder, key)
        if (kept := kept_in(file, embedding)) is not None
    ]
    return min(found, key=lambda kept: kept.trial.cycles or 0, default=None)
