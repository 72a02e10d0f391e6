"""``cpembed targets``: what there is, and whether this machine executes it."""

from __future__ import annotations

import click

from cpembed.cli.options import Subcommand, json_option
from cpembed.cli.output import print_json, print_text


@click.command(cls=Subcommand)
@json_option
def command(*, as_json: bool) -> int:
    """List the shipped targets: instruction, element types, and whether this machine executes them.

    A TOML file of your own is a target too (docs/add-a-target.md).
    """
    from cpembed.report.listing import targets, targets_json

    if as_json:
        print_json(targets_json())
    else:
        print_text(*targets())
    return 0
