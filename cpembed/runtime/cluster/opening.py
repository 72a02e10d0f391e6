"""Who executes the tasks of a command."""

from __future__ import annotations

from cpembed.errors import CpembedError
from cpembed.runtime.cluster.base import ThisProcess, Workers
from cpembed.runtime.cluster.connection import CONFIGURED, Tls
from cpembed.runtime.cluster.isolation import WITHOUT_COMPILER
from cpembed.runtime.cluster.processes import Processes


def open_workers(
    workers: int | None = None,
    cluster: str | None = None,
    *,
    measures: bool = False,
    compiles: bool = True,
    tls: Tls = CONFIGURED,
) -> Workers:
    """``workers`` processes on this machine, or a Dask cluster by its scheduler's address, which
    ``tls`` is for; with neither, this process.

    ``measures``: some of the tasks will be times of this machine's CPU model, which
    :meth:`Workers.require_measuring` asks for later too. ``compiles``: they build kernels or
    simulators, so that processes here load the compiler ahead. To be closed, as a context manager
    is.

    Raises :class:`CpembedError` where both are given, and for times that would be measured beside
    other processes; :class:`BackendUnavailable` for a cluster that is not there, is of another
    version, or has no worker that may measure.
    """
    if cluster is None and tls.is_given:
        raise CpembedError("certificates are for the connection to a cluster: name one")
    if workers is not None and cluster is not None:
        raise CpembedError("workers here or a cluster: only one of them can be given")
    if cluster is not None:
        from cpembed.runtime.cluster.client import open_cluster

        opened: Workers = open_cluster(cluster, tls)
    else:
        preload = None if compiles else WITHOUT_COMPILER
        opened = ThisProcess() if workers is None else Processes(workers, preload)
    if measures:
        try:
            opened.require_measuring()
        except BaseException:
            opened.close()
            raise
    return opened
