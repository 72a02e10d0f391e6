"""``cpembed targets`` and ``cpembed operators``."""

from __future__ import annotations

import click

from cpembed.cli import options
from cpembed.cli.output import print_json, print_text


@click.command("targets", cls=options.Subcommand)
@options.json_option
def targets_command(*, as_json: bool) -> int:
    """List the shipped targets: instruction, element types, and whether this machine executes them.

    Your own TOML file is a target too (docs/add-a-target.md).
    """
    from cpembed.report import listing

    if as_json:
        print_json(listing.targets_json())
    else:
        print_text(*listing.targets())
    return 0


@click.command("operators", cls=options.Subcommand)
@options.json_option
def operators_command(*, as_json: bool) -> int:
    """List the operators with the sizes and options they take, and the suites of layers."""
    from cpembed.report import listing

    if as_json:
        print_json(listing.operators_json())
    else:
        print_text(*listing.operators())
    return 0
