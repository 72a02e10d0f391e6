"""What a Dask worker does with a task: it has a child process execute it."""

from __future__ import annotations

import atexit
import os
import pickle
import threading
from typing import Any

from cpembed.errors import BackendUnavailable
from cpembed.runtime.cluster.base import Task
from cpembed.runtime.cluster.identity import Identity, cores, host_name, identity
from cpembed.runtime.cluster.isolation import WITHOUT_COMPILER, Isolation

_own = threading.local()


class OtherVersion(BackendUnavailable):
    """A worker's results would not be those of the client's version."""


def execute(client: Identity, packed: bytes, threads: int | None) -> Any:
    """The result of a task, which is pickled so that only its worker has to know what it is.

    Each thread of the worker has a child process: what ends that one is an error of its task, and
    the worker itself, which only waits, goes on telling the scheduler that it lives.

    ``threads``: of kernels, where they are timed; None elsewhere.

    Raises :class:`OtherVersion`, :class:`BackendUnavailable` where there are fewer cores than
    threads, and what the task raises.
    """
    difference = client.difference(identity())
    if difference is not None:
        raise OtherVersion(f"the worker on {host_name()} has {difference}")
    if threads is not None:
        if cores() < threads:
            few = f"{cores()} cores for kernels of {threads} threads: set --threads"
            raise BackendUnavailable(f"the worker on {host_name()} has {few}")
        # Part of the surroundings of the child, which is started anew where they change.
        os.environ["TVM_NUM_THREADS"] = str(threads)
    task: Task = pickle.loads(packed)
    return process_of_thread().execute(task)


def process_of_thread() -> Isolation:
    """The child process of this thread, started."""
    if not hasattr(_own, "process"):
        _own.process = Isolation(WITHOUT_COMPILER)
        atexit.register(_own.process.close)
        _own.process.prepare()
    return _own.process
