"""``cpembed explain``: one candidate in full, or why nothing fits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cpembed.cli.options import (
    Subcommand,
    file_option,
    json_option,
    library_options,
    options_from,
    require_one,
    subject,
    target_option,
    threads_option,
    use_threads,
    verbose_option,
    workload_argument,
)
from cpembed.cli.outcome import print_notes, print_solved
from cpembed.cli.output import ProgressLine, message, print_json, print_text
from cpembed.driver.options import CandidateOptions, ExplainOptions, KernelOptions, shared

if TYPE_CHECKING:
    from cpembed.driver.explain import Explanation


@click.command(cls=Subcommand)
@workload_argument()
@target_option()
@library_options(ExplainOptions, leave_out=["search", "seed"])
@click.option(
    "--chosen",
    is_flag=True,
    help="The candidate that `cpembed run` runs on this machine, and why.",
)
@threads_option()
@file_option("--svg", "Draw the candidate to an SVG file.")
@file_option("--html", "Write the candidate to an HTML page with the drawing in it.")
@verbose_option
@json_option
def command(
    *,
    words: tuple[str, ...],
    target: str,
    chosen: bool,
    threads: int | None,
    svg: Path | None,
    html: Path | None,
    verbose: bool,
    as_json: bool,
    **values: Any,
) -> int:
    """Show one candidate in full (axes, layouts, each rewrite, the loop nest, why its rank), or
    why nothing fits.

    \b
    cpembed explain deepbench:11 --target amx_int8
    cpembed explain deepbench:11 --target amx_int8 --chosen --html layer11.html
    """
    options = options_from(ExplainOptions, values)
    require_one(rank=options.rank is not None, id=options.identifier is not None, chosen=chosen)
    if not chosen and (options.untuned or threads is not None or options.method != "auto"):
        only = "--method, --untuned and --threads change what `run` chooses: add --chosen"
        raise click.UsageError(only, click.get_current_context())
    use_threads(threads)
    from cpembed.driver.explain import Explanation, explain, explain_chosen
    from cpembed.driver.request import Request

    resolved = subject(words, target, options)
    with ProgressLine() as progress:
        candidate = shared(resolved.options, CandidateOptions)
        if chosen:
            kernel = KernelOptions(**candidate)
            request = Request(resolved.workload, resolved.target, kernel, progress=progress)
            result = explain_chosen(request, options.method)
        else:
            result = explain(
                resolved.workload, resolved.target, CandidateOptions(**candidate), progress=progress
            )
    if not isinstance(result, Explanation):
        for path in (svg, html):
            if path is not None:
                message(f"{path} is not written: there is nothing to draw")
        return print_solved(result, as_json=as_json, verbose=verbose)
    print_notes(result.solved)
    _draw(result, svg, html)
    if as_json:
        print_json(result.to_json())
    else:
        from cpembed.report.explain import report

        print_text(*report(result, verbose=verbose))
    return 0


def _draw(explanation: Explanation, svg: Path | None, html: Path | None) -> None:
    """Write the drawing into the files that are asked for."""
    if svg is None and html is None:
        return
    from cpembed.files import write_whole
    from cpembed.report import drawing

    if svg is not None:
        write_whole(svg, drawing.svg(explanation))
    if html is not None:
        write_whole(html, drawing.html(explanation))
