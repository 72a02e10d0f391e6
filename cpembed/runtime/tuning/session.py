"""Tuning that is ready to run, whatever measures: resumed, interrupted, kept."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime.measurement.results import ResultStore
from cpembed.runtime.tuning.database import T
from cpembed.runtime.tuning.search import Search
from cpembed.runtime.tuning.space import Design, Proposal, S

Together = Callable[[Sequence[Proposal[S]]], Iterable[tuple[Proposal[S], T]]]
"""Makes the trials of proposals."""

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
class CandidatePool(Generic[S]):
    """The embeddings that take part; what runs untuned is ``untuned`` on the first one.

    ``refused`` says of the others why the instruction cannot execute them.
    """

    designs: tuple[Design[S], ...]
    untuned: S
    refused: tuple[str, ...] = ()


class Tuning(Generic[T, S]):
    """A search with its file of trials: embeddings are found and proven, kept trials are loaded.

    ``done`` are the trials of this call so far, ``measured`` of them are new. ``measure`` makes a
    trial of a proposal; ``spread`` is as for :class:`~cpembed.runtime.tuning.search.Search`,
    ``about`` a part of documents.
    """

    def __init__(
        self,
        task: Task,
        field: CandidatePool[S],
        store: ResultStore[T],
        kind: type[T],
        measure: Callable[[Proposal[S]], T],
        spread: float = 1.0,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.task = task
        self.field = field
        self.store = store
        self.done: list[T] = []
        self.measured = 0
        self._about = about or {}
        self.stopped = False
        self._search = Search(field.designs, field.untuned, task.seed, spread)
        self._kind = kind
        self._measure = measure
        store.open()
        self._kept = store.load()
        self._known: dict[str, T] = {}
        for trial in self._kept:
            self._known.setdefault(trial.key, trial)

    def _told(self, proposal: Proposal[S], trial: T) -> None:
        """A trial that is done, new or not."""

    def _finish(self) -> None:
        """After the last trial."""

    def about(self) -> dict[str, Any]:
        """What was tuned, beside workload, target and constraint set; a part of JSON documents."""
        return dict(self._about)

    @property
    def best(self) -> T | None:
        """The best of all that are kept under the key."""
        return self._kind.best_of(self._kept)

    @property
    def kept(self) -> int:
        """Schedules in the file."""
        return len(self._known)

    def run(self, together: Together[S, T] | None = None) -> Iterator[T]:
        """The trials one by one; each is kept when it is yielded. What an earlier call measured is
        taken, so that the same call continues where it was interrupted.

        ``together`` makes the trials of several proposals that do not depend on each other, in any
        order; where it makes fewer, the run ends with those before the first that is missing. The
        trials, and their order in the file, are the same as without it.
        """
        for proposal in self._due(together):
            trial = self._known.get(proposal.key)
            if trial is None:
                if together is not None:
                    return
                trial = self._measure(proposal)
                self._keep([trial])
                self.measured += 1
            self._search.tell(proposal, trial.cost)
            self._told(proposal, trial)
            self.done.append(trial)
            yield trial
        self._finish()

    def _due(self, together: Together[S, T] | None) -> Iterator[Proposal[S]]:
        """The search's proposals until the time is over."""
        for generation in self._search.generations(self.task.trials):
            parts = [[proposal] for proposal in generation] if together is None else [generation]
            for part in parts:
                if self.done and time.perf_counter() > self.task.deadline:
                    self.stopped = True
                    return
                if together is not None:
                    self._measure_together(part, together)
                yield from part

    def _measure_together(self, proposals: Sequence[Proposal[S]], together: Together[S, T]) -> None:
        """Those that are not known; a trial is kept once all before it are."""
        waiting = deque(proposal for proposal in proposals if proposal.key not in self._known)
        made: dict[str, T] = {}
        for proposal, trial in together(tuple(waiting)):
            made[proposal.key] = trial
            while waiting and waiting[0].key in made:
                self._keep([made[waiting.popleft().key]])
                self.measured += 1

    def _keep(self, trials: Sequence[T]) -> None:
        for trial in trials:
            self.store.append(trial)
            self._kept.append(trial)
            self._known.setdefault(trial.key, trial)

    def outcome(self) -> tuple[T, T]:
        """After :meth:`run`, whole or interrupted: the best, and what runs untuned; the best again
        where that has no program.

        Raises :class:`LoweringError` where no schedule that was tried has a program.
        """
        best = self.best
        if best is None or not self.done:
            reason = next((t.error for t in self.done if t.error), "none was tried")
            raise LoweringError(f"no schedule has a program: {reason}")
        untuned = self.done[0]
        return best, untuned if untuned.cost is not None else best
