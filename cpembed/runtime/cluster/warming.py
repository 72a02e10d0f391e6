"""Dask's plug-in that starts a worker's child process before the first task comes.

A file of its own, since its base class is Dask's, which is an extra.
"""

from __future__ import annotations

from typing import Any

from distributed import WorkerPlugin

from cpembed.runtime.cluster.member import process_of_thread


class Warming(WorkerPlugin):
    """Plug-in for a worker with one thread."""

    name = "cpembed-warming"

    def setup(self, worker: Any) -> None:
        """Start the child process of the worker's thread."""
        worker.executors["default"].submit(process_of_thread)
