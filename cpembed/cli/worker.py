"""``cpembed worker``: this machine joins a cluster."""

from __future__ import annotations

from dataclasses import dataclass

import click

from cpembed.cli.interrupt import INTERRUPTED
from cpembed.cli.output import message
from cpembed.cli.parameters import argument, options_of, subcommand
from cpembed.cli.worker_options import TlsOptions
from cpembed.driver.options import option


@dataclass(frozen=True, kw_only=True)
class WorkerArguments:
    """Command line of ``cpembed worker``."""

    address: str = argument(metavar="ADDRESS|FILE")
    measure: bool = option(
        False,
        "Accept timing tasks for this CPU model too: one task at a time, and no other worker on "
        "this host.",
    )
    slots: int | None = option(
        None,
        "Number of concurrent tasks, each in its own process.  [default: the cores of the "
        "process; 1 with --measure]",
        metavar="N",
        limits=(1, None),
    )
    tls: TlsOptions = options_of(TlsOptions)


@subcommand("worker", WorkerArguments)
def worker_command(arguments: WorkerArguments) -> int:
    """Join the Dask cluster whose scheduler is at ADDRESS, or wrote FILE, and work until it ends.

    `bench`, `tune`, `shape` and `explore` send their work there with --cluster.

    dask scheduler --port 8786
    cpembed worker head:8786
    cpembed worker head:8786 --measure
    cpembed worker tls://head:8786 --tls-ca-file ca.pem --tls-cert me.pem --tls-key me.key
    """
    measure, slots = arguments.measure, arguments.slots
    if measure and slots not in (None, 1):
        raise click.UsageError(
            "--measure does one task at a time: leave --slots out", click.get_current_context()
        )
    from cpembed.host import core_count
    from cpembed.runtime.cluster.member import Joining, join

    joining = Joining(
        # Nothing else may run beside a measurement.
        arguments.address,
        slots or (1 if measure else core_count()),
        measure,
        arguments.tls.certificates,
    )
    interrupted = join(joining, message)
    message("stopped" if interrupted else "the scheduler has ended")
    return INTERRUPTED if interrupted else 0
