"""``cpembed run``, ``layouts`` and ``tune``: kernels of a workload, verified and measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cpembed.cli import options, output
from cpembed.cli.interrupt import INTERRUPTED, Stop
from cpembed.cli.parameters import options_of, subcommand
from cpembed.cli.worker_options import WorkerOptions
from cpembed.driver.options import RunOptions, TuneOptions, option

if TYPE_CHECKING:
    from cpembed.driver.tune import OpenTuning
    from cpembed.runtime.cluster import Workers


@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """Command line of ``cpembed run``."""

    words: tuple[str, ...] = options.workload_words()
    target: str = options.target_option()
    settings: RunOptions = options_of(
        RunOptions,
        leave_out=["search"],
        changes={
            "seed": {
                "default": None,
                "help": "Seed of the data and of the search.  [default: fresh data]",
            }
        },
    )
    fusion: options.FusionOptions = options_of(options.FusionOptions)
    threads: int | None = options.threads_option()
    verbose: bool = options.verbose_option()
    as_json: bool = options.json_option()


@subcommand("run", RunArguments)
def run_command(arguments: RunArguments) -> int:
    """Generate the kernel of a candidate, verify its numbers against a reference, and time it.

    On a simulated target cycles are counted, and packing is measured on this machine. The result of
    `cpembed tune` for the workload is used unless --untuned is given.

    cpembed run deepbench:11 --target avx512_vnni
    cpembed run deepbench:11 --target vta_1x16x16 --trace timeline.json
    cpembed run gemm m=64 n=64 k=64 --target gemm_16x16x16 --backend generic
    cpembed run conv2d n=1 c=64 h=14 w=14 k=64 r=3 s=3 layout=NHWC --target gemmini
    cpembed run attention b=1 h=8 kv=2 q=128 k=128 d=64 causal=1 --target mma_f16
    """
    from cpembed.hw.isa_reader import names_instruction_set

    words, target, settings = arguments.words, arguments.target, arguments.settings
    if names_instruction_set(target):
        from cpembed.cli.accelerator_models import run_on_accelerator

        return run_on_accelerator(words, target, settings.seed or 0, as_json=arguments.as_json)
    from cpembed.workloads.chain_families import names_chain

    if names_chain(words):
        from cpembed.cli.chains import run_chain_command

        return run_chain_command(arguments)
    arguments.fusion.require_none()
    options.use_threads(arguments.threads)
    from cpembed.driver.gradients import names_gradient

    if names_gradient(words):
        from cpembed.cli.gradients import run_gradient_command

        return run_gradient_command(arguments)
    from cpembed.driver.result import SolveResult
    from cpembed.driver.run import run

    options.require_one(rank=settings.rank is not None, id=settings.identifier is not None)
    resolved = options.subject(words, target, settings)
    options.require_threads_apply(arguments.threads, resolved.target, settings.backend)
    with output.ProgressLine() as progress:
        result = run(resolved.workload, resolved.target, resolved.options, progress=progress)
    if isinstance(result, SolveResult):
        return output.print_solved(result, as_json=arguments.as_json, verbose=arguments.verbose)
    # Messages come first: a reader of stdout may leave while the result is printed.
    output.print_notes(result.solved)
    # Portable code leaves the unit idle altogether.
    if not result.missing and settings.backend != "generic":
        output.print_waste(result.solved, result.candidate, result.choice.model)
    consequence = "portable code verified the program, and no time of the instruction was measured"
    code = output.print_missing(result.missing, settings.backend, consequence)
    from cpembed.report.run import report

    output.print_report(
        result, lambda: report(result, verbose=arguments.verbose), as_json=arguments.as_json
    )
    return code


@dataclass(frozen=True, kw_only=True)
class LayoutsArguments:
    """Command line of ``cpembed layouts``."""

    words: tuple[str, ...] = options.workload_words()
    target: str = options.target_option()
    measure: bool = option(
        False,
        "Build, verify and time a kernel for each layout, or simulate it; otherwise times are "
        "estimates.",
    )
    timeout: float | None = options.timeout_option("Stop each search after S seconds.")
    threads: int | None = options.threads_option("the kernels")
    as_json: bool = options.json_option()


@subcommand("layouts", LayoutsArguments)
def layouts_command(arguments: LayoutsArguments) -> int:
    """Compare the layouts of WORKLOAD's tensors.

    Images have channels first, last or in blocks; matrices are as they are or transposed. Packing
    and unpacking count, except for weights.

    cpembed layouts conv2d n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1 --target avx512_vnni
    cpembed layouts gemm m=64 n=64 k=256 --target avx512_vnni --measure
    """
    options.use_threads(arguments.threads)
    from cpembed.driver.layouts import compare_layouts

    with output.Bar() as bar:
        result = compare_layouts(
            arguments.words,
            arguments.target,
            measures=arguments.measure,
            timeout=arguments.timeout,
            progress=bar,
        )
    from cpembed.report.run import layouts_report

    output.print_report(result, lambda: layouts_report(result), as_json=arguments.as_json)
    # One layout that fits is a result: others may be impossible for the instruction.
    return 0 if any(row.embedding is not None for row in result.rows) else output.INFEASIBLE


# -- tuning ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TuneArguments:
    """Command line of ``cpembed tune``."""

    words: tuple[str, ...] = options.workload_words(required=False)
    target: str | None = options.target_option(required=False)
    settings: TuneOptions = options_of(
        TuneOptions,
        leave_out=["weights", "search"],
        changes={"seed": {"help": "Seed of the search."}},
    )
    threads: int | None = options.threads_option()
    processes: WorkerOptions = options_of(WorkerOptions)
    show: bool = option(False, "Tune nothing: list the results of WORKLOAD, or all.")
    results: Path | None = option(
        None,
        "Tune nothing: take the times in results.json, which the programs of `bench --pack` wrote "
        "on a machine with a GPU.",
        metavar="FILE",
        type=click.Path(path_type=Path),
    )
    as_json: bool = options.json_option()


@subcommand("tune", TuneArguments)
def tune_command(arguments: TuneArguments) -> int:
    """Find the fastest embedding and schedule of a workload, and keep them.

    They are compared by simulated cycles, or by times measured here. `run` and `bench` use the
    stored result for the same workload and machine, of any constraint set unless --constraints
    names one. Ctrl-C keeps the measured trials; the same command resumes.

    cpembed tune deepbench:0 --target vta_1x16x16 --trials 200
    cpembed tune resnet50:3 --target amx_int8
    cpembed tune --show
    cpembed tune --results layers/results/results.json
    """
    options.use_threads(arguments.threads)
    words, target, settings = arguments.words, arguments.target, arguments.settings
    if arguments.results is not None:
        if words or target is not None or arguments.show:
            problem = "--results takes the layers of the file: no WORKLOAD, --target or --show"
            raise click.UsageError(problem, click.get_current_context())
        return _import_results(arguments.results, settings.database, as_json=arguments.as_json)
    if arguments.show:
        return _show_records(words, target, settings.database, as_json=arguments.as_json)
    if not words or target is None:
        missing = "'WORKLOAD...'" if not words else "'--target'"
        raise click.UsageError(
            f"Missing {missing}: only --show goes without", click.get_current_context()
        )
    from cpembed.driver.tune import require_tunable
    from cpembed.runtime.tuning.records import WIDEST

    # Without --constraints the widest set decides the element types, but all presets are tuned.
    resolved = options.subject(
        words, target, replace(settings, constraints=settings.constraints or WIDEST)
    )
    # Before workers start and embeddings are searched.
    require_tunable(resolved.target)
    if settings.constraints is None:
        resolved = replace(resolved, options=settings)
    with arguments.processes.open() as executing:
        return _tune(resolved, executing, as_json=arguments.as_json)


def _tune(resolved: options.Subject, workers: Workers, *, as_json: bool) -> int:
    from cpembed.driver.result import SolveResult
    from cpembed.driver.tune import open_tuning

    with output.ProgressLine() as progress:
        opened = open_tuning(
            resolved.workload, resolved.target, resolved.options, workers=workers, progress=progress
        )
    if isinstance(opened, SolveResult):
        return output.print_solved(opened, as_json=as_json)
    tuning = opened.tuning

    def interrupted() -> str:
        number = f"{len(tuning.done)} of {tuning.task.trials}"
        location = f"{number} trials are kept in {tuning.store.path}"
        return f"interrupted: {location}; the same command resumes"

    with Stop("trial", interrupted) as stop:
        _measure(opened, stop)
    if stop.requested:
        output.message(interrupted())
        # Not even one trial: there is no result to print.
        if not tuning.done:
            return INTERRUPTED
    result = opened.result()
    from cpembed.report.tune import report

    output.print_report(result, lambda: report(result), as_json=as_json)
    return INTERRUPTED if stop.requested else 0


def _import_results(path: Path, database: Path | None, *, as_json: bool) -> int:
    """Store what a pack's programs measured; return the exit code."""
    from cpembed.driver.tune_results import import_results
    from cpembed.report.tune import results_report

    imported = import_results(path, database)
    output.print_report(imported, lambda: results_report(imported), as_json=as_json)
    return 1 if imported.refused else 0


def _show_records(
    words: tuple[str, ...], target: str | None, database: Path | None, *, as_json: bool
) -> int:
    """Print the tuning records of a workload, or all; return the exit code."""
    from cpembed.driver.named import hardware_spec
    from cpembed.report import tune as report
    from cpembed.runtime.tuning.database import tuning_folder, workload_key
    from cpembed.runtime.tuning.records import WIDEST
    from cpembed.targets.registry import stored_tunings

    files = stored_tunings(database)
    if target is not None:
        spec = hardware_spec(target)
        # Results of an alternative that runs instead are stored under its own name.
        names = (spec.name, *spec.alternatives)
        files = [file for file in files if file.key["target"] in names]
    if words:
        if target is None:
            context = click.get_current_context()
            raise click.UsageError("Missing '--target': it types the WORKLOAD", context)
        # A tuned workload has the element types of the widest set, as above.
        key = workload_key(options.subject(words, target, TuneOptions(constraints=WIDEST)).workload)
        files = [file for file in files if file.key["workload"] == key]
    if as_json:
        output.print_json(report.records_json(files))
    elif files:
        output.print_text(*report.records_report(files))
    else:
        output.message(f"no results in {database or tuning_folder()}")
    return 0


def _measure(opened: OpenTuning, stop: Stop) -> None:
    """Measure until a stop is requested; a bar on the terminal shows the best result so far."""
    from cpembed.report.tune import progress_text

    tuning = opened.tuning
    with output.Bar("tuning", tuning.task.trials) as bar:
        for _ in opened.run(lambda: stop.requested):
            bar.show(progress_text(tuning.best), advance=1)
