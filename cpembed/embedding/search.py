"""Search: post a constraint set, enumerate, check every solution by the constraints themselves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.cpsat import (
    SearchLimits,
    SearchStatistics,
    Status,
    enumerate_solutions,
)
from cpembed.embedding.digit_model import DigitModel, DigitOption, possible_digits
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.model import ScalarModel
from cpembed.embedding.node_map import NodeMap, decode, expand
from cpembed.embedding.problem import EmbeddingProblem, LabelMismatch, pair_operands
from cpembed.embedding.proto_writer import CompiledModel, Ids
from cpembed.errors import InvariantError, SpecError
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation

Progress = Callable[[str, int], None]
"""Called with the phase ("model", "search") and the number of solutions so far."""


def silent(phase: str, count: int) -> None:
    """The progress report of a caller that wants none."""


class Formulation(StrEnum):
    """Which model is posted: ``auto`` is the digit model wherever it applies."""

    AUTO = "auto"
    SCALAR = "scalar"
    DIGITS = "digits"


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
    formulation: Formulation = Formulation.SCALAR


def find_embeddings(
    workload: Computation,
    instruction: Instruction,
    constraints: ConstraintSet,
    limits: SearchLimits | None = None,
    progress: Progress | None = None,
    formulation: Formulation = Formulation.AUTO,
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
    return search(problem, constraints, limits or SearchLimits(), progress, formulation)


def post(problem: EmbeddingProblem, constraints: ConstraintSet) -> ScalarModel:
    """The scalar model with every constraint of the set posted.

    Raises :class:`SpecError` for a configurable instruction axis without ``hyper_rectangle``:
    what an axis is used at shows in its digits only.
    """
    if constraints.get("hyper_rectangle") is None and problem.instruction.configurable_axes:
        axis = problem.instruction.configurable_axes[0].name
        raise SpecError(
            f"{constraints.name}: axis {axis} of {problem.instruction.name} is configurable, "
            "which needs the boxes of hyper_rectangle: add [hyper_rectangle]"
        )
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
    formulation: Formulation = Formulation.AUTO,
) -> SearchResult:
    """Enumerate the embeddings of a problem.

    The scalar model checks each solution as it arrives; those of the digit model are checked with
    :func:`check_embedding` by whoever shows one, because there can be very many.
    """
    report = progress or silent
    started = time.perf_counter()
    report("model", 0)
    if formulation is Formulation.AUTO:
        digits = has_digit_model(problem, constraints)
        formulation = Formulation.DIGITS if digits else Formulation.SCALAR
    compiled, interpret = (
        _scalar_model(problem, constraints)
        if formulation is Formulation.SCALAR
        else _digit_model(problem, constraints)
    )
    posted = time.perf_counter()
    embeddings: list[Embedding] = []
    irregular: list[NodeMap] = []

    def receive(values: Ids) -> None:
        solution = interpret(values)
        if isinstance(solution, Embedding):
            embeddings.append(solution)
        else:
            irregular.append(solution)
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
        formulation=formulation,
    )


def _scalar_model(
    problem: EmbeddingProblem, constraints: ConstraintSet
) -> tuple[CompiledModel, Callable[[Ids], Embedding | NodeMap]]:
    model = post(problem, constraints)

    def interpret(values: Ids) -> Embedding | NodeMap:
        node_map = model.node_map(values)
        check(problem, constraints, node_map)
        embedding = decode(problem, node_map)
        if embedding is None:
            return node_map
        _check_round_trip(problem, embedding, node_map)
        return embedding

    return model.build(), interpret


def _digit_model(
    problem: EmbeddingProblem, constraints: ConstraintSet
) -> tuple[CompiledModel, Callable[[Ids], Embedding]]:
    model = DigitModel(problem, allowed_digits(problem, constraints))
    for constraint in constraints.constraints:
        constraint.post_digits(model)
    return model.build(), model.embedding


def has_digit_model(problem: EmbeddingProblem, constraints: ConstraintSet) -> bool:
    """Whether embeddings are exactly choices of digits: boxes at a fixed origin, on operands that
    the instruction walks by single axes, each once."""
    regular = all(
        None not in names and len(set(names)) == len(names)
        for names in problem.index_names.values()
    )
    needed = ("hyper_rectangle", "fixed_origin", "dataflow")
    return regular and all(constraints.get(name) is not None for name in needed)


def allowed_digits(problem: EmbeddingProblem, constraints: ConstraintSet) -> list[DigitOption]:
    """The digits that every constraint allows by itself."""
    padded = padded_extents(problem, constraints)
    dense = constraints.get("dense") is not None

    def strides(axis: str, count: int) -> range:
        largest = (padded[axis] - 1) // (count - 1)
        # Without gaps an operand that the axis indexes alone leaves no other stride.
        if dense and axis in problem.direct_dimension:
            largest = min(largest, 1)
        return range(1, largest + 1)

    return [
        option
        for option in possible_digits(problem, strides)
        if all(constraint.allows(problem, option) for constraint in constraints.constraints)
    ]


def check_embedding(
    problem: EmbeddingProblem, constraints: ConstraintSet, embedding: Embedding
) -> None:
    """Expand axis maps to nodes and have every constraint judge them; a refusal is a bug."""
    node_map = expand(problem, embedding)
    if node_map is None:
        raise InvariantError(f"axis maps {embedding.to_json()} violate the dataflow")
    check(problem, constraints, node_map)


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
