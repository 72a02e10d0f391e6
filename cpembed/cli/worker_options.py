"""Options of the processes or machines that do a command's work, and the workers that they open.

Their values go to the context instead of the command's parameters: a command only opens workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from cpembed.cli.options import combined, require_one
from cpembed.cli.output import message

if TYPE_CHECKING:
    from cpembed.runtime.cluster import Workers
    from cpembed.runtime.cluster.connection import Tls


def _store_worker_setting(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    context.meta[f"cpembed.workers.{parameter.name}"] = value


def _worker_setting(name: str) -> Any:
    return click.get_current_context().meta.get(f"cpembed.workers.{name}")


def _worker_option(name: str, **attributes: Any) -> Callable[[Any], Any]:
    return click.option(name, callback=_store_worker_setting, expose_value=False, **attributes)


tls_options: Callable[[Any], Any] = combined(
    _worker_option(
        "--tls-ca-file",
        metavar="FILE",
        help="TLS: the authority that signed the certificates of the cluster's members, in PEM "
        "form. Missing values are taken from Dask's configuration.",
    ),
    _worker_option("--tls-cert", metavar="FILE", help="TLS: the certificate of this process."),
    _worker_option(
        "--tls-key",
        metavar="FILE",
        help="TLS: its private key, if the certificate's file does not contain it.",
    ),
)
"""Options of the certificates for the connection to a scheduler."""

workers_options: Callable[[Any], Any] = combined(
    _worker_option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="Work in N processes of this machine. Timing tasks are rejected: concurrent "
        "processes would distort them.",
    ),
    _worker_option(
        "--cluster",
        metavar="ADDRESS|FILE",
        help="Work on a Dask cluster: its scheduler's address, or a file that contains it; see "
        "`cpembed worker`.",
    ),
    tls_options,
)
"""Options of the processes or machines that do the work."""


def workers_of(*, compiles: bool = True) -> Workers:
    """Open the workers of :data:`workers_options`, a context manager.

    ``compiles`` is that of :func:`~cpembed.runtime.cluster.open_workers`.
    """
    workers, cluster, tls = _worker_setting("workers"), _worker_setting("cluster"), certificates()
    require_one(workers=workers is not None, cluster=cluster is not None)
    from cpembed.runtime.cluster import open_workers
    from cpembed.runtime.cluster.connection import exposed, scheduler_address

    if cluster is not None:
        warning = exposed(scheduler_address(cluster, "tls" if tls.is_given else "tcp"))
        if warning is not None:
            message(warning)
    return open_workers(workers, cluster, compiles=compiles, tls=tls)


def certificates() -> Tls:
    """Return the values of :data:`tls_options`."""
    from cpembed.runtime.cluster.connection import Tls

    return Tls(
        _worker_setting("tls_ca_file"), _worker_setting("tls_cert"), _worker_setting("tls_key")
    )
