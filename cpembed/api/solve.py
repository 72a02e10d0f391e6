"""The library's front door: what each command of the command line calls.

>>> import cpembed
>>> layer = cpembed.workload("conv2d n=1 c=16 h=8 w=8 k=16 r=3 s=3", target="vta_1x16x16")
>>> result = cpembed.solve(layer, "vta_1x16x16", constraints="strict")
>>> result.status.value, result.complete, result.embeddings[0].candidate.embedding.family
('optimal', True, {'x': (), 'y': ('k',), 'z': ('c',)})
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypedDict, Unpack

from cpembed.api.solve_result import SolveResult
from cpembed.api.widening import (
    Rescored,
    best_of,
    default_searches,
    with_bound,
)
from cpembed.bulk import without_collection
from cpembed.embedding.checks import check_embedding
from cpembed.embedding.commute import commuted, fitting_order, pair_operands_or_none
from cpembed.embedding.conflict import Conflict, explain_infeasible
from cpembed.embedding.constraint_set import ConstraintSet, Weights, load_constraint_set
from cpembed.embedding.cpsat import SearchLimits, Status
from cpembed.embedding.problem import EmbeddingProblem, match_graphs
from cpembed.embedding.result import Formulation, silent
from cpembed.embedding.roles import every_axis_has_a_role
from cpembed.errors import SpecError
from cpembed.hw.instruction import HardwareSpec, Instruction
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.ir.polyhedral import require_written
from cpembed.selection.ranking import RankedCandidate
from cpembed.selection.search import find_best
from cpembed.targets.known import require_known
from cpembed.time_limit import Clock, OutOfTime, check_time, within
from cpembed.transform.proof import require
from cpembed.workloads.naming import parse_workload

_EXPLAINED, _PROVEN = 0.5, 1.0
"""Seconds that a reason gets where the search took all the time, and after the limit until proofs,
or that reason, are left."""

Progress = Callable[[str, int], None]
"""Called with a phase (``model``, ``search``, ``derive``, ``prove`` …) and a running count."""

Keep = Callable[[tuple[RankedCandidate, ...]], tuple[RankedCandidate, ...]]
"""Picks some of the ranked candidates."""


class SearchOptions(TypedDict, total=False):
    """How to search, as :func:`solve` says."""

    weights: Weights | None
    timeout: float | None
    seed: int
    search: str | Formulation
    progress: Progress | None


def workload(words: str | Sequence[str], target: str | HardwareSpec | None = None) -> Computation:
    """A workload by the command line's naming; dtypes default to what the target takes."""
    spec = None if target is None else hardware_spec(target)
    given = words.split() if isinstance(words, str) else list(words)
    if spec is None:
        return parse_workload(given)
    parsed = parse_workload(given, default_dtypes(spec))
    if is_typed(given):
        return parsed
    return typed_by_roles(parsed, spec.instruction, by_role="[" in given[0])


def is_typed(words: Sequence[str]) -> bool:
    """Whether words that name a workload say its element types."""
    # The words are those of the shell: an expression may stand in one with its settings.
    return any(part.startswith("dtype=") for word in words for part in word.split())


def typed_by_roles(
    parsed: Computation, instruction: Instruction, *, by_role: bool = False
) -> Computation:
    """The element types that the operands' roles take: roles in the order of the factors, unless an
    instruction axis can be fed in another order only. In the order as it is, operands keep types
    that go by position, where not ``by_role``."""
    found: list[EmbeddingProblem] = []
    for order in commuted(parsed):
        problem = match_graphs(order, instruction)
        if isinstance(problem, EmbeddingProblem):
            found.append(problem)
            if every_axis_has_a_role(problem):
                break
    else:
        del found[1:]
    if not found:
        return parsed
    fed = found[-1]
    if not by_role and fed.original.statements == parsed.statements:
        return parsed
    # An operand may have several roles, or another place in the expression than its role has.
    types = {
        fed.workload.operand(theirs).tensor: fed.instruction.dtypes[ours][0]
        for ours, theirs in fed.roles.items()
    }
    return parsed.with_dtypes(types)


def hardware_spec(name: str | HardwareSpec) -> HardwareSpec:
    """A hardware specification by shipped name or by the path of a TOML file."""
    return name if isinstance(name, HardwareSpec) else require_known(load_hardware_spec(name))


def hardware_specs(targets: Sequence[str | HardwareSpec]) -> list[HardwareSpec]:
    """Specifications that stand beside each other by their names.

    Raises :class:`SpecError` where two have one name.
    """
    specs = [hardware_spec(target) for target in targets]
    for number, spec in enumerate(specs):
        for other in specs[:number]:
            if other.name == spec.name:
                raise SpecError(
                    f"{spec.path}: the name {spec.name} is that of {other.path} too: give one of "
                    "them another name"
                )
    return specs


def default_dtypes(spec: HardwareSpec) -> tuple[str, ...]:
    """First choice of each operand's dtype: inputs in order, then the output."""
    return tuple(spec.instruction.dtypes[o.name][0] for o in spec.instruction.computation.operands)


def solve(
    workload: Computation,
    target: str | HardwareSpec,
    constraints: str | ConstraintSet | None = None,
    *,
    top: int | None = 5,
    keep: Keep | None = None,
    **options: Unpack[SearchOptions],
) -> SolveResult:
    """Every embedding of the target's instruction in the workload, ranked; the best ones proven.

    ``constraints`` None searches the set that the target names, else
    :data:`~cpembed.api.widening.DEFAULT_CONSTRAINTS`, and where the best candidate of that wastes
    much of the instruction, :data:`~cpembed.api.widening.WIDER` too: the result is that of the set
    with the better candidate. Where nothing fits with the factors of a product in the roles that
    their order gives them, they are tried in the others.

    ``top`` None returns (and proves) all of them; ``keep`` picks those that are returned (and
    proven) out of these. ``timeout`` bounds the search in seconds of wall time: a search that it
    stops has ``complete`` false; its best are the best of all only where ``top_proven``. Programs
    are derived and proven in little more time than that: those that are not by then are missing,
    and the status is ``unknown`` where all are. ``search``
    says which model is searched and with which assets ("auto", "digits", "scalar", "portfolio", see
    :class:`~cpembed.embedding.result.Formulation`); the answer does not depend on it.

    Raises :class:`~cpembed.errors.SpecError` or :class:`~cpembed.errors.WorkloadError` for wrong
    input. An infeasible problem is a result with a ``conflict``.
    """
    clock = Clock(options.get("timeout"))
    found = searches(workload, target, constraints, top=top, keep=keep, **options)
    return explained(best_of(found), clock, options.get("progress"))


def searches(
    workload: Computation,
    target: str | HardwareSpec,
    constraints: str | ConstraintSet | None = None,
    *,
    top: int | None = 5,
    keep: Keep | None = None,
    rescored: Rescored | None = None,
    **options: Unpack[SearchOptions],
) -> tuple[SolveResult, ...]:
    """As :func:`solve`, of each set that is searched, and without saying why nothing fits;
    ``rescored`` weighs the overheads of what the wider set finds."""
    spec, report = hardware_spec(target), options.get("progress") or silent
    timeout, weights = options.get("timeout"), options.get("weights")

    def under(
        named: str | ConstraintSet, /, *, timeout: float | None, weights: Weights | None
    ) -> SolveResult:
        chosen = load_constraint_set(named) if isinstance(named, str) else named
        if weights is not None:
            chosen = replace(chosen, weights=weights)
        limits = SearchLimits(seconds=timeout, seed=options.get("seed", 0))
        way = _formulation(options.get("search", Formulation.AUTO))
        return _search(workload, spec, chosen, limits, way, (top, keep), report)

    constraints = constraints or spec.constraints
    if constraints is None:
        return default_searches(under, timeout, weights, rescored)
    return (with_bound(under(constraints, timeout=timeout, weights=weights)),)


@without_collection()
def _search(
    workload: Computation,
    spec: HardwareSpec,
    chosen: ConstraintSet,
    limits: SearchLimits,
    way: Formulation,
    returned: tuple[int | None, Keep | None],
    report: Progress,
) -> SolveResult:
    """One set's embeddings; ``returned`` says how many, and which of these."""
    clock = Clock(limits.seconds)
    top, keep = returned
    require_written(workload)
    best = find_best(workload, spec.instruction, chosen, top, limits, report, way)
    exchanged = False
    searched = best.found.status is Status.INFEASIBLE and best.found.mismatch is None
    if searched and chosen.get("dataflow") and not chosen.exchanges_factors:
        either = chosen.with_exchanged_factors()
        left = limits.after(clock.passed)
        again = find_best(workload, spec.instruction, either, top, left, report, way)
        if again.found.status is not Status.INFEASIBLE:
            best, exchanged = again, True
    found, ranking, proven = best.found, best.ranking, best.proven
    candidates: list[RankedCandidate] = []

    def prove_all() -> None:
        for number, item in enumerate((keep or tuple)(ranking.candidates), 1):
            check_time()
            report("prove", number)
            if found.problem is not None:
                check_embedding(found.problem, chosen, item.candidate.embedding)
            require(item.candidate.program)
            candidates.append(item)

    try:
        within(clock.left(_PROVEN), prove_all)
    except OutOfTime:
        found, proven = found.cut(len(candidates)), False
    return SolveResult(
        workload,
        spec,
        chosen,
        limits.seed,
        found.status,
        found.complete,
        len(found.embeddings) + len(found.irregular),
        found.families,
        found.seconds,
        clock.passed,
        found.effort,
        tuple(candidates),
        ranking.refused,
        None,
        len(found.irregular),
        proven,
        exchanged or _is_out_of_order(workload, spec.instruction, chosen),
        unsearched=found.unsearched,
        timeout=limits.seconds,
    )


def _is_out_of_order(
    workload: Computation, instruction: Instruction, constraints: ConstraintSet
) -> bool:
    """Whether labels or element types alone exchange the factors."""
    if constraints.exchanges_factors or pair_operands_or_none(workload, instruction) is not None:
        return False
    return fitting_order(workload, instruction) != workload


def explained(result: SolveResult, clock: Clock, progress: Progress | None = None) -> SolveResult:
    """The result, with why nothing fits where that is so, as far as it can be found in what is left
    of the time and a little more."""
    if result.status is not Status.INFEASIBLE or result.conflict is not None:
        return result
    (progress or silent)("explain", 0)
    left = clock.left()
    seconds = None if left is None else max(left, _EXPLAINED)
    limits = SearchLimits(seconds=seconds, seed=result.seed)
    instruction = result.target.instruction
    try:
        conflict = within(
            clock.left(_PROVEN),
            lambda: explain_infeasible(result.workload, instruction, result.constraints, limits),
        )
    except OutOfTime:
        words = ("the time was over before a reason was found",)
        conflict = Conflict((), (), words, minimal=False)
    return replace(result, conflict=conflict)


def _formulation(search: str | Formulation) -> Formulation:
    try:
        return Formulation(search)
    except ValueError:
        known = ", ".join(way.value for way in Formulation)
        raise SpecError(f"search {search!r} is not known: choose one of {known}") from None
