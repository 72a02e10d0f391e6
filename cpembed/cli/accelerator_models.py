"""``cpembed network``, ``match``, ``run`` and ``solve`` on accelerators of instruction sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cpembed.cli import options, output
from cpembed.errors import LoweringError

if TYPE_CHECKING:
    from pathlib import Path

    from cpembed.cli.model_options import ModelOptions, OpenModelOptions
    from cpembed.cli.models import MatchArguments, NetworkArguments
    from cpembed.graph.graph import Graph

WRONG, INFEASIBLE = 1, 3
"""Exit codes of wrong results, which are a bug of cpembed, and of workloads without a program."""


def network_on_accelerator(arguments: NetworkArguments) -> int:
    """Plan a network for an accelerator, prove its programs and emulate them.

    Parameters
    ----------
    arguments : NetworkArguments
        Command line, whose target is an instruction set.

    Returns
    -------
    int
        Exit code.
    """
    from cpembed.accelerator.document import network_document
    from cpembed.accelerator.network import plan_network
    from cpembed.accelerator.network_files import save_network
    from cpembed.accelerator.network_proof import prove_network
    from cpembed.accelerator.network_run import run_network
    from cpembed.hw.isa_reader import load_instruction_set
    from cpembed.network.inputs import random_inputs, read_inputs, write_outputs
    from cpembed.report.accelerator import accelerator_report

    _refuse_others(
        arguments.target,
        "shapes", "outputs", "constants", "input_file", "seed", "no_verify", "plan_only",
        "output", "save",
    )  # fmt: skip
    # Before the model is read, which may take seconds.
    machine = load_instruction_set(arguments.target)
    graph = _graph(arguments.model, arguments.reading)
    file = arguments.input_file
    inputs = random_inputs(graph, arguments.seed) if file is None else read_inputs(graph, file)
    run = None
    with output.Bar() as bar:
        network = plan_network(graph, machine, bar)
        proofs = None
        if not arguments.no_verify:
            proven = prove_network(network, bar)
            network, proofs = proven.network, proven.proofs
        if not arguments.plan_only:
            run = run_network(network, inputs, arguments.seed, bar)
    document = network_document(network, run, proofs)
    if arguments.output is not None and run is not None:
        write_outputs(arguments.output, run.outputs)
    if arguments.save is not None:
        save_network(network, arguments.save, document, run)
    if arguments.as_json:
        output.print_json(document)
    else:
        output.print_text(*accelerator_report(document))
    if run is None or run.is_right:
        return 0
    names = ", ".join(step.step.name for step in run.steps if not step.is_right)
    output.message(f"programs differ from their specification ({names}): please report this")
    return WRONG


def run_on_accelerator(words: Sequence[str], target: str, seed: int, *, as_json: bool) -> int:
    """Plan a workload for an accelerator, prove its programs and emulate them.

    Parameters
    ----------
    words : sequence of str
        Words of the workload.
    target : str
        Name or file of the instruction set.
    seed : int
        Seed of the data.
    as_json : bool
        Print the document instead of the report.

    Returns
    -------
    int
        Exit code.
    """
    from cpembed.accelerator.workload import run_workload
    from cpembed.hw.isa_reader import load_instruction_set
    from cpembed.report.accelerator import workload_report
    from cpembed.workloads.naming import parse_workload

    _refuse_others(target, "seed")
    machine = load_instruction_set(target)
    workload = parse_workload(list(words))
    try:
        with output.ProgressLine() as progress:
            result = run_workload(workload, machine, seed, progress)
    except LoweringError as error:
        # All instructions and all tilings of the planner's template were considered.
        output.message(str(error))
        return INFEASIBLE
    output.print_report(result, lambda: workload_report(result), as_json=as_json)
    if result.is_right:
        return 0
    output.message(
        f"the result differs from the reference by {result.error:.3g}: please report this"
    )
    return WRONG


def solve_on_accelerator(
    words: Sequence[str], target: str, top: int | None, *, estimated: bool, as_json: bool
) -> int:
    """Print the instructions of an accelerator that compute a workload, and how.

    Parameters
    ----------
    words : sequence of str
        Words of the workload.
    target : str
        Name or file of the instruction set.
    top : int or None
        Number of matches that are printed; None for all.
    estimated : bool
        Plan the programs, too, and print their estimated costs.
    as_json : bool
        Print the document instead of the report.

    Returns
    -------
    int
        Exit code: that of an infeasible workload if nothing matches.
    """
    from cpembed.accelerator.matching import match_statement
    from cpembed.accelerator.specification import Statement
    from cpembed.accelerator.workload import plan_document, workload_plans
    from cpembed.hw.isa_reader import load_instruction_set
    from cpembed.report.accelerator import matches_document, matches_report
    from cpembed.workloads.naming import parse_workload

    _refuse_others(target, "top", "every", "estimated")
    machine = load_instruction_set(target)
    workload = parse_workload(list(words))
    matching = match_statement(Statement(workload), machine)
    document = matches_document(matching, machine, top)
    if estimated and matching.matches:
        try:
            with output.ProgressLine() as progress:
                progress("plan", 0)
                plans = workload_plans(workload, machine)
            document["plan"] = plan_document(plans, machine)
        except LoweringError as error:
            # Instructions match, and no tiling of them fits: what matches is still printed.
            document["plan"] = {"reason": str(error)}
    if as_json:
        output.print_json(document)
    elif matching.matches:
        output.print_text(*matches_report(document))
    else:
        output.message(matching.reason)
    return 0 if matching.matches else INFEASIBLE


def match_on_accelerators(arguments: MatchArguments) -> int:
    """Show what of a network each accelerator computes, as ``cpembed network`` would.

    Parameters
    ----------
    arguments : MatchArguments
        Command line, all of whose targets are instruction sets.

    Returns
    -------
    int
        Exit code.
    """
    from cpembed.accelerator.document import network_document
    from cpembed.accelerator.network import plan_network
    from cpembed.hw.isa_reader import load_instruction_set
    from cpembed.report.accelerator import accelerator_report

    _refuse_others(", ".join(arguments.targets), "targets", "shapes", "outputs", "constants")
    machines = [load_instruction_set(target) for target in arguments.targets]
    graph = _graph(arguments.model, arguments.reading)
    with output.Bar() as bar:
        documents = [network_document(plan_network(graph, m, bar)) for m in machines]
    if arguments.as_json:
        output.print_json({"network": graph.name, "targets": documents})
        return 0
    for document in documents:
        output.print_text(*accelerator_report(document))
    return 0


def _graph(path: Path, reading: ModelOptions | OpenModelOptions) -> Graph:
    """Read a model, with the element types of an accelerator."""
    from cpembed.frontends import load_model
    from cpembed.graph.passes import prepare

    graph = load_model(path, reading.shapes or None, reading.outputs, constants=reading.constants)
    return prepare(graph, first="int8", second="int8")


def _refuse_others(target: str, *used: str) -> None:
    """Reject options of the command line that mean nothing on an accelerator."""
    options.refuse_others(f"{target}, an accelerator of several instructions", *used)
