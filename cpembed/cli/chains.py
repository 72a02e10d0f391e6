"""``cpembed run``, ``solve``, ``explain`` and ``build`` of chains of two products."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cpembed.cli import options, output


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
    from cpembed.driver.chains import ChainResult, named_chain, run_chain
    from cpembed.report.chains import chain_report, chain_run_report

    options.refuse_others(
        "a chain of products", "machine", "seed", "save", "folder", "fuse", "verbose"
    )
    chain = named_chain(words, target)
    with output.ProgressLine() as progress:
        result = run_chain(
            chain, target, machine=machine, seed=seed, save=save, fuse=fuse, progress=progress
        )
    if isinstance(result, ChainResult):
        output.print_report(result, lambda: chain_report(result), as_json=as_json)
        return output.INFEASIBLE
    output.print_report(result, lambda: chain_run_report(result), as_json=as_json)
    return 0
