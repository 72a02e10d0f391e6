"""Who executes the tasks of a command."""

from __future__ import annotations

from cpembed.cluster.base import ThisProcess, Workers
from cpembed.cluster.processes import Processes
from cpembed.errors import CpembedError


def open_workers(
    workers: int | None = None, cluster: str | None = None, *, measures: bool = False
) -> Workers:
    """``workers`` processes on this machine, or a Dask cluster by its scheduler's address; with
    neither, this process.

    ``measures``: some of the tasks will be times of this machine's CPU model. To be closed, as a
    context manager is.

    Raises :class:`CpembedError` where both are given, and for times that would be measured beside
    other processes; :class:`BackendUnavailable` for a cluster that is not there, is of another
    version, or has no worker that may measure.
    """
    if workers is not None and cluster is not None:
        raise CpembedError("workers here or a cluster: only one of them can be given")
    if cluster is not None:
        from cpembed.cluster.client import open_cluster

        return open_cluster(cluster, measures=measures)
    if workers is None:
        return ThisProcess()
    if measures:
        raise CpembedError(
            "times that are measured beside other workers of this machine are wrong: leave the "
            "workers out, solve only, or measure on a cluster whose workers do nothing else "
            "(`cpembed worker ADDRESS --measure`)"
        )
    return Processes(workers)
