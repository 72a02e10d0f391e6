"""Explorations: the search of a space for the machines that are the best for a suite's layers.

>>> from cpembed.exploration.objectives import read_limit
>>> str(read_limit("area=1.5mm2"))
'area=1.5mm2'
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from cpembed.driver.bench import select_layers
from cpembed.driver.bench_layers import NamedSuite, prepared_suite
from cpembed.driver.options import merged
from cpembed.errors import WorkloadError
from cpembed.exploration.costing import Costing, LayerWork, Row, store_for
from cpembed.exploration.described.family import DescribedFamily
from cpembed.exploration.exact import ExactSearch, Verdict
from cpembed.exploration.objectives import (
    COUNTED,
    EvaluatedPoint,
    Limit,
    Objective,
    Step,
    Vector,
    can_measure,
    front_of,
    hypervolume,
    keyed,
    read_limits,
    read_objectives,
    worst,
)
from cpembed.exploration.options import ExploreOptions, Method
from cpembed.exploration.sampled import SampledSearch
from cpembed.exploration.space import Space
from cpembed.exploration.space_file import read_space
from cpembed.graph.passes import prepare
from cpembed.runtime.cluster import Workers
from cpembed.runtime.measurement.environment import provenance
from cpembed.runtime.tuning.database import digest, workload_key
from cpembed.stores import ResultStore
from cpembed.targets.family import Family, OperatorWork, Work

Status = Literal["proven", "unproven", "sampled", "infeasible", "unknown"]


@dataclass(frozen=True)
class ExploreResult:
    """An exploration of a space, which may have been stopped before its end.

    The points are ``evaluated`` in this order. ``stopped``: the time limit ended the search, after
    ``seconds``; ``seed`` is that of a method that samples, ``store`` the file of the costs.
    """

    space: Space
    suite: str
    search: ExactSearch | SampledSearch
    method: Method
    seed: int
    evaluated: tuple[EvaluatedPoint, ...]
    stopped: bool
    seconds: float
    store: Path

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return self.search.objectives

    @property
    def limits(self) -> tuple[Limit, ...]:
        return self.search.limits

    @cached_property
    def front(self) -> list[EvaluatedPoint]:
        """The front, ordered by the first objective."""
        return front_of(self.evaluated, self.objectives)

    @property
    def status(self) -> Status:
        """The standing of the front.

        ``proven``: it is the front of the space; ``unproven``: points are open or failed;
        ``sampled``: it is that of the trials; ``infeasible``: no point of the space is within the
        limits; ``unknown``: no point that was evaluated is.
        """
        if isinstance(self.search, ExactSearch):
            if self.search.is_proven:
                return "proven" if self.front else "infeasible"
            return "unproven" if self.front else "unknown"
        return "sampled" if self.front else "unknown"

    @property
    def failures(self) -> list[str]:
        """The errors of evaluations that failed."""
        return [str(error) for error in self.search.costing.failed.values()]

    def exit_code(self) -> int:
        if self.failures:
            return 1
        return {"infeasible": 3, "unknown": 4}.get(self.status, 0)

    def vector(self, point: EvaluatedPoint) -> Vector:
        return point.vector(self.objectives)

    def picked(self, number: int) -> EvaluatedPoint | None:
        """Return the evaluated point with a number."""
        return next((point for point in self.evaluated if point.number == number), None)

    @cached_property
    def _comparable(self) -> list[EvaluatedPoint]:
        """The evaluated points that compute as many layers as any point does."""
        most = max((len(point.layers) for point in self.evaluated), default=0)
        return [point for point in self.evaluated if len(point.layers) == most]

    # -- hypervolumes -----------------------------------------------------------------------------

    @cached_property
    def reference(self) -> Vector | None:
        """The largest value of each objective within the limits; None where no point is."""
        vectors = [self.vector(point) for point in self._comparable if point.beyond is None]
        if vectors and isinstance(self.search, ExactSearch):
            verdicts = self.search.verdicts.values()
            # Bounds leave only the better points to be evaluated. Without the discarded points the
            # box would shrink, and the same front would fill less of it.
            vectors += [v.bound for v in verdicts if v.fate == "dominated" and v.bound is not None]
        return worst(vectors) if vectors else None

    def hypervolume(self) -> dict[str, Any] | None:
        """Return the document of hypervolumes; None where they cannot be computed."""
        if self.reference is None or not can_measure():
            return None
        document: dict[str, Any] = {
            "reference": keyed(self.objectives, self.reference),
            "value": hypervolume(self._front_vectors(), self.reference),
        }
        if isinstance(self.search, SampledSearch):
            document["over_trials"] = self._over_trials(self.search, self.reference)
        else:
            bounds = [bound for _, bound in self.search.open] if self.search.bounded else []
            vectors = [*self._front_vectors(), *bounds]
            document["optimistic"] = hypervolume(vectors, self.reference)
        return document

    def _front_vectors(self) -> list[Vector]:
        most = max((len(point.layers) for point in self.evaluated), default=0)
        return [self.vector(point) for point in self.front if len(point.layers) == most]

    def _over_trials(self, search: SampledSearch, reference: Vector) -> list[float]:
        vectors: list[Vector] = []
        volumes: list[float] = []
        # Each trial is measured by the final reference, so that the curve never falls.
        for trial in search.trials:
            point = trial.point if not trial.repeated else None
            if point is not None and point.beyond is None and point in self._comparable:
                vectors.append(self.vector(point))
            # A trial without a new point leaves the front as it is.
            elif volumes:
                volumes.append(volumes[-1])
                continue
            volumes.append(hypervolume(vectors, reference))
        return volumes

    # -- documents --------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``explore --json``."""
        space, search = self.space, self.search
        document: dict[str, Any] = {
            "space": {
                "name": space.name,
                "description": space.description,
                "source": space.source,
                "family": space.family.name,
                "combinations": space.combinations,
                "parameters": {name: list(values) for name, values in space.parameters.items()},
                "fixed": dict(space.fixed),
                "derived": {name: each.text for name, each in space.derived.items()},
                "where": [relation.text for relation in space.relations],
            },
            "suite": self.suite,
            "layers": [
                {"index": layer.index, "layer": layer.label, "count": layer.count}
                for layer in search.costing.layers
            ],
            "method": self.method,
            "objectives": [objective.key for objective in self.objectives],
            "limits": {limit.objective.key: limit.value for limit in self.limits},
            "status": self.status,
            "front": [point.number for point in self.front],
            "rows": [self._row(point) for point in self.evaluated],
            "hypervolume": self.hypervolume(),
        }
        if isinstance(search, ExactSearch):
            document["certificate"] = self.certificate()
        else:
            document |= {"seed": self.seed, "trials": self._trials(search)}
        return {
            **document,
            "failures": self.failures,
            "stopped": self.stopped,
            "seconds": self.seconds,
            "counted": COUNTED,
            **provenance(),
            "taken_from_store": search.costing.stored_answers,
            "store": str(self.store),
        }

    def certificate(self) -> dict[str, Any]:
        """Return the fate of each point of the space, by counts and one by one."""
        assert isinstance(self.search, ExactSearch)
        search = self.search
        verdicts = [search.verdicts[number] for number in sorted(search.verdicts)]
        return {
            "points": search.points,
            "machines": search.machines,
            "fates": dict(Counter(verdict.fate for verdict in verdicts)),
            "open": len(search.open),
            "discarded": [self._verdict(v) for v in verdicts if v.fate != "evaluated"],
        }

    def _verdict(self, verdict: Verdict) -> dict[str, Any]:
        bound = None if verdict.bound is None else keyed(self.objectives, verdict.bound)
        return {
            "number": verdict.number,
            "parameters": self.space.varied(self.space.point(self.space.place(verdict.number))),
            "fate": verdict.fate,
            "by": verdict.cause,
            "bound": bound,
            "layers_evaluated": verdict.layers,
            "layers_left_out": verdict.left_out,
        }

    def _trials(self, search: SampledSearch) -> list[dict[str, Any]]:
        return [
            {
                "number": trial.number,
                "repeated": trial.repeated,
                "nearest": trial.nearest,
                "reason": trial.reason,
            }
            for trial in search.trials
        ]

    def _row(self, point: EvaluatedPoint) -> dict[str, Any]:
        return {
            "number": point.number,
            "parameters": self.space.varied(point.point),
            "objectives": keyed(self.objectives, self.vector(point)),
            "cycles": point.costs.cycles,
            "energy_pj": _number(point.costs.energy_pj),
            "clock_mhz": point.machine.clock_mhz,
            "area_um2": _number(point.machine.area_um2),
            "leakage_w": _number(point.machine.leakage_w),
            "beyond": None if point.beyond is None else point.beyond.text,
            "provenance": list(point.provenances),
            "layers": [
                {
                    "index": item.layer.index,
                    "cycles": item.costs.cycles,
                    "energy_pj": _number(item.costs.energy_pj),
                    "provenance": item.activity.provenance.value,
                    "choice": item.choice.key,
                    "software": item.choice.words,
                    "counts": dict(item.activity.counts),
                    "details": dict(item.choice.details),
                }
                for item in point.layers
            ],
            "left_out": [
                {"index": item.layer.index, "layer": item.layer.label, "reason": item.reason}
                for item in point.left_out
            ],
        }


def _number(value: float) -> float | None:
    """Return a number for a document; None for one that no table has."""
    return None if math.isnan(value) else value


@dataclass
class Exploration:
    """A search of a space, with the file in which its costs are stored.

    ``started`` is the time of its beginning by ``time.perf_counter``, ``timeout`` the limit in
    seconds after that. ``stopped``: the time was over before the search was.
    """

    space: Space
    suite: str
    search: ExactSearch | SampledSearch
    store: ResultStore[Row]
    method: Method
    seed: int
    started: float
    timeout: float | None = None
    stopped: bool = False

    @property
    def costing(self) -> Costing:
        return self.search.costing

    def run(self, workers: Workers) -> Generator[Step, None, None]:
        """Search step by step; the answers of each step are stored when it is yielded.

        A second call continues a search that was ended.
        """
        for step in self.search.run(workers):
            yield step
            # Between steps, so that every answer that was computed is stored.
            if self.timeout is not None and time.perf_counter() > self.started + self.timeout:
                self.stopped = not self.search.finished
                return

    @property
    def evaluated(self) -> list[EvaluatedPoint]:
        """The points that were evaluated so far, in the order of evaluation."""
        if isinstance(self.search, ExactSearch):
            return self.search.evaluated
        return [t.point for t in self.search.trials if t.point is not None and not t.repeated]

    def result(self) -> ExploreResult:
        """Return the result, also of a search that was ended."""
        return ExploreResult(
            space=self.space,
            suite=self.suite,
            search=self.search,
            method=self.method,
            seed=self.seed,
            # A copy, because the search may go on.
            evaluated=tuple(self.evaluated),
            stopped=self.stopped,
            seconds=time.perf_counter() - self.started,
            store=self.store.path,
        )


def open_exploration(
    space: Space | Path | str,
    suite: str,
    options: ExploreOptions | None = None,
    **keywords: Any,
) -> Exploration:
    """Return an exploration, with the costs that earlier ones have stored for the same layers.

    Parameters
    ----------
    space
        The space or its file, or a target by its name or file, of which ``vary`` names keys.
    suite
        The name of a shipped suite, a table of layers as CSV, or a model.
    options
        The options; the defaults if None.
    keywords
        Options by name, which take precedence.

    Raises
    ------
    SpecError
        For a wrong space, objective or limit.
    WorkloadError
        For a wrong suite.
    BackendUnavailable
        If the method's packages are not installed.
    """
    started = time.perf_counter()
    options = merged(ExploreOptions, options, keywords)
    if not isinstance(space, Space):
        space = read_space(space, options)
    objectives = space.objectives
    if options.objectives is not None:
        objectives = read_objectives(options.objectives, space.numeric)
    limits = _limits(space, read_limits(options.limits))
    if isinstance(space.family, DescribedFamily):
        measured = {o.name for o in (*objectives, *(limit.objective for limit in limits))}
        space.family.needs_silicon = bool(measured & {"energy", "area", "power", "edp"})
    layer_suite = _suite(space.family, suite, options.shapes)
    works = _layer_works(space.family, layer_suite, options.layers)
    store = store_for(space.family, layer_suite.name, layer_suite.digest, options.results)
    # Before anything is computed: a store that cannot be written is an error at once.
    store.open(fresh=options.fresh)
    costing = Costing(space.family, works, store)
    if options.method == "exact":
        search = ExactSearch(space, costing, objectives, limits, bounds=options.bounds)
    else:
        search = SampledSearch(space, costing, objectives, limits, options=options)
    return Exploration(
        space=space,
        suite=layer_suite.name,
        search=search,
        store=store,
        method=options.method,
        seed=options.seed,
        started=started,
        timeout=options.timeout,
    )


def _suite(family: Family, name: str, shapes: Mapping[str, Sequence[int]] | None) -> NamedSuite:
    """Return the layers of a suite or a model, which is prepared for the machines."""
    if isinstance(family, DescribedFamily):
        return family.suite(name, shapes)
    first, second = family.inputs
    floats = "bfloat16" if "bfloat16" in (first, second) else "float32"
    return prepared_suite(name, partial(prepare, first=first, second=second, floats=floats), shapes)


def _layer_works(family: Family, suite: NamedSuite, layers: str | None) -> tuple[LayerWork, ...]:
    """Return the selected layers of a suite, on the family's element types.

    Raises :class:`WorkloadError` if the suite does not have a layer, or the family's machines do
    not compute it.
    """
    works: list[LayerWork] = []
    for layer in select_layers(suite, layers):
        try:
            workload = family.typed(layer)
        except WorkloadError as error:
            place = f"{suite.name}:{layer.index} ({layer.label})"
            raise WorkloadError(f"{place}: {error}; pick others by --layers (layers=)") from None
        works.append(
            LayerWork(
                index=layer.index,
                label=layer.label,
                count=layer.count,
                workload=workload,
                digest=digest(json.dumps(_work_key(workload), sort_keys=True)),
            )
        )
    return tuple(works)


def _work_key(work: Work) -> dict[str, Any]:
    """Return what an analysis of a layer depends on."""
    # Of a network, whose file is in the suite's digest, the name tells its operators apart.
    return asdict(work) if isinstance(work, OperatorWork) else workload_key(work)


def _limits(space: Space, limits: Sequence[Limit]) -> tuple[Limit, ...]:
    """Return the limits of the space, replaced by those of the same objectives in ``limits``."""
    by_objective = {limit.objective.name: limit for limit in (*space.limits, *limits)}
    return tuple(by_objective.values())
