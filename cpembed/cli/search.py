"""``cpembed solve`` and ``explain``, and the lists of ``targets`` and ``operators`` for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cpembed.cli import options, output
from cpembed.cli.parameters import options_of, subcommand
from cpembed.driver.options import (
    CandidateOptions,
    EstimateOptions,
    ExplainOptions,
    KernelOptions,
    option,
    shared,
)

if TYPE_CHECKING:
    from cpembed.driver.result import Explanation

TOP = 5
"""Default number of candidates that are printed."""


@dataclass(frozen=True, kw_only=True)
class SolveArguments:
    """Command line of ``cpembed solve``."""

    words: tuple[str, ...] = options.workload_words()
    target: str = options.target_option()
    settings: EstimateOptions = options_of(
        EstimateOptions, leave_out=["top"], changes={"seed": {"help": "Seed of the search."}}
    )
    top: int | None = option(
        None,
        f"Print the best K candidates.  [default: {TOP}]",
        metavar="K",
        limits=(1, None),
    )
    every: bool = option(False, "Print all candidates.", flag="--all")
    pareto: bool = option(
        False, "Print the candidates that no other beats in MACs, bytes moved and footprint."
    )
    estimated: bool = option(
        False,
        "Print the time of each candidate by the description of a machine in the target's file.",
        flag="--estimate",
    )
    verbose: bool = options.verbose_option()
    as_json: bool = options.json_option()


@subcommand("solve", SolveArguments)
def solve_command(arguments: SolveArguments) -> int:
    """Rank the candidate embeddings of the target's instruction in WORKLOAD.

    cpembed solve conv2d n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1 --target amx_int8
    cpembed solve "C[x,y] += A[x,z] * B[z,y]" x=64 y=64 z=64 --target vta_1x16x16 --all
    """
    words, target, pareto = arguments.words, arguments.target, arguments.pareto
    options.require_one(top=arguments.top is not None, all=arguments.every, pareto=pareto)
    # None derives all: only then is a front complete.
    count = None if arguments.every or pareto else arguments.top or TOP
    from cpembed.hw.isa_reader import names_instruction_set

    if names_instruction_set(target):
        from cpembed.cli.accelerator_models import solve_on_accelerator

        return solve_on_accelerator(
            words, target, count, estimated=arguments.estimated, as_json=arguments.as_json
        )
    from cpembed.workloads.chain_families import names_chain

    if names_chain(words):
        from cpembed.cli.chains import solve_chain_command

        machine = arguments.settings.machine
        return solve_chain_command(words, target, machine, as_json=arguments.as_json)
    settings = replace(arguments.settings, top=count)
    estimated = arguments.estimated or settings.machine is not None
    if estimated or settings.rank_by == "estimate" or settings.objective != "cycles":
        if pareto:
            excluded = (
                "--pareto weighs no times: leave out --estimate, --machine, --rank-by, --objective"
            )
            raise click.UsageError(excluded, click.get_current_context())
        resolved = options.subject(words, target, settings)
        return _print_estimates(resolved, arguments)
    from cpembed.cost.ranking import front
    from cpembed.driver.solve import ParetoResult, solve

    resolved = options.subject(words, target, settings)
    with output.ProgressLine() as progress:
        result = solve(
            resolved.workload,
            resolved.target,
            resolved.options,
            keep=front if pareto else None,
            progress=progress,
        )
    as_json, verbose = arguments.as_json, arguments.verbose
    # Without embeddings there is no front: the usual message says why.
    if not pareto or not (result.embeddings or as_json):
        return output.print_solved(result, as_json=as_json, verbose=verbose)

    from cpembed.report.solve import pareto_report

    front_result = ParetoResult(result)
    return output.print_result(
        front_result, result, lambda: pareto_report(front_result, verbose=verbose), as_json=as_json
    )


def _print_estimates(resolved: options.Subject, arguments: SolveArguments) -> int:
    """Print the candidates with their estimated times; return the exit code."""
    from cpembed.driver.estimate import estimate

    with output.ProgressLine() as progress:
        result = estimate(resolved.workload, resolved.target, resolved.options, progress=progress)
    if not result.solved.embeddings and not arguments.as_json:
        return output.print_solved(result.solved, as_json=False, verbose=arguments.verbose)

    from cpembed.report.solve import estimate_report

    return output.print_result(
        result,
        result.solved,
        lambda: estimate_report(result, verbose=arguments.verbose),
        as_json=arguments.as_json,
    )


@dataclass(frozen=True, kw_only=True)
class ExplainArguments:
    """Command line of ``cpembed explain``."""

    words: tuple[str, ...] = options.workload_words()
    target: str = options.target_option()
    settings: ExplainOptions = options_of(ExplainOptions, leave_out=["search", "seed"])
    by_run: bool = option(
        False,
        "Explain the candidate that `cpembed run` runs on this machine, and why.",
        flag="--chosen",
    )
    threads: int | None = options.threads_option()
    svg: Path | None = options.file_option("Draw the candidate to an SVG file.")
    html: Path | None = options.file_option(
        "Write the candidate to an HTML page with the drawing in it."
    )
    verbose: bool = options.verbose_option()
    as_json: bool = options.json_option()


@subcommand("explain", ExplainArguments)
def explain_command(arguments: ExplainArguments) -> int:
    """Show one candidate in full, or why nothing fits.

    In full are its axes, layouts, each rewrite, the loop nest, and why it has its rank.

    cpembed explain deepbench:11 --target amx_int8
    cpembed explain deepbench:11 --target amx_int8 --chosen --html layer11.html
    cpembed explain attention b=1 h=8 q=128 k=128 d=64 --target mma_f16
    """
    from cpembed.workloads.chain_families import names_chain

    if names_chain(arguments.words):
        from cpembed.cli.chains import solve_chain_command

        return solve_chain_command(
            arguments.words, arguments.target, None, as_json=arguments.as_json
        )
    settings, by_run, threads = arguments.settings, arguments.by_run, arguments.threads
    options.require_one(
        rank=settings.rank is not None, id=settings.identifier is not None, chosen=by_run
    )
    if not by_run and (settings.untuned or threads is not None or settings.method != "auto"):
        # Without --chosen nothing is run, so these would be ignored in silence.
        only = "--method, --untuned and --threads change what `run` chooses: add --chosen"
        raise click.UsageError(only, click.get_current_context())
    options.use_threads(threads)
    from cpembed.driver.explain import explain, explain_chosen
    from cpembed.driver.plan import Request
    from cpembed.driver.result import Explanation

    resolved = options.subject(arguments.words, arguments.target, settings)
    with output.ProgressLine() as progress:
        if by_run:
            kernel = KernelOptions(**shared(resolved.options, CandidateOptions))
            request = Request(resolved.workload, resolved.target, kernel, progress=progress)
            result = explain_chosen(request, settings.method)
        else:
            result = explain(
                resolved.workload, resolved.target, resolved.options, progress=progress
            )
    if not isinstance(result, Explanation):
        for path in (arguments.svg, arguments.html):
            if path is not None:
                # Said, since a script may wait for the file.
                output.message(f"{path} is not written: there is nothing to draw")
        return output.print_solved(result, as_json=arguments.as_json, verbose=arguments.verbose)
    output.print_notes(result.solved)
    output.print_waste(result.solved, result.candidate)
    _draw(result, arguments.svg, arguments.html)
    from cpembed.report.explain import report

    output.print_report(
        result, lambda: report(result, verbose=arguments.verbose), as_json=arguments.as_json
    )
    return 0


def _draw(explanation: Explanation, svg: Path | None, html: Path | None) -> None:
    """Write the drawing to the files of ``--svg`` and ``--html``."""
    if svg is None and html is None:
        return
    from cpembed.files import write_whole
    from cpembed.report import drawing

    if svg is not None:
        write_whole(svg, drawing.svg(explanation))
    if html is not None:
        write_whole(html, drawing.html(explanation))


@dataclass(frozen=True, kw_only=True)
class ListArguments:
    """Command line of the commands that list what there is."""

    as_json: bool = options.json_option()


@subcommand("targets", ListArguments)
def targets_command(arguments: ListArguments) -> int:
    """List the shipped targets: instruction, element types, and whether this machine executes them.

    Your own TOML file is a target too (docs/add-a-target.md).
    """
    from cpembed.report import listing

    if arguments.as_json:
        output.print_json(listing.targets_json())
    else:
        output.print_text(*listing.targets())
    return 0


@subcommand("processors", ListArguments)
def processors_command(arguments: ListArguments) -> int:
    """List the processors of --cpu: features, and targets whose instructions they have.

    Libraries are built for them by `cpembed build --cpu NAME`. Left out are those without any
    instruction that is a target.
    """
    from cpembed.report import listing

    if arguments.as_json:
        output.print_json(listing.processors_json())
    else:
        output.print_text(*listing.processors())
    return 0


@subcommand("operators", ListArguments)
def operators_command(arguments: ListArguments) -> int:
    """List the operators with the sizes and options they take, and the suites of layers."""
    from cpembed.report import listing

    if arguments.as_json:
        output.print_json(listing.operators_json())
    else:
        output.print_text(*listing.operators())
    return 0
