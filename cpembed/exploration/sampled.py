"""Methods that propose points one after the other, by optuna: gp, tpe, nsga2, random.

A trial is a point that is evaluated. What a method proposes a second time costs nothing: it is
told the values again. After :data:`REPEATS` of these in a row, and for ``gp`` at once, whose model
learns nothing from them, the nearest point that has not been evaluated is taken. Proposals that are
no machines are told as infeasible and are no trials either. With ``distinct`` False every proposal
of a machine is a trial, as in publications that count so.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cpembed.cluster import Workers
from cpembed.errors import BackendUnavailable
from cpembed.exploration.costing import Costing, LayerWork, Request
from cpembed.exploration.objectives import Limit, Objective
from cpembed.exploration.points import EvaluatedPoint, Step, evaluated
from cpembed.exploration.space import Place, Space
from cpembed.exploration.store import Method
from cpembed.targets.family import Point

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import Trial as OptunaTrial

REPEATS = 20
"""Proposals in a row that are no new machine, until the nearest one is taken."""

STARTUP = 10
"""Points at random before a model is made of them (HASCO, VII-C: its sample of 10)."""

POPULATION = 10
"""Of nsga2, unless told otherwise. HASCO's comparison has 5."""

_FARTHEST = 20_000
"""Points that are looked at for the nearest one that is new."""


@dataclass(frozen=True)
class Trial:
    """``number`` is the point's in its space. ``point`` is None where a layer has no software
    there, or an evaluation failed. ``repeated``: it was evaluated by an earlier trial; ``nearest``:
    it was taken in the place of one that had been evaluated."""

    number: int
    place: Place
    point: EvaluatedPoint | None
    repeated: bool = False
    nearest: bool = False
    reason: str | None = None


def require_method(method: Method) -> None:
    """Raise :class:`BackendUnavailable` where a method's packages are not installed."""
    needed = ["optuna", *(["torch", "scipy"] if method == "gp" else [])]
    lacking = [name for name in needed if find_spec(name) is None]
    if lacking:
        extra = "explore-gp" if method == "gp" else "explore"
        raise BackendUnavailable(
            f"method {method} needs {' and '.join(lacking)}, not installed here: "
            f"pip install 'cpembed[{extra}]'"
        )


class SampledSearch:
    """A method's trials, from a seed: the same ones in the same order whoever evaluates them, so
    that a search that was ended goes on by making them again from what is kept.

    ``known`` are points of an earlier search with the same layers and limits, taken as they are.
    """

    def __init__(
        self,
        space: Space,
        costing: Costing,
        objectives: Sequence[Objective],
        limits: Sequence[Limit],
        *,
        method: Method,
        trials: int,
        seed: int = 0,
        population: int = POPULATION,
        distinct: bool = True,
        known: Mapping[Place, EvaluatedPoint] | None = None,
    ) -> None:
        require_method(method)
        self.space = space
        self.costing = costing
        self.objectives = tuple(objectives)
        self.limits = tuple(limits)
        self.method: Method = method
        self.trials: list[Trial] = []
        self.repeats = 0
        """Proposals that had been evaluated."""
        self.exhausted = False
        """Whether no point is left that is new."""
        self._wanted = trials
        self._distinct = distinct
        self._known: dict[Place, Trial] = {}
        self._given = known or {}
        self._study = _study(method, len(self.objectives), seed, population)
        self._distributions = distributions(space)

    @property
    def finished(self) -> bool:
        return self.exhausted or len(self.trials) >= self._wanted

    def run(self, workers: Workers) -> Iterator[Step]:
        """Trial by trial; whoever iterates may stop at any step. Steps are answers of tasks, and
        trials."""
        while not self.finished:
            proposed = self._proposal()
            if proposed is None:
                self.exhausted = True
                return
            asked, place, nearest = proposed
            known = self._known.get(place)
            if known is None:
                if place not in self._given:
                    yield from self._find_out(self.space.point(place), workers)
                known = self._trial(place, nearest)
                self._known[place] = known
                self.trials.append(known)
            else:
                self.trials.append(Trial(known.number, place, known.point, repeated=True))
            self._tell(asked, known)
            yield self._standing()

    def _standing(self) -> Step:
        return Step(f"{self.method}: trials", len(self.trials), self._wanted)

    def _find_out(self, point: Point, workers: Workers) -> Iterator[Step]:
        for wanted in (self._analyses(point), self._evaluations(point)):
            for _ in self.costing.find_out(wanted, workers):
                yield self._standing()

    def _analyses(self, point: Point) -> Iterator[tuple[Point, LayerWork, Request]]:
        for layer in self.costing.layers:
            if (request := self.costing.analysis(point, layer)) is not None:
                yield point, layer, request

    def _evaluations(self, point: Point) -> Iterator[tuple[Point, LayerWork, Request]]:
        """None where the point has no costs anyway."""
        if self._reason(point) is None:
            for layer in self.costing.layers:
                for request in self.costing.evaluations(point, layer):
                    yield point, layer, request

    def _reason(self, point: Point) -> str | None:
        """Why a point that is analysed has no costs."""
        for layer in self.costing.layers:
            if self.costing.is_failed(point, layer):
                return f"{layer.label}: failed"
            if self.costing.bound(point, layer) is None:
                return f"{layer.label}: {self.costing.why_none(point, layer)}"
        return None

    def _trial(self, place: Place, nearest: bool) -> Trial:
        if place in self._given:
            return Trial(self.space.number(place), place, self._given[place], nearest=nearest)
        reason = self._reason(self.space.point(place))
        found = evaluated(self.space, place, self.costing, self.limits) if reason is None else None
        if found is None and reason is None:
            reason = "no choice of software has a program"
        return Trial(self.space.number(place), place, found, nearest=nearest, reason=reason)

    # -- proposals --------------------------------------------------------------------------------

    def _proposal(self) -> tuple[OptunaTrial, Place, bool] | None:
        """A machine, new or, where trials need not be distinct, evaluated before; True: the nearest
        to what was proposed. None where none is left."""
        for attempt in range(1, REPEATS + 1):
            asked = self._study.ask(self._distributions)
            place = self._place(asked.params)
            flaw = self.space.flaw(self.space.point(place))
            known = self._known.get(place)
            if flaw is None and (known is None or not self._distinct):
                self.repeats += known is not None
                return asked, place, False
            if known is not None:
                self.repeats += 1
            at_once = known is not None and self.method == "gp"
            if at_once or attempt == REPEATS:
                return self._nearest(asked, place)
            self._tell(asked, known)
        raise AssertionError("the last attempt returns")

    def _nearest(self, asked: OptunaTrial, place: Place) -> tuple[OptunaTrial, Place, bool] | None:
        """What was asked for is left unanswered; the method is told of the other point."""
        import optuna

        self._study.tell(asked, state=optuna.trial.TrialState.FAIL)
        found = self._nearest_new(place)
        if found is None:
            return None
        self._study.enqueue_trial(self._parameters(found))
        return self._study.ask(self._distributions), found, True

    def _nearest_new(self, place: Place) -> Place | None:
        """By steps, one of which changes a number to its neighbour, or a word to any other."""
        seen, line = {place}, [place]
        while line:
            reached: list[Place] = []
            for one in line:
                if one not in self._known and self.space.flaw(self.space.point(one)) is None:
                    return one
                for neighbour in self._neighbours(one):
                    if neighbour not in seen:
                        seen.add(neighbour)
                        reached.append(neighbour)
            if len(seen) > max(_FARTHEST, 2 * self.space.combinations):
                return None
            line = reached
        return None

    def _neighbours(self, place: Place) -> Iterator[Place]:
        for position, values in enumerate(self.space.parameters.values()):
            here = place[position]
            others = (here - 1, here + 1)
            if isinstance(values[0], str):
                others = tuple(n for n in range(len(values)) if n != here)
            for other in others:
                if 0 <= other < len(values):
                    yield (*place[:position], other, *place[position + 1 :])

    def _place(self, parameters: Mapping[str, Any]) -> Place:
        return tuple(
            values.index(parameters[name]) if isinstance(values[0], str) else parameters[name]
            for name, values in self.space.parameters.items()
        )

    def _parameters(self, place: Place) -> dict[str, Any]:
        pairs = zip(self.space.parameters.items(), place, strict=True)
        return {
            name: values[position] if isinstance(values[0], str) else position
            for (name, values), position in pairs
        }

    # -- answers ----------------------------------------------------------------------------------

    def _tell(self, asked: OptunaTrial, trial: Trial | None) -> None:
        """Logarithms of the objectives: what counts is by how many times a machine is better.
        Of what has no values those of the worst point are said, as infeasible."""
        found = None if trial is None else trial.point
        asked.set_constraint("software", 0.0 if found is not None else 1.0)
        for limit in self.limits:
            above = 0.0 if found is None else math.log(found.value(limit.objective) / limit.value)
            asked.set_constraint(limit.objective.name, above)
        if found is None:
            self._study.tell(asked, self._worst())
        else:
            self._study.tell(asked, [_log(value) for value in found.vector(self.objectives)])

    def _worst(self) -> list[float]:
        points = [trial.point for trial in self.trials if trial.point is not None]
        return [
            max((_log(point.value(objective)) for point in points), default=0.0)
            for objective in self.objectives
        ]


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Numbers as their places in ascending order: sizes double from one value to the next, and a
    step is a step. Words as categories."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    return {
        name: CategoricalDistribution(values)
        if isinstance(values[0], str)
        else IntDistribution(0, len(values) - 1)
        for name, values in space.parameters.items()
    }


def _study(method: Method, objectives: int, seed: int, population: int) -> Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        directions=[optuna.study.StudyDirection.MINIMIZE] * objectives,
        sampler=_sampler(method, seed, population),
    )


def _sampler(method: Method, seed: int, population: int) -> BaseSampler:
    from optuna import samplers

    makers: dict[str, Callable[[], BaseSampler]] = {
        "gp": lambda: samplers.GPSampler(
            seed=seed, n_startup_trials=STARTUP, deterministic_objective=True
        ),
        "tpe": lambda: samplers.TPESampler(seed=seed, n_startup_trials=STARTUP, multivariate=True),
        "nsga2": lambda: samplers.NSGAIISampler(seed=seed, population_size=population),
        "random": lambda: samplers.RandomSampler(seed=seed),
    }
    with warnings.catch_warnings():
        # Of options that optuna calls experimental.
        warnings.simplefilter("ignore")
        return makers[method]()


def _log(value: float) -> float:
    return math.log(max(value, 1e-30))
