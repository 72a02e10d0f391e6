"""Tables of ``cpembed solve``, and the header rows on a request that other reports share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from cpembed import wording
from cpembed.blocks import Block, Bullets, Header, Heading, Table
from cpembed.cost.ranking import RankedCandidate, objectives
from cpembed.driver.result import SolveResult
from cpembed.embedding.conflict import Conflict
from cpembed.embedding.cpsat import SearchStatistics, Status
from cpembed.embedding.result import Formulation
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.machine import Layouts
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.report import messages

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from cpembed.cost.machine.estimate import Estimate
    from cpembed.driver.candidate_time import CandidateTime
    from cpembed.driver.estimate import EstimateResult
    from cpembed.driver.plan import Compared
    from cpembed.driver.solve import ParetoResult

Row = tuple[str, str]

NO_AXIS_MAPS = "the solutions are not axis maps: add hyper_rectangle to the constraint set"

_COLUMNS = ("used>", "MACs>", "data>", "packed", "moved>")
_PARETO_COLUMNS = ("used>", "MACs>", "moved>", "footprint>", "packed")
_ESTIMATE_COLUMNS = ("used>", "time>", "packing>", "bound by", "packed")
_UNPACKED_ESTIMATE_COLUMNS = ("used>", "time>", "bound by")
"""Columns for a machine whose transfers read operands in their original layouts."""
_PROGRAM_COLUMNS = ("used>", "time>", "packing>", "any program>", "packed")
"""Columns for a target whose back end has programs with times of their own."""


def report(result: SolveResult, *, verbose: bool = False) -> Iterator[Block]:
    """Yield the header, then the candidates, or why there are none; effort if ``verbose``."""
    yield _header(result, verbose)
    if result.embeddings:
        yield ""
        yield _candidates(_COLUMNS, result.embeddings)
        yield from _notes(result)
    if result.conflict is not None:
        yield ""
        yield from _conflict(result.conflict)
    if result.count and not result.embeddings:
        yield ""
        yield Heading("No program can be derived from these embeddings")
        yield Bullets(dict.fromkeys(result.not_derivable) or [NO_AXIS_MAPS])


def pareto_report(result: ParetoResult, *, verbose: bool = False) -> Iterator[Block]:
    """Yield the header, then the candidates that no other one dominates."""
    solved, members = result.solved, result.candidates
    count = f"{wording.plural(len(members), 'candidate')} of {_derivable(solved):,}"
    stopped = "the searched ones" if solved.unsearched else "those found before the limit"
    extent = "" if solved.complete else f", among {stopped}"
    front = f"{count} in MACs, bytes moved and footprint{extent}"
    yield _header(solved, verbose, ("not dominated", front))
    yield ""
    yield _candidates(_PARETO_COLUMNS, members)
    yield ""
    yield from _left_out(solved)
    yield messages.legend(item.candidate.embedding for item in members)
    yield (
        "rank: among all candidates, by score; `cpembed explain --rank` shows one\n"
        "used: share of the instruction's MACs that is useful; MACs: relative to the workload's\n"
        "footprint: bytes of all operands in the layouts needed\n"
        "packed: operands that packing copies, and its bytes; the others are used in place"
    )


def estimate_report(result: EstimateResult, *, verbose: bool = False) -> Iterator[Block]:
    """Yield the header, the machine, and the candidates with their estimated times."""
    solved, machine = result.solved, result.machine
    order = "ranked by overheads"
    if result.ranked_by == "estimate":
        order = f"the fastest of {wording.plural(result.considered, 'candidate')}"
    is_modelled = result.is_by_back_end
    origin = "for the back end's programs" if is_modelled else "from the description alone"
    yield _header(
        solved,
        verbose,
        ("machine", f"{machine.name}, {machine.clock_mhz:,.0f} MHz; figures {machine.evidence}"),
        ("times", f"{Provenance.ESTIMATED} {origin}; {order}"),
        *_tilings(result),
    )
    yield ""
    # Its transfers gather what an execution reads: there is no packing to report.
    is_unpacked = machine.layouts is Layouts.ORIGINAL
    columns = _UNPACKED_ESTIMATE_COLUMNS if is_unpacked else _ESTIMATE_COLUMNS
    rows = [
        (item, _estimate_row(item, estimate, is_unpacked=is_unpacked))
        for item, estimate in zip(solved.embeddings, result.estimates, strict=True)
    ]
    if is_modelled:
        columns = _PROGRAM_COLUMNS
        every = zip(solved.embeddings, result.times, result.estimates, strict=True)
        rows = [(item, _program_row(item, time, estimate)) for item, time, estimate in every]
    yield CandidateTable(columns, rows)
    yield ""
    reasons = dict.fromkeys(
        reason for reason in (*result.times, *result.estimates) if isinstance(reason, str)
    )
    if reasons:
        yield "no estimate:"
        yield Bullets(reasons)
    yield from _left_out(solved)
    yield messages.legend(item.candidate.embedding for item in solved.embeddings)
    yield "rank: by overheads; used: share of the instruction's MACs that is useful"
    if is_unpacked:
        yield "nothing is packed: transfers fetch boxes of the operands in their original layouts"
        return
    if is_modelled:
        yield (
            "any program: the least time that the description allows; time: that of the program of "
            "`cpembed run`"
        )
    yield (
        "time: with packing and unpacking, which packing shows alone; weights are packed ahead\n"
        "packed: operands that packing copies; the others are used in place"
    )


def _tilings(result: EstimateResult) -> Iterator[Row]:
    """Yield rows on how good the tilings are by the model, and on the best candidate's energy."""
    pairs = zip(result.solved.embeddings, result.estimates, strict=True)
    estimates = [(item.rank, each) for item, each in pairs if not isinstance(each, str)]
    if not estimates:
        return
    objective = estimates[0][1].objective
    least = _LEAST[objective]
    open_ranks = [rank for rank, estimate in estimates if not estimate.exact]
    if not open_ranks:
        yield "tilings", f"proven by the model: none has {least}"
    else:
        gap = max(estimate.gap for _, estimate in estimates)
        some = len(open_ranks) < len(estimates)
        ranks = f" (rank {', '.join(map(str, open_ranks))})" if some else ""
        bound = f"at most {max(gap, 0.0005):.1%} above a lower bound of the model"
        yield "tilings", f"the best of the search; {bound}{ranks}"
    rank, best = estimates[0]
    if best.energy_pj:
        total = sum(best.energy_pj.values())
        parts = (f"{name} {energy / total:.0%}" for name, energy in best.energy_pj.items())
        yield "energy", f"{total / 1e6:,.3g} uJ at rank {rank}: {', '.join(parts)}"


_LEAST = {
    "cycles": "fewer cycles",
    "bytes": "fewer bytes to and from main memory",
    "energy": "less energy",
    "edp": "a smaller product of energy and cycles",
}


# -- rows of the header ---------------------------------------------------------------------------


def _header(result: SolveResult, verbose: bool, *more: Row) -> Header:
    effort = solver_rows(result) if verbose else ()
    return Header([*problem_rows(result), ("found", search_text(result)), *effort, *more])


def request_rows(workload: Computation, solved: SolveResult, method: Compared | None) -> list[Row]:
    """Return the rows on a request whose convolution may be computed by a method.

    Parameters
    ----------
    workload
        The requested workload.
    solved
        Search for the workload, or for the product that the method makes of it.
    method
        Methods that were compared; None if there was no choice.
    """
    # Otherwise a method made a product of the convolution, and that was searched.
    if workload == solved.workload:
        return [*problem_rows(solved), *method_rows(method)]
    return [
        *workload_rows(workload, solved.target),
        *method_rows(method),
        ("constraints", constraints_text(solved)),
    ]


def problem_rows(result: SolveResult) -> list[Row]:
    """Return the rows on the workload, the target and the constraint set that was searched."""
    rows = [*workload_rows(result.workload, result.target)]
    rows.append(("constraints", constraints_text(result)))
    if result.commuted and result.embeddings:
        roles = _commuted_text(result)
        rows.append(("operands", f"commuted, since none fits in the given order: {roles}"))
    return rows


def workload_rows(workload: Computation, target: HardwareSpec) -> list[Row]:
    """Return the rows on a workload and a target: statements, extents, element types."""
    instruction = target.instruction
    axes = "  ".join(f"{axis.name} {axis.describe_allowed()}" for axis in instruction.axes)
    return [
        (workload.name, str(workload)),
        ("sizes", wording.sizes(workload.extents)),
        ("", f"{wording.count(workload.macs)} MACs   {messages.dtypes_text(workload)}"),
        (target.name, str(instruction.computation)),
        ("", f"{axes}   {messages.dtypes_text(instruction.computation)}"),
    ]


def constraints_text(result: SolveResult) -> str:
    """Return the constraint set; if it wastes the instruction, with what another set achieves."""
    preset = result.wider or result.narrower
    if preset is None:
        return result.constraints.name
    used = f"{preset.utilisation:.1%}"
    no_more = preset is result.wider and preset.utilisation <= result.utilisation
    if result.embeddings and no_more and preset.proven:
        return f"{result.constraints.name}; {preset.constraints} gives nothing better"
    if not preset.searched:
        more = f"--constraints {preset.constraints} might use up to {used}"
    elif preset.utilisation:
        best = "the best" if preset.proven else "the best that was found"
        more = f"{best} under {preset.constraints} {used}"
    elif preset.proven:
        more = f"nothing fits under {preset.constraints}"
    else:
        more = f"the search under {preset.constraints} did not end"
    if not result.embeddings:
        return f"{result.constraints.name}; {more}"
    best = f"whose best uses {result.utilisation:.1%} of the instruction"
    return f"{result.constraints.name}, {best}; {more}"


def _commuted_text(result: SolveResult) -> str:
    """Return ``A of avx512_vnni is B, B is A``."""
    instruction = result.target.instruction
    roles = result.embeddings[0].candidate.embedding.operands
    first, *rest = [operand.name for operand in instruction.in_ports.computation.inputs]
    listed = [f"{first} of {instruction.name} is {roles[first]}"]
    return ", ".join([*listed, *(f"{role} is {roles[role]}" for role in rest)])


def search_text(result: SolveResult) -> str:
    """Return what the search found: ``3 embeddings in 2 families, the complete set; 0.12 s``."""
    seconds = f"{result.total_seconds:.2f} s"
    if result.status is Status.INFEASIBLE:
        return f"none: proven infeasible; {seconds}"
    left_out = f"not searched: {'; '.join(result.unsearched)}"
    if result.status is Status.UNKNOWN and result.unsearched:
        return f"none, which is not proven; {left_out}; {seconds}"
    if result.status is Status.UNKNOWN:
        return f"none, which is not proven: stopped by the {result.stopped_by}; {seconds}"
    number = wording.plural(result.count, "embedding")
    families = wording.plural(result.families, "family", "families")
    extent = f"stopped by the {result.stopped_by}, there may be more"
    if result.complete:
        extent = "the complete set"
    if result.unsearched:
        extent = f"there may be more; {left_out}"
    # Bounds may prove the best before all are enumerated.
    if result.top_proven and not result.complete:
        extent += " but none better than these"
    if not result.complete and result.constraints.get("fixed_origin") is None:
        extent += "; without fixed_origin each place of a tile is another embedding"
    return f"{number} in {families}, {extent}; {seconds}"


def solver_rows(result: SolveResult) -> Iterator[Row]:
    """Yield the solver's status and times, and the effort of the portfolio.

    The effort is ``scalar model, k,c of 5 configurations: 2,378 branches, 137 conflicts of 9,120
    and 310``: of the configuration that answered, and of all.
    """
    effort, seconds = result.search, result.seconds
    times = f"{seconds.model:.2f} s to build the model, {seconds.solve:.2f} s to search"
    yield "solver", f"{result.status.value}; {times}"
    if not effort.orders:
        return
    model = "digit model" if effort.formulation is Formulation.DIGITS else "scalar model"
    portfolio = {order.name: order.statistics for order in effort.orders}
    total = effort.total
    if len(portfolio) == 1:
        spent = f"{model}: {_effort_text(total)}"
    elif effort.winner is None:
        spent = f"{model}, {len(portfolio)} configurations: {_effort_text(total)}"
    else:
        winner = _effort_text(portfolio[effort.winner])
        sums = f"{total.branches:,} and {total.conflicts:,}"
        spent = f"{model}, {effort.winner} of {len(portfolio)} configurations: {winner} of {sums}"
    yield "searched", spent


def _effort_text(statistics: SearchStatistics) -> str:
    branches = wording.plural(statistics.branches, "branch", "branches")
    return f"{branches}, {wording.plural(statistics.conflicts, 'conflict')}"


def method_rows(compared: Compared | None) -> list[Row]:
    """Return the rows on a convolution's method and the estimates by which it was selected."""
    if compared is None:
        return []
    rewritten, estimates = compared.rewritten, compared.estimates
    name = compared.name
    if rewritten is not None:
        share = rewritten.method.relative_multiplications
        name += f", {share:.3g} times the multiplications of the convolution"
    rows = [("method", name)]
    # A single estimate was compared with nothing.
    if len(estimates) > 1:
        listed = ", ".join(f"{each} {wording.duration(us)}" for each, us in estimates.items())
        is_least = estimates[compared.name] == min(estimates.values())
        # Estimates within the model's error do not rank methods; the preferred one is kept then.
        place = "the fastest by estimate"
        if not is_least:
            place = "estimates cannot tell it from the fastest"
        rows.append(("", f"{place}: {listed}"))
    rows += [("", f"not compared: {each}: {why}") for each, why in compared.refused.items()]
    if rewritten is not None:
        plan = rewritten.plan
        times = f", {wording.plural(plan.count, 'time')}, each over a part of the tiles"
        sizes = " ".join(f"{axis} {extent}" for axis, extent in plan.product.extents.items())
        rows.append(("product", f"{plan.product}"))
        rows.append(("", f"{sizes}{times if plan.count > 1 else ''}"))
    return rows


# -- candidates -----------------------------------------------------------------------------------


class CandidateTable:
    """Table with a row for each candidate: rank, mapping, some cells, identifier.

    On short lines the identifiers are left out (commands take ranks, and ``--json`` has them), then
    a mapping is broken between instruction axes.

    Parameters
    ----------
    columns
        Names of the cells between mapping and identifier.
    rows
        Candidates with their cells.
    """

    def __init__(
        self, columns: Sequence[str], rows: Sequence[tuple[RankedCandidate, Sequence[str]]]
    ) -> None:
        self._embeddings = [item.candidate.embedding for item, _ in rows]
        self._columns = ["rank>", *columns, "id"]
        self._rows = [
            [str(item.rank), *cells, item.candidate.embedding.identifier()] for item, cells in rows
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.cells import cell_len

        width = options.max_width
        widest = max(cell_len(messages.mapping_text(e)) for e in self._embeddings)
        narrowest = max(cell_len(text) for e in self._embeddings for text in e.axis_texts)
        # Columns from the left that are printed.
        last = len(self._columns)
        # Identifiers go first: commands take ranks as well.
        if widest > self._mapping_width(last, width):
            last -= 1
        # A part of a mapping is never broken: the table is then wider than the terminal.
        room = max(self._mapping_width(last, width), narrowest)
        rank, *names = self._columns[:last]
        yield Table(
            [rank, "mapping", *names],
            [
                [row[0], messages.mapping_text(embedding, room), *row[1:last]]
                for row, embedding in zip(self._rows, self._embeddings, strict=True)
            ],
        )

    def _mapping_width(self, last: int, width: int) -> int:
        """Return the width that the first ``last`` columns leave to the mapping."""
        for position, name in enumerate(self._columns[:last]):
            # Identifiers, numbers and names of operands are ASCII.
            cells = (len(row[position]) for row in self._rows)
            width -= max(len(name.removesuffix(">")), *cells) + 2
        return width


def _estimate_row(
    item: RankedCandidate, estimate: Estimate | str, *, is_unpacked: bool
) -> tuple[str, ...]:
    """Return the cells of a candidate; ``estimate`` is the reason if it has none."""
    used, packed = f"{item.overheads.utilisation:.1%}", _packed(item)
    if isinstance(estimate, str):
        return (used, "-", "-") if is_unpacked else (used, "-", "-", "-", packed)
    time = wording.duration(estimate.total_us)
    if is_unpacked:
        return used, time, estimate.bound
    packing = sum(estimate.packing_us.values())
    return used, time, wording.duration(packing) if packing else "-", estimate.bound, packed


def _program_row(
    item: RankedCandidate, time: CandidateTime | str, estimate: Estimate | str
) -> tuple[str, ...]:
    """Return the cells of a candidate whose program a back end writes."""
    least = "-" if isinstance(estimate, str) else wording.duration(estimate.total_us)
    used, packed = f"{item.overheads.utilisation:.1%}", _packed(item)
    if isinstance(time, str):
        return used, "-", "-", least, packed
    moving = "-" if not time.moving_us else wording.duration(time.moving_us)
    return used, wording.duration(time.total_us), moving, least, packed


def _packed(item: RankedCandidate) -> str:
    in_place = item.overheads.in_place
    names = [o.name for o in item.candidate.program.operands if o.name not in in_place]
    return " ".join(names) or "-"


def _packing_bytes(item: RankedCandidate) -> str:
    copied = item.overheads.packing_bytes
    return wording.data_size(copied) if copied else "-"


_CELLS: dict[str, Callable[[RankedCandidate], str]] = {
    "used>": lambda item: f"{item.overheads.utilisation:.1%}",
    "MACs>": lambda item: wording.ratio(item.overheads.mac_overhead),
    "data>": lambda item: wording.ratio(item.overheads.data_overhead),
    "moved>": _packing_bytes,
    "footprint>": lambda item: wording.data_size(objectives(item).footprint_bytes),
    "packed": _packed,
}


def _candidates(columns: Sequence[str], items: Sequence[RankedCandidate]) -> CandidateTable:
    return CandidateTable(
        columns, [(item, [_CELLS[column](item) for column in columns]) for item in items]
    )


def _derivable(result: SolveResult) -> int:
    """Return the number of embeddings that have a program, as far as programs were derived."""
    return result.count - result.irregular - len(result.not_derivable)


def _notes(result: SolveResult) -> Iterator[Block]:
    yield ""
    more = _derivable(result) - len(result.embeddings)
    if more > 0:
        yield f"{wording.plural(more, 'more candidate')}; --all prints them"
    yield from _left_out(result)
    yield messages.legend(item.candidate.embedding for item in result.embeddings)
    yield (
        "used: share of the instruction's MACs that is useful\n"
        "MACs, data: relative to the workload's own\n"
        "packed: operands that packing copies, and its bytes; the others are used in place"
    )


def _left_out(result: SolveResult) -> Iterator[Block]:
    if result.irregular:
        yield f"{wording.plural(result.irregular, 'embedding')} left out: {NO_AXIS_MAPS}"
    if result.not_derivable:
        number = len(result.not_derivable)
        yield f"{wording.plural(number, 'embedding')} left out, no program can be derived:"
        # Each reason once: thousands of embeddings may share it.
        yield Bullets(dict.fromkeys(result.not_derivable))


def _conflict(conflict: Conflict) -> Iterator[Block]:
    """Yield the constraints that exclude every embedding, explained, and what would make room."""
    yield Heading("Why nothing fits")
    yield Bullets(conflict.words)
    if len(conflict.constraints) > 1:
        listed = ", ".join(conflict.constraints)
        yield f"  no embedding satisfies all of these constraints: {listed}"
    elif conflict.constraints:
        yield f"  this constraint alone excludes every embedding: {conflict.constraints[0]}"
    if conflict.relaxations:
        yield ""
        yield Heading("What would fit")
        yield Bullets(conflict.relaxations)
