"""Searches that sample a space by one of optuna's methods: gp, tpe, nsga2, random.

A trial is a point that is evaluated. A point that a method proposes again is no trial, nor is a
proposal that is no machine: the method is told the values, or infeasibility, and asked again. After
:data:`REPEATS` of these in a row, the nearest new point is evaluated instead. With ``distinct``
False every proposal of a machine is a trial, as some publications count.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cpembed.errors import BackendUnavailable
from cpembed.exploration.costing import Costing, LayerWork, Request
from cpembed.exploration.objectives import (
    EvaluatedPoint,
    Limit,
    Objective,
    Place,
    Step,
    Vector,
)
from cpembed.exploration.options import ExploreOptions, Method
from cpembed.exploration.space import Space
from cpembed.runtime.cluster import Workers
from cpembed.targets.family import Costs, Point

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import Trial as OptunaTrial

REPEATS = 20
"""Maximum number of proposals in a row that are no new machine."""

STARTUP = 10
"""Number of random points before the first model (HASCO, VII-C: its sample of 10)."""

_MAX_VISITED = 20_000
"""Minimum number of points visited before the search for the nearest new one gives up."""


@dataclass(frozen=True)
class Trial:
    """A point of a space, with its number there.

    ``point`` is None where no layer has software, or an evaluation failed, for a ``reason``.
    ``repeated``: an earlier trial has evaluated it; ``nearest``: it replaces a proposal that had
    been evaluated.
    """

    number: int
    place: Place
    point: EvaluatedPoint | None
    repeated: bool = False
    nearest: bool = False
    reason: str | None = None


def _require_method(method: Method) -> None:
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
    """The trials of a method, which depend on its seed alone.

    A search that was ended is continued by repeating its trials from stored answers. Points of an
    ``earlier`` search with the same layers and limits are not evaluated again.
    """

    def __init__(
        self,
        space: Space,
        costing: Costing,
        objectives: Sequence[Objective],
        limits: Sequence[Limit],
        options: ExploreOptions,
        *,
        earlier: Mapping[Place, EvaluatedPoint] | None = None,
    ) -> None:
        _require_method(options.method)
        self.space = space
        self.costing = costing
        self.objectives = tuple(objectives)
        self.limits = tuple(limits)
        self.method = options.method
        self.trials: list[Trial] = []
        self.repeats = 0
        """Number of proposals that had been evaluated."""
        self.exhausted = False
        """True if all points are evaluated."""
        self._trial_limit = options.trials
        self._distinct = options.distinct
        self._by_place: dict[Place, Trial] = {}
        self._earlier = earlier or {}
        self._study = _study(options, len(self.objectives))
        self._distributions = distributions(space)

    @property
    def finished(self) -> bool:
        """True if all trials are made, or no point is left."""
        return self.exhausted or len(self.trials) >= self._trial_limit

    def run(self, workers: Workers) -> Iterator[Step]:
        """Search trial by trial; steps are answers of tasks, and trials.

        The caller may stop at any step.
        """
        while not self.finished:
            proposed = self._proposal()
            if proposed is None:
                self.exhausted = True
                return
            proposal, place, nearest = proposed
            trial = self._by_place.get(place)
            if trial is None:
                if place not in self._earlier:
                    yield from self._find_out(self.space.point(place), workers)
                trial = self._trial(place, nearest)
                self._by_place[place] = trial
                self.trials.append(trial)
            else:
                self.trials.append(Trial(trial.number, place, trial.point, repeated=True))
            self._tell(proposal, trial)
            yield self._progress()

    def _progress(self) -> Step:
        return Step(f"{self.method}: trials", len(self.trials), self._trial_limit)

    def _find_out(self, point: Point, workers: Workers) -> Iterator[Step]:
        # Lazily: which evaluations there are follows from the answers to the analyses.
        for requests in (self._analyses(point), self._evaluations(point)):
            for _ in self.costing.find_out(requests, workers):
                yield self._progress()

    def _analyses(self, point: Point) -> Iterator[tuple[Point, LayerWork, Request]]:
        for layer in self.costing.layers:
            if (request := self.costing.analysis(point, layer)) is not None:
                yield point, layer, request

    def _evaluations(self, point: Point) -> Iterator[tuple[Point, LayerWork, Request]]:
        """Yield the requests for evaluations, if the point can have costs."""
        if self._reason(point) is None:
            for layer in self.costing.layers:
                for request in self.costing.evaluations(point, layer):
                    yield point, layer, request

    def _reason(self, point: Point) -> str | None:
        """Return the reason why an analysed point has no costs of any layer, or None."""
        layers = self.costing.layers
        for layer in layers:
            if self.costing.is_failed(point, layer):
                return f"{layer.label}: failed"
        if all(self.costing.bound(point, layer) is None for layer in layers):
            return f"{layers[0].label}: {self.costing.why_none(point, layers[0])}"
        return None

    def _trial(self, place: Place, nearest: bool) -> Trial:
        if place in self._earlier:
            return Trial(self.space.number(place), place, self._earlier[place], nearest=nearest)
        point, reason = None, self._reason(self.space.point(place))
        if reason is None:
            point = self.space.evaluated(place, self.costing, self.limits)
            reason = "no choice of software has a program" if point is None else None
        return Trial(self.space.number(place), place, point, nearest=nearest, reason=reason)

    # -- proposals --------------------------------------------------------------------------------

    def _proposal(self) -> tuple[OptunaTrial, Place, bool] | None:
        """Return a machine that is new or, where trials need not be distinct, was evaluated before.

        True says that it is the nearest one to a proposal. None where no machine is left.
        """
        for attempt in range(1, REPEATS + 1):
            proposal = self._study.ask(self._distributions)
            place = self._place(proposal.params)
            flaw = self.space.flaw(self.space.point(place))
            trial = self._by_place.get(place)
            self.repeats += trial is not None
            if flaw is None and (trial is None or not self._distinct):
                return proposal, place, False
            # The Gaussian process learns nothing from values that it knows, so it would propose the
            # same point again.
            at_once = trial is not None and self.method == "gp"
            if at_once or attempt == REPEATS:
                return self._nearest(proposal, place)
            self._tell(proposal, trial)
        raise AssertionError("the last attempt returns")

    def _nearest(
        self, proposal: OptunaTrial, place: Place
    ) -> tuple[OptunaTrial, Place, bool] | None:
        """Replace a proposal, which stays unanswered, by the nearest new machine."""
        import optuna

        # No value is told, because the proposal itself is not evaluated.
        self._study.tell(proposal, state=optuna.trial.TrialState.FAIL)
        nearest = self._nearest_new(place)
        if nearest is None:
            return None
        # The next proposal is the enqueued point.
        self._study.enqueue_trial(self._parameters(nearest))
        return self._study.ask(self._distributions), nearest, True

    def _nearest_new(self, place: Place) -> Place | None:
        """Return the new machine that is reached in the fewest steps.

        A step changes a number to its neighbour, or a word to any other.
        """
        # Breadth first, so that the first new machine is one of the nearest.
        reached, frontier = {place}, [place]
        while frontier:
            following: list[Place] = []
            for visited in frontier:
                flaw = self.space.flaw(self.space.point(visited))
                if visited not in self._by_place and flaw is None:
                    return visited
                for neighbour in self._neighbours(visited):
                    if neighbour not in reached:
                        reached.add(neighbour)
                        following.append(neighbour)
            # In a small space every combination is visited before the search gives up.
            if len(reached) > max(_MAX_VISITED, 2 * self.space.combinations):
                return None
            frontier = following
        return None

    def _neighbours(self, place: Place) -> Iterator[Place]:
        for position, values in enumerate(self.space.parameters.values()):
            current = place[position]
            neighbours = (current - 1, current + 1)
            if isinstance(values[0], str):
                neighbours = tuple(n for n in range(len(values)) if n != current)
            for neighbour in neighbours:
                if 0 <= neighbour < len(values):
                    yield (*place[:position], neighbour, *place[position + 1 :])

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

    def _tell(self, proposal: OptunaTrial, trial: Trial | None) -> None:
        """Tell the method the values of a trial, or that a proposal has none."""
        # A method takes values even of infeasible proposals; the worst ones attract it least.
        point = None if trial is None else trial.point
        proposal.set_constraint("software", 0.0 if point is not None else 1.0)
        for limit in self.limits:
            above = 0.0 if point is None else math.log(point.value(limit.objective) / limit.value)
            proposal.set_constraint(limit.objective.name, above)
        if point is None:
            self._study.tell(proposal, self._worst())
        else:
            # Logarithms, because ratios of machines are what counts.
            self._study.tell(proposal, [_log(value) for value in self._comparable(point)])

    def _comparable(self, point: EvaluatedPoint) -> Vector:
        """Return objectives as if the layers that a point leaves out cost what its others do.

        Without that, the machine that computes the least would look the best to the method. Each
        multiply-accumulate counts alike.
        """
        macs = sum(layer.workload.macs * layer.count for layer in self.costing.layers)
        computed = sum(item.layer.workload.macs * item.layer.count for item in point.layers)
        share = macs / computed if point.left_out and computed else 1.0
        costs = Costs(point.costs.cycles * share, point.costs.energy_pj * share)
        return tuple(objective.value(point.machine, costs) for objective in self.objectives)

    def _worst(self) -> list[float]:
        points = [trial.point for trial in self.trials if trial.point is not None]
        return [
            max((_log(self._comparable(point)[place]) for point in points), default=0.0)
            for place in range(len(self.objectives))
        ]


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return optuna's distributions of the parameters of a space.

    Numbers are their positions, so that sizes which double are evenly spaced; words are categories.
    """
    from optuna.distributions import CategoricalDistribution, IntDistribution

    return {
        name: CategoricalDistribution(values)
        if isinstance(values[0], str)
        else IntDistribution(0, len(values) - 1)
        for name, values in space.parameters.items()
    }


def _study(options: ExploreOptions, objectives: int) -> Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        directions=[optuna.study.StudyDirection.MINIMIZE] * objectives,
        sampler=_sampler(options),
    )


def _sampler(options: ExploreOptions) -> BaseSampler:
    from optuna import samplers

    seed = options.seed

    makers: dict[str, Callable[[], BaseSampler]] = {
        "gp": lambda: samplers.GPSampler(
            seed=seed, n_startup_trials=STARTUP, deterministic_objective=True
        ),
        "tpe": lambda: samplers.TPESampler(seed=seed, n_startup_trials=STARTUP, multivariate=True),
        "nsga2": lambda: samplers.NSGAIISampler(seed=seed, population_size=options.population),
        "random": lambda: samplers.RandomSampler(seed=seed),
    }
    with warnings.catch_warnings():
        # Optuna warns of options that it calls experimental.
        warnings.simplefilter("ignore")
        return makers[options.method]()


def _log(value: float) -> float:
    return math.log(max(value, 1e-30))
