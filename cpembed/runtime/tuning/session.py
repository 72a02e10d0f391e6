"""The search for the fastest schedule, and sessions of it that can be interrupted and resumed.

Estimates choose the first trials; neighbours of the best that were measured follow.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Generic

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime.tuning.database import T
from cpembed.runtime.tuning.space import Design, Proposal, S, Scored
from cpembed.stores import ResultStore

GENERATION, FROM_ESTIMATES = 8, 2
"""Number of trials between two looks at the measurements, and number of these that estimates choose
alone; in the first generation estimates choose all."""

PARENTS, CHILDREN = 4, 64
"""Number of best schedules whose neighbours are generated, and number of neighbours, of which those
with the best estimates are measured."""

SCREENED = 64
"""Number of schedules that estimates choose alone."""

FIRST = 5
"""Number of families of embeddings, and of groups of their schedules, whose best come first:
estimates compare schedules of one embedding better than embeddings."""

# Probability that a neighbour has another embedding, where the schedule has a meaning there.
_OTHER_EMBEDDING = 1 / 6

SEARCH_SHARE = 0.5
"""Maximum fraction of a time limit for the searches for embeddings."""

BatchMeasurement = Callable[[Sequence[Proposal[S]]], Iterable[tuple[Proposal[S], T]]]
"""Function that yields the trials of independent proposals, in any order."""


# ------------------------------------------------------------------------------ the search


class Search(Generic[S]):
    """Order in which schedules are proposed for measuring.

    It depends only on the designs, the seed and the measurements so far: with the same measurements
    a search proposes the same, so that an interrupted session can be replayed.

    Parameters
    ----------
    designs
        The embeddings with their schedules.
    untuned
        The schedule that runs untuned on the first design: the first proposal.
    seed
        Seed of the random choices.
    spread
        Families of embeddings whose estimate exceeds this multiple of the least do not come first.
    """

    def __init__(
        self, designs: Sequence[Design[S]], untuned: S, seed: int, spread: float = 1.0
    ) -> None:
        self._designs = designs
        self._untuned = untuned
        self._spread = spread
        self._seed = seed
        self._seen: set[str] = set()
        self._measured: list[tuple[float, Proposal[S]]] = []

    def proposals(self, trials: int) -> Iterator[Proposal[S]]:
        """Yield at most ``trials`` proposals; each must be measured, and told, before the next.

        More trials begin with the same ones.
        """
        return itertools.chain.from_iterable(self.generations(trials))

    def generations(self, trials: int) -> Iterator[list[Proposal[S]]]:
        """Yield the same proposals in lists of at most ``GENERATION``.

        Proposals of a list do not depend on each other's measurements; all must be told, in their
        order, before the next list.
        """
        for generation in self._endless():
            if trials <= 0:
                return
            yield generation[:trials]
            trials -= len(generation)

    def tell(self, proposal: Proposal[S], cost: float | None) -> None:
        """Record the measured cost of a proposal; None if it has no program."""
        if cost is not None:
            self._measured.append((cost, proposal))

    def _endless(self) -> Iterator[list[Proposal[S]]]:
        random = Random(self._seed)
        # Lazy: the families overlap with the best of all, and a proposal is made once.
        by_estimate = filter(self._is_new, self._by_estimate())
        generation = list(itertools.islice(by_estimate, GENERATION))
        while generation:
            yield generation
            generation = list(itertools.islice(by_estimate, FROM_ESTIMATES))
            generation += self._neighbours(GENERATION - len(generation), random)

    def _by_estimate(self) -> Iterator[Proposal[S]]:
        """Yield the untuned schedule, the best of the first families, then all by estimate."""
        # First, so that a session of one trial already has the number to compare with.
        untuned = _proposal(self._designs[0], self._untuned)
        if untuned is not None:
            yield untuned
        ranked = screened(self._designs)
        families: dict[tuple[str, object], Proposal[S]] = {}
        for item in ranked:
            group = item.design.space.group(item.schedule)
            families.setdefault((repr(item.design.candidate.embedding.family), group), item)
        # `ranked` is ascending, so each family is represented by its best schedule.
        best = list(families.values())[:FIRST]
        yield from (item for item in best if item.estimate <= self._spread * best[0].estimate)
        yield from ranked[:SCREENED]

    def _neighbours(self, count: int, random: Random) -> list[Proposal[S]]:
        """Return neighbours of the best with the smallest corrected estimates."""
        parents = sorted(self._measured, key=lambda item: item[0])[:PARENTS]
        children: list[tuple[float, Proposal[S]]] = []
        for _ in range(CHILDREN if parents else 0):
            cost, parent = random.choice(parents)
            child = self._neighbour(parent, random)
            if child is not None and child.estimate < float("inf") and self._is_new(child):
                # The estimate of a neighbour is about as wrong as that of its parent.
                correction = cost / parent.estimate if parent.estimate else 1.0
                children.append((child.estimate * correction, child))
        children.sort(key=lambda item: item[0])
        # Those left out may be proposed again by a later generation.
        for _, child in children[count:]:
            self._seen.remove(child.key)
        return [child for _, child in children[:count]]

    def _neighbour(self, parent: Proposal[S], random: Random) -> Proposal[S] | None:
        design, schedule = parent.design, parent.schedule
        if len(self._designs) > 1 and random.random() < _OTHER_EMBEDDING:
            neighbour = random.choice(self._designs)
            transferred = neighbour.space.transferred(schedule, design.space)
            if transferred is not None:
                return _proposal(neighbour, transferred)
        changed = design.space.neighbour(schedule, random)
        return None if changed is None else _proposal(design, changed)

    def _is_new(self, proposal: Proposal[S]) -> bool:
        new = proposal.key not in self._seen
        self._seen.add(proposal.key)
        return new


def _proposal(design: Design[S], schedule: S) -> Proposal[S] | None:
    try:
        return Proposal(design, design.space.scored(design.space.canonical(schedule)))
    except LoweringError:
        return None


def screened(designs: Sequence[Design[S]], limit: int = SCREENED) -> list[Proposal[S]]:
    """Return the schedules of smallest estimates over all designs, the best first.

    Designs are looked at in the order of their lower bounds, until one's bound exceeds the best
    estimate: none of its schedules can be the fastest.

    Parameters
    ----------
    designs
        The embeddings with their schedules.
    limit
        Maximum number of schedules of each design.
    """
    best = float("inf")
    proposals: list[Proposal[S]] = []
    # Ascending bounds: the first that exceeds the best estimate ends the loop.
    for design in sorted(designs, key=lambda item: item.space.lower_bound):
        if design.space.lower_bound > best:
            break
        unique: dict[str, Proposal[S]] = {}
        for item in _canonical_schedules(design, limit):
            proposal = Proposal(design, item)
            unique.setdefault(proposal.key, proposal)
        best = min(best, *(item.estimate for item in unique.values()), float("inf"))
        proposals += list(unique.values())[:limit]
    return sorted(proposals, key=lambda proposal: proposal.estimate)


def _canonical_schedules(design: Design[S], limit: int) -> list[Scored[S]]:
    space = design.space
    try:
        # Several enumerated schedules are one program: eight times as many leave enough.
        ranked = space.ranked(8 * limit)
    except LoweringError:
        return []
    return [Scored(item.cost, space.canonical(item.schedule), item.parts) for item in ranked]


# ------------------------------------------------------------------------------ the session


@dataclass(frozen=True, kw_only=True)
class Task:
    """The workload, target and constraint set of a session, and its limits.

    ``seed`` is that of the search; ``started`` and ``deadline`` are by :func:`time.perf_counter`.
    """

    workload: Computation
    target: HardwareSpec
    constraints: ConstraintSet
    trials: int
    seed: int
    started: float
    deadline: float


@dataclass(frozen=True)
class CandidatePool(Generic[S]):
    """The embeddings that take part; ``untuned`` is the schedule of the first without tuning.

    ``refused`` holds the reasons why the others were rejected.
    """

    designs: tuple[Design[S], ...]
    untuned: S
    refused: tuple[str, ...] = ()


class Tuning(Generic[T, S]):
    """A search with its file of trials, which are loaded when the session is created.

    Attributes ``done`` and ``measured`` are the trials of this session so far and how many of them
    are new; ``stopped`` is True if the deadline ended the run.

    Parameters
    ----------
    task
        The workload and the limits.
    field
        The embeddings that take part.
    store
        The file of trials.
    kind
        The type of the trials.
    measure
        Function that makes the trial of a proposal.
    spread
        As for :class:`Search`.
    about
        A part of JSON documents.
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
        # Locked before it is read: another session could append in between.
        store.open()
        self._trials = store.load()
        self._trial_by_key: dict[str, T] = {}
        # Final comparisons repeat trials: a replayed search is told the first measurement.
        for trial in self._trials:
            self._trial_by_key.setdefault(trial.key, trial)

    def _on_trial(self, proposal: Proposal[S], trial: T) -> None:
        """Take note of a trial of the session, measured now or earlier."""

    def _finish(self) -> None:
        """Complete the session after the last trial."""

    def about(self) -> dict[str, Any]:
        """Return the session's identity besides workload, target and constraint set."""
        return dict(self._about)

    @property
    def best(self) -> T | None:
        """The best trial of the file, earlier sessions included."""
        return self._kind.best_of(self._trials)

    @property
    def schedule_count(self) -> int:
        """Number of schedules in the file."""
        return len(self._trial_by_key)

    def run(self, measure_batch: BatchMeasurement[S, T] | None = None) -> Iterator[T]:
        """Yield the trials one by one, each already in the file.

        Trials of an earlier session are reused, so that the same call continues where it was
        interrupted.

        Parameters
        ----------
        measure_batch
            Function that makes the trials of several independent proposals. If it makes fewer, the
            run ends with those before the first that is missing. The trials, and their order in the
            file, are the same as without it.
        """
        for proposal in self._due(measure_batch):
            trial = self._trial_by_key.get(proposal.key)
            if trial is None:
                if measure_batch is not None:
                    return
                trial = self._measure(proposal)
                self._append([trial])
                self.measured += 1
            self._search.tell(proposal, trial.cost)
            self._on_trial(proposal, trial)
            self.done.append(trial)
            yield trial
        self._finish()

    def _due(self, measure_batch: BatchMeasurement[S, T] | None) -> Iterator[Proposal[S]]:
        """Yield the search's proposals until the deadline."""
        for generation in self._search.generations(self.task.trials):
            single_proposals = [[proposal] for proposal in generation]
            # One by one the deadline is checked before each trial, in batches before each
            # generation.
            for batch in single_proposals if measure_batch is None else [generation]:
                # The first trial is always made, so that a session has an outcome.
                if self.done and time.perf_counter() > self.task.deadline:
                    self.stopped = True
                    return
                if measure_batch is not None:
                    self._measure_new(batch, measure_batch)
                yield from batch

    def _measure_new(
        self, proposals: Sequence[Proposal[S]], measure_batch: BatchMeasurement[S, T]
    ) -> None:
        """Measure the proposals without a trial; a trial is written once all before it are."""
        # In the order of the search: a file must not depend on which worker was faster.
        waiting = deque(p for p in proposals if p.key not in self._trial_by_key)
        measured: dict[str, T] = {}
        for proposal, trial in measure_batch(tuple(waiting)):
            measured[proposal.key] = trial
            while waiting and waiting[0].key in measured:
                self._append([measured[waiting.popleft().key]])
                self.measured += 1

    def _append(self, trials: Sequence[T]) -> None:
        for trial in trials:
            self.store.append(trial)
            self._trials.append(trial)
            self._trial_by_key.setdefault(trial.key, trial)

    def outcome(self) -> tuple[T, T]:
        """Return the best trial and the untuned one after a complete or interrupted :meth:`run`.

        The best trial takes the place of an untuned one without a program.

        Raises :class:`LoweringError` if no schedule that was tried has a program.
        """
        best = self.best
        if best is None or not self.done:
            reason = next((t.error for t in self.done if t.error), "none was tried")
            raise LoweringError(f"no schedule has a program: {reason}")
        untuned = self.done[0]
        return best, untuned if untuned.cost is not None else best
