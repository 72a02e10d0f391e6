"""``cpembed run``: a verified kernel and its times."""

from __future__ import annotations

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
    threads_option,
    use_threads,
    verbose_option,
    workload_argument,
)
from cpembed.cli.outcome import print_notes, print_solved, say_missing
from cpembed.cli.output import ProgressLine, print_json, print_text
from cpembed.driver.options import RunOptions

if TYPE_CHECKING:
    pass


@click.command(cls=Subcommand)
@workload_argument()
@target_option()
@library_options(
    RunOptions,
    leave_out=["search"],
    defaults={"seed": None},
    texts={"seed": "Seed of the data and of the search.  [default: fresh data]"},
)
@threads_option()
@verbose_option
@json_option
def command(
    *,
    words: tuple[str, ...],
    target: str,
    threads: int | None,
    verbose: bool,
    as_json: bool,
    **values: Any,
) -> int:
    """Generate the kernel of a candidate, verify its numbers against a reference, time it.

    Of a simulated target cycles are counted, the packing on this machine is measured. What
    `cpembed tune` has found for the workload is used unless --untuned says not to.

    \b
    cpembed run deepbench:11 --target avx512_vnni
    cpembed run deepbench:11 --target vta_1x16x16 --trace timeline.json
    cpembed run gemm m=64 n=64 k=64 --target gemm_16x16x16 --backend generic
    """
    use_threads(threads)
    from cpembed.driver.result import SolveResult
    from cpembed.driver.run import run

    options = options_from(RunOptions, values)
    require_one(rank=options.rank is not None, id=options.identifier is not None)
    resolved = subject(words, target, options)
    with ProgressLine() as progress:
        result = run(resolved.workload, resolved.target, resolved.options, progress=progress)
    if isinstance(result, SolveResult):
        return print_solved(result, as_json=as_json, verbose=verbose)
    # The result comes last: whoever reads it may leave while it is printed.
    print_notes(result.solved)
    stood_in = "portable code verified the program, and no time of the instruction was measured"
    code = say_missing(result.missing, options.backend, stood_in)
    if as_json:
        print_json(result.to_json())
    else:
        from cpembed.report.run import report

        print_text(*report(result, verbose=verbose))
    return code
