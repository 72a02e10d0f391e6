"""``cpembed worker``: this machine joins a cluster."""

from __future__ import annotations

import click

from cpembed.cli import options, worker_options
from cpembed.cli.interrupt import INTERRUPTED
from cpembed.cli.output import message


@click.command("worker", cls=options.Subcommand)
@click.argument("address", metavar="ADDRESS|FILE")
@click.option(
    "--measure",
    is_flag=True,
    help="Accept timing tasks for this CPU model too: one task at a time, and no other worker on "
    "this host.",
)
@options.integer_option(
    "--slots",
    "Number of concurrent tasks, each in its own process.  [default: the cores of the process; 1 "
    "with --measure]",
)
@worker_options.tls_options
def worker_command(*, address: str, measure: bool, slots: int | None) -> int:
    """Join the Dask cluster whose scheduler is at ADDRESS, or wrote FILE, and work until it ends.

    `bench`, `tune`, `shape` and `explore` send their work there with --cluster.

    dask scheduler --port 8786
    cpembed worker head:8786
    cpembed worker head:8786 --measure
    cpembed worker tls://head:8786 --tls-ca-file ca.pem --tls-cert me.pem --tls-key me.key
    """
    if measure and slots not in (None, 1):
        raise click.UsageError(
            "--measure does one task at a time: leave --slots out", click.get_current_context()
        )
    from cpembed.host import core_count
    from cpembed.runtime.cluster.member import Joining, join

    joining = Joining(
        # Nothing else may run beside a measurement.
        address,
        slots or (1 if measure else core_count()),
        measure,
        worker_options.certificates(),
    )
    interrupted = join(joining, message)
    message("stopped" if interrupted else "the scheduler has ended")
    return INTERRUPTED if interrupted else 0
