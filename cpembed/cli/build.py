"""``cpembed build``: libraries of whole models, or of one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cpembed.cli import model_options, options, output
from cpembed.cli.parameters import on_command_line, options_of, subcommand
from cpembed.driver.options import REQUIRED, BuildOptions, option

if TYPE_CHECKING:
    from cpembed.network.pair_executions import PairPolicy
    from cpembed.targets.units import FloatType

_MODEL_PARAMETERS = frozenset(
    ("target", "processors", "float_type", "timeout", "folder", "name", "shapes", "outputs",
     "threads", "torch", "method", "pairs", "as_json", "constants", "loss", "instances")
)  # fmt: skip
"""Options of ``cpembed build`` that apply to models too."""

_MODEL_SUFFIXES = (".onnx", ".pt2")


@dataclass(frozen=True, kw_only=True)
class BuildArguments:
    """Command line of ``cpembed build``."""

    words: tuple[str, ...] = options.workload_words()
    target: str | None = options.target_option(required=False)
    processors: tuple[str, ...] = model_options.processors_option()
    float_type: FloatType | None = model_options.float_option()
    folder: Path = option(
        REQUIRED,
        "Folder of the library; files of the same names are replaced.",
        flag="-o --directory",
        metavar="DIR",
    )
    settings: BuildOptions = options_of(
        BuildOptions,
        leave_out=["search", "seed", "threads"],
        changes={
            "name": {
                "help": "Name of the library, with which its functions begin.  [default: kernel, "
                "or the model's]"
            }
        },
    )
    model: model_options.OpenModelOptions = options_of(model_options.OpenModelOptions)
    pairs: PairPolicy = model_options.pairs_option()
    fusion: options.FusionOptions = options_of(options.FusionOptions)
    threads: int | None = options.threads_option("the library, unless its caller says otherwise")
    verbose: bool = options.verbose_option()
    as_json: bool = options.json_option()


@subcommand("build", BuildArguments)
def build_command(arguments: BuildArguments) -> int:
    """Build a library of a workload's kernel, or of a whole model (.onnx, .pt2).

    It is called from plain C, Python with numpy, or PyTorch, and does not need cpembed. The
    candidate is chosen as `cpembed run` chooses it. For a target that is emulated here, the sources
    are written, to be built on such a machine; for a simulated one, its program
    (docs/libraries.md). A model needs no --target: all units of this processor compute it.

    cpembed build resnet18.onnx -o resnet18
    cpembed build deepbench:11 --target avx512_vnni -o layer --name layer
    cpembed build resnet18.onnx --target avx512_vnni -o resnet18
    cpembed build gemm m=64 n=64 k=64 --target avx2_int8 -o product --relu --output uint8 --scale
    cpembed build resnet18.onnx --cpu sapphirerapids,znver4,x86-64-v3 -o resnet18
    """
    words, target, model = arguments.words, arguments.target, arguments.model
    options.use_threads(arguments.threads)
    if len(words) == 1 and Path(words[0]).suffix.lower() in _MODEL_SUFFIXES:
        return _build_model(arguments)
    for flag, value in (
        ("--shape", model.shapes),
        ("--set", model.constants),
        ("--float", arguments.float_type),
        ("--pairs", arguments.pairs != "auto"),
    ):
        if value:
            raise click.UsageError(f"{flag} applies to a model, not to a workload: leave it out")
    model.require_ranges()
    if target is None:
        raise click.UsageError("a workload needs --target: name one, or native")
    if model.outputs:
        raise click.UsageError("--outputs applies to a model, not to a workload: leave it out")
    if len(arguments.processors) > 1:
        raise click.UsageError("a workload is built for one processor: give --cpu one name")
    from cpembed.workloads.chain_families import names_chain

    if names_chain(words):
        from cpembed.cli.chains import build_chain_command

        return build_chain_command(arguments, target)
    arguments.fusion.require_none()
    from cpembed.driver.gradients import names_gradient

    if names_gradient(words):
        from cpembed.cli.gradients import build_gradient_command

        return build_gradient_command(arguments, target)
    from cpembed.targets.processors import built_for_name

    with built_for_name(arguments.processors[0] if arguments.processors else None):
        return _build_workload(arguments, target)


def _build_workload(arguments: BuildArguments, target: str) -> int:
    """Build and verify the library of a kernel; return the exit code."""
    from cpembed.driver.build import build as build_library
    from cpembed.driver.result import SolveResult

    # 0 threads: those of the machine that calls the library.
    settings = replace(arguments.settings, threads=arguments.threads or 0)
    options.require_one(rank=settings.rank is not None, id=settings.identifier is not None)
    resolved = options.subject(arguments.words, target, settings)
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


def _build_model(arguments: BuildArguments) -> int:
    """Build and verify the library of a network; return the exit code."""
    written = dict(on_command_line())
    for name, flag in written.items():
        if name not in _MODEL_PARAMETERS:
            raise click.UsageError(f"{flag} applies to a workload, not to a model: leave it out")
    from cpembed.driver.matching import network_units
    from cpembed.export.library import Contents
    from cpembed.frontends import load_network
    from cpembed.graph.family import Family
    from cpembed.network.family_service import network_family
    from cpembed.network.inputs import random_inputs
    from cpembed.network.plan import SEARCH_LIMIT, Planning
    from cpembed.network.processors import build_for_processors, processors_named
    from cpembed.network.service import NetworkRequest, network

    target, settings, model = arguments.target or "native", arguments.settings, arguments.model
    # Before the model is read, which may take seconds.
    if arguments.processors:
        processors_named(arguments.processors)
    units = target if arguments.processors else network_units(target, arguments.float_type)
    path, shapes = Path(arguments.words[0]), model.shapes or None
    graph = load_network(path, shapes, model.outputs, constants=model.constants)
    folder = arguments.folder
    request = NetworkRequest(
        units,
        folder,
        Planning(
            timeout=settings.timeout or SEARCH_LIMIT,
            # The defaults of a workload are not those of a model.
            method=settings.method if "method" in written else "auto",
            pairs=arguments.pairs,
        ),
        times=False,
        name=settings.name if "name" in written else None,
        contents=Contents(torch=settings.torch),
        reuses=True,
    )
    if not isinstance(graph, Family):
        model.require_ranges()
    with output.Bar() as bar:
        ranges = model.ranges
        if arguments.processors:
            result = build_for_processors(
                graph,
                arguments.processors,
                request,
                ranges,
                float_type=arguments.float_type,
                progress=bar,
            )
        elif isinstance(graph, Family):
            result = network_family(graph, request, ranges, progress=bar)
        else:
            # Verification needs some data; which one is of no interest.
            result = network(graph, request, random_inputs(graph, 0), bar)
    # No library of wrong numbers is announced.
    result.require()
    # A target without libraries has a folder of programs instead.
    files, path = sorted(path.name for path in folder.iterdir()), folder
    if result.library is not None:
        files = list(result.library.files)
        path = result.library.path if result.library.path.name in files else folder
    if arguments.as_json:
        output.print_json({**result.document, "folder": str(folder), "files": files})
    else:
        output.print_text(*_library_lines(result.document, path, files))
    return 0


def _library_lines(document: Mapping[str, Any], path: Path, files: list[str]) -> list[str]:
    """Return the lines about a library, for each variant if it holds several."""
    if "variants" in document:
        lines = [f"{path}: variants, of which the first that the processor supports runs"]
        for variant in document["variants"]:
            first, *rest = _variant_lines(variant, variant["cpu"]["name"])
            lines += [first, *(f"  {line}" for line in rest)]
    else:
        lines = _variant_lines(document, str(path))
    return [*lines, f"files: {', '.join(files)}"]


def _variant_lines(document: Mapping[str, Any], title: str) -> list[str]:
    if "ranges" in document:
        from cpembed.report.family import library_lines

        return library_lines(document, title)
    from cpembed.report.network import execution_text, portable_lines
    from cpembed.report.network_page.document import read

    network = read(document)
    totals = document["totals"]
    sizes = ""
    # A target without libraries has no such sizes.
    if "bytes_weights" in totals:
        sizes = (
            f", {totals['bytes_weights'] / 1e6:.1f} MB of constants, "
            f"{totals['bytes_workspace'] / 1e6:.1f} MB of workspace"
        )
    verified_before = f" on {document['date']}, unchanged since" if document.get("reused") else ""
    return [
        f"{title}: {totals['embedded']} of {totals['products']} products embedded{sizes}",
        *portable_lines(network),
        f"verified{verified_before}: {execution_text(network, document.get('cpu'))}",
    ]
