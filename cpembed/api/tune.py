"""Tune a workload: the fastest embedding and schedule; kept, resumable.

>>> import tempfile
>>> from pathlib import Path
>>> from cpembed.api.solve import workload
>>> layer = workload("gemm m=8 n=32 k=32", target="vta_1x16x16")
>>> with tempfile.TemporaryDirectory() as folder:
...     result = tune(layer, "vta_1x16x16", trials=4, database=Path(folder))
>>> len(result.trials), result.best.cycles <= result.untuned.cycles
(4, True)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cpembed import worker
from cpembed.api.beside import faster_beside
from cpembed.api.choice import stand_in
from cpembed.api.chosen import missing_for
from cpembed.api.run_cpu import weights_here
from cpembed.api.run_vta import OutputForm, VtaSimulation, simulates
from cpembed.api.solve import (
    Progress,
    SolveResult,
    explained,
    hardware_spec,
    searches,
    solve,
)
from cpembed.api.tune_cpu import CpuTuneResult, CpuTuning, Field
from cpembed.api.tune_vta import VtaTuneResult, VtaTuning
from cpembed.api.tuning import SEARCH_SHARE, Task
from cpembed.api.widening import best_of
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import BackendUnavailable, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.selection.ranking import RankedCandidate
from cpembed.targets.added import is_added
from cpembed.targets.cpu.choice import AMONG, CONSIDERED, Objective, contenders
from cpembed.targets.cpu.measure import Isolated
from cpembed.targets.cpu.trials import CpuTrial
from cpembed.targets.vta.tuning_trials import VtaTrial
from cpembed.time_limit import Clock
from cpembed.tuning.database import Stored, Trial, default_directory, stored
from cpembed.tuning.kept import WIDEST

DEFAULT_TRIALS = 64

CANDIDATES = 32
"""Embeddings that take part: the best of the ranking."""

OnTrial = Callable[[int, Trial, Trial], None]
"""Called with the number of a trial, the trial, and the best one so far."""


def tune(
    workload: Computation,
    target: str | HardwareSpec,
    *,
    constraints: str | ConstraintSet | None = None,
    trials: int = DEFAULT_TRIALS,
    timeout: float | None = None,
    candidates: int = CANDIDATES,
    output: OutputForm | None = None,
    objective: Objective | None = None,
    seed: int = 0,
    database: Path | None = None,
    progress: Progress | None = None,
    on_trial: OnTrial | None = None,
) -> VtaTuneResult | CpuTuneResult | SolveResult:
    """Measure ``trials`` schedules of the best embeddings: in the timed simulator of a VTA, or on
    this machine.

    ``constraints`` None takes the widest set, ``complete``, and what runs without tuning;
    ``candidates`` of the best embeddings take part. ``timeout`` limits the whole call, in seconds,
    ``database`` is the folder that keeps the trials. ``output``, the form of the result
    (:func:`~cpembed.api.run_vta.tail_for`), is for a VTA; ``objective`` for a CPU: what is to be
    short (:data:`~cpembed.targets.cpu.choice.Objective`), by default the total. Returns the
    :class:`SolveResult` where nothing can be embedded; where ``constraints`` is None and that is
    proven, the target that the specification
    names (``otherwise``) is tuned; likewise, where the model says it is faster, the one that it
    names ``beside``.

    Raises :class:`BackendUnavailable` for a target that nothing here simulates or executes,
    :class:`WorkloadError` for an option of another target, :class:`LoweringError` where the
    instruction can execute no embedding, :class:`InvariantError` where a kernel's numbers are
    wrong, and what :func:`~cpembed.api.solve.solve` and
    :meth:`~cpembed.api.run_vta.VtaSimulation.of` raise.
    """
    tuning = open_tuning(
        workload,
        target,
        constraints=constraints,
        trials=trials,
        timeout=timeout,
        candidates=candidates,
        output=output,
        objective=objective,
        seed=seed,
        database=database,
        progress=progress,
    )
    if isinstance(tuning, SolveResult):
        return tuning
    for number, trial in enumerate(tuning.run(), 1):
        best = tuning.best
        if on_trial is not None and best is not None:
            on_trial(number, trial, best)
    return tuning.result()


def open_tuning(
    workload: Computation,
    target: str | HardwareSpec,
    *,
    constraints: str | ConstraintSet | None = None,
    trials: int = DEFAULT_TRIALS,
    timeout: float | None = None,
    candidates: int = CANDIDATES,
    output: OutputForm | None = None,
    objective: Objective | None = None,
    seed: int = 0,
    database: Path | None = None,
    progress: Progress | None = None,
) -> VtaTuning | CpuTuning | SolveResult:
    """What :func:`tune` does before its first trial."""
    started = time.perf_counter()
    spec = hardware_spec(target)
    require_tunable(spec)
    worker.prepare()
    simulation = None
    if simulates(spec):
        simulation = VtaSimulation.of(spec, workload, output, None)
    _check_options(spec, output, objective)
    limit = None if timeout is None else timeout * SEARCH_SHARE

    def searched(named: str | ConstraintSet, top: int) -> SolveResult:
        return solve(
            workload, spec, named, top=top, timeout=limit, seed=seed, progress=progress
        )  # fmt: skip

    # Without a set, what runs untuned takes part: tuning never does worse.
    more: Sequence[RankedCandidate] = ()
    if constraints is None:
        usual, more = _untuned(workload, spec, simulation, limit, seed, progress)
        # As untuned: what the widest set still finds there is no match for it.
        other = None
        if simulation is None:
            beside = faster_beside(usual, timeout=limit, seed=seed)
            other = stand_in(usual) if beside is None else beside.target
        if other is not None:
            left = None if timeout is None else max(0.0, started + timeout - time.perf_counter())
            return open_tuning(
                workload, other, trials=trials, timeout=left, candidates=candidates,
                objective=objective, seed=seed, database=database, progress=progress,
            )  # fmt: skip
        found = [(usual, len(usual.embeddings)), (searched(WIDEST, candidates), candidates)]
    else:
        found = [(searched(constraints, max(candidates, CONSIDERED)), candidates)]
    results = [solved for solved, _ in found]
    if not any(solved.embeddings for solved in results):
        return results[-1]
    deadline = float("inf") if timeout is None else started + timeout
    task = Task(workload, spec, results[-1].constraints, trials, seed, started, deadline)
    folder = database or default_directory()
    if simulation is not None:
        return VtaTuning(task, simulation, results, folder)
    chosen: Objective = objective or "total"
    field = Field.of(found, spec, fused=more, fuses=constraints is None)
    return CpuTuning(task, field, Isolated(workload, spec, chosen), chosen, folder)


def _untuned(
    workload: Computation,
    spec: HardwareSpec,
    simulation: VtaSimulation | None,
    timeout: float | None,
    seed: int,
    progress: Progress | None,
) -> tuple[SolveResult, Sequence[RankedCandidate]]:
    """What :func:`~cpembed.api.run.run` chooses from: of a VTA the candidate itself, on a CPU the
    candidates of the first set, and those of the wider one where it is searched."""
    here = simulation is None
    clock = Clock(timeout)
    found = searches(
        workload,
        spec,
        top=AMONG if here else CONSIDERED,
        keep=contenders if here else None,
        timeout=timeout,
        seed=seed,
        progress=progress,
        rescored=partial(weights_here, spec=spec) if here else None,
    )
    if not any(result.embeddings for result in found):
        return explained(best_of(found), clock, progress), ()
    if simulation is not None:
        solved, candidate = simulation.fastest(found)
        return replace(solved, embeddings=(candidate,)), ()
    first, *others = [result for result in found if result.embeddings]
    return first, [item for result in others for item in result.embeddings]


def require_tunable(spec: HardwareSpec) -> None:
    """Raises :class:`BackendUnavailable` for a target that nothing here simulates or executes."""
    if missing := missing_for(spec):
        raise BackendUnavailable(f"{spec.name}: {'; '.join(missing)}: nothing to measure")
    if is_added(spec):
        raise BackendUnavailable(f"{spec.name}: its back end has one schedule: nothing to tune")


def known(database: Path | None = None) -> list[Stored[Any]]:
    """What the database holds, by name of the file. What is used of it is
    :attr:`~cpembed.tuning.database.Stored.is_current`."""
    folder = database or default_directory()
    found: list[Stored[Any]] = [*stored(folder, VtaTrial), *stored(folder, CpuTrial)]
    return sorted(found, key=lambda file: file.path)


def _check_options(
    spec: HardwareSpec, output: OutputForm | None, objective: Objective | None
) -> None:
    if simulates(spec):
        if objective is not None:
            raise WorkloadError(
                f"{spec.name} is simulated and counts the contraction's cycles: leave the "
                "objective out"
            )
    elif output is not None:
        raise WorkloadError(
            f"an output form is for targets that are simulated, not for {spec.name}: leave it out"
        )
