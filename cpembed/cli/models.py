"""``cpembed match`` and ``network`` of whole models, and ``build`` of these or of one kernel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from cpembed.cli import model_options, options, output
from cpembed.driver.options import METHODS, BuildOptions, MethodName
from cpembed.files import write_whole

if TYPE_CHECKING:
    from cpembed.graph.family import Family
    from cpembed.network.family import Ranges
    from cpembed.network.pair_executions import PairPolicy
    from cpembed.network.parts import PartsResult
    from cpembed.network.plan import Planning, Policy
    from cpembed.network.run import NetworkRun
    from cpembed.network.stepwise import StepwiseRun
    from cpembed.targets.units import FloatType, Units

# Equal to `cpembed.network.plan.SEARCH_LIMIT`, which would load the solver.
SECONDS = 20.0
"""Seconds of each search of ``match`` and ``network``."""

WRONG = 1
"""Exit code of wrong results, which are a bug of cpembed."""


@click.command("match", cls=options.Subcommand)
@model_options.model_argument
@model_options.network_targets_option
@model_options.processor_option
@model_options.float_option
@click.option(
    "--alternatives/--no-alternatives",
    default=True,
    show_default=True,
    help="Leave what a named target does not compute, or where it is mostly idle, to the "
    "alternatives that its file names and to other units of its processor.",
)
@model_options.pairs_option
@options.timeout_option("Stop each search after S seconds.", SECONDS)
@options.json_option
def match_command(
    *,
    model: Path,
    shapes: dict[str, tuple[int, ...]],
    outputs: tuple[str, ...],
    constants: dict[str, Any],
    targets: tuple[str, ...],
    processor: str | None,
    float_type: FloatType | None,
    alternatives: bool,
    pairs: PairPolicy,
    timeout: float,
    as_json: bool,
) -> int:
    """Show which instruction computes each operator of MODEL, as `cpembed network` would.

    MODEL is a file (.onnx, .pt2). The table shows which operators are embedded, on which unit, how
    well the instruction is used, and why others are not embedded. Nothing is compiled.

    cpembed match resnet18.onnx
    cpembed match resnet18.onnx --target avx512_vnni
    cpembed match bert.onnx --target amx_int8 --target vta_1x16x16 --shape ids=1,128
    cpembed match resnet18.onnx --cpu sapphirerapids
    """
    from cpembed.frontends import load_model
    from cpembed.network.match import match
    from cpembed.targets.processors import built_for_name

    with built_for_name(processor), output.Bar() as bar:
        # Before the model is read, which may take seconds.
        names = options.distinct(targets, as_units=True)
        graph = load_model(model, shapes or None, outputs, constants=constants)
        result = match(
            graph,
            names,
            alternatives=alternatives,
            pairs=pairs,
            timeout=timeout,
            float_type=float_type,
            progress=bar,
        )
    from cpembed.report.network import match_report

    output.print_report(result, lambda: match_report(result), as_json=as_json)
    return 0


@dataclass(frozen=True, kw_only=True)
class NetworkArguments:
    """Command line of ``cpembed network``."""

    model: Path
    shapes: model_options.Sizes
    outputs: tuple[str, ...]
    constants: dict[str, Any]
    loss: float | None
    instances: int | None
    target: str
    processor: str | None
    float_type: FloatType | None
    threads: int | None
    fallback: str | None
    input_file: Path | None
    output: Path | None
    save: Path | None
    policy: Policy
    measures: bool
    method: MethodName
    pairs: PairPolicy
    timeout: float
    layout_time: float
    seed: int
    no_verify: bool
    plan_only: bool
    report: Path | None
    trace: Path | None
    as_json: bool


@click.command("network", cls=options.Subcommand)
@model_options.open_model_argument
@model_options.units_option
@model_options.processor_option
@model_options.float_option
@options.threads_option("the network")
@click.option(
    "--fallback",
    type=click.Choice(["onnxruntime", "torch"]),
    help="Run operators that no kernel computes there, in this process; the operators around them "
    "are libraries of their own.  [default: refuse such a model]",
)
@click.option(
    "--input",
    "input_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Inputs: .npz by their names, or .npy of the only one.  [default: random]",
)
@options.folder_option("--output", "Write each output of the network here, as NAME.npy.")
@options.folder_option("--save", "Keep the library here (see `cpembed build`).")
@click.option(
    "--layouts",
    "policy",
    type=click.Choice(["assigned", "channels_last", "alone"]),
    default="assigned",
    show_default=True,
    help="How layouts are chosen: over the whole network, all channels last, or the fastest of "
    "each operator by itself.",
)
@click.option(
    "--measure",
    "measures",
    is_flag=True,
    help="Measure the kernels among which layouts are chosen, once, instead of estimating them.",
)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="auto",
    show_default=True,
    help="How convolutions of floats are computed: the fastest, each by its own sums (implicit), "
    "or by one method where it is possible (docs/methods.md).",
)
@model_options.pairs_option
@options.timeout_option("Stop each search for embeddings after S seconds.", SECONDS)
@click.option(
    "--layout-time",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="S",
    help="Stop the search for layouts after S seconds.",
)
@options.seed_option("Seed of random inputs.")
@click.option("--no-verify", is_flag=True, help="Do not compare each operator with its definition.")
@click.option("--plan-only", is_flag=True, help="Print the plan and its costs; compile nothing.")
@options.file_option("--report", "Write the network as an HTML page.")
@options.file_option("--trace", "Write the operators' timeline for chrome://tracing or Perfetto.")
@options.json_option
@options.pass_as(NetworkArguments)
def network_command(arguments: NetworkArguments) -> int:
    """Compile MODEL, run it, verify every operator, and time it layer by layer.

    MODEL is a file (.onnx, .pt2). Its products run on all units of this processor, or on a target.
    Every operator's result is compared with its definition. Embeddings, kernels and objects are
    kept, so that a second call is fast.

    cpembed network resnet18.onnx
    cpembed network resnet18.onnx --target avx512_vnni --report resnet18.html
    cpembed network bert.onnx --target amx_int8 --threads 2 --input tokens.npz --output results
    cpembed network resnet18.onnx --cpu sapphirerapids --plan-only
    """
    options.use_threads(arguments.threads)
    _check_plan_only(arguments)
    from cpembed.targets.processors import built_for_name

    executes = arguments.measures or not arguments.plan_only
    with built_for_name(arguments.processor, executes=executes):
        return _network(arguments)


def _network(arguments: NetworkArguments) -> int:
    """Plan or run a network for the processor that kernels are built for; return the exit code."""
    from cpembed.driver.matching import network_units
    from cpembed.frontends import load_network
    from cpembed.graph.family import Family
    from cpembed.network.inputs import random_inputs, read_inputs, write_outputs

    # Before the model is read, which may take seconds.
    units = network_units(arguments.target, arguments.float_type)
    graph = load_network(
        arguments.model,
        arguments.shapes or None,
        arguments.outputs,
        arguments.fallback,
        arguments.constants,
    )
    if isinstance(graph, Family):
        return _network_family(graph, units, arguments)
    _require_ranges(arguments.loss, arguments.instances)
    file = arguments.input_file
    inputs = random_inputs(graph, arguments.seed) if file is None else read_inputs(graph, file)
    with output.Bar() as bar:
        from cpembed.network.build import has_foreign
        from cpembed.network.parts import run_parts
        from cpembed.network.service import NetworkRequest, network, network_plan

        planning = _planning(arguments)
        run: NetworkRun | StepwiseRun | PartsResult | None = None
        if has_foreign(graph):
            _check_parts(arguments)
            request = NetworkRequest(units, planning=planning, verifies=not arguments.no_verify)
            run = run_parts(graph, request, inputs, bar)
            document = run.document
        elif arguments.plan_only:
            document = network_plan(graph, units, planning, bar)
        else:
            request = NetworkRequest(units, arguments.save, planning, not arguments.no_verify)
            result = network(graph, request, inputs, bar)
            document, run = result.document, result.run
    if arguments.output is not None and run is not None:
        write_outputs(arguments.output, run.outputs)
    if arguments.report is not None:
        from cpembed.report.network_page import write_page

        write_page(document, arguments.report)
    if arguments.trace is not None:
        from cpembed.report.network_trace import chrome_trace

        write_whole(arguments.trace, json.dumps(chrome_trace(document)) + "\n")
    note: list[str] = []
    if arguments.processor is not None:
        from cpembed.targets.processors import described, processor

        cpu = described(processor(arguments.processor))
        document = {**document, "cpu": cpu}
        figures = cpu["figures"] or "another processor"
        note = ["", f"planned for {cpu['name']}, by published figures of {figures}"]
    if arguments.as_json:
        output.print_json(document)
    else:
        from cpembed.report.network import parts_report, report

        output.print_text(*(parts_report if "parts" in document else report)(document), *note)
    if run is None or not run.failed:
        return 0
    # The report comes first: a wrong result is looked for in it.
    names = ", ".join(operator.operator for operator in run.failed[:3])
    output.message(
        f"{len(run.failed)} operators differ from their definition ({names}): please report this "
        "command line"
    )
    return WRONG


def _planning(arguments: NetworkArguments) -> Planning:
    from cpembed.network.plan import Planning

    return Planning(
        timeout=arguments.timeout,
        time_limit=arguments.layout_time,
        policy=arguments.policy,
        measures=arguments.measures,
        method=arguments.method,
        pairs=arguments.pairs,
    )


def _check_plan_only(arguments: NetworkArguments) -> None:
    """Raise a usage error for an option of runs beside ``--plan-only``."""
    for name, value in (
        ("--input", arguments.input_file),
        ("--output", arguments.output),
        ("--save", arguments.save),
    ):
        if arguments.plan_only and value is not None:
            raise click.UsageError(f"--plan-only runs nothing: leave {name} out")


def _check_parts(arguments: NetworkArguments) -> None:
    """Raise a usage error for an option that a network of several libraries does not have."""
    for name, is_given in (
        ("--save", arguments.save is not None),
        ("--plan-only", arguments.plan_only),
        ("--report", arguments.report is not None),
    ):
        if is_given:
            raise click.UsageError(
                f"{name} does not apply to a network with operators that run elsewhere: cut it "
                "before them with --outputs"
            )


def _require_ranges(loss: float | None, instances: int | None) -> None:
    """Raise a usage error for an option of ranges where no size is one."""
    for name, value in (("--loss", loss), ("--instances", instances)):
        if value is not None:
            raise click.UsageError(f"{name} applies to ranges of sizes: give one with --shape")


def _ranges(loss: float | None, instances: int | None) -> Ranges:
    from cpembed.network.family import Ranges

    default = Ranges()
    return Ranges(loss or default.loss, instances or default.instances)


def _network_family(family: Family, units: Units, arguments: NetworkArguments) -> int:
    """Compile, verify and time a network whose sizes are ranges; return the exit code."""
    from cpembed.network.family_service import family_plan, network_family
    from cpembed.network.service import NetworkRequest

    for name, value in (
        ("--input", arguments.input_file),
        ("--output", arguments.output),
        ("--report", arguments.report),
        ("--trace", arguments.trace),
        ("--fallback", arguments.fallback),
    ):
        if value is not None:
            raise click.UsageError(f"{name} applies to fixed sizes: give one size instead of "
                                   f"{family.ranges_text}")  # fmt: skip
    planning = _planning(arguments)
    ranges = _ranges(arguments.loss, arguments.instances)
    wrong: tuple[str, ...] = ()
    with output.Bar() as bar:
        if arguments.plan_only:
            document = family_plan(family, units, planning, ranges, bar)
        else:
            request = NetworkRequest(units, arguments.save, planning, not arguments.no_verify)
            result = network_family(family, request, ranges, seed=arguments.seed, progress=bar)
            document, wrong = result.document, result.wrong
    if arguments.as_json:
        output.print_json(document)
    else:
        from cpembed.report.family import report

        output.print_text(*report(document))
    if not wrong:
        return 0
    output.message(
        f"{len(wrong)} results differ from the model's ({', '.join(wrong[:3])}): please report "
        "this command line"
    )
    return WRONG


# -- libraries ------------------------------------------------------------------------------------

_MODEL_PARAMETERS = frozenset(
    ("words", "target", "processors", "float_type", "timeout", "folder", "name", "shapes",
     "outputs", "threads", "torch", "method", "pairs", "as_json", "constants", "loss", "instances")
)  # fmt: skip
"""Parameters of ``cpembed build`` that apply to models too."""

_MODEL_SUFFIXES = (".onnx", ".pt2")


@dataclass(frozen=True, kw_only=True)
class BuildArguments:
    """Command line of ``cpembed build``, without the options of the library."""

    words: tuple[str, ...]
    target: str | None
    processors: tuple[str, ...]
    float_type: FloatType | None
    folder: Path
    shapes: model_options.Sizes
    outputs: tuple[str, ...]
    constants: dict[str, Any]
    loss: float | None
    instances: int | None
    pairs: PairPolicy
    threads: int | None
    verbose: bool
    as_json: bool


@click.command("build", cls=options.Subcommand)
@options.workload_argument()
@options.target_option(required=False)
@model_options.processors_option
@model_options.float_option
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
@model_options.ranges_options
@model_options.pairs_option
@options.threads_option("the library, unless its caller says otherwise")
@options.verbose_option
@options.json_option
@options.pass_as(BuildArguments)
def build_command(arguments: BuildArguments, **values: Any) -> int:
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
    words, threads = arguments.words, arguments.threads
    options.use_threads(threads)
    if len(words) == 1 and Path(words[0]).suffix.lower() in _MODEL_SUFFIXES:
        _require_model_options(click.get_current_context())
        return _build_model(arguments, values)
    for option, value in (
        ("--shape", arguments.shapes),
        ("--set", arguments.constants),
        ("--float", arguments.float_type),
    ):
        if value:
            raise click.UsageError(f"{option} applies to a model, not to a workload: leave it out")
    _require_ranges(arguments.loss, arguments.instances)
    if arguments.target is None:
        raise click.UsageError("a workload needs --target: name one, or native")
    if arguments.outputs:
        raise click.UsageError("--outputs applies to a model, not to a workload: leave it out")
    if len(arguments.processors) > 1:
        raise click.UsageError("a workload is built for one processor: give --cpu one name")
    from cpembed.targets.processors import built_for_name

    with built_for_name(arguments.processors[0] if arguments.processors else None):
        return _build_workload(arguments, values)


def _build_workload(arguments: BuildArguments, values: Mapping[str, Any]) -> int:
    """Build and verify the library of a kernel; return the exit code."""
    words, threads = arguments.words, arguments.threads
    from cpembed.driver.build import build as build_library
    from cpembed.driver.result import SolveResult

    # The default differs for models, so it is not in the options.
    name = values["name"] or "kernel"
    # 0 threads: those of the machine that calls the library.
    settings = options.options_from(BuildOptions, {**values, "name": name, "threads": threads or 0})
    options.require_one(rank=settings.rank is not None, id=settings.identifier is not None)
    assert arguments.target is not None
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


def _build_model(arguments: BuildArguments, values: Mapping[str, Any]) -> int:
    """Build and verify the library of a network; return the exit code."""
    from cpembed.driver.matching import network_units
    from cpembed.export.library import Contents
    from cpembed.frontends import load_network
    from cpembed.graph.family import Family
    from cpembed.network.family_service import network_family
    from cpembed.network.inputs import random_inputs
    from cpembed.network.plan import SEARCH_LIMIT, Planning
    from cpembed.network.processors import build_for_processors, processors_named
    from cpembed.network.service import NetworkRequest, network

    target = arguments.target or "native"
    # Before the model is read, which may take seconds.
    if arguments.processors:
        processors_named(arguments.processors)
    units = target if arguments.processors else network_units(target, arguments.float_type)
    path, shapes = Path(arguments.words[0]), arguments.shapes or None
    graph = load_network(path, shapes, arguments.outputs, constants=arguments.constants)
    if isinstance(graph, Family) and arguments.processors:
        raise click.UsageError(
            f"--cpu applies to fixed sizes: give one size instead of {graph.ranges_text}"
        )
    folder = arguments.folder
    # The default of a workload is not that of a model.
    source = click.get_current_context().get_parameter_source("method")
    method: MethodName = values["method"] if source is ParameterSource.COMMANDLINE else "auto"
    request = NetworkRequest(
        units,
        folder,
        Planning(timeout=values["timeout"] or SEARCH_LIMIT, method=method, pairs=arguments.pairs),
        times=False,
        name=values["name"],
        contents=Contents(torch=values["torch"]),
        reuses=True,
    )
    if not isinstance(graph, Family):
        _require_ranges(arguments.loss, arguments.instances)
    with output.Bar() as bar:
        # Verification needs some data; which one is of no interest.
        if isinstance(graph, Family):
            ranges = _ranges(arguments.loss, arguments.instances)
            result = network_family(graph, request, ranges, progress=bar)
        elif arguments.processors:
            result = build_for_processors(
                graph,
                arguments.processors,
                request,
                random_inputs(graph, 0),
                float_type=arguments.float_type,
                progress=bar,
            )
        else:
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
    if "ranges" in document:
        from cpembed.report.family import library_lines

        lines = library_lines(document, path)
    elif "variants" in document:
        lines = [f"{path}: variants, of which the first that the processor supports runs"]
        for variant in document["variants"]:
            first, *rest = _variant_lines(variant, variant["cpu"]["name"])
            lines += [first, *(f"  {line}" for line in rest)]
    else:
        lines = _variant_lines(document, str(path))
    return [*lines, f"files: {', '.join(files)}"]


def _variant_lines(document: Mapping[str, Any], title: str) -> list[str]:
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
