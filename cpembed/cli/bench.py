"""``cpembed bench``: a suite, one row for each layer, resumable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cpembed.cli import model_options, options
from cpembed.cli.completion import suites
from cpembed.cli.interrupt import INTERRUPTED, Stop
from cpembed.cli.output import Bar, message, print_json, print_report, print_text, write
from cpembed.cli.parameters import argument, on_command_line, options_of, subcommand
from cpembed.cli.worker_options import WorkerOptions
from cpembed.driver.options import BenchOptions, option

if TYPE_CHECKING:
    from cpembed.driver.bench import Bench
    from cpembed.runtime.cluster import Workers
    from cpembed.workloads.suites import Layer


def _layout(_context: click.Context, _option: click.Parameter, layout: str) -> str:
    from cpembed.workloads.suites import LAYOUTS, is_layout

    if not is_layout(layout):
        raise click.BadParameter(f"{layout} is none of {' '.join(LAYOUTS)}")
    return layout


@dataclass(frozen=True, kw_only=True)
class BenchArguments:
    """Command line of ``cpembed bench``."""

    suite: str = argument(shell_complete=suites)
    targets: tuple[str, ...] = options.targets_option()
    settings: BenchOptions = options_of(
        BenchOptions,
        leave_out=["weights", "search", "rank", "identifier", "shift"],
        changes={
            "seed": {"help": "Seed of the data and of the search."},
            "backend": {
                "help": "native: the target's instruction, executed or simulated; generic: "
                "portable code; auto: native, and only the search if this machine can do neither."
            },
            "layout": {"callback": _layout},
        },
    )
    shapes: dict[str, tuple[int, ...]] = model_options.shapes_option()
    no_run: bool = option(False, "Search only; run nothing.")
    threads: int | None = options.threads_option("the kernels")
    baselines: tuple[str, ...] = option(
        (),
        "Compare each kernel with a library: onednn, mkl, openblas, tvm. May be repeated, or a "
        "comma list.",
        flag="--baseline",
        metavar="NAME",
        multiple=True,
    )
    plot: Path | None = options.file_option("Draw the ratios to the baselines into an SVG file.")
    pack: Path | None = options.file_option(
        "Write the kernels of all layers instead, of targets that are emulated here, into a "
        "folder or a FILE.zip, with programs that check and time them on such a machine "
        "(docs/cuda.md)."
    )
    processes: WorkerOptions = options_of(WorkerOptions)
    as_json: bool = options.json_option()


@subcommand("bench", BenchArguments)
def bench_command(arguments: BenchArguments) -> int:
    """Run SUITE: search, verify and time each layer.

    SUITE is deepbench, resnet18, resnet50, unit16, unit_conv3d, mobilenet, attention, amos, odd or
    gemm, or a file: a table of layers (.csv), or a model (.onnx, .pt2), whose distinct products are
    the layers. results.json, which the programs of a pack write, is shown as it was measured.

    Rows are kept as they are completed: an interrupted run resumes where it stopped.

    cpembed bench deepbench --target vta_1x16x16
    cpembed bench deepbench --target avx512_vnni --layers 0,10-20 --layout NHWC
    cpembed bench unit16 --target amx_int8 --baseline onednn
    cpembed bench resnet50 --target avx512_vnni --output uint8 --bias --scale --relu
    cpembed bench layers.csv --target avx512_vnni --target vta_1x16x16
    cpembed bench layers.csv --target mma_f16 --machine h100 --layout NHWC --pack layers.zip
    """
    if Path(arguments.suite).suffix == ".json":
        return _show_results(Path(arguments.suite), as_json=arguments.as_json)
    if not arguments.targets:
        raise click.UsageError("Missing option '--target'.", click.get_current_context())
    baselines, plot = arguments.baselines, arguments.plot
    settings = replace(
        arguments.settings,
        shapes=arguments.shapes or None,
        execute=not arguments.no_run,
        baselines=[name.strip() for part in baselines for name in part.split(",")],
    )
    if arguments.pack is not None:
        return _pack(
            arguments.suite,
            options.distinct(arguments.targets),
            arguments.pack,
            settings,
            as_json=arguments.as_json,
        )
    options.use_threads(arguments.threads)
    if plot is not None:
        # Before the first search: matplotlib may be missing.
        _check_plot(baselines)
    names = options.distinct(arguments.targets)
    if len(names) > 1 and (plot is not None or baselines):
        # A plot, and a comparison on one machine, has one target.
        several = "--baseline and --plot apply to one target: leave them, or other targets, out"
        raise click.UsageError(several, click.get_current_context())
    # Processes start here, so that they load while this one does.
    with arguments.processes.open(compiles=not arguments.no_run) as executing:
        from cpembed.driver.bench import open_bench

        benches = [open_bench(arguments.suite, name, settings) for name in names]

        if any(bench.measures and bench.pending for bench in benches):
            # Before the first row: processes side by side would distort the times of all.
            executing.require_measuring()
        interruption = _complete(benches, executing, fresh=settings.fresh)
    if interruption is not None:
        message(interruption)
        return INTERRUPTED
    if len(benches) > 1:
        return _print_across(benches, as_json=arguments.as_json)
    (bench,) = benches
    if plot is not None:
        from cpembed.files import write_whole
        from cpembed.report.plots import baselines_svg

        title = f"{bench.suite} on {bench.maker.spec.name}"
        write_whole(plot, baselines_svg(bench.finished(), title))
    from cpembed.report.bench import report

    print_report(bench, lambda: report(bench), as_json=arguments.as_json)
    return bench.exit_code()


def _complete(benches: Sequence[Bench], workers: Workers, *, fresh: bool) -> str | None:
    """Complete the rows of all targets; return the message of an interruption, if there was one."""

    def interrupted() -> str:
        rows = "; ".join(
            f"{len(bench.rows)} of {len(bench.layers)} rows are kept in {bench.store.path}"
            for bench in benches
        )
        option = " without --fresh" * fresh
        return f"interrupted: {rows}; the same command{option} resumes"

    with Stop("row", interrupted) as stop:
        for bench in benches:
            if not stop.requested:
                _announce(bench)
                _run(bench, stop, workers)
    return interrupted() if stop.requested else None


def _print_across(benches: Sequence[Bench], *, as_json: bool) -> int:
    from cpembed.driver.bench_across import across

    with Bar() as bar:

        def progress(name: str, completed: int, total: int) -> None:
            bar(f"comparing {name}", completed, total)

        result = across(benches, progress)
    if as_json:
        # Each with its rows: the table of the text is only a summary.
        documents = [bench.to_json() for bench in benches]
        print_json({"suite": result.suite, "targets": documents, **result.to_json()})
    else:
        from cpembed.report.bench import across_report

        print_text(*across_report(result))
    # The worst of them: no failure is hidden by another target.
    return max(bench.exit_code() for bench in benches)


def _check_plot(baselines: tuple[str, ...]) -> None:
    """Raise an error early if the plot could not be drawn after hours of measuring."""
    from cpembed.errors import WorkloadError
    from cpembed.report.plots import require_matplotlib

    if not baselines:
        raise WorkloadError("--plot draws ratios to a baseline: add --baseline onednn")
    require_matplotlib()


def _announce(bench: Bench) -> None:
    """Print how many rows are stored already, and why nothing is run."""
    if bench.reused:
        message(
            f"{bench.reused} of {len(bench.layers)} rows taken from {bench.store.path}; "
            "--fresh starts over"
        )
    if bench.missing:
        message(
            f"{'; '.join(bench.missing)}: searching only; "
            "--backend generic runs the programs as portable code"
        )


def _run(bench: Bench, stop: Stop, workers: Workers) -> None:
    """Complete the missing rows, until a stop is requested; print errors as they occur."""
    with Bar("", len(bench.layers), len(bench.rows)) as bar:

        def progress(layer: Layer, phase: str, count: int) -> None:
            # Only the first count of a phase is sure to be drawn: a search reports thousands.
            bar.show(f"{layer.index}: {layer.label}, {phase}", often=count > 1)

        for row in bench.run(progress, workers, lambda: stop.requested):
            if row.error is not None:
                # Wrong numbers stand out from layers that only have no kernel.
                kind = "VERIFICATION FAILED" if row.failed_verification else row.error.type
                message(f"layer {row.index} ({row.label}): {kind}: {row.error.message}")
                if row.error.traceback is not None:
                    # A bug of cpembed: its report needs the traceback.
                    write(row.error.traceback, err=True)
            bar.show(advance=1)


# -- packs -----------------------------------------------------------------------------------------

_APPLIES = frozenset(
    ("targets", "pack", "machine", "layers", "layout", "output", "bias", "scale", "relu",
     "constraints", "timeout", "shapes", "as_json")
)  # fmt: skip
"""Options of ``cpembed bench`` that a pack depends on."""


def _pack(
    suite: str, targets: Sequence[str], path: Path, options: BenchOptions, *, as_json: bool
) -> int:
    """Pack the layers of a suite; return the exit code.

    Parameters
    ----------
    suite : str
        Name of the suite, or its file.
    targets : sequence of str
        Names or files of the targets.
    path : Path
        Folder of the pack, or its file.
    options : BenchOptions
        Options of the command.
    as_json : bool
        True to print one JSON document.
    """
    from cpembed.driver.bench_pack import pack_items, write_pack

    for name, flag in on_command_line():
        if name not in _APPLIES:
            problem = f"{flag} does not change a pack, whose kernels run elsewhere: leave it out"
            raise click.UsageError(problem, click.get_current_context())
    items = pack_items(suite, targets, options)
    with Bar("packing", len(items)) as bar:

        def progress(name: str, steps: int) -> None:
            bar.show(name, advance=steps)

        result = write_pack(items, path, progress=progress)
    for name, reason in result.failed.items():
        message(f"{name}: {reason}")
    if as_json:
        print_json(result.to_json())
    else:
        layers = f"{len(result.slugs)} of {len(items)} layers, {result.bytes / 2**20:.1f} MiB"
        program = "run.py"
        if path.suffix == ".zip":
            program = f"python3 -m zipfile -e {path.name} {path.stem} && python3 {path.stem}/run.py"
        else:
            program = f"python3 {path.name}/run.py"
        print_text(
            f"{path}: {layers}",
            f"on a machine with a GPU: {program}",
            f"then here: cpembed bench {path.stem}/results/results.json",
        )
    return 0 if result.slugs else 1


def _show_results(path: Path, *, as_json: bool) -> int:
    """Print what a pack's programs measured; return the exit code.

    Parameters
    ----------
    path : Path
        File that they wrote.
    as_json : bool
        True to print the document as it was checked.
    """
    from cpembed.driver.bench_pack import measured

    report, document = measured(path)
    if as_json:
        print_json(dict(document))
    else:
        print_text(report)
    return 0
