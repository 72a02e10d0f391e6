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
    id_option,
    json_option,
    method_option,
    problem,
    rank_option,
    require_one,
    threads_option,
    untuned_option,
    use_threads,
)
from cpembed.cli.outcome import print_notes, print_solved
from cpembed.cli.output import ProgressLine, message, print_json, print_text

if TYPE_CHECKING:
    from cpembed.driver.explain import Explanation
    from cpembed.driver.options import MethodName


@click.command(cls=Subcommand)
@embedding_options
@rank_option("Which candidate, 1 being the best.  [default: 1]")
@id_option
@click.option(
    "--chosen",
    is_flag=True,
    help="The candidate that `cpembed run` runs on this machine, and why.",
)
@method_option("auto")
@untuned_option
@threads_option()
@file_option("--svg", "Draw the candidate to an SVG file.")
@file_option("--html", "Write the candidate to an HTML page with the drawing in it.")
@json_option
def command(
    *,
    rank: int | None,
    identifier: str | None,
    chosen: bool,
    method: MethodName,
    untuned: bool,
    threads: int | None,
    svg: Path | None,
    html: Path | None,
    as_json: bool,
    **asked: Unpack[Asked],
) -> int:
    """Show one candidate in full (axes, layouts, each rewrite, the loop nest, why its rank), or
    why nothing fits.

    \b
    cpembed explain deepbench:11 --target amx_int8
    cpembed explain deepbench:11 --target amx_int8 --chosen --html layer11.html
    """
    require_one(rank=rank is not None, id=identifier is not None, chosen=chosen)
    if not chosen and (untuned or threads is not None or method != "auto"):
        only = "--method, --untuned and --threads change what `run` chooses: add --chosen"
        raise click.UsageError(only, click.get_current_context())
    use_threads(threads)
    from cpembed.driver import explain as api

    given = problem(asked)
    with ProgressLine() as progress:
        if chosen:
            from cpembed.driver.request import Request

            request = Request(**given, progress=progress, untuned=untuned)
            result = api.explain_chosen(request, method)
        else:
            result = api.explain(**given, rank=rank or 1, identifier=identifier, progress=progress)
    if not isinstance(result, api.Explanation):
        for path in (svg, html):
            if path is not None:
                message(f"{path} is not written: there is nothing to draw")
        return print_solved(result, as_json=as_json, verbose=asked["verbose"])
    print_notes(result.solved)
    _draw(result, svg, html)
    if as_json:
        print_json(result.to_json())
    else:
        from cpembed.report.explain import report

        print_text(*report(result, verbose=asked["verbose"]))
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
