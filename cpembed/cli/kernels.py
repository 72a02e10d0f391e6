"""``cpembed run``, ``build`` and ``layouts``: a verified kernel, a library, the fastest layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cpembed.cli import options, output
from cpembed.driver.options import BuildOptions, RunOptions


@click.command("run", cls=options.Subcommand)
@options.workload_argument()
@options.target_option()
@options.library_options(
    RunOptions,
    leave_out=["search"],
    defaults={"seed": None},
    texts={"seed": "Seed of the data and of the search.  [default: fresh data]"},
)
@options.threads_option()
@options.verbose_option
@options.json_option
def run_command(
    *,
    words: tuple[str, ...],
    target: str,
    threads: int | None,
    verbose: bool,
    as_json: bool,
    **values: Any,
) -> int:
    """Generate the kernel of a candidate, verify its numbers against a reference, and time it.

    On a simulated target cycles are counted, and packing is measured on this machine. The result of
    `cpembed tune` for the workload is used unless --untuned is given.

    cpembed run deepbench:11 --target avx512_vnni
    cpembed run deepbench:11 --target vta_1x16x16 --trace timeline.json
    cpembed run gemm m=64 n=64 k=64 --target gemm_16x16x16 --backend generic
    """
    options.use_threads(threads)
    from cpembed.driver.result import SolveResult
    from cpembed.driver.run import run

    settings = options.options_from(RunOptions, values)
    options.require_one(rank=settings.rank is not None, id=settings.identifier is not None)
    resolved = options.subject(words, target, settings)
    with output.ProgressLine() as progress:
        result = run(resolved.workload, resolved.target, resolved.options, progress=progress)
    if isinstance(result, SolveResult):
        return output.print_solved(result, as_json=as_json, verbose=verbose)
    # Messages come first: a reader of stdout may leave while the result is printed.
    output.print_notes(result.solved)
    consequence = "portable code verified the program, and no time of the instruction was measured"
    code = output.print_missing(result.missing, settings.backend, consequence)
    from cpembed.report.run import report

    output.print_report(result, lambda: report(result, verbose=verbose), as_json=as_json)
    return code


_MODEL_PARAMETERS = frozenset(
    ("words", "target", "timeout", "folder", "name", "shapes", "threads", "torch", "as_json")
)
"""Parameters of ``cpembed build`` that apply to models too."""

_MODEL_SUFFIXES = (".onnx", ".pt2")


@dataclass(frozen=True, kw_only=True)
class BuildArguments:
    """Command line of ``cpembed build``, without the options of the library."""

    words: tuple[str, ...]
    target: str
    folder: Path
    shapes: dict[str, tuple[int, ...]]
    threads: int | None
    verbose: bool
    as_json: bool


@click.command("build", cls=options.Subcommand)
@options.workload_argument()
@options.target_option()
@click.option(
    "-o",
    "--directory",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder of the library; files of the same names are replaced.",
)
@options.library_options(
    BuildOptions,
    leave_out=["search", "seed", "threads"],
    defaults={"name": None},
    texts={
        "name": "Name of the library, with which its functions begin.  [default: kernel, or the "
        "model's]"
    },
)
@options.shapes_option
@options.threads_option("the library, unless its caller says otherwise")
@options.verbose_option
@options.json_option
@options.pass_as(BuildArguments)
def build_command(arguments: BuildArguments, **values: Any) -> int:
    """Build a library of a workload's kernel, or of a whole model (.onnx, .pt2).

    It is called from plain C, Python with numpy, or PyTorch, and does not need cpembed. The
    candidate is chosen as `cpembed run` chooses it. For a target that is emulated here, the sources
    are written, to be built on such a machine; for a simulated one, its program
    (docs/libraries.md).

    cpembed build deepbench:11 --target avx512_vnni -o layer --name layer
    cpembed build resnet18.onnx --target avx512_vnni -o resnet18
    cpembed build gemm m=64 n=64 k=64 --target avx2_int8 -o product --relu --output uint8 --scale
    """
    words, threads = arguments.words, arguments.threads
    options.use_threads(threads)
    if len(words) == 1 and Path(words[0]).suffix.lower() in _MODEL_SUFFIXES:
        from cpembed.cli.models import ModelLibrary, build_model

        _require_model_options(click.get_current_context())
        request = ModelLibrary(
            model=Path(words[0]),
            target=arguments.target,
            folder=arguments.folder,
            shapes=arguments.shapes,
            **{name: values[name] for name in ("name", "torch", "timeout")},
        )
        return build_model(request, as_json=arguments.as_json)
    if arguments.shapes:
        raise click.UsageError("--shape applies to a model, not to a workload: leave it out")
    from cpembed.driver.build import build as build_library
    from cpembed.driver.result import SolveResult

    # The default differs for models, so it is not in the options.
    name = values["name"] or "kernel"
    # 0 threads: those of the machine that calls the library.
    settings = options.options_from(BuildOptions, {**values, "name": name, "threads": threads or 0})
    options.require_one(rank=settings.rank is not None, id=settings.identifier is not None)
    resolved = options.subject(words, arguments.target, settings)
    with output.ProgressLine() as progress:
        result = build_library(
            resolved.workload,
            resolved.target,
            arguments.folder,
            resolved.options,
            progress=progress,
        )
    if isinstance(result, SolveResult):
        return output.print_solved(result, as_json=arguments.as_json, verbose=arguments.verbose)
    # Messages come first, as in `run`.
    output.print_notes(result.selection.solved)
    consequence = "the library is portable code, and slow"
    code = output.print_missing(result.missing, settings.backend, consequence)
    from cpembed.report.run import build_report

    output.print_report(result, lambda: build_report(result), as_json=arguments.as_json)
    return code


def _require_model_options(context: click.Context) -> None:
    """Raise a usage error for an option that applies to a single kernel only."""
    for option in context.command.params:
        name = option.name or ""
        # Defaults of such options say nothing: only those that were written are wrong.
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and name not in _MODEL_PARAMETERS:
            problem = f"{option.opts[0]} applies to a workload, not to a model: leave it out"
            raise click.UsageError(problem)


@click.command("layouts", cls=options.Subcommand)
@options.workload_argument()
@options.target_option()
@click.option(
    "--measure",
    is_flag=True,
    help="Build, verify and time a kernel for each layout, or simulate it; otherwise times are "
    "estimates.",
)
@options.timeout_option("Stop each search after S seconds.")
@options.threads_option("the kernels")
@options.json_option
def layouts_command(
    *,
    words: tuple[str, ...],
    target: str,
    measure: bool,
    timeout: float | None,
    threads: int | None,
    as_json: bool,
) -> int:
    """Compare the layouts of WORKLOAD's tensors.

    Images have channels first, last or in blocks; matrices are as they are or transposed. Packing
    and unpacking count, except for weights.

    cpembed layouts conv2d n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1 --target avx512_vnni
    cpembed layouts gemm m=64 n=64 k=256 --target avx512_vnni --measure
    """
    options.use_threads(threads)
    from cpembed.driver.layouts import compare_layouts

    with output.Bar() as bar:
        result = compare_layouts(words, target, measures=measure, timeout=timeout, progress=bar)
    from cpembed.report.run import layouts_report

    output.print_report(result, lambda: layouts_report(result), as_json=as_json)
    # One layout that fits is a result: others may be impossible for the instruction.
    return 0 if any(row.embedding is not None for row in result.rows) else output.INFEASIBLE
