"""``cpembed fuse``: schedules of blocks of operators, whose intermediates stay on chip."""

from __future__ import annotations

from pathlib import Path

import click

from cpembed.cli import options, output
from cpembed.cli.completion import targets


def _extents(
    context: click.Context, option: click.Parameter, values: tuple[str, ...]
) -> dict[str, int]:
    """Return the extents of ``AXIS=EXTENT`` by axis."""
    extents: dict[str, int] = {}
    for value in values:
        axis, separator, number = value.partition("=")
        if not separator or not axis or not number.isdecimal() or int(number) < 1:
            problem = f"{value!r}: write AXIS=EXTENT, as in m=1024"
            raise click.BadParameter(problem, context, option)
        extents[axis] = int(number)
    return extents


@click.command("fuse", cls=options.Subcommand)
@click.argument("path", metavar="BLOCK.toml", type=click.Path(path_type=Path))
@click.option(
    "--target",
    "names",
    required=True,
    multiple=True,
    shell_complete=targets,
    metavar="NAME|FILE",
    help="Target with a machine. May be repeated for further instructions of the machine: each "
    "operator is computed by the first one that fits it.",
)
@click.option("--machine", metavar="NAME", help="Machine of the targets.  [default: the first one]")
@click.option(
    "--objective",
    type=click.Choice(["cycles", "bytes", "energy"]),
    default="cycles",
    show_default=True,
    help="What the schedule is to have the least of; bytes are those to and from main memory.",
)
@click.option(
    "--set",
    "extents",
    multiple=True,
    callback=_extents,
    metavar="AXIS=EXTENT",
    help="Extent that replaces that of the file. May be repeated.",
)
@options.constraints_option("Constraint set of the embeddings.  [default: each target's own]")
@options.timeout_option("Time after which no further schedule is tried, in seconds.")
@options.json_option
def fuse_command(
    *,
    path: Path,
    names: tuple[str, ...],
    machine: str | None,
    objective: str,
    extents: dict[str, int],
    constraints: str | None,
    timeout: float | None,
    as_json: bool,
) -> int:
    """Schedule a block of operators on a described machine.

    Intermediates stay in the memory next to main memory, in tiles of loops that several operators
    share, where that costs less. The file is described in docs/fusion.md.

    cpembed fuse block.toml --target npu.toml --target npu_vector.toml --objective energy
    \f

    Parameters
    ----------
    path : Path
        File of the block.
    names : tuple of str
        Names or files of the targets.
    machine : str or None
        Machine of the targets; None for the first one.
    objective : str
        ``cycles``, ``bytes`` or ``energy``.
    extents : dict of str to int
        Extents that replace those of the file, by axis.
    constraints : str or None
        Constraint set of the embeddings; None for each target's own.
    timeout : float or None
        Seconds after which no further schedule is tried; None for no limit.
    as_json : bool
        True to print the document.

    Returns
    -------
    int
        Exit code.
    """
    from cpembed.driver.fusion import fuse_block, read_block
    from cpembed.report.fusion import fusion_report

    result = fuse_block(
        read_block(path, extents),
        names,
        objective=objective,
        machine=machine,
        constraints=constraints,
        seconds=timeout,
    )
    output.print_report(result, lambda: fusion_report(result), as_json=as_json)
    return 0
