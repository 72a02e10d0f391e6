"""``cpembed solve``: the ranked candidate embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

import click

from cpembed.cli.options import (
    Asked,
    Subcommand,
    embedding_options,
    json_option,
    problem,
    require_one,
    seed_option,
)
from cpembed.cli.outcome import print_result, print_solved
from cpembed.cli.output import ProgressLine

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cpembed.driver.estimate import EstimateResult
    from cpembed.driver.options import RankBy
    from cpembed.driver.pareto import ParetoResult

TOP = 5

SEARCHES = ("auto", "digits", "scalar", "portfolio")
"""The values of :class:`~cpembed.embedding.result.Formulation`, without loading the solver."""


@click.command(cls=Subcommand)
@embedding_options
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
@click.option(
    "--machine",
    metavar="NAME",
    help="The machine to estimate for.  [default: the first one of the target]",
)
@click.option(
    "--rank-by",
    type=click.Choice(("overheads", "estimate")),
    default="overheads",
    show_default=True,
    help="What orders the candidates; with estimate those of the least time come first.",
)
@seed_option("Seed of the search.")
@click.option(
    "--search",
    type=click.Choice(SEARCHES),
    default=SEARCHES[0],
    show_default=True,
    help="The model to search: over digits, or over scalar operations in one order of axes, or in "
    "several at a time. The answer is the same.",
)
@json_option
def command(
    *,
    top: int | None,
    every: bool,
    pareto: bool,
    estimated: bool,
    machine: str | None,
    rank_by: RankBy,
    seed: int,
    search: str,
    as_json: bool,
    **asked: Unpack[Asked],
) -> int:
    """Rank the candidate embeddings of the target's instruction in WORKLOAD.

    \b
    cpembed solve conv2d n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1 --target amx_int8
    cpembed solve "C[x,y] += A[x,z] * B[z,y]" x=64 y=64 z=64 --target vta_1x16x16 --all
    """
    require_one(top=top is not None, all=every, pareto=pareto)
    if estimated or machine is not None or rank_by == "estimate":
        if pareto:
            excluded = "--pareto weighs no times: leave out --estimate, --machine and --rank-by"
            raise click.UsageError(excluded, click.get_current_context())
        limit = None if every else top or TOP
        return _estimated(asked, limit, machine, rank_by, (seed, search), as_json=as_json)
    from cpembed.driver.pareto import ParetoResult
    from cpembed.driver.solve import solve
    from cpembed.selection.pareto import front

    with ProgressLine() as progress:
        result = solve(
            **problem(asked),
            top=None if every or pareto else top or TOP,
            keep=front if pareto else None,
            seed=seed,
            search=search,
            progress=progress,
        )
    verbose = asked["verbose"]
    if not pareto or not (result.embeddings or as_json):
        return print_solved(result, as_json=as_json, verbose=verbose)

    def report(result: ParetoResult) -> Iterable[RenderableType]:
        from cpembed.report.solve import pareto_report

        return pareto_report(result, verbose=verbose)

    return print_result(ParetoResult(result), result, report, as_json=as_json)


def _estimated(
    asked: Asked,
    top: int | None,
    machine: str | None,
    rank_by: RankBy,
    how: tuple[int, str],
    *,
    as_json: bool,
) -> int:
    """The candidates with their times."""
    from cpembed.driver.estimate import estimate

    with ProgressLine() as progress:
        result = estimate(
            **problem(asked),
            machine=machine,
            rank_by=rank_by,
            top=top,
            seed=how[0],
            search=how[1],
            progress=progress,
        )
    if not result.solved.embeddings and not as_json:
        return print_solved(result.solved, as_json=False, verbose=asked["verbose"])

    def report(result: EstimateResult) -> Iterable[RenderableType]:
        from cpembed.report.solve import estimate_report

        return estimate_report(result, verbose=asked["verbose"])

    return print_result(result, result.solved, report, as_json=as_json)
