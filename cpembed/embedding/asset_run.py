"""One asset of a portfolio at work, and the solutions that all assets share."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from cpembed.embedding.checks import check, check_round_trip
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.cpsat import (
    SearchControl,
    SearchLimits,
    SearchStatistics,
    Status,
    StopSignal,
    enumerate_solutions,
)
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.model import ScalarModel
from cpembed.embedding.node_map import NodeMap, decode
from cpembed.embedding.posting import configurations, post
from cpembed.embedding.problem import EmbeddingProblem
from cpembed.embedding.proto_writer import Ids, TooLargeDomain


class Solutions:
    """Solutions by the digest of their node maps: each is checked once, by the first to find it."""

    def __init__(
        self,
        problem: EmbeddingProblem,
        constraints: ConstraintSet,
        report: Callable[[int], None],
    ) -> None:
        self._problem, self._constraints, self._report = problem, constraints, report
        self._lock = threading.Lock()
        self._found: dict[bytes, Embedding | NodeMap] = {}

    def add(self, node_map: NodeMap) -> bytes:
        shape, images = node_map.key()
        digest = hashlib.blake2b(repr(shape).encode() + images, digest_size=16).digest()
        with self._lock:
            if digest not in self._found:
                self._found[digest] = self._checked(node_map)
                self._report(len(self._found))
        return digest

    def _checked(self, node_map: NodeMap) -> Embedding | NodeMap:
        check(self._problem, self._constraints, node_map)
        embedding = decode(self._problem, node_map)
        if embedding is None:
            return node_map
        check_round_trip(self._problem, embedding, node_map)
        return embedding

    def keys(self) -> list[bytes]:
        return list(self._found)

    def sorted(
        self, keys: Iterable[bytes], most: int | None
    ) -> tuple[tuple[Embedding, ...], tuple[NodeMap, ...]]:
        """Embeddings by their written form, then irregular ones by their images; ``most`` of
        them in all."""
        found = [self._found[key] for key in keys]
        embeddings = sorted(
            (e for e in found if isinstance(e, Embedding)),
            key=lambda e: json.dumps(e.to_json(), sort_keys=True),
        )[:most]
        left = None if most is None else most - len(embeddings)
        irregular = sorted((m for m in found if isinstance(m, NodeMap)), key=NodeMap.key)[:left]
        return tuple(embeddings), tuple(irregular)


@dataclass
class AssetRun:
    """One asset's search in one round: to its end, or for ``work`` of deterministic time in each
    configuration.

    ``bounds`` cuts the domains of workload axes to a largest coordinate. ``decided``: the search
    was exhausted (``complete``), or has as many solutions as were asked for.
    """

    name: str
    problem: EmbeddingProblem
    constraints: ConstraintSet
    axes: tuple[str, ...]
    bounds: Mapping[str, int]
    solutions: Solutions
    presolve: bool
    work: float | None
    stop: StopSignal = field(default_factory=StopSignal)
    started: bool = False
    decided: bool = False
    complete: bool = False
    status: Status = Status.UNKNOWN
    statistics: SearchStatistics = field(default_factory=SearchStatistics)
    found: list[bytes] = field(default_factory=list[bytes])

    def search(self, limits: SearchLimits) -> None:
        begun = time.perf_counter()
        exhausted = True
        for configuration in configurations(self.problem, self.constraints):
            left = limits.after(time.perf_counter() - begun)
            if self.stop.stopped or left.seconds == 0:
                return
            self.started = True
            exhausted &= self._enumerate(self._post(configuration), left)
            if self.found:
                self.status = Status.FEASIBLE
            if limits.solutions is not None and len(self.found) >= limits.solutions:
                self.decided = True
                return
        if exhausted:
            self.decided = self.complete = True
            self.status = Status.OPTIMAL if self.found else Status.INFEASIBLE

    def _post(self, configuration: Mapping[str, int] | None) -> ScalarModel:
        model = post(self.problem, self.constraints, configuration)
        model.axis_order = self.axes
        for axis, largest in self.bounds.items():
            model.builder.bound(model.points[axis], 0, largest)
        return model

    def _enumerate(self, model: ScalarModel, limits: SearchLimits) -> bool:
        """One configuration's solutions; whether these are all it has."""

        def receive(values: Ids) -> bool:
            self.found.append(self.solutions.add(model.node_map(values)))
            return True

        if limits.solutions is not None:
            limits = replace(limits, solutions=limits.solutions - len(self.found))
        control = SearchControl(self.presolve, self.work, self.stop)
        try:
            compiled = model.build()
        except TooLargeDomain as error:
            needed = ("hyper_rectangle", "fixed_origin")
            missing = [name for name in needed if self.constraints.get(name) is None]
            remedy = f"add {missing[0]} to the set" if missing else "leave the search to auto"
            raise TooLargeDomain(f"{self.constraints.name}: {error}: {remedy}") from None
        _, exhausted, statistics = enumerate_solutions(compiled, receive, limits, control)
        self.statistics = self.statistics.plus(statistics)
        return exhausted
