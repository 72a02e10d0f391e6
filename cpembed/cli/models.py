"""``cpembed match`` and ``network`` of whole models."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cpembed.cli import model_options, options, output
from cpembed.cli.parameters import options_of, subcommand
from cpembed.driver.options import METHODS, MethodName, option
from cpembed.files import write_whole

if TYPE_CHECKING:
    from cpembed.graph.family import Family
    from cpembed.network.match import ImageLayout
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


@dataclass(frozen=True, kw_only=True)
class MatchArguments:
    """Command line of ``cpembed match``."""

    model: Path = model_options.model_argument()
    reading: model_options.ModelOptions = options_of(model_options.ModelOptions)
    targets: tuple[str, ...] = model_options.units_option(several=True)
    processor: str | None = model_options.processor_option()
    float_type: FloatType | None = model_options.float_option()
    alternatives: bool = option(
        True,
        "Leave what a named target does not compute, or where it is mostly idle, to the "
        "alternatives that its file names and to other units of its processor.",
        flag="--alternatives/--no-alternatives",
    )
    pairs: PairPolicy = model_options.pairs_option()
    layout: ImageLayout | None = option(
        None,
        "Layout of the images of convolutions in main memory, on targets that are searched "
        "product by product.  [default: that in which they run a network]",
        choices=("NCHW", "NHWC"),
    )
    timeout: float = options.timeout_option("Stop each search after S seconds.", SECONDS)
    as_json: bool = options.json_option()


@subcommand("match", MatchArguments)
def match_command(arguments: MatchArguments) -> int:
    """Show which instruction computes each operator of MODEL, as `cpembed network` would.

    MODEL is a file (.onnx, .pt2). The table shows which operators are embedded, on which unit, how
    well the instruction is used, and why others are not embedded. Nothing is compiled.

    cpembed match resnet18.onnx
    cpembed match resnet18.onnx --target avx512_vnni
    cpembed match bert.onnx --target amx_int8 --target vta_1x16x16 --shape ids=1,128
    cpembed match resnet18.onnx --cpu sapphirerapids
    cpembed match resnet18.onnx --target my_npu.toml --layout NHWC
    """
    from cpembed.hw.isa_reader import names_instruction_set

    accelerators = [target for target in arguments.targets if names_instruction_set(target)]
    if accelerators:
        if len(accelerators) < len(arguments.targets):
            raise click.UsageError(
                f"{accelerators[0]} is an accelerator of several instructions: match it in a "
                "command of its own"
            )
        from cpembed.cli.accelerator_models import match_on_accelerators

        return match_on_accelerators(arguments)
    from cpembed.frontends import load_model
    from cpembed.network.match import match
    from cpembed.targets.processors import built_for_name

    with built_for_name(arguments.processor), output.Bar() as bar:
        # Before the model is read, which may take seconds.
        names = options.distinct(arguments.targets, as_units=True)
        graph = load_model(
            arguments.model,
            arguments.reading.shapes or None,
            arguments.reading.outputs,
            constants=arguments.reading.constants,
        )
        result = match(
            graph,
            names,
            alternatives=arguments.alternatives,
            timeout=arguments.timeout,
            float_type=arguments.float_type,
            pairs=arguments.pairs,
            layout=arguments.layout,
            progress=bar,
        )
    from cpembed.report.network import match_report

    output.print_report(result, lambda: match_report(result), as_json=arguments.as_json)
    return 0


@dataclass(frozen=True, kw_only=True)
class NetworkArguments:
    """Command line of ``cpembed network``."""

    model: Path = model_options.model_argument()
    reading: model_options.OpenModelOptions = options_of(model_options.OpenModelOptions)
    target: str = model_options.units_option()
    processor: str | None = model_options.processor_option()
    float_type: FloatType | None = model_options.float_option()
    threads: int | None = options.threads_option("the network")
    fallback: str | None = option(
        None,
        "Run operators that no kernel computes there, in this process; the operators around them "
        "are libraries of their own.  [default: refuse such a model]",
        choices=("onnxruntime", "torch"),
    )
    input_file: Path | None = option(
        None,
        "Inputs: .npz by their names, or .npy of the only one.  [default: random]",
        flag="--input",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
    )
    output: Path | None = options.folder_option(
        "Write each output of the network here, as NAME.npy."
    )
    save: Path | None = options.folder_option("Keep the library here (see `cpembed build`).")
    policy: Policy = option(
        "assigned",
        "How layouts are chosen: over the whole network, all channels last, or the fastest of "
        "each operator by itself.",
        flag="--layouts",
        choices=("assigned", "channels_last", "alone"),
    )
    measures: bool = option(
        False,
        "Measure the kernels among which layouts are chosen, once, instead of estimating them.",
        flag="--measure",
    )
    method: MethodName = option(
        "auto",
        "How convolutions of floats are computed: the fastest, each by its own sums (implicit), "
        "or by one method where it is possible (docs/methods.md).",
        choices=METHODS,
    )
    pairs: PairPolicy = model_options.pairs_option()
    timeout: float = options.timeout_option(
        "Stop each search for embeddings after S seconds.", SECONDS
    )
    layout_time: float = option(
        10.0, "Stop the search for layouts after S seconds.", metavar="S", limits=(0, None)
    )
    seed: int = options.seed_option("Seed of random inputs.")
    no_verify: bool = option(False, "Do not compare each operator with its definition.")
    plan_only: bool = option(False, "Print the plan and its costs; compile nothing.")
    report: Path | None = options.file_option("Write the network as an HTML page.")
    trace: Path | None = options.file_option(
        "Write the operators' timeline for chrome://tracing or Perfetto."
    )
    as_json: bool = options.json_option()


@subcommand("network", NetworkArguments)
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
    from cpembed.hw.isa_reader import names_instruction_set

    if names_instruction_set(arguments.target):
        from cpembed.cli.accelerator_models import network_on_accelerator

        return network_on_accelerator(arguments)
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
        arguments.reading.shapes or None,
        arguments.reading.outputs,
        arguments.fallback,
        arguments.reading.constants,
    )
    if isinstance(graph, Family):
        return _network_family(graph, units, arguments)
    arguments.reading.require_ranges()
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
    _write(document, arguments)
    if run is None or not run.failed:
        return 0
    # The report comes first: a wrong result is looked for in it.
    names = ", ".join(operator.operator for operator in run.failed[:3])
    output.message(
        f"{len(run.failed)} operators differ from their definition ({names}): please report this "
        "command line"
    )
    return WRONG


def _write(document: dict[str, Any], arguments: NetworkArguments) -> None:
    """Write the files of a document, and print it."""
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
    ranges = arguments.reading.ranges
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
