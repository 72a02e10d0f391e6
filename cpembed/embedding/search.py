"""Search: post a constraint set, enumerate, check every solution by the constraints themselves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.cpsat import (
    SearchLimits,
    SearchStatistics,
    Status,
    enumerate_solutions,
)
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.model import ScalarModel
from cpembed.embedding.node_map import NodeMap, decode, expand
from cpembed.embedding.problem import EmbeddingProblem, LabelMismatch, pair_operands
from cpembed.embedding.proto_writer import Ids
from cpembed.errors import InvariantError
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation

Progress = Callable[[str, int], None]
"""Called with the phase ("model", "search") and the number of solutions so far."""


def silent(phase: str, count: int) -> None:
    """The progress report of a caller that wants none."""


@dataclass(frozen=True)
class Seconds:
    """Wall time spent building the model and searching it."""

    model: float
    solve: float


@dataclass(frozen=True)
class SearchResult:
    """All embeddings found. ``complete``: there are no others in the posted model.

    ``irregular`` holds node maps that are not axis maps (only without ``hyper_rectangle``);
    ``mismatch`` says why the graphs differ in labels, in which case nothing was posted.
    """

    status: Status
    complete: bool
    embeddings: tuple[Embedding, ...]
    irregular: tuple[NodeMap, ...]
    seconds: Seconds
    statistics: SearchStatistics
    problem: EmbeddingProblem | None = None
    mismatch: LabelMismatch | None = None


def find_embeddings(
    workload: Computation,
    instruction: Instruction,
    constraints: ConstraintSet,
    limits: SearchLimits | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Every embedding of the instruction in the workload under a constraint set."""
    problem = pair_operands(workload, instruction)
    if isinstance(problem, LabelMismatch):
        return SearchResult(
            Status.INFEASIBLE,
            True,
            (),
            (),
            Seconds(0.0, 0.0),
            SearchStatistics(0, 0, 0.0),
            mismatch=problem,
        )
    return search(problem, constraints, limits or SearchLimits(), progress)


def post(problem: EmbeddingProblem, constraints: ConstraintSet) -> ScalarModel:
    """The scalar model with every constraint of the set posted."""
    model = ScalarModel(
        problem,
        padded_extents(problem, constraints),
        dense_strides=constraints.get("dense") is not None,
        separable=constraints.get("hyper_rectangle") is not None
        and all(None not in names for names in problem.index_names.values()),
    )
    for constraint in constraints.constraints:
        constraint.post(model)
    return model


def padded_extents(problem: EmbeddingProblem, constraints: ConstraintSet) -> dict[str, int]:
    """Extent of each workload axis in the model's domain: its own, or the largest that a tile of
    the whole instruction could pad it to."""
    largest = math.prod(axis.maximum for axis in problem.instruction.axes)
    padded: dict[str, int] = {}
    for axis in problem.workload.axes:
        limit = constraints.padding.limit(axis.name, axis.extent)
        full = axis.extent + largest - 1
        padded[axis.name] = full if limit is None else min(limit, full)
    return padded


def search(
    problem: EmbeddingProblem,
    constraints: ConstraintSet,
    limits: SearchLimits,
    progress: Progress | None = None,
) -> SearchResult:
    """Enumerate the solutions of a posted problem; each is decoded, expanded and checked."""
    report = progress or silent
    started = time.perf_counter()
    report("model", 0)
    model = post(problem, constraints)
    compiled = model.build()
    posted = time.perf_counter()
    embeddings: list[Embedding] = []
    irregular: list[NodeMap] = []

    def receive(values: Ids) -> None:
        node_map = model.node_map(values)
        check(problem, constraints, node_map)
        embedding = decode(problem, node_map)
        if embedding is None:
            irregular.append(node_map)
        else:
            _check_round_trip(problem, embedding, node_map)
            embeddings.append(embedding)
        report("search", len(embeddings) + len(irregular))

    status, complete, statistics = enumerate_solutions(compiled, receive, limits)
    solved = time.perf_counter()
    return SearchResult(
        status,
        complete,
        tuple(embeddings),
        tuple(irregular),
        Seconds(posted - started, solved - posted),
        statistics,
        problem,
    )


def check(problem: EmbeddingProblem, constraints: ConstraintSet, node_map: NodeMap) -> None:
    """Every constraint's own judgement of a solution; a refusal is a bug in the model."""
    for constraint in constraints.constraints:
        if not constraint.holds(problem, node_map):
            raise InvariantError(
                f"a solution of the model violates {constraint.name}: please report this with "
                f"the workload {problem.workload} and the target {problem.instruction.name}"
            )


def _check_round_trip(problem: EmbeddingProblem, embedding: Embedding, node_map: NodeMap) -> None:
    again = expand(problem, embedding)
    if again is None or again.key() != node_map.key():
        raise InvariantError(f"axis maps {embedding.to_json()} do not expand to their node map")
