"""``cpembed operators``: the operators, their sizes and their options."""

from __future__ import annotations

import click

from cpembed.cli.options import Subcommand, json_option
from cpembed.cli.output import print_json, print_text


@click.command(cls=Subcommand)
@json_option
def command(*, as_json: bool) -> int:
    """List the operators with the sizes and options they take, and the suites of layers."""
    from cpembed.report.listing import operators, operators_json

    if as_json:
        print_json(operators_json())
    else:
        print_text(*operators())
    return 0
