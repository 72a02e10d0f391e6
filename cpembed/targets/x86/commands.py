"""``cpembed calibrate``: measure this machine for the model of its kernels."""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cpembed.cli.options import Subcommand, json_option
from cpembed.cli.output import message, print_json, print_text

if TYPE_CHECKING:
    from rich.progress import Progress

_REDRAW = 0.1
"""Seconds between two drawings of the progress line."""


@click.command(cls=Subcommand)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=60,
    metavar="N",
    show_default=True,
    help="Rounds of all measurements; those that do not settle get more.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=8.0,
    metavar="S",
    show_default=True,
    help="Seconds of measuring after which what has not settled is taken as it is, and said.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    help="Threads of the kernels that it is for.  [default: the cores of the process]",
)
@click.option(
    "--database",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder that keeps what is measured.  [default: $CPEMBED_CALIBRATION_DIR, else a folder "
    "of the user's data]",
)
@click.option("--show", is_flag=True, help="Show what is kept instead of measuring.")
@json_option
def command(
    *,
    rounds: int,
    timeout: float,
    threads: int | None,
    database: Path | None,
    show: bool,
    as_json: bool,
) -> int:
    """Measure the constants of this machine by which x86 kernels are planned: instructions, caches,
    memory, calls. It takes some 20 seconds, and keeps them for this CPU and number of threads.

    Best when the machine has nothing else to do. Ctrl-C leaves what was kept before.

    \b
    cpembed calibrate
    cpembed calibrate --show
    """
    if threads is not None:
        # Read when the compiler's run-time library is loaded.
        os.environ["TVM_NUM_THREADS"] = str(threads)
    from cpembed.targets.x86.calibrated import calibrate, known

    if show:
        result = known(database)
    else:
        with _Display() as display:
            result = calibrate(rounds=rounds, timeout=timeout, database=database, on_step=display)
    if result.path is None:
        message("nothing was measured here: these are published figures; run `cpembed calibrate`")
    for note in result.measured.notes if result.measured is not None else ():
        message(f"{note}; calibrate again when the machine is idle")
    if as_json:
        print_json(result.to_json())
    else:
        from cpembed.targets.x86.command_reports import report

        print_text(*report(result))
    return 0


class _Display:
    """A line with what is being done, on a terminal. It is drawn between measurements only: a
    thread that draws would disturb them."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._drawn = 0.0
        self._task: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress

            self._bar = Progress(
                BarColumn(bar_width=20),
                "{task.description}",
                console=Console(stderr=True),
                auto_refresh=False,
                transient=True,
            )
            self._task = self._bar.add_task("loading the compiler", total=None)

    def __enter__(self) -> _Display:
        (self._bar or nullcontext()).__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        (self._bar or nullcontext()).__exit__(*error)

    def __call__(self, what: str, done: int, of: int) -> None:
        now = time.perf_counter()
        if self._bar is None or now - self._drawn < _REDRAW:
            return
        self._drawn = now
        if what == "build":
            self._bar.update(
                self._task, description="compiling", total=of, completed=done, refresh=True
            )
        else:
            words = f"measuring, round {done}: {of} figures to settle"
            self._bar.update(self._task, description=words, refresh=True)
