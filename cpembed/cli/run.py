"""``cpembed run``: a verified kernel and its times."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

import click

from cpembed.cli.options import (
    LARGEST_SEED,
    Asked,
    Subcommand,
    embedding_options,
    json_option,
    problem,
    rank_option,
)
from cpembed.cli.outcome import UNAVAILABLE, print_notes, print_solved
from cpembed.cli.output import ProgressLine, message, print_json, print_text

if TYPE_CHECKING:
    from cpembed.api.run import RunResult
    from cpembed.backends.kernel import BackendChoice


@click.command(cls=Subcommand)
@embedding_options
@rank_option
@click.option(
    "--backend",
    type=click.Choice(["auto", "native", "generic"]),
    default="auto",
    show_default=True,
    help="native: the target's instruction; generic: portable code; auto: what works here.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, LARGEST_SEED),
    metavar="N",
    help="Seed of the data and of the search.  [default: fresh data]",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    help="Threads of the kernel.  [default: the cores of the process]",
)
@json_option
def command(
    *,
    rank: int,
    backend: BackendChoice,
    seed: int | None,
    threads: int | None,
    as_json: bool,
    **asked: Unpack[Asked],
) -> int:
    """Generate the kernel of a candidate, verify its numbers against a reference, time it.

    \b
    cpembed run deepbench:11 --target avx512_vnni
    cpembed run gemm m=64 n=64 k=64 --target vta_1x16x16 --backend generic
    """
    if threads is not None:
        # Read when the compiler's run-time library is loaded.
        os.environ["TVM_NUM_THREADS"] = str(threads)
    from cpembed.api import run as api

    workload, spec, constraints, weights = problem(asked)
    with ProgressLine() as progress:
        result = api.run(
            workload,
            spec,
            constraints=constraints,
            rank=rank,
            backend=backend,
            seed=seed,
            weights=weights,
            timeout=asked["timeout"],
            progress=progress,
        )
    if as_json:
        print_json(result.to_json())
    if not isinstance(result, api.RunResult):
        return print_solved(result, as_json=as_json)
    print_notes(result.solved)
    if not as_json:
        from cpembed.report.run import report

        print_text(*report(result))
    return 0 if backend == "generic" else _say_missing(result)


def _say_missing(result: RunResult) -> int:
    """Where portable code stood in for the instruction, say so; the exit code."""
    if not result.missing:
        return 0
    message(
        f"{'; '.join(result.missing)}: portable code verified the program, "
        "and no time of the instruction was measured"
    )
    return UNAVAILABLE
