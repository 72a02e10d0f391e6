"""``cpembed fuse``: schedules of blocks of operators, whose intermediates stay on chip."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from cpembed.cli import options, output
from cpembed.cli.completion import targets
from cpembed.cli.parameters import argument, subcommand
from cpembed.driver.options import REQUIRED, option


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


@dataclass(frozen=True, kw_only=True)
class FuseArguments:
    """Command line of ``cpembed fuse``."""

    path: Path = argument(metavar="BLOCK.toml", type=click.Path(path_type=Path))
    targets: tuple[str, ...] = option(
        REQUIRED,
        "Target with a machine. May be repeated for further instructions of the machine: each "
        "operator is computed by the first one that fits it.",
        flag="--target",
        metavar="NAME|FILE",
        multiple=True,
        shell_complete=targets,
    )
    machine: str | None = option(
        None, "Machine of the targets.  [default: the first one]", metavar="NAME"
    )
    objective: str = option(
        "cycles",
        "What the schedule is to have the least of; bytes are those to and from main memory.",
        choices=("cycles", "bytes", "energy"),
    )
    extents: dict[str, int] = option(
        (),
        "Extent that replaces that of the file. May be repeated.",
        flag="--set",
        metavar="AXIS=EXTENT",
        multiple=True,
        callback=_extents,
    )
    constraints: str | None = options.constraints_option(
        "Constraint set of the embeddings.  [default: each target's own]"
    )
    timeout: float | None = options.timeout_option(
        "Time after which no further schedule is tried, in seconds."
    )
    as_json: bool = options.json_option()


@subcommand("fuse", FuseArguments)
def fuse_command(arguments: FuseArguments) -> int:
    """Schedule a block of operators on a described machine.

    Intermediates stay in the memory next to main memory, in tiles of loops that several operators
    share, where that costs less. The file is described in docs/fusion.md.

    cpembed fuse block.toml --target npu.toml --target npu_vector.toml --objective energy
    """
    from cpembed.driver.fusion import fuse_block, read_block
    from cpembed.report.fusion import fusion_report

    result = fuse_block(
        read_block(arguments.path, arguments.extents),
        arguments.targets,
        objective=arguments.objective,
        machine=arguments.machine,
        constraints=arguments.constraints,
        seconds=arguments.timeout,
    )
    output.print_report(result, lambda: fusion_report(result), as_json=arguments.as_json)
    return 0
