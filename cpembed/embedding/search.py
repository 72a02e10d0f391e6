"""Search: post a constraint set, enumerate, check every solution by the constraints themselves."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from cpembed.embedding.commute import commuted, is_symmetric
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.all_different import AllDifferent
from cpembed.embedding.constraints.dataflow import Dataflow
from cpembed.embedding.constraints.hyper_rectangle import HyperRectangle
from cpembed.embedding.constraints.strides import Strides
from cpembed.embedding.cpsat import (
    SearchLimits,
    SearchStatistics,
    Status,
    enumerate_solutions,
)
from cpembed.embedding.digit_model import (
    AxisMaps,
    DigitModel,
    DigitOption,
    combine,
    possible_digits,
)
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.flatten import Groups, flatten
from cpembed.embedding.model import ScalarModel
from cpembed.embedding.node_map import NodeMap, decode, expand
from cpembed.embedding.problem import EmbeddingProblem, LabelMismatch, pair_operands
from cpembed.embedding.proto_writer import CompiledModel, Ids
from cpembed.errors import InvariantError, WorkloadError
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
    first = pair_operands(workload, instruction)
    if isinstance(first, LabelMismatch):
        return SearchResult(
            Status.INFEASIBLE,
            True,
            (),
            (),
            Seconds(0.0, 0.0),
            SearchStatistics(0, 0, 0.0),
            mismatch=first,
        )
    results = [
        search(problem, constraints, limits or SearchLimits(), progress, formulation)
        for problem in [first, *_exchanged(first, constraints)]
    ]
    return results[0] if len(results) == 1 else merged(results)


def _exchanged(first: EmbeddingProblem, constraints: ConstraintSet) -> list[EmbeddingProblem]:
    """The problems with operands exchanged, where the set allows it and the instruction minds."""
    dataflow = constraints.get("dataflow")
    if not isinstance(dataflow, Dataflow) or not dataflow.commute:
        return []
    found: list[EmbeddingProblem] = []
    for workload in list(commuted(first.workload))[1:]:
        problem = pair_operands_or_none(workload, first.instruction)
        if problem is None:
            continue
        owner = {theirs: ours for ours, theirs in first.roles.items()}
        exchange = {ours: owner[theirs] for ours, theirs in problem.roles.items()}
        if not is_symmetric(first.instruction, exchange):
            found.append(problem)
    return found


def pair_operands_or_none(
    workload: Computation, instruction: Instruction
) -> EmbeddingProblem | None:
    """The problem, or None where labels or element types do not fit in this order."""
    try:
        found = pair_operands(workload, instruction)
    except WorkloadError:
        return None
    return None if isinstance(found, LabelMismatch) else found


def merged(results: list[SearchResult]) -> SearchResult:
    """The union of searches over alternative problems."""
    complete = all(result.complete for result in results)
    found = any(result.embeddings or result.irregular for result in results)
    if complete:
        status = Status.OPTIMAL if found else Status.INFEASIBLE
    else:
        status = Status.FEASIBLE if found else Status.UNKNOWN
    statistics = SearchStatistics(0, 0, 0.0)
    for result in results:
        statistics = statistics.plus(result.statistics)
    return SearchResult(
        status,
        complete,
        tuple(e for result in results for e in result.embeddings),
        tuple(m for result in results for m in result.irregular),
        Seconds(
            sum(result.seconds.model for result in results),
            sum(result.seconds.solve for result in results),
        ),
        statistics,
        results[0].problem,
        formulation=results[0].formulation,
    )


def post(
    problem: EmbeddingProblem,
    constraints: ConstraintSet,
    configuration: Mapping[str, int] | None = None,
) -> ScalarModel:
    """The scalar model with every constraint of the set posted."""
    model = ScalarModel(
        problem,
        padded_extents(problem, constraints),
        dense_strides=constraints.get("dense") is not None,
        separable=constraints.get("hyper_rectangle") == HyperRectangle("operands")
        and all(None not in names for names in problem.index_names.values()),
        configuration=configuration,
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
    report("model", 0)
    if formulation is Formulation.AUTO:
        digits = has_digit_model(problem, constraints)
        formulation = Formulation.DIGITS if digits else Formulation.SCALAR
    if formulation is Formulation.DIGITS:
        return _search_digits(problem, constraints, limits, report)
    return _search_nodes(problem, constraints, limits, report)


def _search_nodes(
    problem: EmbeddingProblem, constraints: ConstraintSet, limits: SearchLimits, report: Progress
) -> SearchResult:
    """Enumerate the scalar model's solutions, checking each as it arrives."""
    effort = Effort()
    embeddings: list[Embedding] = []
    irregular: list[NodeMap] = []
    for configuration in configurations(problem, constraints):
        model = post(problem, constraints, configuration)

        def receive(values: Ids, model: ScalarModel = model) -> None:
            node_map = model.node_map(values)
            check(problem, constraints, node_map)
            embedding = decode(problem, node_map)
            if embedding is None:
                irregular.append(node_map)
            else:
                _check_round_trip(problem, embedding, node_map)
                embeddings.append(embedding)
            report("search", len(embeddings) + len(irregular))

        effort.enumerate(model.build(), receive, limits)
        if limits.solutions is not None and len(embeddings) + len(irregular) >= limits.solutions:
            break
    return effort.result(problem, embeddings, irregular, Formulation.SCALAR)


def _search_digits(
    problem: EmbeddingProblem, constraints: ConstraintSet, limits: SearchLimits, report: Progress
) -> SearchResult:
    """Enumerate the digit model's solutions.

    Instruction axes that no constraint couples have solutions of their own, which combine freely:
    the embeddings are the product. Most problems fall apart like this.
    """
    effort = Effort()
    options = allowed_digits(problem, constraints)
    whole = tuple(axis.name for axis in problem.instruction.axes)
    components = _posted(problem, constraints, options, whole).components()
    found: list[list[AxisMaps]] = []
    for lanes in components:
        model = _posted(problem, constraints, [o for o in options if o.lane in lanes], lanes)
        maps: list[AxisMaps] = []

        def receive(values: Ids, model: DigitModel = model, maps: list[AxisMaps] = maps) -> None:
            maps.append(model.axis_maps(values))
            report("search", sum(map(len, found)) + len(maps))

        effort.enumerate(model.build(), receive, limits)
        found.append(maps)
        if not maps:
            break
    products = itertools.islice(itertools.product(*found), limits.solutions)
    embeddings = [combine(problem, parts) for parts in products] if all(found) else []
    return effort.result(problem, embeddings, [], Formulation.DIGITS)


def _posted(
    problem: EmbeddingProblem,
    constraints: ConstraintSet,
    options: list[DigitOption],
    lanes: tuple[str, ...],
) -> DigitModel:
    model = DigitModel(problem, options, lanes)
    for constraint in constraints.constraints:
        constraint.post_digits(model)
    return model


class Effort:
    """Accumulates the solver's work over the models of one search."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.solving = 0.0
        self.statuses: list[Status] = []
        self.statistics = SearchStatistics(0, 0, 0.0)

    def enumerate(
        self, model: CompiledModel, receive: Callable[[Ids], None], limits: SearchLimits
    ) -> None:
        started = time.perf_counter()
        left = limits.after(started - self.started)
        status, _, statistics = enumerate_solutions(model, receive, left)
        self.statuses.append(status)
        self.statistics = self.statistics.plus(statistics)
        self.solving += time.perf_counter() - started

    def result(
        self,
        problem: EmbeddingProblem,
        embeddings: list[Embedding],
        irregular: list[NodeMap],
        formulation: Formulation,
    ) -> SearchResult:
        status = self._status(formulation)
        return SearchResult(
            status,
            status in (Status.OPTIMAL, Status.INFEASIBLE),
            tuple(embeddings),
            tuple(irregular),
            Seconds(time.perf_counter() - self.started - self.solving, self.solving),
            self.statistics,
            problem,
            formulation=formulation,
        )

    def _status(self, formulation: Formulation) -> Status:
        """Components must all have solutions; configurations are alternatives."""
        infeasible = [status is Status.INFEASIBLE for status in self.statuses]
        if any(infeasible) if formulation is Formulation.DIGITS else all(infeasible):
            return Status.INFEASIBLE
        if all(status in (Status.INFEASIBLE, Status.OPTIMAL) for status in self.statuses):
            return Status.OPTIMAL
        found = [status in (Status.FEASIBLE, Status.OPTIMAL) for status in self.statuses]
        enough = all(found) if formulation is Formulation.DIGITS else any(found)
        return Status.FEASIBLE if enough else Status.UNKNOWN


def configurations(
    problem: EmbeddingProblem, constraints: ConstraintSet
) -> list[Mapping[str, int] | None]:
    """What the scalar model decides beforehand: without operand boxes, the extents of configurable
    axes, one model each."""
    axes = problem.instruction.axes
    boxes = constraints.get("hyper_rectangle") == HyperRectangle("operands")
    if boxes or not problem.instruction.configurable_axes:
        return [None]
    sizes = itertools.product(*(axis.allowed for axis in axes))
    return [dict(zip((axis.name for axis in axes), chosen, strict=True)) for chosen in sizes]


def has_digit_model(problem: EmbeddingProblem, constraints: ConstraintSet) -> bool:
    """Whether embeddings are exactly choices of digits: boxes at a fixed origin, on operands that
    the instruction walks by single axes, each once."""
    regular = all(
        None not in names and len(set(names)) == len(names)
        for names in problem.index_names.values()
    )
    needed = ("hyper_rectangle", "fixed_origin", "dataflow")
    if not regular or any(constraints.get(name) is None for name in needed):
        return False
    boxes, different = constraints.get("hyper_rectangle"), constraints.get("all_different")
    if boxes == HyperRectangle("operands"):
        return True
    # Without operand boxes, elements differ digit by digit only where digits do not meet in one
    # dimension: an output of single-axis indices, and no instruction axis feeding a sum of axes
    # that have the same role.
    if not isinstance(different, AllDifferent) or different.elements == "all":
        return False
    output = problem.pairs[-1].workload.index
    return all(index.single_iterator is not None for index in output) and not _shared_sums(problem)


def _shared_sums(problem: EmbeddingProblem) -> bool:
    """Whether two axes that could feed the same instruction axis meet in one index."""
    signatures = {
        axis.name: frozenset(
            pair.instruction.operand
            for pair in problem.pairs
            if any(axis.name in index.iterators for index in pair.workload.index)
        )
        for axis in problem.workload.axes
    }
    return any(
        signatures[a] == signatures[b]
        for pair in problem.pairs
        for index in pair.workload.index
        for a, b in itertools.combinations(index.iterators, 2)
    )


def allowed_digits(problem: EmbeddingProblem, constraints: ConstraintSet) -> list[DigitOption]:
    """The digits that every constraint allows by itself."""
    padded = padded_extents(problem, constraints)
    dense = constraints.get("dense") is not None
    listed = constraints.get("strides")

    def strides(axis: str, count: int) -> Iterable[int]:
        if isinstance(listed, Strides):
            return listed.values(problem, axis, count)
        largest = (padded[axis] - 1) // (count - 1)
        # Without gaps an operand that the axis indexes alone leaves no other stride.
        if dense and axis in problem.direct_dimension:
            largest = min(largest, 1)
        return range(1, largest + 1)

    return [
        option
        for option in possible_digits(problem, strides, constraints.flatten.max_axes)
        if all(constraint.allows(problem, option) for constraint in constraints.constraints)
    ]


def check_embedding(
    problem: EmbeddingProblem, constraints: ConstraintSet, embedding: Embedding
) -> None:
    """Expand axis maps to nodes and have every constraint judge them; a refusal is a bug."""
    problem = flattened_problem(with_roles(problem, embedding.operands), embedding.flattened)
    node_map = expand(problem, embedding)
    if node_map is None:
        raise InvariantError(f"axis maps {embedding.to_json()} violate the dataflow")
    check(problem, constraints, node_map)


def with_roles(problem: EmbeddingProblem, roles: Mapping[str, str]) -> EmbeddingProblem:
    """The problem with the operands in the roles of an embedding."""
    if dict(problem.roles) == dict(roles):
        return problem
    for workload in commuted(problem.workload):
        found = pair_operands_or_none(workload, problem.instruction)
        if found is not None and dict(found.roles) == dict(roles):
            return found
    raise InvariantError(f"no order of operands gives the roles {dict(roles)}")


def flattened_problem(problem: EmbeddingProblem, groups: Groups) -> EmbeddingProblem:
    """The problem over fused axes: what an embedding with fused axes is an embedding of."""
    if not groups:
        return problem
    found = pair_operands(flatten(problem.workload, groups), problem.instruction)
    assert isinstance(found, EmbeddingProblem)
    return found


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
