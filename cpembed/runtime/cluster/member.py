"""Dask worker on this machine: joining a cluster, identity, and the execution of tasks.

Workers run until the scheduler ends or a signal. Each executes its tasks in a child process.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import pickle
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

from cpembed.codegen.host_cpu import cpu_model
from cpembed.errors import BackendUnavailable
from cpembed.host import core_count
from cpembed.runtime.cluster import connection
from cpembed.runtime.cluster.executors import (
    ONE_THREAD,
    WITHOUT_COMPILER,
    HostLock,
    Isolation,
    Task,
    host_name,
)
from cpembed.runtime.measurement.environment import source_digest, versions

_MEASURING = "cpembed measures on "

_thread_state = threading.local()


@dataclass(frozen=True)
class Identity:
    """Versions and source digest that results depend on: the same for client and workers."""

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
    """Return the Dask resource of which a worker that may measure has one unit.

    It names the exact CPU model, by default this machine's.
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
    # Before unpickling: a task of another version may name what this one does not have.
    difference = client.difference(identity())
    if difference is not None:
        raise OtherVersion(f"the worker on {host_name()} has {difference}")
    if threads is not None:
        if core_count() < threads:
            few = f"{core_count()} cores for kernels of {threads} threads: set --threads"
            raise BackendUnavailable(f"the worker on {host_name()} has {few}")
        # The child starts anew when its environment changes.
        os.environ["TVM_NUM_THREADS"] = str(threads)
    task: Task = pickle.loads(packed)
    return process_of_thread().execute(task)


def process_of_thread() -> Isolation:
    """Return the child process of this thread, started."""
    if not hasattr(_thread_state, "process"):
        _thread_state.process = Isolation(WITHOUT_COMPILER)
        atexit.register(_thread_state.process.close)
        _thread_state.process.prepare()
    return _thread_state.process


@dataclass(frozen=True)
class Joining:
    """Parameters of a machine that joins.

    It executes ``slots`` concurrent tasks, each in a process of its own; if it ``measures``, one.
    """

    address: str
    slots: int
    measures: bool
    tls: connection.Tls = connection.CONFIGURED


def join(joining: Joining, report: Callable[[str], None]) -> bool:
    """Work until the scheduler ends (False) or until Ctrl-C or SIGTERM (True).

    Parameters
    ----------
    joining
        Address, number of workers and certificates.
    report
        Function that is called with a line once workers are there, and before with a warning about
        a connection that strangers may reach.

    Raises
    ------
    CpembedError
        If certificates cannot be used.
    BackendUnavailable
        If the scheduler does not answer, or this host has other workers and one of them measures.
    """
    at = connection.scheduler_address(joining.address, "tls" if joining.tls.is_given else "tcp")
    connection.require_distributed()
    # Signals are blocked before the first process starts, since processes inherit the mask.
    with _interrupts(), tempfile.TemporaryDirectory() as folder, _settings(joining):
        protection = connection.security(at, joining.tls, "worker")
        host = connection.local_address(at)
        # A scheduler that does not answer is reported before anything is started.
        connection.connected(at, protection).close()
        if (warning := connection.exposed(at)) is not None:
            report(warning)
        # After the connection: an unreachable scheduler is no reason to lock the host.
        lock = HostLock.acquire(exclusive=joining.measures)
        try:
            settings = {"host": host, "security": protection, "local_directory": folder}
            return asyncio.run(_work(joining, at, settings, report))
        finally:
            lock.release()


async def _work(
    joining: Joining, at: str, settings: Mapping[str, Any], report: Callable[[str], None]
) -> bool:
    from distributed import Nanny

    from cpembed.runtime.cluster.warming import Warming

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    resources = {measuring_tag(): 1} if joining.measures else {}
    nannies = [
        Nanny(
            at,
            # `execute` changes the environment of its process: no two tasks may share one.
            nthreads=1,
            resources=resources,
            # Tasks run in child processes, whose memory Dask would not see.
            memory_limit="0",
            plugins=[Warming()],
            **settings,
        )
        for _ in range(joining.slots)
    ]

    async def all_ended() -> None:
        await asyncio.gather(*(nanny.finished() for nanny in nannies))

    try:
        try:
            await asyncio.gather(*nannies)
        except Exception as error:
            raise BackendUnavailable(f"{at}: cannot be joined: {error}") from None
        role = "measures" if joining.measures else f"does {joining.slots} tasks at a time"
        report(f"{host_name()} {role} for {at}")
        interrupt = asyncio.create_task(stopped.wait())
        ended = asyncio.create_task(all_ended())
        await asyncio.wait([interrupt, ended], return_when=asyncio.FIRST_COMPLETED)
        return stopped.is_set()
    finally:
        # Those that have not even started are closed too, without hiding the first error.
        await asyncio.gather(*(nanny.close() for nanny in nannies), return_exceptions=True)


@contextmanager
def _settings(joining: Joining) -> Generator[None]:
    """Set the environment in which Dask starts workers, and silence Dask."""
    from dask import config

    # Kernels that are measured have as many threads as everywhere else.
    environment = dict.fromkeys(ONE_THREAD) if joining.measures else ONE_THREAD
    # The scheduler and the clients report workers that are lost or come back.
    quiet = {"DASK_LOGGING__DISTRIBUTED": "critical", "PYTHONWARNINGS": "ignore"}
    with (
        config.set({"distributed.nanny.pre-spawn-environ": {**environment, **quiet}}),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _interrupts() -> Generator[None]:
    """Keep Ctrl-C from the workers, which this process ends.

    A terminal sends it to all processes. Workers inherit that it is blocked in the thread that
    starts them; another thread of this process receives it.
    """
    over = threading.Event()

    def receive() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        over.wait()

    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    threading.Thread(target=receive, daemon=True).start()
    try:
        yield
    finally:
        over.set()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
