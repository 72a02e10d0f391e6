"""``cpembed solve``: the ranked candidate embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from cpembed.cli.options import (
    Subcommand,
    json_option,
    library_options,
    options_from,
    require_one,
    subject,
    target_option,
    verbose_option,
    workload_argument,
)
from cpembed.cli.outcome import print_result, print_solved
from cpembed.cli.output import ProgressLine
from cpembed.driver.options import EstimateOptions, SearchOptions, SolveOptions, shared

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cpembed.cli.options import Subject
    from cpembed.driver.estimate import EstimateResult
    from cpembed.driver.solve import ParetoResult

TOP = 5


@click.command(cls=Subcommand)
@workload_argument()
@target_option()
@library_options(EstimateOptions, leave_out=["top"], texts={"seed": "Seed of the search."})
@click.option(
    "--top",
    type=click.IntRange(min=1),
    metavar="K",
    help=f"Print the best K candidates.  [default: {TOP}]",
)
@click.option("--all", "every", is_flag=True, help="Print all candidates.")
@click.option(
    "--pareto",
    is_flag=True,
    help="Print the candidates that no other beats in MACs, bytes moved and footprint.",
)
@click.option(
    "--estimate",
    "estimated",
    is_flag=True,
    help="Print the time of each candidate by the description of a machine in the target's file.",
)
@verbose_option
@json_option
def command(
    *,
    words: tuple[str, ...],
    target: str,
    top: int | None,
    every: bool,
    pareto: bool,
    estimated: bool,
    verbose: bool,
    as_json: bool,
    **values: Any,
) -> int:
    """Rank the candidate embeddings of the target's instruction in WORKLOAD.

    \b
    cpembed solve conv2d n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1 --target amx_int8
    cpembed solve "C[x,y] += A[x,z] * B[z,y]" x=64 y=64 z=64 --target vta_1x16x16 --all
    """
    require_one(top=top is not None, all=every, pareto=pareto)
    count = None if every or pareto else top or TOP
    options = options_from(EstimateOptions, {**values, "top": count})
    if estimated or options.machine is not None or options.rank_by == "estimate":
        if pareto:
            excluded = "--pareto weighs no times: leave out --estimate, --machine and --rank-by"
            raise click.UsageError(excluded, click.get_current_context())
        resolved = subject(words, target, options)
        return _estimated(resolved, as_json=as_json, verbose=verbose)
    from cpembed.cost.ranking import front
    from cpembed.driver.solve import ParetoResult, solve

    search = SolveOptions(top=count, **shared(options, SearchOptions))
    resolved = subject(words, target, search)
    with ProgressLine() as progress:
        result = solve(
            resolved.workload,
            resolved.target,
            resolved.options,
            keep=front if pareto else None,
            progress=progress,
        )
    if not pareto or not (result.embeddings or as_json):
        return print_solved(result, as_json=as_json, verbose=verbose)

    def report(result: ParetoResult) -> Iterable[RenderableType]:
        from cpembed.report.solve import pareto_report

        return pareto_report(result, verbose=verbose)

    return print_result(ParetoResult(result), result, report, as_json=as_json)


def _estimated(resolved: Subject, *, as_json: bool, verbose: bool) -> int:
    """Print the candidates with their times."""
    from cpembed.driver.estimate import estimate

    with ProgressLine() as progress:
        result = estimate(resolved.workload, resolved.target, resolved.options, progress=progress)
    if not result.solved.embeddings and not as_json:
        return print_solved(result.solved, as_json=False, verbose=verbose)

    def report(result: EstimateResult) -> Iterable[RenderableType]:
        from cpembed.report.solve import estimate_report

        return estimate_report(result, verbose=verbose)

    return print_result(result, result.solved, report, as_json=as_json)
