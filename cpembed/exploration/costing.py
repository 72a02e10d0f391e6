"""Costs of layers at points: what is known, what has to be computed for it, and by which task."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cpembed.cluster import Outcome, Task, Workers
from cpembed.errors import BackendUnavailable, CpembedError, CrashError, InvariantError
from cpembed.exploration.store import ActivityRow, AnalysisRow, Row, packed, unpacked
from cpembed.ir.computation import Computation
from cpembed.measure.results import ResultStore
from cpembed.targets.family import Activity, Choice, Costs, Family, Point


@dataclass(frozen=True)
class LayerWork:
    """A layer on the family's element types; ``digest`` is of the computation."""

    index: int
    label: str
    count: int
    workload: Computation
    digest: str


@dataclass(frozen=True)
class LayerCosts:
    """The software of a layer at a point, and what it costs each time."""

    layer: LayerWork
    choice: Choice
    activity: Activity
    costs: Costs


@dataclass(frozen=True)
class Request:
    """Something that is not known yet: an analysis where there is no choice, else an evaluation.
    Equal where one answer serves both."""

    group: str
    layer: str
    choice: str | None = None


class Costing:
    """What is known of a family's machines and some layers; new knowledge is kept at once.

    ``failed`` are requests that were not answered: by whom or what, in words.
    """

    def __init__(
        self, family: Family, layers: Sequence[LayerWork], store: ResultStore[Row] | None
    ) -> None:
        self.family = family
        self.layers = tuple(layers)
        self.failed: dict[Request, CpembedError] = {}
        self.taken = 0
        """Answers that were in the store."""
        self._store = store
        self.answers: dict[Request, Any] = {}
        self._choices: dict[str, tuple[str, tuple[Choice, ...]]] = {}
        for row in [] if store is None else store.load():
            self.answers.setdefault(*_answer(family, row))
        self.taken = len(self.answers)
        self._stored = frozenset(self.answers)

    def group(self, point: Point) -> str:
        return repr(self.family.group(point))

    # -- what is known ------------------------------------------------------------------------

    def bound(self, point: Point, layer: LayerWork) -> Costs | None:
        """Lower bounds of a layer that is analysed, of one execution; None where it has no
        software at the point."""
        analysis = self.answers[Request(self.group(point), layer.digest)]
        if isinstance(analysis, CpembedError):
            return None
        with self._damage_named():
            return self.family.bound(point, analysis)

    def why_none(self, point: Point, layer: LayerWork) -> str:
        """Why a layer has no software at a point."""
        answer = self.answers.get(Request(self.group(point), layer.digest))
        return str(answer) if isinstance(answer, CpembedError) else "nothing fits the machine"

    def analysis(self, point: Point, layer: LayerWork) -> Request | None:
        """The analysis that a layer lacks."""
        request = Request(self.group(point), layer.digest)
        return None if request in self.answers or request in self.failed else request

    def evaluations(self, point: Point, layer: LayerWork) -> list[Request]:
        """All that an analysed layer's costs at the point depend on, known or not."""
        group = self.group(point)
        return [
            Request(group, layer.digest, choice.key)
            for choice in self.choices(point, layer)
            if choice.activity is None
        ]

    def is_known(self, request: Request) -> bool:
        return request in self.answers or request in self.failed

    def is_failed(self, point: Point, layer: LayerWork) -> bool:
        group = self.group(point)
        return bool(self.failed) and any(
            (request.group, request.layer) == (group, layer.digest) for request in self.failed
        )

    def choices(self, point: Point, layer: LayerWork) -> tuple[Choice, ...]:
        """Of an analysed layer; empty where it has no software."""
        analysis = self.answers[Request(self.group(point), layer.digest)]
        if isinstance(analysis, CpembedError):
            return ()
        # Of each layer the last point's are remembered: they are asked for several times in a row.
        here, last = repr(sorted(point.items())), self._choices.get(layer.digest)
        if last is None or last[0] != here:
            with self._damage_named():
                last = here, self.family.choices(point, analysis)
            self._choices[layer.digest] = last
        return last[1]

    def costs(self, point: Point, layer: LayerWork) -> LayerCosts | None:
        """Of a layer whose evaluations are known, of one execution; None where it has no
        software."""
        group = self.group(point)
        best: LayerCosts | None = None
        for choice in self.choices(point, layer):
            activity = choice.activity
            if activity is None:
                activity = self.answers.get(Request(group, layer.digest, choice.key))
            if not isinstance(activity, Activity):
                continue
            costs = Costs(activity.cycles, self.family.energy_pj(point, activity))
            if best is None or _order(costs) < _order(best.costs):
                best = LayerCosts(layer, choice, activity, costs)
        return best

    # -- what is to be found out ----------------------------------------------------------------

    def task(self, point: Point, layer: LayerWork, request: Request) -> Task:
        key = f"{request.group}/{layer.digest}/{request.choice or ''}"
        if request.choice is None:
            doing = f"analysing layer {layer.index} ({layer.label}) for {request.group}"
            return Task(key, _analysed, (self.family, dict(point), layer.workload), doing)
        choice = next(c for c in self.choices(point, layer) if c.key == request.choice)
        doing = f"evaluating layer {layer.index} ({layer.label}) for {request.group}"
        arguments = (self.family, dict(point), layer.workload, choice)
        return Task(key, _evaluated, arguments, doing)

    def tell(self, request: Request, outcome: Outcome) -> None:
        """Take in what became of a task, and keep it; not that a process was killed, which says
        nothing of the layer.

        Raises :class:`BackendUnavailable` where something is missing that all tasks need.
        """
        error = outcome.error
        if isinstance(error, BackendUnavailable):
            raise error
        if isinstance(error, CrashError | InvariantError):
            self.failed[request] = error
            return
        self.answers[request] = outcome.result if error is None else error
        if self._store is not None:
            self._store.append(Row(_row(request, outcome.result, error)))

    def find_out(
        self, wanted: Iterable[tuple[Point, LayerWork, Request]], workers: Workers
    ) -> Iterator[Request]:
        """Have requests answered, those of which the answer is known left out; each is told, and
        kept, when it is yielded."""
        asked: dict[str, Request] = {}

        def tasks() -> Iterator[Task]:
            for point, layer, request in wanted:
                if self.is_known(request) or request in asked.values():
                    continue
                task = self.task(point, layer, request)
                asked[task.key] = request
                yield task

        outcomes = workers.outcomes(tasks())
        try:
            while True:
                with self._damage_named():
                    outcome = next(outcomes, None)
                if outcome is None:
                    return
                request = asked.pop(outcome.task.key)
                self.tell(request, outcome)
                yield request
        finally:
            outcomes.close()

    @contextmanager
    def _damage_named(self) -> Generator[None]:
        """In which analyses are used. A file has types that are right; that the figures in it fit
        each other and the layer shows here."""
        try:
            yield
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            if self._store is None or not self._stored:
                raise
            raise CpembedError(
                f"{self._store.path}: an analysis of it cannot be used ({type(error).__name__}: "
                f"{error}): --fresh (fresh=) makes the file anew"
            ) from error


def _order(costs: Costs) -> tuple[float, float]:
    return costs.cycles, costs.energy_pj


def _analysed(family: Family, point: Point, workload: Computation) -> Any:
    return family.analyse(point, workload)


def _evaluated(family: Family, point: Point, workload: Computation, choice: Choice) -> Activity:
    return family.evaluate(point, workload, choice)


def _answer(family: Family, row: Row) -> tuple[Request, Any]:
    found = row.found
    error = None if found.error is None else CpembedError(found.error)
    if isinstance(found, AnalysisRow):
        value = error if found.value is None else unpacked(family, found.value)
        return Request(found.group, found.layer), value
    return Request(found.group, found.layer, found.choice), error or found.activity()


def _row(request: Request, result: Any, error: CpembedError | None) -> AnalysisRow | ActivityRow:
    text = None if error is None else str(error)
    if request.choice is None:
        value = None if error else packed(result)
        return AnalysisRow(request.group, request.layer, value, text)
    place = (request.group, request.layer, request.choice)
    if error is not None:
        return ActivityRow(*place, None, None, {}, text)
    activity: Activity = result
    counts = dict(activity.counts)
    return ActivityRow(*place, activity.cycles, activity.provenance, counts, None)
