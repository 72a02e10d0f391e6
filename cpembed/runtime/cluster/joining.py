"""This machine as a part of a cluster: workers that run until the scheduler ends or a signal."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cpembed.errors import BackendUnavailable
from cpembed.runtime.cluster.address import scheduler_address
from cpembed.runtime.cluster.client import connected
from cpembed.runtime.cluster.connection import CONFIGURED, Tls, exposed, local_address, security
from cpembed.runtime.cluster.host_lock import HostLock
from cpembed.runtime.cluster.identity import host_name, measuring_tag
from cpembed.runtime.cluster.isolation import ONE_THREAD
from cpembed.runtime.cluster.library import require_distributed


@dataclass(frozen=True)
class Joining:
    """How a machine joins: ``slots`` tasks at a time, each in a process of its own; one with
    ``measures``."""

    address: str
    slots: int
    measures: bool
    tls: Tls = CONFIGURED


def join(joining: Joining, joined: Callable[[str], None]) -> bool:
    """Work until the scheduler ends; True where Ctrl-C or SIGTERM came before. ``joined`` is told
    in words once workers are there, and before of a connection that strangers may reach.

    Raises :class:`CpembedError` for certificates that cannot be used, :class:`BackendUnavailable`
    for a scheduler that does not answer, and for a host on which there are other workers and one of
    them measures.
    """
    at = scheduler_address(joining.address, "tls" if joining.tls.is_given else "tcp")
    require_distributed()
    with _interrupts(), tempfile.TemporaryDirectory() as folder, _settings(joining):
        protection = security(at, joining.tls, "worker")
        host = local_address(at)
        connected(at, protection).close()
        if (why := exposed(at)) is not None:
            joined(why)
        lock = HostLock.taken(alone=joining.measures)
        try:
            place = {"host": host, "security": protection, "local_directory": folder}
            return asyncio.run(_work(joining, at, place, joined))
        finally:
            lock.release()


async def _work(
    joining: Joining, at: str, place: Mapping[str, Any], joined: Callable[[str], None]
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
            memory_limit="0",
            plugins=[Warming()],
            **place,
        )
        for _ in range(joining.slots)
    ]
    try:
        try:
            await asyncio.gather(*nannies)
        except Exception as error:
            raise BackendUnavailable(f"{at}: cannot be joined: {error}") from None
        what = "measures" if joining.measures else f"does {joining.slots} tasks at a time"
        joined(f"{host_name()} {what} for {at}")
        interrupt = asyncio.create_task(stopped.wait())
        ended = asyncio.create_task(_all_ended(nannies))
        await asyncio.wait([interrupt, ended], return_when=asyncio.FIRST_COMPLETED)
        return stopped.is_set()
    finally:
        await asyncio.gather(*(nanny.close() for nanny in nannies), return_exceptions=True)


async def _all_ended(nannies: Sequence[Any]) -> None:
    await asyncio.gather(*(nanny.finished() for nanny in nannies))


@contextmanager
def _settings(joining: Joining) -> Generator[None]:
    """Of Dask: the environment in which its workers start, and that it keeps quiet."""
    from dask import config

    # What is measured has the threads that it has everywhere else.
    environment = dict.fromkeys(ONE_THREAD) if joining.measures else ONE_THREAD
    # What is lost or comes back is told by the scheduler and by clients.
    quiet = {"DASK_LOGGING__DISTRIBUTED": "critical", "PYTHONWARNINGS": "ignore"}
    with (
        config.set({"distributed.nanny.pre-spawn-environ": {**environment, **quiet}}),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _interrupts() -> Generator[None]:
    """Ctrl-C goes to all processes of a terminal. Those that are started from here inherit that it
    is blocked, and are ended by this one, in which another thread gets it."""
    over = threading.Event()

    def get() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        over.wait()

    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    threading.Thread(target=get, daemon=True).start()
    try:
        yield
    finally:
        over.set()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
