"""``cpembed tune``: find and keep the fastest embedding and schedule; resumable."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cpembed.cli.completion import constraint_sets, targets, workloads
from cpembed.cli.interrupt import INTERRUPTED, Stop
from cpembed.cli.options import (
    LARGEST_SEED,
    Asked,
    Subcommand,
    json_option,
    problem,
    threads_option,
    use_threads,
)
from cpembed.cli.outcome import print_solved
from cpembed.cli.output import ProgressLine, message, print_json, print_text

if TYPE_CHECKING:
    from rich.progress import Progress

    from cpembed.tuning.database import Trial
    from cpembed.tuning.session import Tuning


@click.command(cls=Subcommand)
@click.argument("words", nargs=-1, metavar="[WORKLOAD...]", shell_complete=workloads)
@click.option(
    "--target",
    shell_complete=targets,
    metavar="NAME|FILE",
    help="Target: a shipped name (see `cpembed targets`) or a TOML file.",
)
@click.option(
    "--constraints",
    shell_complete=constraint_sets,
    metavar="NAME|FILE",
    help="Constraint set of the embeddings.  [default: complete, and the best of in_place_padded]",
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
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Stop after S seconds, the search for embeddings included, and use what was found.",
)
@click.option(
    "--output",
    type=click.Choice(["requantized", "int32", "int8"]),
    help="Where times depend on it: what is stored of the sums, as for `run`; each is tuned by "
    "itself.  "
    "[default: requantized; int8 where that is the output's type]",
)
@click.option(
    "--objective",
    type=click.Choice(["total", "kernel"]),
    help="CPU: what is to be short: latency, packing and unpacking together, or latency alone.  "
    "[default: total]",
)
@threads_option
@click.option(
    "--seed",
    type=click.IntRange(0, LARGEST_SEED),
    default=0,
    metavar="N",
    show_default=True,
    help="Seed of the search.",
)
@click.option(
    "--database",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder that keeps what is measured; `run` and `bench` look in the default one.  "
    "[default: $CPEMBED_TUNE_DIR, else a folder of the user's data]",
)
@click.option("--show", is_flag=True, help="Tune nothing: list what is kept, of WORKLOAD or all.")
@json_option
def command(
    *,
    words: tuple[str, ...],
    target: str | None,
    constraints: str | None,
    trials: int,
    candidates: int,
    timeout: float | None,
    output: str | None,
    objective: str | None,
    threads: int | None,
    seed: int,
    database: Path | None,
    show: bool,
    as_json: bool,
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
        return _show(words, target, database, as_json=as_json)
    if not words or target is None:
        missing = "'WORKLOAD...'" if not words else "'--target'"
        raise click.UsageError(
            f"Missing {missing}: only --show goes without", click.get_current_context()
        )
    from cpembed.api.solve import SolveResult
    from cpembed.api.tune import open_tuning, require_tunable
    from cpembed.tuning.kept import WIDEST

    workload, spec, chosen = _problem(words, target, constraints or WIDEST)
    require_tunable(spec)
    with ProgressLine() as progress:
        opened = open_tuning(
            workload,
            spec,
            constraints=None if constraints is None else chosen,
            trials=trials,
            timeout=timeout,
            candidates=candidates,
            output=output,
            objective=objective,
            seed=seed,
            database=database,
            progress=progress,
        )
    if isinstance(opened, SolveResult):
        return print_solved(opened, as_json=as_json)
    tuning = opened.tuning

    def interrupted() -> str:
        kept = f"{len(tuning.done)} of {trials} trials are kept in {tuning.store.path}"
        return f"interrupted: {kept}; the same command resumes"

    with Stop("trial", interrupted) as stop:
        _run(tuning, stop)
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


def _problem(words: tuple[str, ...], target: str, constraints: str) -> Any:
    asked = Asked(
        words=words,
        target=target,
        constraints=constraints,
        weights=None,
        timeout=None,
        verbose=False,
    )
    return problem(asked)[:3]


def _show(
    words: tuple[str, ...], target: str | None, database: Path | None, *, as_json: bool
) -> int:
    """Print what is kept; of a workload where one is named."""
    from cpembed.api.solve import hardware_spec
    from cpembed.api.tune import known
    from cpembed.report import tune as report
    from cpembed.tuning.database import default_directory, workload_key
    from cpembed.tuning.kept import WIDEST

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
        wanted = workload_key(_problem(words, target, WIDEST)[0])
        found = [file for file in found if file.key["workload"] == wanted]
    if as_json:
        print_json(report.stored_json(found))
    elif found:
        print_text(*report.stored_report(found))
    else:
        message(f"nothing is kept in {database or default_directory()}")
    return 0


def _run(tuning: Tuning[Any, Any], stop: Stop) -> None:
    """Measure, until a stop is asked for; on a terminal with a bar that shows the best so far."""
    trials = takewhile(lambda _: not stop.asked, tuning.run())
    if not sys.stderr.isatty():
        for _ in trials:
            pass
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    bar = Progress(
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TimeRemainingColumn(),
        "{task.description}",
        console=Console(stderr=True),
        transient=True,
        # A thread that draws would disturb the times.
        auto_refresh=False,
    )
    with bar:
        _draw(bar, tuning, trials)


def _draw(bar: Progress, tuning: Tuning[Any, Any], trials: Iterable[Trial]) -> None:
    from cpembed.report.tune import standing

    task = bar.add_task("tuning", total=tuning.task.trials)
    for _ in trials:
        bar.update(task, advance=1, description=standing(tuning.best), refresh=True)
