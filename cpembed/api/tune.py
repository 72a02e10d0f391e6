"""Tune a workload: the embedding and the schedule of fewest simulated cycles; kept, resumable.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from cpembed.api.run_vta import OutputForm, VtaSimulation, simulates
from cpembed.api.solve import (
    DEFAULT_CONSTRAINTS,
    Progress,
    SolveResult,
    hardware_spec,
    solve,
    workload_json,
)
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import BackendUnavailable, InvariantError, LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.measure.results import ResultStore
from cpembed.tune.choice import WIDEST
from cpembed.tune.database import (
    Stored,
    Trial,
    best_of,
    default_directory,
    key_of,
    result_form,
    store_of,
    stored,
)
from cpembed.tune.space import Design, Machine, design_of, distinct
from cpembed.tune.tuner import Tuner, measure

DEFAULT_TRIALS = 64

CANDIDATES = 32
"""Embeddings that take part: the best of the ranking."""

_SEARCH_SHARE = 0.5
"""Of a time limit, what the searches for embeddings may take."""

OnTrial = Callable[[int, Trial, Trial], None]
"""Called with the number of a trial, the trial, and the best one so far."""


@dataclass(frozen=True)
class TuneResult:
    """What is known after tuning: ``trials`` holds those of this call's proposals, ``best`` the
    best of all that are kept under this key, ``untuned`` what runs without tuning.

    ``measured`` trials are new; the others were kept from earlier calls. ``stopped``: the time
    limit came before the number of trials. ``seconds`` is wall time, searches included.
    """

    workload: Computation
    target: HardwareSpec
    constraints: str
    form: str
    seed: int
    candidates: int
    trials: tuple[Trial, ...]
    measured: int
    kept: int
    stopped: bool
    best: Trial
    untuned: Trial
    seconds: float
    clock_mhz: float
    database: Path

    @property
    def speedup(self) -> float:
        """Cycles untuned over cycles tuned."""
        return _cycles(self.untuned) / _cycles(self.best)

    def to_json(self) -> dict[str, Any]:
        """The document of ``tune --json``."""
        return {
            "workload": workload_json(self.workload),
            "target": self.target.name,
            "constraints": self.constraints,
            "form": self.form,
            "seed": self.seed,
            "candidates": self.candidates,
            "trials": len(self.trials),
            "measured": self.measured,
            "kept": self.kept,
            "stopped": self.stopped,
            "untuned": self._trial_json(self.untuned),
            "best": self._trial_json(self.best),
            "speedup": self.speedup,
            "seconds": self.seconds,
            "database": str(self.database),
        }

    def _trial_json(self, trial: Trial) -> dict[str, Any]:
        document = msgspec.to_builtins(trial)
        del document["error"]
        return {
            **document,
            "us": _cycles(trial) / self.clock_mhz,
            "lower_bound_ratio": _cycles(trial) / trial.lower_bound,
            "busiest_module_ratio": _cycles(trial) / trial.busiest_module,
        }


@dataclass
class Tuning:
    """Tuning that is ready to run: embeddings are found and proven, kept trials are loaded."""

    workload: Computation
    target: HardwareSpec
    constraints: ConstraintSet
    simulation: VtaSimulation
    designs: Sequence[Design]
    store: ResultStore[Trial]
    trials: int
    seed: int
    started: float
    deadline: float
    done: list[Trial] = field(default_factory=list[Trial])
    measured: int = 0
    stopped: bool = False
    _known: dict[str, Trial] = field(default_factory=dict[str, Trial])

    def __post_init__(self) -> None:
        self._known = {trial.key: trial for trial in self.store.load()}

    @property
    def best(self) -> Trial | None:
        """The best of all that are kept under the key."""
        return best_of(list(self._known.values()))

    def run(self) -> Iterator[Trial]:
        """The trials one by one; each is kept when it is yielded. What an earlier call measured is
        taken, so that the same call continues where it was interrupted."""
        simulation = self.simulation
        machine = Machine(simulation.config, simulation.memory, simulation.tail)
        tuner = Tuner(self.designs, machine, self.seed)
        for proposal in tuner.proposals(self.trials):
            if self.done and time.perf_counter() > self.deadline:
                self.stopped = True
                return
            trial = self._known.get(proposal.key)
            if trial is None:
                trial = measure(proposal, machine)
                self.store.append(trial)
                self._known[proposal.key] = trial
                self.measured += 1
            tuner.tell(proposal, trial.cycles)
            self.done.append(trial)
            yield trial

    def result(self) -> TuneResult:
        """After :meth:`run`, whole or interrupted.

        Raises :class:`LoweringError` where no schedule that was tried has a program.
        """
        best = self.best
        if best is None or not self.done:
            reason = self.done[0].error if self.done else "none was tried"
            raise LoweringError(f"no schedule has a program: {reason}")
        untuned = self.done[0] if self.done[0].cycles is not None else best
        return TuneResult(
            self.workload,
            self.target,
            self.constraints.name,
            result_form(self.simulation.tail),
            self.seed,
            len(self.designs),
            tuple(self.done),
            self.measured,
            len(self._known),
            self.stopped,
            best,
            untuned,
            time.perf_counter() - self.started,
            self.simulation.clock_mhz,
            self.store.path,
        )


def tune(
    workload: Computation,
    target: str | HardwareSpec,
    *,
    constraints: str | ConstraintSet | None = None,
    trials: int = DEFAULT_TRIALS,
    timeout: float | None = None,
    candidates: int = CANDIDATES,
    output: OutputForm | None = None,
    seed: int = 0,
    database: Path | None = None,
    progress: Progress | None = None,
    on_trial: OnTrial | None = None,
) -> TuneResult | SolveResult:
    """Measure ``trials`` schedules of the best embeddings in the timed simulator.

    ``constraints`` None takes the widest set, ``complete``, and what runs without tuning;
    ``candidates`` of the best embeddings take part. ``timeout`` limits the whole call, in seconds,
    ``output`` is the form of the result (:func:`~cpembed.api.run_vta.tail_for`), ``database`` the
    folder that keeps the trials. Returns the :class:`SolveResult` where nothing can be embedded.

    Raises :class:`BackendUnavailable` for a target that is no VTA, and what
    :func:`~cpembed.api.solve.solve` and :meth:`~cpembed.api.run_vta.VtaSimulation.of` raise.
    """
    tuning = open_tuning(
        workload,
        target,
        constraints=constraints,
        trials=trials,
        timeout=timeout,
        candidates=candidates,
        output=output,
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
    seed: int = 0,
    database: Path | None = None,
    progress: Progress | None = None,
) -> Tuning | SolveResult:
    """What :func:`tune` does before its first trial."""
    started = time.perf_counter()
    spec = hardware_spec(target)
    require_tunable(spec)
    simulation = VtaSimulation.of(spec, workload, output, None)
    machine = Machine(simulation.config, simulation.memory, simulation.tail)
    limit = None if timeout is None else timeout * _SEARCH_SHARE
    # Without a set, what runs untuned comes first: tuning never does worse.
    searches = [(DEFAULT_CONSTRAINTS, 1), (WIDEST, candidates)]
    found = [
        solve(workload, spec, name, top=top, timeout=limit, seed=seed, progress=progress)
        for name, top in (searches if constraints is None else [(constraints, candidates)])
    ]
    designs = distinct(
        design_of(ranked.candidate, ranked.rank, solved.constraints.name, machine)
        for solved in found
        for ranked in solved.embeddings
    )
    if not designs:
        return found[-1]
    chosen = found[-1].constraints
    store = store_of(
        database or default_directory(), key_of(workload, spec, simulation.tail, chosen)
    )
    store.open()
    deadline = float("inf") if timeout is None else started + timeout
    return Tuning(
        workload, spec, chosen, simulation, designs, store, trials, seed, started, deadline
    )


def require_tunable(spec: HardwareSpec) -> None:
    """Raises :class:`BackendUnavailable` for a target whose cycles nothing here counts."""
    if not simulates(spec):
        raise BackendUnavailable(
            f"{spec.name}: tuning counts cycles in VTA's simulator, and this target is no VTA; "
            "name one, such as vta_1x16x16"
        )


def known(database: Path | None = None) -> list[Stored]:
    """What the database holds, by name of the file. What is used of it is decided by
    :func:`~cpembed.tune.database.is_current`."""
    return list(stored(database or default_directory()))


def _cycles(trial: Trial) -> int:
    """Of a trial that has a program."""
    if trial.cycles is None:
        raise InvariantError(f"a schedule without a program was taken for the best: {trial.error}")
    return trial.cycles
