"""Which machines of a space are the best for a suite's layers: an exploration, ready to run.

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

from cpembed.cluster import Workers
from cpembed.driver.bench import select_layers
from cpembed.driver.bench_layers import NamedSuite, prepared_suite
from cpembed.errors import WorkloadError
from cpembed.exploration.costing import Costing, LayerWork
from cpembed.exploration.exact import ExactSearch
from cpembed.exploration.objectives import Limit, read_limits, read_objectives
from cpembed.exploration.points import EvaluatedPoint, Step
from cpembed.exploration.result import ExploreResult
from cpembed.exploration.sampled import POPULATION, SampledSearch
from cpembed.exploration.space import Space, read_space
from cpembed.exploration.store import Method, Row, store_for
from cpembed.graph.passes import prepare
from cpembed.measure.results import ResultStore
from cpembed.targets.family import Family
from cpembed.tuning.database import digest, workload_key


@dataclass
class Exploration:
    """A search of a space with the file in which its costs are kept. ``stopped``: the time was
    over before the search was."""

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
        """Search; what each step has found out is kept when it is yielded. The same call goes on
        where another one was ended."""
        for step in self.search.run(workers):
            yield step
            if self.timeout is not None and time.perf_counter() > self.started + self.timeout:
                self.stopped = not self.search.finished
                return

    @property
    def evaluated(self) -> list[EvaluatedPoint]:
        """So far, in the order of their evaluation."""
        if isinstance(self.search, ExactSearch):
            return self.search.evaluated
        return [t.point for t in self.search.trials if t.point is not None and not t.repeated]

    def result(self) -> ExploreResult:
        """Also of a search that was ended."""
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
    """An exploration with what earlier ones have found out of the same layers.

    ``suite`` is a shipped one, a table of layers as CSV, or a model; ``layers`` picks some
    (``0,3,10-20``), and the objectives are of these, each as often as the network has it.
    ``objectives`` None and limits that are not given are those of the space. ``trials``,
    ``population`` and ``distinct`` are of the methods that sample; ``bounds`` False makes ``exact``
    evaluate every machine. ``results`` is the folder of the store, ``fresh`` forgets what it holds
    of the family and the suite.

    Raises :class:`SpecError` for a wrong space, objective or limit, :class:`WorkloadError` for a
    wrong suite, :class:`BackendUnavailable` where the method's packages are not installed.
    """
    started = time.perf_counter()
    space = space if isinstance(space, Space) else read_space(space)
    wanted = space.objectives if objectives is None else read_objectives(objectives)
    bounded = _limits(space, read_limits(limits))
    first, second = space.family.inputs
    named = prepared_suite(suite, lambda graph: prepare(graph, first=first, second=second), shapes)
    works = layer_works(space.family, named, layers)
    store = store_for(space.family, named.name, named.digest, results)
    store.open(fresh=fresh)
    costing = Costing(space.family, works, store)
    if method == "exact":
        search = ExactSearch(space, costing, wanted, bounded, bounds=bounds)
    else:
        search = SampledSearch(
            space,
            costing,
            wanted,
            bounded,
            method=method,
            trials=trials,
            seed=seed,
            population=population,
            distinct=distinct,
        )
    return Exploration(space, named.name, search, store, method, seed, started, timeout)


def layer_works(family: Family, named: NamedSuite, layers: str | None) -> tuple[LayerWork, ...]:
    """The layers of a suite that are picked, on the family's element types.

    Raises :class:`WorkloadError` for a layer that the suite has not, and one that the family's
    machines do not compute.
    """
    found: list[LayerWork] = []
    for layer in select_layers(named, layers):
        try:
            workload = family.typed(layer)
        except WorkloadError as error:
            place = f"{named.name}:{layer.index} ({layer.label})"
            raise WorkloadError(f"{place}: {error}; pick others by --layers (layers=)") from None
        said = digest(json.dumps(workload_key(workload), sort_keys=True))
        found.append(LayerWork(layer.index, layer.label, layer.count, workload, said))
    return tuple(found)


def _limits(space: Space, given: Sequence[Limit]) -> tuple[Limit, ...]:
    """Those of the space, but for objectives that have another one."""
    named = {limit.objective.name: limit for limit in (*space.limits, *given)}
    return tuple(named.values())
