"""The tables of ``cpembed solve``."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from cpembed.api.solve import SolveResult
from cpembed.cost.ranking import RankedCandidate
from cpembed.embedding.conflict import Conflict
from cpembed.embedding.cpsat import Status
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.report import words
from cpembed.report.blocks import Justify, bullets, header, heading, table

_COLUMNS: tuple[tuple[str, Justify], ...] = (
    ("rank", "right"),
    ("mapping", "left"),
    ("used", "right"),
    ("MACs", "right"),
    ("data", "right"),
    ("packed", "left"),
    ("moved", "right"),
    ("id", "left"),
)


NO_AXIS_MAPS = "the solutions are not axis maps: add hyper_rectangle to the constraint set"


def report(result: SolveResult) -> Iterator[RenderableType]:
    """Header, then the candidates, or why there are none."""
    yield header(
        [
            *problem_rows(result.workload, result.target, result.constraints.name),
            ("found", found(result)),
        ]
    )
    if result.embeddings:
        yield ""
        candidates = table(_COLUMNS, (_row(item) for item in result.embeddings))
        candidates.columns[-1].no_wrap = True  # an identifier is copied
        yield candidates
        yield from _notes(result)
    if result.conflict is not None:
        yield ""
        yield from conflict(result.conflict)
    if result.count and not result.embeddings:
        yield ""
        yield heading("No program can be derived from what was found")
        yield bullets(dict.fromkeys(result.not_derivable) or [NO_AXIS_MAPS])


def problem_rows(
    workload: Computation, target: HardwareSpec, constraints: str
) -> list[tuple[str, str]]:
    """What was asked."""
    instruction = target.instruction
    axes = "  ".join(f"{axis.name} {axis.describe_allowed()}" for axis in instruction.axes)
    return [
        (workload.name, str(workload)),
        ("sizes", words.sizes(workload.extents)),
        ("", f"{words.count(workload.macs)} MACs   {words.dtypes(workload)}"),
        (target.name, str(instruction.computation)),
        ("", f"{axes}   {words.dtypes(instruction.computation)}"),
        ("constraints", constraints),
    ]


def found(result: SolveResult) -> str:
    """``3 embeddings in 2 families, all there are (optimal); 0.12 s: model 0.08, search 0.01``."""
    seconds = result.seconds
    took = f"{result.total_seconds:.2f} s: model {seconds.model:.2f}, search {seconds.solve:.2f}"
    if result.status is Status.INFEASIBLE:
        return f"nothing: proven infeasible; {took}"
    if result.status is Status.UNKNOWN:
        return f"nothing yet: the search was stopped by its limit; {took}"
    many = words.plural(result.count, "embedding")
    families = words.plural(result.families, "family", "families")
    extent = "all there are" if result.complete else "stopped by the limit, there may be more"
    return f"{many} in {families}, {extent} ({result.status.value}); {took}"


def conflict(reason: Conflict) -> Iterator[RenderableType]:
    """The constraints that exclude each other, in words, and what would make room."""
    yield heading("Why nothing fits")
    yield bullets(reason.words)
    if reason.constraints:
        yield f"  constraints that exclude each other: {', '.join(reason.constraints)}"
    if reason.relaxations:
        yield ""
        yield heading("What would fit")
        yield bullets(reason.relaxations)


def _row(item: RankedCandidate) -> tuple[str, ...]:
    cost = item.overheads
    packed = [o.name for o in item.candidate.program.operands if o.name not in cost.in_place]
    return (
        str(item.rank),
        words.mapping(item.candidate.embedding),
        f"{cost.utilisation:.1%}",
        words.ratio(cost.mac_overhead),
        words.ratio(cost.data_overhead),
        " ".join(packed) or "-",
        words.data_size(cost.packing_bytes) if packed else "-",
        item.candidate.embedding.identifier(),
    )


def _notes(result: SolveResult) -> Iterator[RenderableType]:
    yield ""
    more = result.count - len(result.embeddings) - len(result.not_derivable)
    if more > 0:
        yield f"{words.plural(more, 'more candidate')}; --all prints them"
    if result.not_derivable:
        number = len(result.not_derivable)
        yield f"{words.plural(number, 'embedding')} left out, no program can be derived:"
        yield bullets(dict.fromkeys(result.not_derivable))
    yield (
        "used: share of the instruction's MACs that is useful\n"
        "MACs, data: relative to the workload's own\n"
        "packed: operands that packing moves, and its bytes; the others are used in place"
    )
