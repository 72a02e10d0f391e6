"""Dask clusters of real processes for tests, on ports that the system chooses."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cpembed.runtime.cluster.connection import require_distributed
from cpembed.runtime.worker import IN_PROCESS_VARIABLE


@dataclass
class Scheduler:
    """A scheduler in this process, and the workers that were started for it."""

    cluster: Any
    folder: Path
    workers: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.cluster.scheduler_address

    def start(self, *options: str) -> subprocess.Popen[str]:
        """``cpembed worker``, once it says that it has joined."""
        process = self.begin(*options)
        assert process.stderr is not None
        said = ""
        while f"for {self.address}" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        return process

    def begin(self, *options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "cpembed", "worker", self.address, *options],
            stderr=subprocess.PIPE, text=True, env=surroundings(self.folder),
        )  # fmt: skip
        self.workers.append(process)
        return process

    def wait_for(self, count: int, seconds: float = 30.0) -> None:
        """For so many workers' processes."""
        deadline = time.monotonic() + seconds
        while len(self.cluster.scheduler.workers) != count:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def processes(self) -> list[int]:
        """Of the workers."""
        from distributed import Client

        with Client(self.address, set_as_default=False) as client:
            return list(client.run(os.getpid).values())

    def end(self) -> None:
        """Of all workers."""
        for process in self.workers:
            process.terminate()
        for process in self.workers:
            process.communicate(timeout=30)
        self.workers.clear()


def surroundings(folder: Path) -> dict[str, str]:
    """Of a process of its own: kernels are built and run in a worker, and this host's other workers
    are not seen."""
    kept = {key: text for key, text in os.environ.items() if key != IN_PROCESS_VARIABLE}
    path = os.pathsep.join(part for part in sys.path if part)
    return {**kept, "PYTHONPATH": path, "XDG_RUNTIME_DIR": str(folder)}


@contextmanager
def scheduling(
    folder: Path, made: Mapping[str, Any] | None = None, **settings: Any
) -> Generator[Scheduler, None, None]:
    """A scheduler with settings of Dask's, such as ``allowed-failures``, and arguments of a
    ``LocalCluster``."""
    pytest.importorskip("distributed")
    require_distributed()
    from dask import config
    from distributed import LocalCluster

    opened: Any = LocalCluster
    named = {f"distributed.scheduler.{name}": value for name, value in settings.items()}
    # For results that are on a worker which is killed: they are fetched elsewhere then.
    named["distributed.comm.timeouts.connect"] = "5s"
    with (
        config.set(named),
        opened(n_workers=0, dashboard_address=":0", silence_logs=50, **(made or {})) as cluster,
    ):
        scheduler = Scheduler(cluster, folder)
        try:
            yield scheduler
        finally:
            scheduler.end()
