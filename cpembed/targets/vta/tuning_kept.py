"""What was found for a workload on a VTA."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path

from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.selection.candidate import Candidate
from cpembed.targets.vta.bias import with_bias
from cpembed.targets.vta.machine import vta_config
from cpembed.targets.vta.schedule import check_schedule
from cpembed.targets.vta.tail import Tail
from cpembed.targets.vta.tiles import tile_nest
from cpembed.targets.vta.tuning_trials import VtaTrial, key_of
from cpembed.tuning.database import default_directory, stored
from cpembed.tuning.kept import WIDEST, Kept, TunedChoice, first_proven, is_of, kept_in


def tuned(
    workload: Computation,
    spec: HardwareSpec,
    tail: Tail,
    constraints: ConstraintSet | None = None,
    *,
    identifier: str | None = None,
    directory: Path | None = None,
) -> TunedChoice[VtaTrial] | None:
    """The fastest of what tuning measured for a workload on a target; None where it did not.

    ``constraints`` None takes trials of any set. ``identifier`` asks for this candidate.
    The candidate's program is derived and proven again; what is damaged is left out.
    """
    best = partial(
        best_kept, workload, spec, tail, constraints, identifier=identifier, directory=directory
    )

    def require_schedule(candidate: Candidate, trial: VtaTrial) -> None:
        nest = with_bias(tile_nest(candidate.program, vta_config(spec)), tail.bias)
        check_schedule(nest, trial.schedule)

    return first_proven(workload, spec, lambda without: best(without=without), require_schedule)


def best_kept(
    workload: Computation,
    spec: HardwareSpec,
    tail: Tail,
    constraints: ConstraintSet | None = None,
    *,
    identifier: str | None = None,
    directory: Path | None = None,
    without: Collection[str] = (),
) -> Kept[VtaTrial] | None:
    """What :func:`tuned` takes, without its program; ``without`` leaves trials of these keys
    out."""
    folder = directory or default_directory()
    key = key_of(workload, spec, tail, constraints or load_constraint_set(WIDEST))
    found = [
        kept
        for file in stored(folder, VtaTrial, key)
        if constraints is None or is_of(file, folder, key)
        if (kept := kept_in(file, identifier, without)) is not None
    ]
    return min(found, key=lambda kept: kept.trial.cycles or 0, default=None)
