"""This machine as a part of a cluster: workers that run until the scheduler ends or a signal."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cpembed.errors import BackendUnavailable
from cpembed.runtime.cluster.client import connected
from cpembed.runtime.cluster.connection import (
    CONFIGURED,
    Tls,
    exposed,
    local_address,
    require_distributed,
    scheduler_address,
    security,
)
from cpembed.runtime.cluster.execution import measuring_tag
from cpembed.runtime.cluster.processes import ONE_THREAD, HostLock, host_name


@dataclass(frozen=True)
class Joining:
    """The parameters of a machine that joins: ``slots`` concurrent tasks, each in a process of its
    own; a machine that ``measures`` has one.
    """

    address: str
    slots: int
    measures: bool
    tls: Tls = CONFIGURED


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
    at = scheduler_address(joining.address, "tls" if joining.tls.is_given else "tcp")
    require_distributed()
    with _interrupts(), tempfile.TemporaryDirectory() as folder, _settings(joining):
        protection = security(at, joining.tls, "worker")
        host = local_address(at)
        # A scheduler that does not answer is reported before anything is started.
        connected(at, protection).close()
        if (warning := exposed(at)) is not None:
            report(warning)
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
