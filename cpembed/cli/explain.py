"""``cpembed explain``: one candidate in full, or why nothing fits."""

from __future__ import annotations

from typing import Unpack

import click

from cpembed.cli.options import Asked, embedding_options, json_option, problem, rank_option
from cpembed.cli.outcome import print_solved
from cpembed.cli.output import ProgressLine, print_json, print_text


@click.command()
@embedding_options
@rank_option
@json_option
def command(*, rank: int, as_json: bool, **asked: Unpack[Asked]) -> int:
    """Show one candidate in full (axes, layouts, each rewrite, the loop nest, why its rank), or
    why nothing fits.

    \b
    cpembed explain deepbench:11 --target amx_int8
    """
    from cpembed.api import explain as api

    workload, spec, constraints, weights = problem(asked)
    with ProgressLine() as progress:
        result = api.explain(
            workload,
            spec,
            constraints=constraints,
            rank=rank,
            weights=weights,
            timeout=asked["timeout"],
            progress=progress,
        )
    if as_json:
        print_json(result.to_json())
    if not isinstance(result, api.Explanation):
        return print_solved(result, as_json=as_json)
    if not as_json:
        from cpembed.report.explain import report

        print_text(*report(result))
    return 0
