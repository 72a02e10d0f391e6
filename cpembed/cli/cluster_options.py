"""Options of commands whose work can be done by several processes or machines.

They are read where workers are opened, from the command's context: no command has parameters of
them.
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

_PREFIX = "cpembed.runtime.cluster."


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    context.meta[f"{_PREFIX}{parameter.name}"] = value


def _value(name: str) -> Any:
    return click.get_current_context().meta.get(f"{_PREFIX}{name}")


def _option(name: str, **attributes: Any) -> Callable[[Any], Any]:
    return click.option(name, callback=_keep, expose_value=False, **attributes)


tls_options: Callable[[Any], Any] = combined(
    _option(
        "--tls-ca-file",
        metavar="FILE",
        help="TLS: the authority that signed the certificates of the cluster's members, in PEM "
        "form. What is not given is as Dask is configured.",
    ),
    _option("--tls-cert", metavar="FILE", help="TLS: the certificate of this process."),
    _option(
        "--tls-key",
        metavar="FILE",
        help="TLS: its private key, where the certificate's file does not have it.",
    ),
)
"""Certificates for the connection to a scheduler."""

workers_options: Callable[[Any], Any] = combined(
    _option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="Work in N processes of this machine; nothing is measured beside others.",
    ),
    _option(
        "--cluster",
        metavar="ADDRESS|FILE",
        help="Work on a Dask cluster: its scheduler's address, or the file in which it is; see "
        "`cpembed worker`.",
    ),
    tls_options,
)
"""Who does the work."""


def workers_of(*, measures: bool = False, compiles: bool = True) -> Workers:
    """What was asked for by :data:`workers_options`, to be used as a context manager; ``measures``
    and ``compiles`` as for :func:`~cpembed.runtime.cluster.open_workers`."""
    workers, cluster, tls = _value("workers"), _value("cluster"), certificates()
    require_one(workers=workers is not None, cluster=cluster is not None)
    from cpembed.runtime.cluster import open_workers
    from cpembed.runtime.cluster.connection import exposed, scheduler_address

    if cluster is not None:
        why = exposed(scheduler_address(cluster, "tls" if tls.is_given else "tcp"))
        if why is not None:
            message(why)
    return open_workers(workers, cluster, measures=measures, compiles=compiles, tls=tls)


def certificates() -> Tls:
    """What was given by :data:`tls_options`."""
    from cpembed.runtime.cluster.connection import Tls

    return Tls(_value("tls_ca_file"), _value("tls_cert"), _value("tls_key"))
