"""The search for embeddings: pair the operands, choose the model, enumerate its solutions."""

from __future__ import annotations

import time

from cpembed.embedding.commute import Pairing, orders_left_out, same_operations
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.cpsat import SearchLimits, Status
from cpembed.embedding.digit_search import DigitSearch, digit_model_obstacle, unfused_groups
from cpembed.embedding.portfolio import decision_orders, solve_portfolio, workload_order
from cpembed.embedding.problem import EmbeddingProblem, LabelMismatch
from cpembed.embedding.result import (
    Formulation,
    SearchEffort,
    SearchResult,
    Seconds,
    merged,
)
from cpembed.errors import SpecError
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.steps import PhaseProgress as Progress
from cpembed.steps import silent


def find_embeddings(
    workload: Computation,
    instruction: Instruction,
    constraints: ConstraintSet,
    limits: SearchLimits | None = None,
    progress: Progress | None = None,
    formulation: Formulation = Formulation.AUTO,
) -> SearchResult:
    """Find every embedding of an instruction in a workload, without a shared pairing.

    Parameters
    ----------
    workload : Computation
        Operator at fixed sizes.
    instruction : Instruction
        Hardware instruction to embed.
    constraints, limits, progress, formulation
        As in :func:`search_pairing`.
    """
    pairing = Pairing(workload, instruction)
    return search_pairing(pairing, constraints, limits, progress, formulation)


def search_pairing(
    pairing: Pairing,
    constraints: ConstraintSet,
    limits: SearchLimits | None = None,
    progress: Progress | None = None,
    formulation: Formulation = Formulation.AUTO,
) -> SearchResult:
    """Find every embedding under a constraint set, in each assignment of roles that it admits.

    Parameters
    ----------
    pairing : Pairing
        Workload and instruction with their operands paired.
    constraints : ConstraintSet
        Conditions on the embeddings; ``commute`` of ``dataflow`` admits commuted operands.
    limits : SearchLimits, optional
        Time limit, shared by the alternative problems, and number of solutions; none by default.
    progress : Progress, optional
        Callback for the phase and the number of solutions.
    formulation : Formulation
        Model to post; by default the digit model wherever it applies.

    Returns
    -------
    SearchResult
        The embeddings, problem by problem. Infeasible with ``mismatch`` where labels differ.

    Raises
    ------
    SpecError
        If the digit model is requested and cannot take the instruction or the constraint set.
    WorkloadError
        If only element types differ.
    """
    problems = pairing.problems(constraints.commutes)
    if isinstance(problems, LabelMismatch):
        mismatched = SearchResult(
            status=Status.INFEASIBLE,
            complete=True,
            embeddings=(),
            irregular=(),
            seconds=Seconds(0.0, 0.0),
            effort=SearchEffort(None, None, ()),
            mismatch=problems,
        )
        # Where the operations differ in number, no order that was skipped could match either.
        if not same_operations(pairing.workload, pairing.instruction.computation):
            return mismatched
        return mismatched.with_unsearched(orders_left_out(pairing.workload, factors=True))
    limits = limits or SearchLimits()
    started = time.perf_counter()
    results: list[SearchResult] = []
    for position, problem in enumerate(problems):
        # What an easy problem leaves of its share is for those after it.
        left = limits.after(time.perf_counter() - started).share(len(problems) - position)
        results.append(search(problem, constraints, left, progress, formulation))
    return results[0] if len(results) == 1 else merged(results)


def search(
    problem: EmbeddingProblem,
    constraints: ConstraintSet,
    limits: SearchLimits,
    progress: Progress | None = None,
    formulation: Formulation = Formulation.AUTO,
) -> SearchResult:
    """Enumerate the embeddings of one problem with the model that takes it.

    The scalar model checks each solution as it arrives. Solutions of the digit model can be very
    many: callers check those that they show with
    :func:`~cpembed.embedding.digit_search.check_embedding`.

    Parameters
    ----------
    problem : EmbeddingProblem
        Workload and instruction in one assignment of roles.
    constraints, limits, progress, formulation
        As in :func:`search_pairing`.

    Raises
    ------
    SpecError
        If the requested formulation cannot take the problem.
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
    if formulation is not Formulation.AUTO and constraints.flatten.max_axes > 1:
        raise SpecError(
            f"the scalar model cannot fuse axes, which flatten in {constraints.name} asks for: "
            "leave the choice of the search to auto"
        )
    return _search_scalar(problem, constraints, limits, report, formulation)


def _search_scalar(
    problem: EmbeddingProblem,
    constraints: ConstraintSet,
    limits: SearchLimits,
    report: Progress,
    formulation: Formulation,
) -> SearchResult:
    """Enumerate the solutions of the scalar model in one decision order or several."""

    def progressed(count: int) -> None:
        report("search", count)

    skipped = orders_left_out(problem.original, constraints.commutes)
    own_order = workload_order(problem)
    if formulation is Formulation.SCALAR:
        result = solve_portfolio(problem, constraints, limits, [own_order], report=progressed)
        return result.with_unsearched(skipped)
    orders = decision_orders(problem, constraints)
    # `portfolio` asks for every order, even where the first one would answer soon.
    first = own_order if formulation is Formulation.AUTO else None
    result = solve_portfolio(problem, constraints, limits, orders, first=first, report=progressed)
    return result.with_unsearched((*unfused_groups(problem, constraints), *skipped))
