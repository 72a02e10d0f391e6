"""Search: post a constraint set, enumerate, check every solution by the constraints themselves."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from cpembed.embedding.checks import check, check_round_trip
from cpembed.embedding.commute import commuted, exchanged_problems, pair_operands_or_none
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.dataflow import Dataflow
from cpembed.embedding.constraints.hyper_rectangle import HyperRectangle
from cpembed.embedding.cpsat import (
    SearchLimits,
    SearchStatistics,
    Status,
)
from cpembed.embedding.digit_model import (
    AxisMaps,
    DigitModel,
    DigitOption,
    combine,
)
from cpembed.embedding.embedding import Embedding
from cpembed.embedding.model import ScalarModel
from cpembed.embedding.node_map import NodeMap, decode
from cpembed.embedding.problem import EmbeddingProblem, LabelMismatch, pair_operands
from cpembed.embedding.proto_writer import Ids
from cpembed.embedding.regular import allowed_digits, has_digit_model, padded_extents
from cpembed.embedding.result import (
    Effort,
    Formulation,
    Progress,
    SearchResult,
    Seconds,
    merged,
    silent,
)
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation


def find_embeddings(
    workload: Computation,
    instruction: Instruction,
    constraints: ConstraintSet,
    limits: SearchLimits | None = None,
    progress: Progress | None = None,
    formulation: Formulation = Formulation.AUTO,
) -> SearchResult:
    """Every embedding of the instruction in the workload under a constraint set."""
    dataflow = constraints.get("dataflow")
    commute = isinstance(dataflow, Dataflow) and dataflow.commute
    # Element types may fit one order of the operands only.
    fitting = (w for w in commuted(workload) if pair_operands_or_none(w, instruction) is not None)
    first = pair_operands(next(fitting, workload) if commute else workload, instruction)
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
    exchanged = exchanged_problems(first) if commute else []
    results = [
        search(problem, constraints, limits or SearchLimits(), progress, formulation)
        for problem in [first, *exchanged]
    ]
    return results[0] if len(results) == 1 else merged(results)


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
                check_round_trip(problem, embedding, node_map)
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
