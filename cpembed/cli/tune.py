"""``cpembed tune``: find and keep the fastest embedding and schedule; resumable."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from cpembed.cli.cluster_options import workers_of, workers_options
from cpembed.cli.interrupt import INTERRUPTED, Stop
from cpembed.cli.options import (
    Asked,
    Problem,
    Subcommand,
    constraints_option,
    folder_option,
    json_option,
    output_option,
    problem,
    seed_option,
    target_option,
    threads_option,
    timeout_option,
    use_threads,
    workload_argument,
)
from cpembed.cli.outcome import print_solved
from cpembed.cli.output import Bar, ProgressLine, message, print_json, print_text

if TYPE_CHECKING:
    from cpembed.cluster import Workers
    from cpembed.driver.tune import OpenTuning, TuneOptions


@click.command(cls=Subcommand)
@workload_argument(required=False)
@target_option(required=False)
@constraints_option(
    "Constraint set of the embeddings.  [default: complete, and the best of in_place_padded]"
)
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    default=64,
    metavar="N",
    show_default=True,
    help="Schedules to measure, those that are kept from earlier calls included.",
)
@click.option(
    "--candidates",
    type=click.IntRange(min=1),
    default=32,
    metavar="K",
    show_default=True,
    help="How many of the best embeddings take part.",
)
@timeout_option("Stop after S seconds, the search for embeddings included, and use what was found.")
@output_option(
    ["requantized", "int32", "int8"],
    "Where times depend on it: what is stored of the sums, as for `run`; each is tuned by "
    "itself.  "
    "[default: requantized; int8 where that is the output's type]",
)
@click.option(
    "--objective",
    type=click.Choice(["total", "kernel"]),
    help="CPU: what is to be short: latency, packing and unpacking together, or latency alone.  "
    "[default: total]",
)
@threads_option()
@seed_option("Seed of the search.")
@folder_option(
    "--database",
    "Folder that keeps what is measured; `run` and `bench` look in the default one.  "
    "[default: $CPEMBED_TUNE_DIR, else a folder of the user's data]",
)
@workers_options
@click.option("--show", is_flag=True, help="Tune nothing: list what is kept, of WORKLOAD or all.")
@json_option
def command(
    *,
    words: tuple[str, ...],
    target: str | None,
    threads: int | None,
    show: bool,
    as_json: bool,
    **options: Unpack[TuneOptions],
) -> int:
    """Find the fastest embedding and schedule, and keep them: by simulated cycles, or by times
    that are measured here.

    `run` and `bench` use what is kept for the same workload and machine, of any constraint set
    unless they are told one. Ctrl-C keeps what was measured; the same command resumes.

    \b
    cpembed tune deepbench:0 --target vta_1x16x16 --trials 200
    cpembed tune resnet50:3 --target amx_int8
    cpembed tune --show
    """
    use_threads(threads)
    if show:
        return _show(words, target, options.get("database"), as_json=as_json)
    if not words or target is None:
        missing = "'WORKLOAD...'" if not words else "'--target'"
        raise click.UsageError(
            f"Missing {missing}: only --show goes without", click.get_current_context()
        )
    from cpembed.driver.tune import require_tunable
    from cpembed.tuning.records import WIDEST

    named = options.get("constraints")
    given = _problem(words, target, named or WIDEST)
    require_tunable(given["target"])
    options["constraints"] = given["constraints"] if named else None
    with workers_of() as executing:
        return _tune(given, executing, options, as_json=as_json)


def _tune(given: Problem, workers: Workers, options: TuneOptions, *, as_json: bool) -> int:
    from cpembed.driver.result import SolveResult
    from cpembed.driver.tune import open_tuning

    with ProgressLine() as progress:
        options["progress"] = progress
        opened = open_tuning(given["workload"], given["target"], workers=workers, **options)
    if isinstance(opened, SolveResult):
        return print_solved(opened, as_json=as_json)
    tuning = opened.tuning

    def interrupted() -> str:
        done = f"{len(tuning.done)} of {tuning.task.trials}"
        kept = f"{done} trials are kept in {tuning.store.path}"
        return f"interrupted: {kept}; the same command resumes"

    with Stop("trial", interrupted) as stop:
        _run(opened, stop)
    if stop.asked:
        message(interrupted())
        if not tuning.done:
            return INTERRUPTED
    result = opened.result()
    if as_json:
        print_json(result.to_json())
    else:
        from cpembed.report.tune import report

        print_text(*report(result))
    return INTERRUPTED if stop.asked else 0


def _problem(words: tuple[str, ...], target: str, constraints: Any) -> Problem:
    asked = Asked(
        words=words,
        target=target,
        constraints=constraints,
        weights=None,
        timeout=None,
        verbose=False,
    )
    return problem(asked)


def _show(
    words: tuple[str, ...], target: str | None, database: Path | None, *, as_json: bool
) -> int:
    """Print what is kept; of a workload where one is named."""
    from cpembed.driver.named import hardware_spec
    from cpembed.driver.tune import known
    from cpembed.report import tune as report
    from cpembed.tuning.database import default_directory, workload_key
    from cpembed.tuning.records import WIDEST

    found = known(database)
    if target is not None:
        spec = hardware_spec(target)
        # What another target runs in its place is kept under that one's name.
        names = (spec.name, *spec.alternatives)
        found = [file for file in found if file.key["target"] in names]
    if words:
        if target is None:
            context = click.get_current_context()
            raise click.UsageError("Missing '--target': it types the WORKLOAD", context)
        wanted = workload_key(_problem(words, target, WIDEST)["workload"])
        found = [file for file in found if file.key["workload"] == wanted]
    if as_json:
        print_json(report.stored_json(found))
    elif found:
        print_text(*report.stored_report(found))
    else:
        message(f"nothing is kept in {database or default_directory()}")
    return 0


def _run(opened: OpenTuning, stop: Stop) -> None:
    """Measure, until a stop is asked for; on a terminal with a bar that shows the best so far."""
    from cpembed.report.tune import standing

    tuning = opened.tuning
    with Bar("tuning", tuning.task.trials) as bar:
        for _ in opened.run(lambda: stop.asked):
            bar.show(standing(tuning.best), advance=1)
