"""``cpembed run``, ``solve``, ``explain`` and ``build`` of chains of two products."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cpembed.cli import options, output

if TYPE_CHECKING:
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


def run_chain_command(
    words: Sequence[str],
    target: str,
    *,
    machine: str | None,
    seed: int | None,
    save: Path | None,
    fuse: bool | None,
    as_json: bool,
) -> int:
    """Build, verify and print the kernel of a chain; return the exit code.

    Parameters
    ----------
    words, target, machine, as_json
        As in :func:`solve_chain_command`.
    seed : int or None
        Seed of the data.
    save : Path or None
        Folder for the kernel.
    fuse : bool or None
        One kernel, or one for each product; None for what is estimated to be faster.
    """
    from cpembed.driver.chains import named_chain, run_chain

    options.refuse_others(
        "a chain of products", "machine", "seed", "save", "fuse", "apart", "verbose"
    )
    chain = named_chain(words, target)
    with output.ProgressLine() as progress:
        result = run_chain(
            chain, target, machine=machine, seed=seed, save=save, fuse=fuse, progress=progress
        )
    return _print_run(result, as_json=as_json)


def build_chain_command(
    words: Sequence[str],
    target: str,
    folder: Path,
    *,
    name: str,
    torch: bool,
    machine: str | None,
    fuse: bool | None,
    as_json: bool,
) -> int:
    """Save the verified kernel of a chain and print what was verified; return the exit code.

    Parameters
    ----------
    words, target, machine, fuse, as_json
        As in :func:`run_chain_command`.
    folder : Path
        Folder to write to.
    name : str
        Name of the kernels, of their files and of a folder below ``folder`` that holds them.
    torch : bool
        Write an operator of PyTorch too.
    """
    from cpembed.driver.chains import build_chain, named_chain

    options.refuse_others(
        "a chain of products", "machine", "folder", "name", "torch", "fuse", "apart", "verbose"
    )
    chain = named_chain(words, target)
    with output.ProgressLine() as progress:
        result = build_chain(
            chain,
            target,
            folder / name,
            torch=torch,
            machine=machine,
            fuse=fuse,
            progress=progress,
        )
    return _print_run(result, as_json=as_json)


def _print_run(result: ChainRun | ChainResult, *, as_json: bool) -> int:
    """Print a verified run, or what a search without kernels has; return the exit code."""
    from cpembed.driver.chains import ChainRun
    from cpembed.report.chains import chain_report, chain_run_report

    if not isinstance(result, ChainRun):
        output.print_report(result, lambda: chain_report(result), as_json=as_json)
        return output.INFEASIBLE
    output.print_report(result, lambda: chain_run_report(result), as_json=as_json)
    return 0
