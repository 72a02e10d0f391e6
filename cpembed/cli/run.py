"""``cpembed run``: a verified kernel and its times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from cpembed.cli.options import (
    Asked,
    Subcommand,
    backend_option,
    embedding_options,
    file_option,
    id_option,
    json_option,
    output_option,
    problem,
    rank_option,
    require_one,
    seed_option,
    steps_options,
    threads_option,
    untuned_option,
    use_threads,
)
from cpembed.cli.outcome import UNAVAILABLE, print_notes, print_solved
from cpembed.cli.output import ProgressLine, message, print_json, print_text
from cpembed.errors import WorkloadError

if TYPE_CHECKING:
    from cpembed.api.chosen import BackendChoice
    from cpembed.api.run_result import RunResult
    from cpembed.hw.instruction import HardwareSpec


@click.command(cls=Subcommand)
@embedding_options
@rank_option(
    "The candidate of this place in the ranking.  [default: what was tuned; else the fastest "
    "by the target's estimate of the best 8, where it compares them, or the best]"
)
@id_option
@backend_option("what works here.")
@seed_option("Seed of the data and of the search.  [default: fresh data]", default=None)
@threads_option()
@output_option(
    ["requantized", "int32", "int8", "uint8", "float32", "bfloat16"],
    "What is stored of the sums: this type, integers saturated.  [default: the sums]  "
    "Where the target itself converts: requantized is shifted and clipped to int8, int32 all bits, "
    "int8 the low eight.  [default: requantized; int8 where that is the output's type]",
)
@steps_options
@click.option(
    "--shift",
    type=click.IntRange(0, 31),
    metavar="N",
    help="Bits by which integer sums are shifted right before they are stored as int8.  "
    "[default: none; of requantized ones 7 and half the binary logarithm of the products in a sum]",
)
@untuned_option
@file_option(
    "--trace",
    "Write a timeline, of targets that have one, for ui.perfetto.dev or chrome://tracing.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="PROGRAM",
    help="Save what ran: a folder with a kernel's assembly and layouts, or a simulated program "
    "with its inputs, a directory, or a zip if the name ends in .zip.",
)
@json_option
def command(
    *,
    rank: int | None,
    identifier: str | None,
    backend: BackendChoice,
    seed: int | None,
    threads: int | None,
    output: str | None,
    shift: int | None,
    bias: bool,
    scale: bool,
    relu: bool,
    untuned: bool,
    trace: Path | None,
    save: Path | None,
    as_json: bool,
    **asked: Unpack[Asked],
) -> int:
    """Generate the kernel of a candidate, verify its numbers against a reference, time it.

    Of a simulated target cycles are counted, the packing on this machine is measured. What
    `cpembed tune` has found for the workload is used unless --untuned says not to.

    \b
    cpembed run deepbench:11 --target avx512_vnni
    cpembed run deepbench:11 --target vta_1x16x16 --trace timeline.json
    cpembed run gemm m=64 n=64 k=64 --target gemm_16x16x16 --backend generic
    """
    require_one(rank=rank is not None, id=identifier is not None)
    use_threads(threads)
    from cpembed.api.run import run
    from cpembed.api.solve import SolveResult

    given = problem(asked)
    _check_files(given["target"], backend, trace, save)
    with ProgressLine() as progress:
        result = run(
            **given,
            rank=rank,
            identifier=identifier,
            backend=backend,
            seed=seed,
            progress=progress,
            output=output,
            shift=shift,
            relu=relu,
            bias=bias,
            scale=scale,
            untuned=untuned,
            save=save,
            trace=trace,
        )
    if isinstance(result, SolveResult):
        return print_solved(result, as_json=as_json, verbose=asked["verbose"])
    # The result comes last: whoever reads it may leave while it is printed.
    print_notes(result.solved)
    code = _say_missing(result) if backend != "generic" else 0
    if as_json:
        print_json(result.to_json())
    else:
        from cpembed.report.run import report

        print_text(*report(result, verbose=asked["verbose"]))
    return code


def _check_files(
    spec: HardwareSpec, backend: BackendChoice, trace: Path | None, save: Path | None
) -> None:
    """Refuse files that there will not be, before anything is searched for."""
    from cpembed.targets.registry import missing_for, open_target

    asked = {"--trace": trace is not None, "--save": save is not None}
    if backend != "generic" and not missing_for(spec):
        written = open_target(spec).files
        asked = {name: wanted and name not in written for name, wanted in asked.items()}
    refused = [name for name, wanted in asked.items() if wanted]
    if refused:
        raise WorkloadError(
            f"{' and '.join(refused)}: {spec.name} with the {backend} back end has nothing of the "
            "kind to write: leave it out, or name a target that has"
        )


def _say_missing(result: RunResult) -> int:
    """Where portable code stood in for the instruction, say so; the exit code."""
    if not result.missing:
        return 0
    message(
        f"{'; '.join(result.missing)}: portable code verified the program, "
        "and no time of the instruction was measured"
    )
    return UNAVAILABLE
