"""Explorations: the search of a space for the machines that are the best for a suite's layers.

>>> from cpembed.exploration.objectives import read_limit
>>> str(read_limit("area=1.5mm2"))
'area=1.5mm2'
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cpembed.driver.bench import select_layers
from cpembed.driver.bench_layers import NamedSuite, prepared_suite
from cpembed.errors import WorkloadError
from cpembed.exploration.costing import Costing, LayerWork
from cpembed.exploration.exact import ExactSearch
from cpembed.exploration.objectives import Limit, read_limits, read_objectives
from cpembed.exploration.points import EvaluatedPoint, Step
from cpembed.exploration.result import ExploreResult
from cpembed.exploration.sampled import POPULATION, SampledSearch, SamplingOptions
from cpembed.exploration.space import Space, read_space
from cpembed.exploration.store import Method, Row, store_for
from cpembed.graph.passes import prepare
from cpembed.runtime.cluster import Workers
from cpembed.runtime.tuning.database import digest, workload_key
from cpembed.stores import ResultStore
from cpembed.targets.family import Family


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
        """The costs of the layers."""
        return self.search.costing

    def run(self, workers: Workers) -> Generator[Step, None, None]:
        """Search step by step; the answers of each step are stored when it is yielded.

        A second call continues a search that was ended.
        """
        for step in self.search.run(workers):
            yield step
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
            evaluated=tuple(self.evaluated),
            stopped=self.stopped,
            seconds=time.perf_counter() - self.started,
            store=self.store.path,
        )


def open_exploration(
    space: Space | Path,
    suite: str,
    *,
    method: Method = "exact",
    trials: int = 40,
    objectives: Sequence[str] | None = None,
    limits: Sequence[str] = (),
    layers: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    population: int = POPULATION,
    distinct: bool = True,
    bounds: bool = True,
    seed: int = 0,
    timeout: float | None = None,
    results: Path | None = None,
    fresh: bool = False,
) -> Exploration:
    """Return an exploration, with the costs that earlier ones have stored for the same layers.

    Parameters
    ----------
    space
        The space or its file.
    suite
        The name of a shipped suite, a table of layers as CSV, or a model.
    method
        ``exact`` for the proven front, or a method that samples.
    trials, population, distinct
        Number of trials, population of ``nsga2``, and whether trials are distinct points, of a
        method that samples.
    objectives, limits
        Objectives by their names, and limits such as ``power=2W``; those of the space where None or
        not named. Objectives are of the selected layers, each as often as the network has it.
    layers
        Numbers of layers, such as ``0,3,10-20``; None for all.
    shapes
        Shapes of a model's inputs.
    bounds
        False makes ``exact`` evaluate every machine.
    seed
        Seed of a method that samples.
    timeout
        Time limit in seconds.
    results, fresh
        The folder of the store, and whether it forgets the answers for the family and the suite.

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
    space = space if isinstance(space, Space) else read_space(space)
    minimized = space.objectives if objectives is None else read_objectives(objectives)
    all_limits = _limits(space, read_limits(limits))
    first, second = space.family.inputs
    layer_suite = prepared_suite(
        suite, lambda graph: prepare(graph, first=first, second=second), shapes
    )
    works = layer_works(space.family, layer_suite, layers)
    store = store_for(space.family, layer_suite.name, layer_suite.digest, results)
    store.open(fresh=fresh)
    costing = Costing(space.family, works, store)
    if method == "exact":
        search = ExactSearch(space, costing, minimized, all_limits, bounds=bounds)
    else:
        options = SamplingOptions(
            method=method, trials=trials, seed=seed, population=population, distinct=distinct
        )
        search = SampledSearch(space, costing, minimized, all_limits, options)
    return Exploration(
        space=space,
        suite=layer_suite.name,
        search=search,
        store=store,
        method=method,
        seed=seed,
        started=started,
        timeout=timeout,
    )


def layer_works(family: Family, suite: NamedSuite, layers: str | None) -> tuple[LayerWork, ...]:
    """Return the selected layers of a suite, on the family's element types.

    Parameters
    ----------
    family
        The family of machines.
    suite
        The suite.
    layers
        Numbers of layers, such as ``0,3,10-20``; None for all.

    Raises
    ------
    WorkloadError
        If the suite does not have a layer, or the family's machines do not compute it.
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
                digest=digest(json.dumps(workload_key(workload), sort_keys=True)),
            )
        )
    return tuple(works)


def _limits(space: Space, limits: Sequence[Limit]) -> tuple[Limit, ...]:
    """Return the limits of the space, replaced by those of the same objectives in ``limits``."""
    by_objective = {limit.objective.name: limit for limit in (*space.limits, *limits)}
    return tuple(by_objective.values())
