"""Tuning that is ready to run, whatever measures: resumed, interrupted, kept."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from cpembed.api.solve import workload_json
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.measure.results import ResultStore
from cpembed.tuning.database import Trial
from cpembed.tuning.search import P, Search

T = TypeVar("T", bound=Trial)

SEARCH_SHARE = 0.5
"""Of a time limit, what the searches for embeddings may take."""


@dataclass(frozen=True)
class Task:
    """What is tuned and how long; ``seed`` is that of the search, ``deadline`` by
    :func:`time.perf_counter`."""

    workload: Computation
    target: HardwareSpec
    constraints: ConstraintSet
    trials: int
    seed: int
    started: float
    deadline: float


@dataclass(frozen=True)
class TuneResult(Generic[T]):
    """What is known after tuning: ``trials`` holds those of this call's proposals, ``best`` the
    best of all that are kept under this key, ``untuned`` what runs without tuning.

    ``candidates`` embeddings took part. ``measured`` trials are new; the others were kept from
    earlier calls. ``stopped``: the time limit came before the number of trials. ``seconds`` is wall
    time, searches included.
    """

    workload: Computation
    target: HardwareSpec
    constraints: str
    seed: int
    candidates: int
    trials: tuple[T, ...]
    measured: int
    kept: int
    stopped: bool
    best: T
    untuned: T
    seconds: float
    database: Path

    @property
    def speedup(self) -> float:
        """What is minimised, untuned over tuned."""
        return (self.untuned.cost or 0) / (self.best.cost or 1)

    def to_json(self) -> dict[str, Any]:
        """The document of ``tune --json``."""
        return {
            "workload": workload_json(self.workload),
            "target": self.target.name,
            "constraints": self.constraints,
            **self._about_json(),
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

    def _about_json(self) -> dict[str, Any]:
        """What was tuned, beside workload, target and constraint set."""
        return {}

    def _trial_json(self, trial: T) -> dict[str, Any]:
        document = msgspec.to_builtins(trial)
        del document["error"]
        return document


class Tuning(ABC, Generic[T, P]):
    """A search with its file of trials: embeddings are found and proven, kept trials are loaded.

    ``done`` are the trials of this call so far, ``measured`` of them are new.
    """

    def __init__(self, task: Task, search: Search[P], store: ResultStore[T], kind: type[T]) -> None:
        self.task = task
        self.store = store
        self.done: list[T] = []
        self.measured = 0
        self.stopped = False
        self._search = search
        self._kind = kind
        self._kept = store.load()
        self._known: dict[str, T] = {}
        for trial in self._kept:
            self._known.setdefault(trial.key, trial)

    @abstractmethod
    def _measure(self, proposal: P) -> T:
        """A new trial."""

    @abstractmethod
    def result(self) -> TuneResult[T]:
        """After :meth:`run`, whole or interrupted.

        Raises :class:`LoweringError` where no schedule that was tried has a program.
        """

    def _told(self, proposal: P, trial: T) -> None:
        """A trial that is done, new or not."""

    def _finish(self) -> None:
        """After the last trial."""

    @property
    def best(self) -> T | None:
        """The best of all that are kept under the key."""
        return self._kind.best_of(self._kept)

    @property
    def kept(self) -> int:
        """Schedules in the file."""
        return len(self._known)

    def run(self) -> Iterator[T]:
        """The trials one by one; each is kept when it is yielded. What an earlier call measured is
        taken, so that the same call continues where it was interrupted."""
        for proposal in self._search.proposals(self.task.trials):
            if self.done and time.perf_counter() > self.task.deadline:
                self.stopped = True
                break
            trial = self._known.get(proposal.key)
            if trial is None:
                trial = self._measure(proposal)
                self._keep([trial])
                self.measured += 1
            self._search.tell(proposal, trial.cost)
            self._told(proposal, trial)
            self.done.append(trial)
            yield trial
        self._finish()

    def _keep(self, trials: Sequence[T]) -> None:
        for trial in trials:
            self.store.append(trial)
            self._kept.append(trial)
            self._known.setdefault(trial.key, trial)

    def _outcome(self) -> tuple[T, T]:
        """The best, and what runs untuned: the best again where that has no program."""
        best = self.best
        if best is None or not self.done:
            reason = next((t.error for t in self.done if t.error), "none was tried")
            raise LoweringError(f"no schedule has a program: {reason}")
        untuned = self.done[0]
        return best, untuned if untuned.cost is not None else best
