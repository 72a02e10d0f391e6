"""``cpembed calibrate``: measure this machine for the model of its kernels."""

from __future__ import annotations

from pathlib import Path

import click

from cpembed.cli.options import (
    Subcommand,
    folder_option,
    json_option,
    threads_option,
    timeout_option,
    use_threads,
)
from cpembed.cli.output import Bar, message, print_json, print_text


@click.command(cls=Subcommand)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=60,
    metavar="N",
    show_default=True,
    help="Rounds of all measurements; those that do not settle get more.",
)
@timeout_option(
    "Seconds of measuring after which what has not settled is taken as it is, and said.", 8.0
)
@threads_option("the kernels that it is for")
@folder_option(
    "--database",
    "Folder that keeps what is measured.  [default: $CPEMBED_CALIBRATION_DIR, else a folder "
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
    use_threads(threads)
    from cpembed.targets.x86.calibrated import calibrate, known

    if show:
        result = known(database)
    else:
        with Bar("loading the compiler", None) as bar:

            def tell(what: str, done: int, of: int) -> None:
                if what == "build":
                    bar.show("compiling", often=True, total=of, completed=done)
                else:
                    bar.show(f"measuring, round {done}: {of} figures to settle", often=True)

            result = calibrate(rounds=rounds, timeout=timeout, database=database, on_step=tell)
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
