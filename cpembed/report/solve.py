"""The tables of ``cpembed solve``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType

from cpembed import wording
from cpembed.cost.ranking import RankedCandidate, objectives
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import ParetoResult
from cpembed.embedding.conflict import Conflict
from cpembed.embedding.cpsat import SearchStatistics, Status
from cpembed.embedding.result import Formulation
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.machine import Layouts
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.report import words
from cpembed.report.blocks import bullets, header, heading
from cpembed.report.candidates import CandidateTable

if TYPE_CHECKING:
    from cpembed.cost.machine.estimate import Estimate
    from cpembed.driver.estimate import EstimateResult

_COLUMNS = ("used>", "MACs>", "data>", "packed", "moved>")
_PARETO_COLUMNS = ("used>", "MACs>", "moved>", "footprint>", "packed")
_ESTIMATE_COLUMNS = ("used>", "time>", "packing>", "bound by", "packed")
_AS_IT_COMES = ("used>", "time>", "bound by")
"""Of a machine whose transfers take operands as they come."""

NO_AXIS_MAPS = "the solutions are not axis maps: add hyper_rectangle to the constraint set"


def report(result: SolveResult, *, verbose: bool = False) -> Iterator[RenderableType]:
    """Header, then the candidates, or why there are none; ``verbose`` with the solver's effort."""
    yield _header(result, verbose)
    if result.embeddings:
        yield ""
        yield _candidates(_COLUMNS, result.embeddings)
        yield from _notes(result)
    if result.conflict is not None:
        yield ""
        yield from conflict(result.conflict)
    if result.count and not result.embeddings:
        yield ""
        yield heading("No program can be derived from what was found")
        yield bullets(dict.fromkeys(result.not_derivable) or [NO_AXIS_MAPS])


def pareto_report(result: ParetoResult, *, verbose: bool = False) -> Iterator[RenderableType]:
    """Header, then the candidates that no other one beats in every respect."""
    solved, members = result.solved, result.candidates
    count = f"{wording.plural(len(members), 'candidate')} of {_derivable(solved):,}"
    stopped = (
        ", of those that were searched"
        if solved.unsearched
        else ", of those found before the limit"
    )
    extent = "" if solved.complete else stopped
    said = f"{count} in MACs, bytes moved and footprint{extent}"
    yield _header(solved, verbose, ("not dominated", said))
    yield ""
    yield _candidates(_PARETO_COLUMNS, members)
    yield ""
    yield from _left_out(solved)
    yield words.legend(item.candidate.embedding for item in members)
    yield (
        "rank: among all candidates, by score; `cpembed explain --rank` shows one\n"
        "used: share of the instruction's MACs that is useful; MACs: relative to the workload's\n"
        "footprint: bytes of all operands in the layouts needed\n"
        "packed: operands that packing moves, and its bytes; the others are used in place"
    )


def estimate_report(result: EstimateResult, *, verbose: bool = False) -> Iterator[RenderableType]:
    """Header, the machine, and the candidates with their times."""
    solved, machine = result.solved, result.machine
    order = "ranked by overheads"
    if result.ranked_by == "estimate":
        order = f"the fastest of {words.plural(result.considered, 'candidate')}"
    yield _header(
        solved,
        verbose,
        ("machine", f"{machine.name}, {machine.clock_mhz:,.0f} MHz; figures {machine.evidence}"),
        ("times", f"{Provenance.ESTIMATED} from the description alone; {order}"),
        *_tilings(result),
    )
    yield ""
    rows = [
        (item, _estimate_row(item, estimated, machine.layouts))
        for item, estimated in zip(solved.embeddings, result.estimates, strict=True)
    ]
    as_it_comes = machine.layouts is Layouts.ORIGINAL
    yield CandidateTable(_AS_IT_COMES if as_it_comes else _ESTIMATE_COLUMNS, rows)
    yield ""
    reasons = dict.fromkeys(found for found in result.estimates if isinstance(found, str))
    if reasons:
        yield "without a time:"
        yield bullets(reasons)
    yield from _left_out(solved)
    yield words.legend(item.candidate.embedding for item in solved.embeddings)
    yield "rank: by overheads; used: share of the instruction's MACs that is useful"
    if as_it_comes:
        yield "nothing is packed: transfers fetch boxes of the operands as they come"
        return
    yield (
        "time: with packing and unpacking, which packing shows alone; weights are packed ahead\n"
        "packed: operands that packing moves; the others are used in place"
    )


def _tilings(result: EstimateResult) -> Iterator[tuple[str, str]]:
    """Of which candidates the time is not proven to be that of the fastest tiling."""
    pairs = zip(result.solved.embeddings, result.estimates, strict=True)
    times = [(item.rank, found) for item, found in pairs if not isinstance(found, str)]
    sampled = [rank for rank, found in times if not found.exact]
    if not times:
        return
    if not sampled:
        yield "tilings", "the fastest of all by the model"
        return
    of = "" if len(sampled) == len(times) else f" (rank {', '.join(map(str, sampled))})"
    yield "tilings", f"the fastest of those compared; others may be faster{of}"


def _header(result: SolveResult, verbose: bool, *more: tuple[str, str]) -> RenderableType:
    effort = searched(result) if verbose else ()
    return header([*problem_rows(result), ("found", found(result)), *effort, *more])


def problem_rows(result: SolveResult) -> list[tuple[str, str]]:
    """What was asked, and under which set it was searched."""
    sets = [("constraints", set_words(result))]
    if result.commuted and result.embeddings:
        sets.append(("factors", f"exchanged, as nothing fits in their order: {_roles(result)}"))
    return [*given_rows(result.workload, result.target), *sets]


def set_words(result: SolveResult) -> str:
    """The set; where it wastes the instruction, how much of it this set and another use."""
    other = result.wider or result.narrower
    if other is None:
        return result.constraints.name
    used = f"{other.utilisation:.1%}"
    no_more = other is result.wider and other.utilisation <= result.utilisation
    if result.embeddings and no_more and other.proven:
        return f"{result.constraints.name}; {other.constraints} gives nothing better"
    if not other.searched:
        more = f"--constraints {other.constraints} might use up to {used}"
    elif other.utilisation:
        best = "the best" if other.proven else "the best that was found"
        more = f"{best} under {other.constraints} {used}"
    elif other.proven:
        more = f"nothing fits under {other.constraints}"
    else:
        more = f"{other.constraints} was not searched to the end"
    if not result.embeddings:
        return f"{result.constraints.name}; {more}"
    best = f"whose best uses {result.utilisation:.1%} of the instruction"
    return f"{result.constraints.name}, {best}; {more}"


def _roles(result: SolveResult) -> str:
    """``A of avx512_vnni is B, B is A``"""
    instruction = result.target.instruction
    roles = result.embeddings[0].candidate.embedding.operands
    inputs = [operand.name for operand in instruction.in_ports.computation.inputs]
    first, *others = [f"{ours} {{}}is {roles[ours]}" for ours in inputs]
    listed = [first.format(f"of {instruction.name} "), *(o.format("") for o in others)]
    return ", ".join(listed)


def given_rows(workload: Computation, target: HardwareSpec) -> list[tuple[str, str]]:
    """A workload and a target."""
    instruction = target.instruction
    axes = "  ".join(f"{axis.name} {axis.describe_allowed()}" for axis in instruction.axes)
    return [
        (workload.name, str(workload)),
        ("sizes", wording.sizes(workload.extents)),
        ("", f"{wording.count(workload.macs)} MACs   {words.dtypes(workload)}"),
        (target.name, str(instruction.computation)),
        ("", f"{axes}   {words.dtypes(instruction.computation)}"),
    ]


def found(result: SolveResult) -> str:
    """``3 embeddings in 2 families, all there are; 0.12 s``."""
    took = f"{result.total_seconds:.2f} s"
    if result.status is Status.INFEASIBLE:
        return f"nothing: proven infeasible; {took}"
    left_out = f"not searched: {'; '.join(result.unsearched)}"
    if result.status is Status.UNKNOWN and result.unsearched:
        return f"nothing, which is no proof; {left_out}; {took}"
    if result.status is Status.UNKNOWN:
        return f"nothing that is proven: the search was stopped by its {result.stopped_by}; {took}"
    many = wording.plural(result.count, "embedding")
    families = wording.plural(result.families, "family", "families")
    extent = f"stopped by the {result.stopped_by}, there may be more"
    extent = "all there are" if result.complete else extent
    if result.unsearched:
        extent = f"there may be more; {left_out}"
    if result.top_proven and not result.complete:
        extent += " but none better than these"
    if not result.complete and result.constraints.get("fixed_origin") is None:
        extent += "; the set lacks fixed_origin, so that each place of a tile is another embedding"
    return f"{many} in {families}, {extent}; {took}"


def searched(result: SolveResult) -> Iterator[tuple[str, str]]:
    """The solver's status and times, then ``scalar model, k,c of 5 assets: 2,378 branches, 137
    conflicts of 9,120 and 310``: which asset of which model had the answer, and its effort, of that
    of all assets together."""
    effort, seconds = result.search, result.seconds
    took = f"{seconds.model:.2f} s of building the model, {seconds.solve:.2f} s of searching"
    yield "solver", f"{result.status.value}; {took}"
    if not effort.assets:
        return
    model = "digit model" if effort.formulation is Formulation.DIGITS else "scalar model"
    assets = {asset.name: asset.statistics for asset in effort.assets}
    if len(assets) == 1:
        spent = f"{model}: {_spent(effort.total)}"
    elif effort.winner is None:
        spent = f"{model}, {len(assets)} assets: {_spent(effort.total)}"
    else:
        total = effort.total
        own = _spent(assets[effort.winner])
        everything = f"{total.branches:,} and {total.conflicts:,}"
        spent = f"{model}, {effort.winner} of {len(assets)} assets: {own} of {everything}"
    yield "searched", spent


def _spent(statistics: SearchStatistics) -> str:
    branches = wording.plural(statistics.branches, "branch", "branches")
    return f"{branches}, {wording.plural(statistics.conflicts, 'conflict')}"


def conflict(reason: Conflict) -> Iterator[RenderableType]:
    """The constraints that exclude every embedding, in words, and what would make room."""
    yield heading("Why nothing fits")
    yield bullets(reason.words)
    if len(reason.constraints) > 1:
        yield f"  no embedding satisfies all of these constraints: {', '.join(reason.constraints)}"
    elif reason.constraints:
        yield f"  this constraint alone excludes every embedding: {reason.constraints[0]}"
    if reason.relaxations:
        yield ""
        yield heading("What would fit")
        yield bullets(reason.relaxations)


def _estimate_row(
    item: RankedCandidate, estimated: Estimate | str, layouts: Layouts
) -> tuple[str, ...]:
    used, packed = f"{item.overheads.utilisation:.1%}", _packed(item)
    if layouts is Layouts.ORIGINAL:
        if isinstance(estimated, str):
            return used, "-", "-"
        return used, wording.duration(estimated.total_us), estimated.bound
    if isinstance(estimated, str):
        return used, "-", "-", "-", packed
    packing = sum(estimated.packing_us.values())
    moving = wording.duration(packing) if packing else "-"
    return used, wording.duration(estimated.total_us), moving, estimated.bound, packed


def _packed(item: RankedCandidate) -> str:
    in_place = item.overheads.in_place
    names = [o.name for o in item.candidate.program.operands if o.name not in in_place]
    return " ".join(names) or "-"


def _moved(item: RankedCandidate) -> str:
    moved = item.overheads.packing_bytes
    return wording.data_size(moved) if moved else "-"


_CELLS: dict[str, Callable[[RankedCandidate], str]] = {
    "used>": lambda item: f"{item.overheads.utilisation:.1%}",
    "MACs>": lambda item: wording.ratio(item.overheads.mac_overhead),
    "data>": lambda item: wording.ratio(item.overheads.data_overhead),
    "moved>": _moved,
    "footprint>": lambda item: wording.data_size(objectives(item).footprint_bytes),
    "packed": _packed,
}


def _candidates(columns: Sequence[str], items: Sequence[RankedCandidate]) -> CandidateTable:
    return CandidateTable(
        columns, [(item, [_CELLS[column](item) for column in columns]) for item in items]
    )


def _derivable(result: SolveResult) -> int:
    """Embeddings that have a program, as far as programs were derived."""
    return result.count - result.irregular - len(result.not_derivable)


def _notes(result: SolveResult) -> Iterator[RenderableType]:
    yield ""
    more = _derivable(result) - len(result.embeddings)
    if more > 0:
        yield f"{wording.plural(more, 'more candidate')}; --all prints them"
    yield from _left_out(result)
    yield words.legend(item.candidate.embedding for item in result.embeddings)
    yield (
        "used: share of the instruction's MACs that is useful\n"
        "MACs, data: relative to the workload's own\n"
        "packed: operands that packing moves, and its bytes; the others are used in place"
    )


def _left_out(result: SolveResult) -> Iterator[RenderableType]:
    if result.irregular:
        yield f"{wording.plural(result.irregular, 'embedding')} left out: {NO_AXIS_MAPS}"
    if result.not_derivable:
        number = len(result.not_derivable)
        yield f"{wording.plural(number, 'embedding')} left out, no program can be derived:"
        yield bullets(dict.fromkeys(result.not_derivable))
