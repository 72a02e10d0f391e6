"""The table of subcommands, imported one by one as they are called."""

from __future__ import annotations

from importlib import import_module

import click

from cpembed.targets.commands import TARGET_COMMANDS

SUBCOMMANDS: dict[str, str] = {
    "solve": "Rank the candidate embeddings of a target's instruction in a workload.",
    "explain": "Show one candidate in full, or why nothing fits.",
    "run": "Generate the kernel, verify its numbers, time or simulate it.",
    "build": "Build a library that people take away.",
    "bench": "Run a whole suite, one row a layer.",
    "match": "Say which operators of a model an instruction computes, and how well.",
    "layouts": "Say which layout of a workload's tensors is the fastest, packing counted.",
    "network": "Compile a whole model, run it, verify and time it layer by layer.",
    "tune": "Find the fastest embedding and schedule of a workload, and keep them.",
    "worker": "Join a cluster and do the work of others.",
    "explore": "Find the machines of a space that are the best for a suite's layers.",
    "shape": "Find the shape of a matrix product that computes a suite in the fewest executions.",
    **{name: what for name, (_, what) in TARGET_COMMANDS.items()},
    "targets": "List the targets and whether this machine executes them.",
    "operators": "List the operators and the sizes they take.",
}
"""Name and help; ``cpembed.cli.<name>``, or a target's module, defines the click command
``command``; those that list are together."""


class Subcommands(click.Group):
    """A group that imports a subcommand when it is called, and none to list them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        if cmd_name in ("targets", "operators"):
            listed: click.Command = getattr(import_module("cpembed.cli.listing"), cmd_name)
            return listed
        module, _ = TARGET_COMMANDS.get(cmd_name, (f"cpembed.cli.{cmd_name}", ""))
        command: click.Command = import_module(module).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUBCOMMANDS.items()))


@click.group(cls=Subcommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cpembed", prog_name="cpembed")
def cli() -> None:
    """Fit tensor operators to hardware instructions: find every embedding, prove the program,
    generate the kernel.

    A WORKLOAD is an operator with its sizes (conv2d n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1), a
    layer of a suite (deepbench:11), or an expression with its extents
    ("C[x,y] += A[x,z] * B[z,y]" x=4 y=4 z=8).

    Exit codes: 0 a result; 2 a wrong command line, specification or workload; 3 proven infeasible;
    4 stopped by a limit without a result; 5 a missing back end or device; 1 an internal error.
    """
