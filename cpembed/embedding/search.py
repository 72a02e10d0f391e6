"""Search: post a constraint set, enumerate, check every solution by the constraints themselves."""

from __future__ import annotations

from cpembed.embedding.commute import commuted, exchanged_problems, pair_operands_or_none
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.constraints.dataflow import Dataflow
from cpembed.embedding.cpsat import SearchLimits, Status
from cpembed.embedding.digit_model import (
    AxisMaps,
    DigitModel,
    DigitOption,
)
from cpembed.embedding.portfolio import make_assets, own_order, solve_portfolio
from cpembed.embedding.problem import EmbeddingProblem, LabelMismatch, pair_operands
from cpembed.embedding.proto_writer import Ids
from cpembed.embedding.regular import allowed_digits, digit_model_obstacle
from cpembed.embedding.result import (
    Effort,
    Formulation,
    Progress,
    SearchEffort,
    SearchResult,
    Seconds,
    merged,
    silent,
)
from cpembed.embedding.space import Component, EmbeddingSpace
from cpembed.errors import SpecError
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
    """Every embedding of the instruction in the workload under a constraint set.

    Raises :class:`~cpembed.errors.SpecError` where the digit model is asked for and cannot take
    the instruction or the constraint set.
    """
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
            SearchEffort(None, None, ()),
            mismatch=first,
        )
    exchanged = exchanged_problems(first, commute)
    results = [
        search(problem, constraints, limits or SearchLimits(), progress, formulation)
        for problem in [first, *exchanged]
    ]
    return results[0] if len(results) == 1 else merged(results)


def search(
    problem: EmbeddingProblem,
    constraints: ConstraintSet,
    limits: SearchLimits,
    progress: Progress | None = None,
    formulation: Formulation = Formulation.AUTO,
) -> SearchResult:
    """Enumerate the embeddings of a problem; which model and which assets is decided here.

    The scalar model checks each solution as it arrives; those of the digit model are checked with
    :func:`check_embedding` by whoever shows one, because there can be very many.
    """
    report = progress or silent
    report("model", 0)
    if formulation in (Formulation.AUTO, Formulation.DIGITS):
        obstacle = digit_model_obstacle(problem, constraints)
        if obstacle is None:
            return _search_digits(problem, constraints, limits, report)
        if formulation is Formulation.DIGITS:
            raise SpecError(
                f"the digit model cannot search for {problem.instruction.name} under "
                f"{constraints.name}: {obstacle}; leave the choice of the search to auto"
            )

    def progressed(count: int) -> None:
        report("search", count)

    if formulation is not Formulation.AUTO and constraints.flatten.max_axes > 1:
        raise SpecError(
            f"the scalar model cannot fuse axes, which flatten in {constraints.name} asks for: "
            "leave the choice of the search to auto"
        )
    if formulation is Formulation.SCALAR:
        return solve_portfolio(
            problem, constraints, limits, [own_order(problem)], report=progressed
        )
    assets = make_assets(problem, constraints)
    first = own_order(problem) if formulation is Formulation.AUTO else None
    return solve_portfolio(problem, constraints, limits, assets, first=first, report=progressed)


def _search_digits(
    problem: EmbeddingProblem, constraints: ConstraintSet, limits: SearchLimits, report: Progress
) -> SearchResult:
    """Enumerate the digit model's solutions.

    Instruction axes that no constraint couples have solutions of their own, which combine freely:
    the embeddings are the product. Most problems fall apart like this. Those with the fewest
    options come first: what they leave of a time limit is for the others.
    """
    effort = Effort()
    models = component_models(problem, constraints)
    found: dict[tuple[str, ...], Component] = {}
    count = 0
    for n, model in enumerate(sorted(models, key=lambda model: len(model.options)), 1):
        maps: list[AxisMaps] = []

        def receive(values: Ids, model: DigitModel = model, maps: list[AxisMaps] = maps) -> None:
            maps.append(model.axis_maps(values))
            report("search", count + len(maps))  # noqa: B023 - called while the loop stands still

        status = effort.enumerate(model.build(), receive, limits, len(models) - n)
        found[model.lanes] = Component(model.lanes, tuple(maps), status is Status.OPTIMAL)
        count += len(maps)
        if not maps:
            return effort.result(problem, ())
    space = EmbeddingSpace(problem, tuple(found[model.lanes] for model in models))
    within = space if limits.solutions is None else space[: limits.solutions]
    return effort.result(problem, within)


def component_models(problem: EmbeddingProblem, constraints: ConstraintSet) -> list[DigitModel]:
    """A digit model for each set of instruction axes that no constraint couples to the others."""
    options = allowed_digits(problem, constraints)
    whole = tuple(axis.name for axis in problem.instruction.axes)
    components = _posted(problem, constraints, options, whole).components()
    return [
        _posted(problem, constraints, [o for o in options if o.lane in lanes], lanes)
        for lanes in components
    ]


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
