"""The result of an exploration: the front, all evaluated points, and the certificate."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from cpembed.display import Displayed
from cpembed.exploration.exact import ExactSearch, Verdict
from cpembed.exploration.objectives import Limit, Objective
from cpembed.exploration.points import (
    EvaluatedPoint,
    Vector,
    can_measure,
    front_of,
    hypervolume,
    keyed,
    worst,
)
from cpembed.exploration.sampled import SampledSearch
from cpembed.exploration.space import Space
from cpembed.exploration.store import Method
from cpembed.runtime.measurement.environment import provenance

Status = Literal["proven", "unproven", "sampled", "infeasible", "unknown"]

COUNTED = {
    "cycles": "of all layers one after the other, each as often as the network has it",
    "time_us": "cycles at the machine's clock",
    "energy_mj": "of all layers, leakage included",
    "area_mm2": "of the machine, as its family counts it",
    "power_w": "energy over time",
    "edp_mj_ms": "energy times time",
    "hypervolume": "what the front dominates of the box between the origin and the reference "
    "point, as a share of that box; each objective is divided by the reference's, which is the "
    "largest value among the evaluated points within the limits, and the bounds of those that were "
    "discarded by such points",
    "hypervolume.optimistic": "the same of the front and the lower bounds of all points that are "
    "neither evaluated nor discarded",
    "hypervolume.over_trials": "after each trial, by the reference of all of them",
    "certificate.discarded": "bound: lower bounds of the objectives when the point was discarded, "
    "of power its leakage; by: the number of a point that is at least as good in all of them",
}


@dataclass(frozen=True, repr=False)
class ExploreResult(Displayed):
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
        """``proven``: the front is that of the space; ``infeasible``: no point of the space is
        within the limits; ``unknown``: no point that was evaluated is."""
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
        """Return the exit code of ``cpembed explore``."""
        if self.failures:
            return 1
        return {"infeasible": 3, "unknown": 4}.get(self.status, 0)

    def vector(self, point: EvaluatedPoint) -> Vector:
        return point.vector(self.objectives)

    def picked(self, number: int) -> EvaluatedPoint | None:
        """Return the evaluated point with a number."""
        return next((point for point in self.evaluated if point.number == number), None)

    # -- hypervolumes -----------------------------------------------------------------------------

    @cached_property
    def reference(self) -> Vector | None:
        """The largest value of each objective within the limits; None where no point is.

        The bounds of points that others within the limits discarded take part too, because bounds
        leave only the better points to be evaluated.
        """
        vectors = [self.vector(point) for point in self.evaluated if point.beyond is None]
        if vectors and isinstance(self.search, ExactSearch):
            verdicts = self.search.verdicts.values()
            vectors += [v.bound for v in verdicts if v.fate == "dominated" and v.bound is not None]
        return worst(vectors) if vectors else None

    def hypervolume(self) -> dict[str, Any] | None:
        """Return the document of hypervolumes; None where they cannot be computed."""
        if self.reference is None or not can_measure():
            return None
        document: dict[str, Any] = {
            "reference": keyed(self.objectives, self.reference),
            "value": hypervolume([self.vector(point) for point in self.front], self.reference),
        }
        if isinstance(self.search, SampledSearch):
            document["over_trials"] = self._over_trials(self.search, self.reference)
        else:
            bounds = [bound for _, bound in self.search.open] if self.search.bounded else []
            vectors = [*map(self.vector, self.front), *bounds]
            document["optimistic"] = hypervolume(vectors, self.reference)
        return document

    def _over_trials(self, search: SampledSearch, reference: Vector) -> list[float]:
        vectors: list[Vector] = []
        volumes: list[float] = []
        for trial in search.trials:
            if trial.point is not None and trial.point.beyond is None and not trial.repeated:
                vectors.append(self.vector(trial.point))
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
            "fate": verdict.fate,
            "by": verdict.cause,
            "bound": bound,
            "layers_evaluated": verdict.layers,
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
            "energy_pj": point.costs.energy_pj,
            "clock_mhz": point.machine.clock_mhz,
            "area_um2": point.machine.area_um2,
            "leakage_w": point.machine.leakage_w,
            "beyond": None if point.beyond is None else point.beyond.text,
            "provenance": list(point.provenances),
            "layers": [
                {
                    "index": item.layer.index,
                    "cycles": item.costs.cycles,
                    "energy_pj": item.costs.energy_pj,
                    "provenance": item.activity.provenance.value,
                    "choice": item.choice.key,
                    "software": item.choice.words,
                }
                for item in point.layers
            ],
        }
