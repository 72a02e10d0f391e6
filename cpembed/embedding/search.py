"""Search: post a constraint set, enumerate, check every solution by the constraints themselves."""

from __future__ import annotations

import time

from cpembed.embedding.commute import (
    exchanged_problems,
    fitting_order,
    orders_left_out,
    same_operations,
)
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.cpsat import SearchLimits, Status
from cpembed.embedding.digit_search import DigitSearch
from cpembed.embedding.domains import digit_model_obstacle, unfused_groups
from cpembed.embedding.portfolio import make_assets, own_order, solve_portfolio
from cpembed.embedding.problem import EmbeddingProblem, LabelMismatch, pair_operands
from cpembed.embedding.result import (
    Formulation,
    Progress,
    SearchEffort,
    SearchResult,
    Seconds,
    merged,
    silent,
)
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
    problems = alternative_problems(workload, instruction, constraints)
    if isinstance(problems, LabelMismatch):
        mismatched = SearchResult(
            Status.INFEASIBLE,
            True,
            (),
            (),
            Seconds(0.0, 0.0),
            SearchEffort(None, None, ()),
            mismatch=problems,
        )
        if not same_operations(workload, instruction.computation):
            return mismatched
        return mismatched.without(orders_left_out(workload, factors=True))
    given = limits or SearchLimits()
    started = time.perf_counter()
    results: list[SearchResult] = []
    for left, problem in zip(range(len(problems), 0, -1), problems, strict=True):
        share = given.after(time.perf_counter() - started).share(left)
        results.append(search(problem, constraints, share, progress, formulation))
    return results[0] if len(results) == 1 else merged(results)


def alternative_problems(
    workload: Computation, instruction: Instruction, constraints: ConstraintSet
) -> list[EmbeddingProblem] | LabelMismatch:
    """The problems whose embeddings are those of the instruction in the workload: one for each
    assignment of the operands to roles that the constraint set admits, the first one that labels
    and element types do."""
    first = pair_operands(fitting_order(workload, instruction), instruction)
    if isinstance(first, LabelMismatch):
        return first
    return [first, *exchanged_problems(first, constraints.exchanges_factors)]


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
            return DigitSearch(problem, constraints).run(limits, report)
        if formulation is Formulation.DIGITS:
            raise SpecError(
                f"the digit model cannot search for {problem.instruction.name} under "
                f"{constraints.name}: {obstacle}; leave the choice of the search to auto"
            )

    roles = orders_left_out(problem.original, constraints.exchanges_factors)

    def progressed(count: int) -> None:
        report("search", count)

    if formulation is not Formulation.AUTO and constraints.flatten.max_axes > 1:
        raise SpecError(
            f"the scalar model cannot fuse axes, which flatten in {constraints.name} asks for: "
            "leave the choice of the search to auto"
        )
    if formulation is Formulation.SCALAR:
        found = solve_portfolio(
            problem, constraints, limits, [own_order(problem)], report=progressed
        )
        return found.without(roles)
    assets = make_assets(problem, constraints)
    first = own_order(problem) if formulation is Formulation.AUTO else None
    found = solve_portfolio(problem, constraints, limits, assets, first=first, report=progressed)
    return found.without((*unfused_groups(problem, constraints), *roles))
