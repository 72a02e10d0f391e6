"""``cpembed tune``: find and keep the fastest embedding and schedule; resumable."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cpembed.cli.options import LARGEST_SEED, Asked, Subcommand, json_option, problem
from cpembed.cli.outcome import print_solved
from cpembed.cli.output import ProgressLine, message, print_json, print_text

if TYPE_CHECKING:
    from rich.progress import Progress

    from cpembed.api.run_vta import OutputForm
    from cpembed.api.tune import Tuning
    from cpembed.tune.database import Trial

INTERRUPTED = 130


@click.command(cls=Subcommand)
@click.argument("words", nargs=-1, metavar="[WORKLOAD...]")
@click.option(
    "--target",
    metavar="NAME|FILE",
    help="Target: a VTA by its shipped name (see `cpembed targets`) or a TOML file.",
)
@click.option(
    "--constraints",
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
    help="What is stored of the sums, as for `run`; each is tuned by itself.  "
    "[default: requantized; int8 where that is the output's type]",
)
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
    output: OutputForm | None,
    seed: int,
    database: Path | None,
    show: bool,
    as_json: bool,
) -> int:
    """Find the embedding and the schedule of fewest simulated cycles on a VTA, and keep them.

    `run` and `bench` use what is kept for the same workload, target and form of the output, of any
    constraint set unless they are told one. Ctrl-C keeps what was measured; the same command
    resumes.

    \b
    cpembed tune deepbench:0 --target vta_1x16x16 --trials 200
    cpembed tune --show
    """
    if show:
        return _show(words, target, database, as_json=as_json)
    if not words or target is None:
        missing = "'WORKLOAD...'" if not words else "'--target'"
        raise click.UsageError(
            f"Missing {missing}: only --show goes without", click.get_current_context()
        )
    from cpembed.api.solve import SolveResult
    from cpembed.api.tune import WIDEST, open_tuning, require_tunable

    workload, spec, chosen = _problem(words, target, constraints or WIDEST)
    require_tunable(spec)
    with ProgressLine() as progress:
        tuning = open_tuning(
            workload,
            spec,
            constraints=None if constraints is None else chosen,
            trials=trials,
            timeout=timeout,
            candidates=candidates,
            output=output,
            seed=seed,
            database=database,
            progress=progress,
        )
    if isinstance(tuning, SolveResult):
        return print_solved(tuning, as_json=as_json)
    interrupted = False
    try:
        _run(tuning)
    except KeyboardInterrupt:
        interrupted = True
        message(
            f"interrupted: {len(tuning.done)} of {trials} trials are kept in {tuning.store.path}; "
            "the same command resumes"
        )
        if not tuning.done:
            return INTERRUPTED
    result = tuning.result()
    if as_json:
        print_json(result.to_json())
    else:
        from cpembed.report.tune import report

        print_text(*report(result))
    return INTERRUPTED if interrupted else 0


def _problem(words: tuple[str, ...], target: str, constraints: str) -> Any:
    asked = Asked(words=words, target=target, constraints=constraints, weights=None, timeout=None)
    return problem(asked)[:3]


def _show(
    words: tuple[str, ...], target: str | None, database: Path | None, *, as_json: bool
) -> int:
    """Print what is kept; of a workload where one is named."""
    from cpembed.api.solve import hardware_spec
    from cpembed.api.tune import known
    from cpembed.report import tune as report
    from cpembed.tune.choice import WIDEST
    from cpembed.tune.database import default_directory, workload_key

    found = known(database)
    if target is not None:
        name = hardware_spec(target).name
        found = [file for file in found if file.key["target"] == name]
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


def _run(tuning: Tuning) -> None:
    """Measure; on a terminal with a bar that shows the best so far."""
    if not sys.stderr.isatty():
        for _ in tuning.run():
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
    )
    with bar:
        _draw(bar, tuning, tuning.run())


def _draw(bar: Progress, tuning: Tuning, trials: Iterable[Trial]) -> None:
    task = bar.add_task("tuning", total=tuning.trials)
    for _ in trials:
        best = tuning.best
        words = "no program yet"
        if best is not None and best.cycles is not None:
            ratio = best.cycles / best.lower_bound
            words = f"best {best.cycles:,} cycles, {ratio:.3f} of the lower bound"
        bar.update(task, advance=1, description=words)
