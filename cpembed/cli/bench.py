"""``cpembed bench``: a whole suite, one row a layer, resumable."""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cpembed.cli.completion import constraint_sets, suites, targets
from cpembed.cli.interrupt import INTERRUPTED, Stop
from cpembed.cli.options import (
    LARGEST_SEED,
    Subcommand,
    file_option,
    json_option,
    steps_options,
    untuned_option,
)
from cpembed.cli.output import message, print_json, print_text
from cpembed.cli.terminal import write

if TYPE_CHECKING:
    from rich.progress import Progress

    from cpembed.api.bench import Bench
    from cpembed.api.chosen import BackendChoice
    from cpembed.workloads.suites import Layer

_REDRAW = 0.1
"""Seconds between two drawings of the progress bar."""


def _layout(_context: click.Context, _option: click.Parameter, layout: str) -> str:
    from cpembed.workloads.suites import LAYOUTS, is_layout

    if not is_layout(layout):
        raise click.BadParameter(f"{layout} is none of {' '.join(LAYOUTS)}")
    return layout


@click.command(cls=Subcommand)
@click.argument("suite", shell_complete=suites)
@click.option(
    "--target",
    required=True,
    shell_complete=targets,
    metavar="NAME|FILE",
    help="Target: a shipped name (see `cpembed targets`) or a TOML file.",
)
@click.option(
    "--constraints",
    shell_complete=constraint_sets,
    metavar="NAME|FILE",
    help="Constraint set of the best candidate, beside `strict`, which is always tried. "
    "Default: in_place_padded.",
)
@click.option("--layers", metavar="0,3,10-20", help="Only these layers of the suite.")
@click.option(
    "--backend",
    type=click.Choice(["auto", "native", "generic"]),
    default="auto",
    show_default=True,
    help="native: the target's instruction, executed or simulated; generic: portable code; auto: "
    "native, and solve only where this machine can do neither.",
)
@click.option("--no-run", is_flag=True, help="Solve only.")
@click.option(
    "--layout",
    metavar="NCHW|NHWC|NCHW16c",
    default="NCHW",
    show_default=True,
    callback=_layout,
    help="Channels before or after the image (NDHWC of planes, NWC of rows), or in blocks of any "
    "number; not every operator has layouts.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Stop each search after S seconds.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, LARGEST_SEED),
    default=0,
    metavar="N",
    show_default=True,
    help="Seed of the data and of the search.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    help="Threads of the kernels.  [default: the cores of the process]",
)
@click.option(
    "--output",
    type=click.Choice(["int32", "int8", "uint8", "float32", "bfloat16"]),
    help="What is stored of the sums: this type, integers saturated (not on a simulated target).  "
    "[default: the sums; beside a library what its fastest form stores, and to be said with the "
    "steps below]",
)
@steps_options
@untuned_option
@click.option(
    "--baseline",
    "baselines",
    multiple=True,
    metavar="NAME",
    help="Run a library beside each kernel: onednn, tvm. May be repeated, or a comma list.",
)
@file_option("--plot", "Draw the ratios to the baselines into an SVG file.")
@click.option("--fresh", is_flag=True, help="Start over; without it, completed rows are kept.")
@click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder that keeps completed rows.  [default: the user's cache folder]",
)
@json_option
def command(
    *,
    suite: str,
    target: str,
    constraints: str | None,
    layers: str | None,
    backend: BackendChoice,
    no_run: bool,
    layout: str,
    timeout: float | None,
    seed: int,
    threads: int | None,
    output: str | None,
    bias: bool,
    scale: bool,
    relu: bool,
    untuned: bool,
    baselines: tuple[str, ...],
    plot: Path | None,
    fresh: bool,
    results: Path | None,
    as_json: bool,
) -> int:
    """Run SUITE: search, verify and time each layer.

    SUITE is deepbench, resnet18, resnet50, unit16, unit_conv3d, mobilenet, attention, amos, odd or
    gemm.

    A row is kept as soon as it is complete: an interrupted run resumes where it stopped.

    \b
    cpembed bench deepbench --target vta_1x16x16
    cpembed bench deepbench --target avx512_vnni --layers 0,10-20 --layout NHWC
    cpembed bench unit16 --target amx_int8 --baseline onednn
    cpembed bench resnet50 --target avx512_vnni --output uint8 --bias --scale --relu
    """
    if threads is not None:
        # Read when the compiler's run-time library is loaded.
        os.environ["TVM_NUM_THREADS"] = str(threads)
    from cpembed.api.bench import open_bench

    if plot is not None:
        _check_plot(baselines)
    bench = open_bench(
        suite,
        target,
        constraints=constraints,
        layers=layers,
        backend=backend,
        execute=not no_run,
        layout=layout,
        timeout=timeout,
        seed=seed,
        results=results,
        fresh=fresh,
        output=output,
        relu=relu,
        bias=bias,
        scale=scale,
        untuned=untuned,
        baselines=[name.strip() for names in baselines for name in names.split(",")],
    )
    _announce(bench)

    def interrupted() -> str:
        done = f"{len(bench.rows)} of {len(bench.layers)} rows are kept in {bench.store.path}"
        return f"interrupted: {done}; the same command{' without --fresh' * fresh} resumes"

    with Stop("row", interrupted) as stop:
        _run(bench, stop)
    if stop.asked:
        message(interrupted())
        return INTERRUPTED
    if plot is not None:
        from cpembed.files import write_whole
        from cpembed.report.bench_plot import plot_svg

        title = f"{bench.suite} on {bench.maker.spec.name}"
        write_whole(plot, plot_svg(bench.finished(), title))
    if as_json:
        print_json(bench.to_json())
    else:
        from cpembed.report.bench import report

        print_text(*report(bench))
    return bench.exit_code()


def _check_plot(baselines: tuple[str, ...]) -> None:
    """Before hours are spent on what cannot be drawn."""
    from cpembed.errors import WorkloadError
    from cpembed.report.bench_plot import require_matplotlib

    if not baselines:
        raise WorkloadError("--plot draws ratios to a baseline: add --baseline onednn")
    require_matplotlib()


def _announce(bench: Bench) -> None:
    if bench.taken:
        message(
            f"{bench.taken} of {len(bench.layers)} rows taken from {bench.store.path}; "
            "--fresh starts over"
        )
    if bench.missing:
        message(
            f"{'; '.join(bench.missing)}: solving only; "
            "--backend generic runs the programs as portable code"
        )


def _run(bench: Bench, stop: Stop) -> None:
    """Make the missing rows, until a stop is asked for; errors are said as they come."""
    display = _Display(bench)
    with display.bar or nullcontext():
        for row in bench.run(display):
            if row.error is not None:
                what = "VERIFICATION FAILED" if row.failed_verification else row.error.type
                message(f"layer {row.index} ({row.label}): {what}: {row.error.message}")
                if row.error.traceback is not None:
                    # A bug: whoever reports it needs the place.
                    write(row.error.traceback, err=True)
            display.advance()
            if stop.asked:
                break


class _Display:
    """A progress bar with the current layer and what is done with it, on a terminal."""

    def __init__(self, bench: Bench) -> None:
        self.bar: Progress | None = None
        self._drawn = 0.0
        self._task: Any = None
        if sys.stderr.isatty() and bench.pending:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

            # Drawn between the steps of a layer only: a thread that draws would disturb the times.
            self.bar = Progress(
                MofNCompleteColumn(),
                BarColumn(bar_width=20),
                TimeRemainingColumn(),
                "{task.description}",
                console=Console(stderr=True),
                auto_refresh=False,
                transient=True,
            )
            done, total = len(bench.rows), len(bench.layers)
            self._task = self.bar.add_task("", total=total, completed=done)

    def __call__(self, layer: Layer, phase: str, count: int) -> None:
        now = time.perf_counter()
        if self.bar is None or (count > 1 and now - self._drawn < _REDRAW):
            return
        self._drawn = now
        words = f"{layer.index}: {layer.label}, {phase}"
        self.bar.update(self._task, description=words, refresh=True)

    def advance(self) -> None:
        if self.bar is not None:
            self.bar.advance(self._task)
            self.bar.refresh()
