"""``cpembed run``, ``solve``, ``explain`` and ``build`` of chains of two products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cpembed.cli import options, output

if TYPE_CHECKING:
    from cpembed.cli.build import BuildArguments
    from cpembed.cli.kernels import RunArguments
    from cpembed.driver.chains import ChainResult, ChainRun


def solve_chain_command(
    words: Sequence[str], target: str, machine: str | None, *, as_json: bool
) -> int:
    """Print the pairs of a chain's embeddings and the kernels of them; return the exit code.

    Parameters
    ----------
    words : sequence of str
        Words of the chain.
    target : str
        Name or file of the target.
    machine : str or None
        Machine that times are estimated for.
    as_json : bool
        Print the document instead of the report.
    """
    from cpembed.driver.chains import named_chain, solve_chain
    from cpembed.report.chains import chain_report

    options.refuse_others("a chain of products", "machine", "top", "estimated", "verbose")
    result = solve_chain(named_chain(words, target), target, machine)
    output.print_report(result, lambda: chain_report(result), as_json=as_json)
    return 0 if result.choice.candidates else output.INFEASIBLE


def run_chain_command(arguments: RunArguments) -> int:
    """Build, verify and print the kernel of a chain; return the exit code.

    Parameters
    ----------
    arguments : RunArguments
        Command line, whose words name a chain.
    """
    from cpembed.driver.chains import named_chain, run_chain

    options.refuse_others(
        "a chain of products", "machine", "seed", "save", "fuse", "separate", "verbose"
    )
    target, settings = arguments.target, arguments.settings
    chain = named_chain(arguments.words, target)
    with output.ProgressLine() as progress:
        result = run_chain(
            chain,
            target,
            machine=settings.machine,
            seed=settings.seed,
            save=settings.save,
            fuse=arguments.fusion.fused,
            progress=progress,
        )
    return _print_run(result, as_json=arguments.as_json)


def build_chain_command(arguments: BuildArguments, target: str) -> int:
    """Save the verified kernel of a chain and print what was verified; return the exit code.

    The kernels, their files and a folder that holds them have the name of the library.

    Parameters
    ----------
    arguments : BuildArguments
        Command line, whose words name a chain.
    target : str
        Name or file of the target.
    """
    from cpembed.driver.chains import build_chain, named_chain

    options.refuse_others(
        "a chain of products", "machine", "folder", "name", "torch", "fuse", "separate", "verbose"
    )
    settings = arguments.settings
    chain = named_chain(arguments.words, target)
    with output.ProgressLine() as progress:
        result = build_chain(
            chain,
            target,
            arguments.folder / settings.name,
            torch=settings.torch,
            machine=settings.machine,
            fuse=arguments.fusion.fused,
            progress=progress,
        )
    return _print_run(result, as_json=arguments.as_json)


def _print_run(result: ChainRun | ChainResult, *, as_json: bool) -> int:
    """Print a verified run, or what a search without kernels has; return the exit code."""
    from cpembed.driver.chains import ChainRun
    from cpembed.report.chains import chain_report, chain_run_report

    if not isinstance(result, ChainRun):
        output.print_report(result, lambda: chain_report(result), as_json=as_json)
        return output.INFEASIBLE
    output.print_report(result, lambda: chain_run_report(result), as_json=as_json)
    return 0
