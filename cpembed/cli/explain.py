"""``cpembed explain``: one candidate in full, or why nothing fits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from cpembed.cli.options import (
    Asked,
    Subcommand,
    embedding_options,
    file_option,
    json_option,
    problem,
    rank_option,
)
from cpembed.cli.outcome import print_notes, print_solved
from cpembed.cli.output import ProgressLine, message, print_json, print_text

if TYPE_CHECKING:
    from cpembed.api.explain import Explanation


@click.command(cls=Subcommand)
@embedding_options
@rank_option
@file_option("--svg", "Draw the candidate to an SVG file.")
@file_option("--html", "Write the candidate to an HTML page with the drawing in it.")
@json_option
def command(
    *, rank: int, svg: Path | None, html: Path | None, as_json: bool, **asked: Unpack[Asked]
) -> int:
    """Show one candidate in full (axes, layouts, each rewrite, the loop nest, why its rank), or
    why nothing fits.

    \b
    cpembed explain deepbench:11 --target amx_int8
    cpembed explain deepbench:11 --target amx_int8 --html layer11.html
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
    if not isinstance(result, api.Explanation):
        for path in (svg, html):
            if path is not None:
                message(f"{path} is not written: there is nothing to draw")
        return print_solved(result, as_json=as_json)
    print_notes(result.solved)
    _draw(result, svg, html)
    if as_json:
        print_json(result.to_json())
    else:
        from cpembed.report.explain import report

        print_text(*report(result))
    return 0


def _draw(explanation: Explanation, svg: Path | None, html: Path | None) -> None:
    """Write the files that were asked for."""
    if svg is None and html is None:
        return
    from cpembed.files import write_whole
    from cpembed.report.drawing import document

    if svg is not None:
        write_whole(svg, document.svg(explanation))
    if html is not None:
        write_whole(html, document.html(explanation))
