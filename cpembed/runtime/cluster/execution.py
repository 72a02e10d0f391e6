"""The execution of a task by a Dask worker, in a child process, and the versions it requires."""

from __future__ import annotations

import atexit
import os
import pickle
import threading
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

from cpembed.codegen.host_cpu import cpu_model
from cpembed.errors import BackendUnavailable
from cpembed.runtime.cluster.base import Task
from cpembed.runtime.cluster.processes import WITHOUT_COMPILER, Isolation, host_name
from cpembed.runtime.measurement.environment import source_digest, versions

_MEASURING = "cpembed measures on "

_thread_state = threading.local()


@dataclass(frozen=True)
class Identity:
    """Versions that results depend on, and a digest of the package's source: client and workers
    must have the same.
    """

    versions: dict[str, str]
    source: str

    def difference(self, worker: Identity) -> str | None:
        """Return how a worker differs from this client, in words; None if it does not."""
        for name, number in worker.versions.items():
            if (expected := self.versions.get(name)) != number:
                return f"{name} {number}, not {expected}"
        if worker.source != self.source:
            return f"cpembed {worker.versions['cpembed']} of other sources"
        return None


@cache
def identity() -> Identity:
    """Return the identity of this process."""
    return Identity({**versions(), "distributed": version("distributed")}, source_digest())


def measuring_tag(cpu: str | None = None) -> str:
    """Return the Dask resource of which a worker that may measure has one unit: it names the exact
    CPU model, by default this machine's.
    """
    return _MEASURING + (cpu_model() if cpu is None else cpu)


def measured_cpu(tag: str) -> str | None:
    """Return the CPU model of a resource of :func:`measuring_tag`; None for another resource."""
    return tag.removeprefix(_MEASURING) if tag.startswith(_MEASURING) else None


class OtherVersion(BackendUnavailable):
    """A worker whose results would not be those of the client's version."""


def execute(client: Identity, packed: bytes, threads: int | None) -> Any:
    """Return the result of a task.

    Each thread of the worker has a child process: a crash is an error of its task, and the worker
    itself, which only waits, goes on telling the scheduler that it lives.

    Parameters
    ----------
    client
        Identity of the client.
    packed
        The pickled task, so that the scheduler need not import anything.
    threads
        Number of threads of kernels that are timed; None for other tasks.

    Raises
    ------
    OtherVersion
        If this worker has another version than the client.
    BackendUnavailable
        If there are fewer cores than threads; the task's own errors otherwise.
    """
    difference = client.difference(identity())
    if difference is not None:
        raise OtherVersion(f"the worker on {host_name()} has {difference}")
    if threads is not None:
        if cores() < threads:
            few = f"{cores()} cores for kernels of {threads} threads: set --threads"
            raise BackendUnavailable(f"the worker on {host_name()} has {few}")
        # The child starts anew when its environment changes.
        os.environ["TVM_NUM_THREADS"] = str(threads)
    task: Task = pickle.loads(packed)
    return process_of_thread().execute(task)


def cores() -> int:
    """Return the number of cores that this process may use."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return len(usable) or os.cpu_count() or 1


def process_of_thread() -> Isolation:
    """Return the child process of this thread, started."""
    if not hasattr(_thread_state, "process"):
        _thread_state.process = Isolation(WITHOUT_COMPILER)
        atexit.register(_thread_state.process.close)
        _thread_state.process.prepare()
    return _thread_state.process
