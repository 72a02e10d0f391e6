"""``cpembed network``: a whole model compiled, run, verified and timed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cpembed.cli.match import model_options
from cpembed.cli.options import (
    Subcommand,
    file_option,
    folder_option,
    json_option,
    seed_option,
    target_option,
    threads_option,
    timeout_option,
    use_threads,
)
from cpembed.cli.output import Bar, message, print_json, print_text

if TYPE_CHECKING:
    from cpembed.graph.graph import Graph
    from cpembed.network.plan import Policy
    from cpembed.network.run import NetworkRun
    from cpembed.network.stepwise import StepwiseRun

WRONG = 1
"""Exit code of results that are not what they should be: a bug of ours."""


@click.command(cls=Subcommand)
@model_options
@target_option()
@threads_option("the network")
@click.option(
    "--input",
    "given",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Inputs: .npz by their names, or .npy of the only one.  [default: random]",
)
@folder_option("--output", "Write each output of the network here, as NAME.npy.")
@folder_option("--save", "Keep the library here (see `cpembed build`).")
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
@timeout_option("Stop each search for embeddings after S seconds.", 20.0)
@click.option(
    "--layout-time",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="S",
    help="Stop the search for layouts after S seconds.",
)
@seed_option("Of random inputs.")
@click.option("--no-verify", is_flag=True, help="Do not compare each operator with its definition.")
@click.option("--plan-only", is_flag=True, help="Compile and run nothing: the plan and its costs.")
@file_option("--report", "Write the network as an HTML page.")
@json_option
def command(
    *,
    model: Path,
    shapes: dict[str, tuple[int, ...]],
    target: str,
    threads: int | None,
    given: Path | None,
    output: Path | None,
    save: Path | None,
    policy: Policy,
    measures: bool,
    timeout: float,
    layout_time: float,
    seed: int,
    no_verify: bool,
    plan_only: bool,
    report: Path | None,
    as_json: bool,
) -> int:
    """Compile MODEL (.onnx, .pt2) for a target, run it, compare every operator's result with its
    definition, and time it layer by layer.

    Embeddings, kernels and objects are kept, so that a second call has little left to do.

    \b
    cpembed network resnet18.onnx --target avx512_vnni --report resnet18.html
    cpembed network bert.onnx --target amx_int8 --threads 2 --input tokens.npz --output results
    """
    use_threads(threads)
    from cpembed.frontends import load_model

    graph = load_model(model, shapes or None)
    inputs = _inputs(graph, given, seed)
    with Bar("", None) as bar:

        def progress(what: str, done: int, total: int) -> None:
            bar.show(what, total=total, completed=done)

        from cpembed.network.plan import Planning
        from cpembed.network.service import NetworkRequest, network, network_plan

        how = Planning(timeout, layout_time, policy, measures)
        run: NetworkRun | StepwiseRun | None = None
        if plan_only:
            document = network_plan(graph, target, how, progress)
        else:
            result = network(
                graph, NetworkRequest(target, save, how, not no_verify), inputs, progress
            )
            document, run = result.document, result.run
    if output is not None and run is not None:
        _write_outputs(output, run.outputs)
    if report is not None:
        from cpembed.report.network_page import write_page

        write_page(document, report)
    if as_json:
        print_json(document)
    else:
        from cpembed.report.network import report as lines

        print_text(*lines(document))
    return _verdict(run)


def _verdict(run: NetworkRun | StepwiseRun | None) -> int:
    if run is None or not run.failed:
        return 0
    names = ", ".join(one.operator for one in run.failed[:3])
    message(
        f"{len(run.failed)} operators differ from their definition ({names}): please report this "
        "command line"
    )
    return WRONG


def _inputs(graph: Graph, given: Path | None, seed: int) -> dict[str, Any]:
    """The network's inputs: of a file, or random."""
    from cpembed.network.inputs import random_inputs, read_inputs

    return random_inputs(graph, seed) if given is None else read_inputs(graph, given)


def _write_outputs(folder: Path, outputs: Any) -> None:
    from cpembed.network.inputs import write_outputs

    write_outputs(folder, outputs)
