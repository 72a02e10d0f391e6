"""``cpembed run``: a verified kernel and its times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from cpembed.cli.kernel_options import KernelAsked, kernel, kernel_options
from cpembed.cli.options import (
    Subcommand,
    file_option,
    json_option,
    method_option,
    seed_option,
    threads_option,
    use_threads,
)
from cpembed.cli.outcome import print_notes, print_solved, say_missing
from cpembed.cli.output import ProgressLine, print_json, print_text
from cpembed.errors import WorkloadError

if TYPE_CHECKING:
    from cpembed.driver.options import BackendName, MethodName
    from cpembed.hw.instruction import HardwareSpec


@click.command(cls=Subcommand)
@kernel_options
@method_option("auto")
@seed_option("Seed of the data and of the search.  [default: fresh data]", default=None)
@threads_option()
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
    method: MethodName,
    seed: int | None,
    threads: int | None,
    trace: Path | None,
    save: Path | None,
    as_json: bool,
    **asked: Unpack[KernelAsked],
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

    given = kernel(asked)
    _check_files(given["target"], given["backend"], trace, save)
    with ProgressLine() as progress:
        result = run(**given, seed=seed, progress=progress, save=save, trace=trace, method=method)
    if isinstance(result, SolveResult):
        return print_solved(result, as_json=as_json, verbose=asked["verbose"])
    # The result comes last: whoever reads it may leave while it is printed.
    print_notes(result.solved)
    stood_in = "portable code verified the program, and no time of the instruction was measured"
    code = say_missing(result.missing, given["backend"], stood_in)
    if as_json:
        print_json(result.to_json())
    else:
        from cpembed.report.run import report

        print_text(*report(result, verbose=asked["verbose"]))
    return code


def _check_files(
    spec: HardwareSpec, backend: BackendName, trace: Path | None, save: Path | None
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
