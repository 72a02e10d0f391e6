"""Independent tasks in this process, in several, or on the machines of a Dask cluster."""

from __future__ import annotations

from cpembed.errors import CpembedError
from cpembed.runtime.cluster.connection import CONFIGURED, Tls
from cpembed.runtime.cluster.executors import (
    WITHOUT_COMPILER,
    Outcome,
    Processes,
    Task,
    ThisProcess,
    Workers,
)

__all__ = ["Outcome", "Task", "Tls", "Workers", "open_workers"]


def open_workers(
    workers: int | None = None,
    cluster: str | None = None,
    *,
    measures: bool = False,
    compiles: bool = True,
    tls: Tls = CONFIGURED,
) -> Workers:
    """Return the executors of a command's tasks, a context manager; by default this process.

    Parameters
    ----------
    workers
        Number of processes on this machine.
    cluster
        Address of a Dask scheduler, or the file that it wrote.
    measures
        True if some of the tasks measure times on this machine's CPU model.
        :meth:`Workers.require_measuring` may also be called later.
    compiles
        True if tasks build kernels or simulators: processes load the compiler ahead.
    tls
        Certificates for the connection to the cluster.

    Raises
    ------
    CpembedError
        If both workers and a cluster are requested, or times would be distorted by other processes.
    BackendUnavailable
        If the cluster does not answer, has another version, or has no worker that may measure.
    """
    if cluster is None and tls.is_given:
        raise CpembedError("certificates are for the connection to a cluster: name one")
    if workers is not None and cluster is not None:
        raise CpembedError("workers here or a cluster: only one of them can be given")
    if cluster is not None:
        # Dask is an extra: the package works without it.
        from cpembed.runtime.cluster.client import open_cluster

        executors: Workers = open_cluster(cluster, tls)
    else:
        preload = None if compiles else WITHOUT_COMPILER
        executors = ThisProcess() if workers is None else Processes(workers, preload)
    if measures:
        try:
            executors.require_measuring()
        except BaseException:
            executors.close()
            raise
    return executors
