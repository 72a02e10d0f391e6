"""Workers that load what tasks need while they wait for the first one."""

from __future__ import annotations

from typing import Any

from distributed import WorkerPlugin

from cpembed.runtime.cluster.execution import process_of_thread


class Warming(WorkerPlugin):
    """For a worker with one thread, which it has start its child process."""

    name = "cpembed-warming"

    def setup(self, worker: Any) -> None:
        worker.executors["default"].submit(process_of_thread)
