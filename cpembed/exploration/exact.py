"""The front of a space, proven: every point is evaluated, or discarded by its lower bounds.

All layers are analysed for all groups of points; from an analysis follow lower bounds of a layer's
costs at any point of the group, and their sums are bounds of the point's objectives. A point is
discarded when one that was evaluated is at least as good as its bounds in all objectives, or when a
bound is above a limit. The most promising point by its bounds is evaluated next, layer by layer,
the largest first: each layer's costs replace its bound, and the point may be discarded before all
of them are evaluated.

What is discarded, and by what, depends on nothing but the space: tasks are started ahead where
several can be executed at once, and their answers are used in the order in which a single worker
would have produced them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from cpembed.errors import InvariantError, SpecError
from cpembed.exploration.costing import Costing, LayerWork, Request
from cpembed.exploration.objectives import (
    EvaluatedPoint,
    Limit,
    Machine,
    Objective,
    Place,
    Step,
    Vector,
    covers,
    exceeded,
    total,
)
from cpembed.exploration.space import Space
from cpembed.runtime.cluster import Workers
from cpembed.targets.family import Costs, Point

MAX_POINTS = 200_000
"""Maximum number of combinations of a space that is enumerated."""

_AHEAD = 32
"""Maximum number of points whose evaluations idle workers begin before they are needed."""

_ROUNDING = 1e-9
"""Relative tolerance of a lower bound, which is a sum in floating point."""

Fate = Literal["evaluated", "dominated", "limit", "no_machine", "no_software", "failed"]


@dataclass(frozen=True)
class Verdict:
    """The fate of a point.

    ``cause`` is the number of the point that is at least as good as its bounds and computes all of
    its layers, a limit, or a layer without software; ``layers`` is the number of its layers that
    were evaluated for it, and ``left_out`` of those without software there.
    """

    number: int
    fate: Fate
    cause: int | str | None = None
    bound: Vector | None = None
    layers: int = 0
    left_out: int = 0


@dataclass
class _Candidate:
    """A machine that is neither evaluated nor discarded.

    ``layers`` are lower bounds of its layers' costs, each as often as the network has it, or the
    costs themselves for those that are ``resolved``; layers without software are in no sum and
    not in ``coverage``. ``row`` is its row in the table of bounds.
    """

    number: int
    place: Place
    point: Point
    machine: Machine
    layers: list[Costs] = field(default_factory=list[Costs])
    resolved: set[int] = field(default_factory=set[int])
    coverage: frozenset[int] = frozenset()
    row: int | None = None


class ExactSearch:
    """The search of a whole space, of at most :data:`MAX_POINTS` combinations.

    Its front is proven once it is finished. ``bounds`` False evaluates every machine: brute force,
    to compare with.
    """

    def __init__(
        self,
        space: Space,
        costing: Costing,
        objectives: Sequence[Objective],
        limits: Sequence[Limit],
        *,
        bounds: bool = True,
    ) -> None:
        if space.combinations > MAX_POINTS:
            raise SpecError(
                f"{space.name} has {space.combinations:,} combinations, more than the "
                f"{MAX_POINTS:,} that are enumerated: narrow it, or let a method sample it"
            )
        self.space = space
        self.costing = costing
        self.objectives = tuple(objectives)
        self.limits = tuple(limits)
        self.verdicts: dict[int, Verdict] = {}
        self.evaluated: list[EvaluatedPoint] = []
        # Places of the layers that evaluated points compute, by number.
        self._coverages: dict[int, frozenset[int]] = {}
        self.points = 0
        self.machines = 0
        self.bounded = False
        """True once all points that are not decided have bounds."""
        self._use_bounds = bounds
        # A point whose costs are known is worth showing, even if another one beats it.
        self._discards_dominated = bounds and not space.family.knows_costs
        # Both are iterators that a search which is ended and continued goes on with.
        self._places = space.places()
        self._unbounded: list[_Candidate] | None = None
        self._candidates: dict[int, _Candidate] = {}
        # One row for each point that got bounds, whether it is decided or not.
        self._bounds = np.empty((0, len(self.objectives)))
        self._bounded: list[_Candidate] = []
        self._undecided = np.empty(0, dtype=np.bool_)
        self._heap: list[tuple[float, int]] = []
        self._current: _Candidate | None = None
        self._applied: set[Request] = set()

    # -- state --------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """True if all points are decided."""
        return self.bounded and self._current is None and not self._candidates

    @property
    def open(self) -> list[tuple[int, Vector]]:
        """Numbers of the points that are neither evaluated nor discarded, with their bounds."""
        return [(c.number, self._bound(c)) for c in self._candidates.values()]

    @property
    def is_proven(self) -> bool:
        """True if the front is that of the space, which is not known where evaluations failed."""
        return self.finished and not any(v.fate == "failed" for v in self.verdicts.values())

    # -- the search ---------------------------------------------------------------------------

    def run(self, workers: Workers) -> Iterator[Step]:
        """Search until all points are decided.

        The caller may stop at any step and continue later with another call.
        """
        # Order: area and leakage need no software, so limits on them discard points before layers
        # are analysed; one analysis bounds all points of a group; only then is software evaluated,
        # which takes longest.
        yield from self._enumerate()
        if not self.bounded:
            yield from self._analyse(workers)
            yield from self._bound_all()
        self._advance()
        while not self.finished:
            for _ in self.costing.find_out(self._requests(), workers):
                self._advance()
                yield self._progress()

    def _progress(self) -> Step:
        decided = self.machines - len(self._candidates)
        return Step(f"{len(self.evaluated)} evaluated", decided, self.machines)

    def _enumerate(self) -> Iterator[Step]:
        space = self.space
        for place in self._places:
            self.points += 1
            point = space.point(place)
            number = space.number(place)
            if (flaw := space.family.flaw(point)) is not None:
                self.verdicts[number] = Verdict(number, "no_machine", flaw)
                continue
            self.machines += 1
            machine = Machine.at(space.family, point)
            candidate = _Candidate(number, place, point, machine)
            self._candidates[number] = candidate
            # Area or leakage, which do not depend on software, may be above a limit already.
            candidate.layers = [Costs(0.0, 0.0)] * len(self.costing.layers)
            self._discard_by_limit(candidate)
            if self.points % 1000 == 0:
                yield Step("enumerating", self.points, space.combinations)

    def _analyse(self, workers: Workers) -> Iterator[Step]:
        # Any point of a group stands for it: an analysis holds for all of them.
        groups: dict[str, Point] = {}
        for candidate in self._candidates.values():
            groups.setdefault(self.costing.group(candidate.point), candidate.point)
        requests = [
            (point, layer, request)
            for point in groups.values()
            for layer in self.costing.layers
            if (request := self.costing.analysis(point, layer)) is not None
        ]
        distinct = len({request for _, _, request in requests})
        for number, _ in enumerate(self.costing.find_out(requests, workers), 1):
            yield Step("analysing", number, distinct)

    def _bound_all(self) -> Iterator[Step]:
        if self._unbounded is None:
            self._unbounded = list(self._candidates.values())
        while self._unbounded:
            candidate = self._unbounded.pop()
            if self._bound_layers(candidate):
                self._discard_by_limit(candidate)
            if len(self._unbounded) % 50 == 0:
                yield Step("bounding", self.machines - len(self._unbounded), self.machines)
        # The table of bounds has a row per candidate, so that a new point of the front is compared
        # with all of them by one operation of NumPy.
        self._bounded = list(self._candidates.values())
        size = len(self._bounded), len(self.objectives)
        self._bounds = np.array([self._bound(c) for c in self._bounded]).reshape(size)
        self._undecided = np.ones(len(self._bounded), dtype=np.bool_)
        for row, candidate in enumerate(self._bounded):
            candidate.row = row
            self._push(candidate)
        self.bounded = True

    def _bound_layers(self, candidate: _Candidate) -> bool:
        """Compute lower bounds; False where the point is decided by that."""
        bounds: list[Costs] = []
        left_out: set[int] = set()
        for place, layer in enumerate(self.costing.layers):
            if self.costing.is_failed(candidate.point, layer):
                self._decide(candidate, "failed", layer.label)
                return False
            bound = self.costing.bound(candidate.point, layer)
            if bound is None:
                left_out.add(place)
                bound = Costs(0.0, 0.0)
            bounds.append(bound.times(layer.count) if self._use_bounds else Costs(0.0, 0.0))
        if len(left_out) == len(bounds):
            first = self.costing.layers[0]
            reason = self.costing.why_none(candidate.point, first)
            self._decide(candidate, "no_software", f"{first.label}: {reason}")
            return False
        candidate.layers, candidate.resolved = bounds, left_out
        candidate.coverage = frozenset(range(len(bounds))) - left_out
        return True

    # -- evaluating the most promising point ------------------------------------------------------

    def _advance(self) -> None:
        """Use the answers that are there, in the order in which one worker would have them."""
        while self._current is not None or self._heap:
            if self._current is None and not self._take_next():
                continue
            candidate = self._current
            assert candidate is not None
            place = self._next_layer(candidate)
            if place is None:
                self._complete(candidate)
                continue
            # A layer may have several choices of software, all of which are evaluated: its costs
            # are the best of theirs.
            needed = self.costing.evaluations(candidate.point, self.costing.layers[place])
            if not all(self.costing.is_known(request) for request in needed):
                return
            if not self._resolve(candidate, place, needed):
                self._current = None

    def _take_next(self) -> bool:
        """Make the most promising point the current one.

        False where evaluations since it was queued have decided it or worsened its rank.
        """
        rank, number = heapq.heappop(self._heap)
        candidate = self._candidates.get(number)
        if candidate is None:
            return False
        for place, layer in enumerate(self.costing.layers):
            if place in candidate.resolved:
                continue
            # Answers that earlier points of its group needed replace bounds for nothing. Only those
            # that one worker would have by now, so that verdicts do not depend on workers.
            needed = self.costing.evaluations(candidate.point, layer)
            if self._applied.issuperset(needed) and not self._resolve(candidate, place, needed):
                return False
        # Its bounds have risen since it was queued. It goes back, and is taken only if it is still
        # the most promising.
        if self._rank(candidate) > rank and self._heap:
            self._push(candidate)
            if self._heap[0][1] != number:
                return False
            heapq.heappop(self._heap)
        self._current = candidate
        return True

    def _next_layer(self, candidate: _Candidate) -> int | None:
        """Return the unresolved layer with the most cycles."""
        # It raises the bound most, so that the point may be discarded without the rest.
        unresolved = (n for n in range(len(candidate.layers)) if n not in candidate.resolved)
        return max(unresolved, key=lambda n: (candidate.layers[n].cycles, -n), default=None)

    def _resolve(self, candidate: _Candidate, place: int, needed: Sequence[Request]) -> bool:
        """Replace a layer's bound by its costs; False where that decides the point."""
        self._applied.update(needed)
        layer = self.costing.layers[place]
        if any(request in self.costing.failed for request in needed):
            self._decide(candidate, "failed", layer.label)
            return False
        layer_costs = self.costing.costs(candidate.point, layer)
        if layer_costs is None:
            self._decide(candidate, "no_software", layer.label)
            return False
        costs = layer_costs.costs.times(layer.count)
        self._check_bound(candidate.layers[place], costs, layer)
        candidate.layers[place] = costs
        candidate.resolved.add(place)
        if len(candidate.resolved) == len(candidate.layers):
            # Its values are exact from here on.
            return True
        bound = self._bound(candidate)
        self._bounds[candidate.row] = bound
        return not (
            self._discard_by_limit(candidate) or self._discard_by_evaluated(candidate, bound)
        )

    def _check_bound(self, bound: Costs, costs: Costs, layer: LayerWork) -> None:
        pairs = (bound.cycles, costs.cycles), (bound.energy_pj, costs.energy_pj)
        # A family whose bounds are wrong would make a proof of a wrong front.
        if any(value < lower * (1 - _ROUNDING) for lower, value in pairs):
            raise InvariantError(
                f"family {self.space.family.name}: {layer.label} costs {costs}, below its lower "
                f"bound {bound}: nothing can be discarded by such bounds"
            )

    def _complete(self, candidate: _Candidate) -> None:
        """Evaluate the current point, all of whose layers are resolved."""
        self._current = None
        point = self.space.evaluated(candidate.place, self.costing, self.limits)
        assert point is not None, "its layers have costs"
        self.evaluated.append(point)
        self._coverages[point.number] = candidate.coverage
        self._decide(candidate, "evaluated", point.beyond and point.beyond.text)
        # A point above a limit is not on the front, so it discards nothing.
        if point.beyond is not None or not self._discards_dominated:
            return
        vector = point.vector(self.objectives)
        for row in np.flatnonzero(covers(vector, self._bounds) & self._undecided):
            if self._bounded[row].coverage <= candidate.coverage:
                self._discard(self._bounded[row], candidate.number, vector, candidate.coverage)

    # -- discarding -------------------------------------------------------------------------------

    def _discard_by_evaluated(self, candidate: _Candidate, bound: Vector) -> bool:
        if not self._discards_dominated:
            return False
        for point in self.evaluated:
            coverage = self._coverages.get(point.number, frozenset())
            # Sums over different layers are not comparable.
            if point.beyond is None and candidate.coverage <= coverage:
                vector = point.vector(self.objectives)
                if all(a <= b for a, b in zip(vector, bound, strict=True)) and self._discard(
                    candidate, point.number, vector, coverage
                ):
                    return True
        return False

    def _discard(
        self, candidate: _Candidate, number: int, vector: Vector, coverage: frozenset[int]
    ) -> bool:
        """Discard a candidate whose bounds are no better than an evaluated point.

        Of points that may be equal the one with the smaller number remains, whichever is evaluated
        first, so that the front does not depend on the order.
        """
        is_later = number > candidate.number and coverage == candidate.coverage
        if vector == self._bound(candidate) and is_later:
            return False
        self._decide(candidate, "dominated", number)
        return True

    def _discard_by_limit(self, candidate: _Candidate) -> bool:
        costs = total(candidate.layers)
        limit = exceeded(self.limits, lambda objective: objective.bound(candidate.machine, costs))
        if limit is not None and self._use_bounds:
            self._decide(candidate, "limit", limit.text)
            return True
        return False

    def _decide(self, candidate: _Candidate, fate: Fate, cause: int | str | None) -> None:
        # The certificate lists the bounds with which a point was discarded.
        bound = None if fate == "evaluated" else self._bound(candidate)
        evaluated = len(candidate.resolved & candidate.coverage)
        verdict = Verdict(
            number=candidate.number,
            fate=fate,
            cause=cause,
            bound=bound,
            layers=evaluated,
            left_out=len(candidate.resolved - candidate.coverage),
        )
        self.verdicts[candidate.number] = verdict
        del self._candidates[candidate.number]
        if candidate.row is not None:
            self._undecided[candidate.row] = False

    def _bound(self, candidate: _Candidate) -> Vector:
        costs = total(candidate.layers)
        return tuple(o.bound(candidate.machine, costs) for o in self.objectives)

    def _rank(self, candidate: _Candidate) -> float:
        """Return the logarithm of the bounds' product, least for the most promising point."""
        # A product weighs objectives of any units alike. Leakage, or energy without bounds, may be
        # 0.
        return sum(math.log(max(value, 1e-30)) for value in self._bound(candidate))

    def _push(self, candidate: _Candidate) -> None:
        heapq.heappush(self._heap, (self._rank(candidate), candidate.number))

    # -- ahead of the search ----------------------------------------------------------------------

    def _requests(self) -> Iterator[tuple[Point, LayerWork, Request]]:
        """Yield the requests that the search waits for, then those that it will probably make.

        Each is yielded once, by the state of the search at the time when a worker is free.
        """
        yielded: set[Request] = set()
        while not self.finished:
            likely = next((r for r in self._likely_requests() if r[2] not in yielded), None)
            if likely is None:
                return
            yielded.add(likely[2])
            yield likely

    def _likely_requests(self) -> Iterator[tuple[Point, LayerWork, Request]]:
        for candidate in self._queue():
            # The same order as that of _next_layer, so that tasks started ahead are those needed
            # first.
            order = sorted(
                (n for n in range(len(candidate.layers)) if n not in candidate.resolved),
                key=lambda n, layers=candidate.layers: (-layers[n].cycles, n),
            )
            for place in order:
                layer = self.costing.layers[place]
                for request in self.costing.evaluations(candidate.point, layer):
                    if not self.costing.is_known(request):
                        yield candidate.point, layer, request

    def _queue(self) -> Iterator[_Candidate]:
        """Yield the current point, then the next ones."""
        if self._current is not None:
            yield self._current
        for _, number in heapq.nsmallest(_AHEAD, self._heap):
            if number in self._candidates:
                yield self._candidates[number]
