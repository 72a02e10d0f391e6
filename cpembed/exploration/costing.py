"""Costs of layers at points: stored answers, and the tasks that compute further ones.

An answer is an analysis or an evaluation. It does not depend on the space, the objectives or the
method, so explorations of the same layers by the same family share the file.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cpembed.errors import BackendUnavailable, CpembedError, CrashError, InvariantError
from cpembed.provenance import Provenance
from cpembed.runtime.cluster import Outcome, Task, Workers
from cpembed.runtime.measurement.environment import versions
from cpembed.stores import DamagedRowError, ResultStore, Time, decoded, store_folder
from cpembed.targets.family import Activity, Choice, Costs, Family, Point, Work


class AnalysisRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="analysis"):
    """The analysis of a layer on a group of machines, packed, or the reason why there is none."""

    group: str
    layer: str
    value: str | None
    error: str | None

    def flaw(self) -> str | None:
        """Return the field whose value contradicts others, with the reason, or None."""
        if (self.value is None) == (self.error is None):
            return "error: there is a value or an error"
        return None


class ActivityRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="activity"):
    """The activity of a choice of software on a group of machines, or why it has no program."""

    group: str
    layer: str
    choice: str
    cycles: Time | None
    provenance: Provenance | None
    counts: dict[str, Time]
    error: str | None

    def flaw(self) -> str | None:
        """Return the field whose value contradicts others, with the reason, or None."""
        if (self.cycles is None) == (self.error is None):
            return "error: there are cycles or an error"
        if (self.cycles is None) != (self.provenance is None):
            return "provenance: cycles have one"
        return None

    def activity(self) -> Activity | None:
        if self.cycles is None or self.provenance is None:
            return None
        return Activity(self.cycles, self.provenance, self.counts)


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the file."""

    answer: AnalysisRow | ActivityRow = msgspec.field(name="found")


MAX_ANALYSIS_BYTES = 2**26
"""Maximum size of an analysis in bytes of JSON; those of large layers have some 100,000."""


def packed(analysis: Any) -> str:
    """Return an analysis as compressed JSON, in characters that need no escape."""
    # JSON and not pickle, because files from anybody may be read.
    document = msgspec.json.encode(analysis, enc_hook=_numbers)
    return base64.b85encode(zlib.compress(document)).decode("ascii")


def unpacked(family: Family, text: str) -> Any:
    """Return the analysis that :func:`packed` wrote.

    Raises :class:`DamagedRowError` for any other text.
    """
    # Bounded, because a small file of somebody else may unpack to any size.
    stream = zlib.decompressobj()
    try:
        document = stream.decompress(base64.b85decode(text), MAX_ANALYSIS_BYTES)
    except (ValueError, zlib.error):
        raise DamagedRowError("value: cannot be unpacked") from None
    if not stream.eof:
        raise DamagedRowError(f"value: more than {MAX_ANALYSIS_BYTES:,} bytes, or cut off")
    return decoded(document, family.analysis, hook=_vector)


def _numbers(value: Any) -> Any:
    """Return an array as a list, which msgspec does not do by itself."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(f"no JSON is made of {type(value).__name__}")


def _vector(kind: Any, value: Any) -> Any:
    """Return the array that :func:`_numbers` made a list of."""
    if getattr(kind, "__origin__", kind) is not np.ndarray:
        raise NotImplementedError(f"no {kind} is made of JSON")
    numbers = msgspec.convert(value, list[float])
    return np.array(numbers, np.float64)


def store_for(
    family: Family, suite: str, layers: str | None, directory: Path | None
) -> ResultStore[Row]:
    """Return the file of a family's costs for a suite.

    Parameters
    ----------
    family
        The family of machines.
    suite
        The name of the suite.
    layers
        The digest of a user's own layers; None for a shipped suite.
    directory
        The folder; None for the user's cache.
    """
    key = {
        "family": family.name,
        "identity": family.identity(),
        "version": versions()["cpembed"],
        "suite": suite,
        "layers": layers,
    }

    def flaw(row: Row) -> str | None:
        if isinstance(row.answer, AnalysisRow) and row.answer.value is not None:
            try:
                unpacked(family, row.answer.value)
            except DamagedRowError as error:
                return str(error)
        return row.answer.flaw()

    return ResultStore(directory or store_folder("explore"), (family.name, suite), key, Row, flaw)


@dataclass(frozen=True)
class LayerWork:
    """A layer on the family's element types; ``digest`` is of the computation."""

    index: int
    label: str
    count: int
    workload: Work
    digest: str


@dataclass(frozen=True)
class LayerCosts:
    """The software of a layer at a point, with the costs of one execution of the layer."""

    layer: LayerWork
    choice: Choice
    activity: Activity
    costs: Costs


@dataclass(frozen=True)
class LeftOut:
    """A layer that has no software at a point, and why."""

    layer: LayerWork
    reason: str


@dataclass(frozen=True)
class Request:
    """A request for the analysis of a layer, or for the evaluation of a choice of software.

    Requests are equal where one answer serves both.
    """

    group: str
    layer: str
    choice: str | None = None


class Costing:
    """The costs of some layers on a family's machines; new answers are stored at once.

    ``answers`` holds analyses, activities, and the errors that say why there is none; ``failed``
    the errors of requests that were not answered; ``stored_answers`` is the number of answers that
    an earlier exploration had put into the ``store``, which may be None.
    """

    def __init__(
        self, family: Family, layers: Sequence[LayerWork], store: ResultStore[Row] | None
    ) -> None:
        self.family = family
        self.layers = tuple(layers)
        self.answers: dict[Request, Any] = {}
        self.failed: dict[Request, CpembedError] = {}
        self._store = store
        self._choices: dict[str, tuple[str, tuple[Choice, ...]]] = {}
        for row in [] if store is None else store.load():
            self.answers.setdefault(*_answer(family, row))
        self.stored_answers = len(self.answers)

    def group(self, point: Point) -> str:
        """Return the name of the group of points that share their analyses with this one."""
        return repr(self.family.group(point))

    # -- answers ------------------------------------------------------------------------------

    def bound(self, point: Point, layer: LayerWork) -> Costs | None:
        """Return lower bounds of one execution of an analysed layer; None without software."""
        analysis = self.answers[Request(self.group(point), layer.digest)]
        if isinstance(analysis, CpembedError):
            return None
        with self._naming_the_file():
            return self.family.bound(point, analysis)

    def why_none(self, point: Point, layer: LayerWork) -> str:
        """Return the reason why a layer has no software at a point."""
        answer = self.answers.get(Request(self.group(point), layer.digest))
        return str(answer) if isinstance(answer, CpembedError) else "nothing fits the machine"

    def analysis(self, point: Point, layer: LayerWork) -> Request | None:
        """Return the request for the analysis that a layer lacks; None where it lacks none."""
        request = Request(self.group(point), layer.digest)
        return None if request in self.answers or request in self.failed else request

    def evaluations(self, point: Point, layer: LayerWork) -> list[Request]:
        """Return all requests on which an analysed layer's costs depend, answered or not."""
        group = self.group(point)
        return [
            Request(group, layer.digest, choice.key)
            for choice in self.choices(point, layer)
            if choice.activity is None
        ]

    def is_known(self, request: Request) -> bool:
        """True if a request is answered or failed."""
        return request in self.answers or request in self.failed

    def is_failed(self, point: Point, layer: LayerWork) -> bool:
        """True if a request for a layer failed."""
        group = self.group(point)
        return bool(self.failed) and any(
            (request.group, request.layer) == (group, layer.digest) for request in self.failed
        )

    def choices(self, point: Point, layer: LayerWork) -> tuple[Choice, ...]:
        """Return the choices of software of an analysed layer; empty where it has none."""
        analysis = self.answers[Request(self.group(point), layer.digest)]
        if isinstance(analysis, CpembedError):
            return ()
        # A search asks for the choices of a layer several times in a row for the same point.
        name, cached = repr(sorted(point.items())), self._choices.get(layer.digest)
        if cached is None or cached[0] != name:
            with self._naming_the_file():
                cached = name, self.family.choices(point, analysis)
            self._choices[layer.digest] = cached
        return cached[1]

    def costs(self, point: Point, layer: LayerWork) -> LayerCosts | None:
        """Return the costs of one execution of a layer whose evaluations are known, or None."""
        group = self.group(point)
        best: LayerCosts | None = None
        for choice in self.choices(point, layer):
            activity = choice.activity
            if activity is None:
                activity = self.answers.get(Request(group, layer.digest, choice.key))
            if not isinstance(activity, Activity):
                continue
            costs = Costs(activity.cycles, self.family.energy_pj(point, activity))
            # Cycles decide, then energy: the software of a point does not depend on the objectives.
            if best is None or _order(costs) < _order(best.costs):
                best = LayerCosts(layer, choice, activity, costs)
        return best

    # -- tasks ----------------------------------------------------------------------------------

    def _task(self, point: Point, layer: LayerWork, request: Request) -> Task:
        key = f"{request.group}/{layer.digest}/{request.choice or ''}"
        if request.choice is None:
            doing = f"analysing layer {layer.index} ({layer.label}) for {request.group}"
            return Task(key, _analysed, (self.family, dict(point), layer.workload), doing)
        choice = next(c for c in self.choices(point, layer) if c.key == request.choice)
        doing = f"evaluating layer {layer.index} ({layer.label}) for {request.group}"
        arguments = (self.family, dict(point), layer.workload, choice)
        return Task(key, _evaluated, arguments, doing)

    def _enter(self, request: Request, outcome: Outcome) -> None:
        """Enter the outcome of a task and store it."""
        error = outcome.error
        if isinstance(error, BackendUnavailable):
            # Something is missing that all tasks need.
            raise error
        # A process that was killed, or a fault of the program, says nothing about the layer, so the
        # next exploration tries again.
        if isinstance(error, CrashError | InvariantError):
            self.failed[request] = error
            return
        self.answers[request] = outcome.result if error is None else error
        if self._store is not None:
            self._store.append(Row(_row(request, outcome.result, error)))

    def find_out(
        self, requests: Iterable[tuple[Point, LayerWork, Request]], workers: Workers
    ) -> Iterator[Request]:
        """Compute the open ones of some requests, and yield each once its answer is stored.

        Raises :class:`BackendUnavailable` where something is missing that all tasks need.
        """
        running: dict[str, Request] = {}

        def tasks() -> Iterator[Task]:
            for point, layer, request in requests:
                if self.is_known(request) or request in running.values():
                    continue
                task = self._task(point, layer, request)
                running[task.key] = request
                yield task

        outcomes = workers.outcomes(tasks())
        try:
            while True:
                with self._naming_the_file():
                    outcome = next(outcomes, None)
                if outcome is None:
                    return
                request = running.pop(outcome.task.key)
                self._enter(request, outcome)
                yield request
        finally:
            outcomes.close()

    @contextmanager
    def _naming_the_file(self) -> Generator[None]:
        """Name the store in errors of code that uses analyses.

        The types of a file's analyses are checked when it is read; whether the numbers in it fit
        each other and the layer shows only when they are used.
        """
        try:
            yield
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            if self._store is None or not self.stored_answers:
                raise
            raise CpembedError(
                f"{self._store.path}: an analysis of it cannot be used ({type(error).__name__}: "
                f"{error}): --fresh (fresh=) makes the file anew"
            ) from error


def _order(costs: Costs) -> tuple[float, float]:
    return costs.cycles, costs.energy_pj


def _analysed(family: Family, point: Point, workload: Work) -> Any:
    return family.analyse(point, workload)


def _evaluated(family: Family, point: Point, workload: Work, choice: Choice) -> Activity:
    return family.evaluate(point, workload, choice)


def _answer(family: Family, row: Row) -> tuple[Request, Any]:
    answer = row.answer
    error = None if answer.error is None else CpembedError(answer.error)
    if isinstance(answer, AnalysisRow):
        value = error if answer.value is None else unpacked(family, answer.value)
        return Request(answer.group, answer.layer), value
    return Request(answer.group, answer.layer, answer.choice), error or answer.activity()


def _row(request: Request, result: Any, error: CpembedError | None) -> AnalysisRow | ActivityRow:
    text = None if error is None else str(error)
    group, layer = request.group, request.layer
    if request.choice is None:
        value = None if error else packed(result)
        return AnalysisRow(group=group, layer=layer, value=value, error=text)
    activity: Activity | None = None if error else result
    return ActivityRow(
        group=group,
        layer=layer,
        choice=request.choice,
        cycles=activity and activity.cycles,
        provenance=activity and activity.provenance,
        counts=dict(activity.counts) if activity else {},
        error=text,
    )
