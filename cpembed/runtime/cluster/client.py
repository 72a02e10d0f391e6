"""A Dask cluster that others have started, seen from the process that keeps the results."""

from __future__ import annotations

import pickle
import time
import warnings
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any

from cpembed.codegen.host_cpu import cpu_model
from cpembed.codegen.runtime import thread_count
from cpembed.errors import BackendUnavailable, CpembedError, CrashError
from cpembed.runtime.cluster.address import scheduler_address
from cpembed.runtime.cluster.base import Outcome, Task, Workers
from cpembed.runtime.cluster.connection import (
    CONFIGURED,
    CONNECT_SECONDS,
    Tls,
    security,
    unanswered,
)
from cpembed.runtime.cluster.execution import OtherVersion, execute
from cpembed.runtime.cluster.identity import identity, measuring_tag
from cpembed.runtime.cluster.library import require_distributed
from cpembed.runtime.cluster.members import Members
from cpembed.runtime.cluster.window import Run, Submitted

LOOK_SECONDS = 1.0
"""Between two looks at which workers there are, where nothing completes."""

SHORT_SECONDS = 0.5
"""Tasks that take less, in the mean of the last few, wait at the workers, one for each: the next is
there when one is done."""

PATIENCE_SECONDS = 300.0
"""For a worker to come back where the last one that can do what waits is lost."""


def open_cluster(address: str, tls: Tls = CONFIGURED) -> Cluster:
    """Connect to a scheduler that has workers.

    Raises :class:`BackendUnavailable` within a few seconds where there is none.
    """
    at = scheduler_address(address, "tls" if tls.is_given else "tcp")
    require_distributed()
    cluster = Cluster(connected(at, security(at, tls, "client")), at)
    try:
        cluster.require_workers()
    except BaseException:
        cluster.close()
        raise
    return cluster


def connected(address: str, protection: Any) -> Any:
    """A client of the scheduler at an address, protected as :func:`security` says; raises
    :class:`BackendUnavailable`."""
    from distributed import Client

    try:
        with warnings.catch_warnings():
            # Versions are compared in our own words.
            warnings.simplefilter("ignore")
            return Client(
                address, timeout=CONNECT_SECONDS, set_as_default=False, security=protection
            )
    except Exception as error:
        # Of what is no scheduler: Dask takes the first bytes of a banner for sizes of memory.
        raise unanswered(address, error) from None


class Cluster(Workers):
    """A client of a scheduler.

    No more tasks are submitted than are executed at a time, and of short ones twice as many: a
    worker that joins late gets the next one. Dask blames the end of a worker on every task that it
    had; those that are blamed too often are tried once more at the end, each alone.
    """

    def __init__(self, client: Any, address: str) -> None:
        self._client = client
        self._address = address
        self._members = Members(())
        self._looked = float("-inf")
        self._cpu = cpu_model()

    @property
    def count(self) -> int:
        return max(1, self._members.slots)

    def require_workers(self) -> None:
        self._look()
        if not self._members.all:
            raise BackendUnavailable(
                f"the cluster at {self._address} has no workers: start some by "
                f"`cpembed worker {self._address}`"
            )

    def require_measuring(self) -> None:
        self._look()
        if not self._members.measuring(self._cpu):
            raise BackendUnavailable(
                f"no worker of {self._address} can measure on {self._cpu}: "
                f"{self._members.cannot_measure(self._cpu)}; start `cpembed worker "
                f"{self._address} --measure` alone on such a machine"
            )

    def outcomes(self, tasks: Iterable[Task]) -> Generator[Outcome, None, None]:
        run = Run(iter(tasks))
        alive = time.monotonic()
        try:
            while True:
                if time.monotonic() - self._looked > LOOK_SECONDS:
                    self._look()
                self._fill(run)
                if not run.submitted and run.held is None:
                    if not run.suspects:
                        return
                    self._submit(run, run.suspects.pop())
                if self._can_progress(run):
                    alive = time.monotonic()
                elif time.monotonic() - alive > PATIENCE_SECONDS:
                    raise self._lost("has lost the workers that can do what is left")
                if (done := run.completed(LOOK_SECONDS)) is not None:
                    if (outcome := self._outcome(done)) is not None:
                        yield outcome
                    else:
                        run.suspects.append(done.task)
        finally:
            run.abandon(self._client)

    def close(self) -> None:
        with suppress(Exception):
            self._client.close(timeout=CONNECT_SECONDS)

    def _look(self) -> None:
        """At which workers there are."""
        with self._answering():
            if self._client.status != "running":
                raise OSError("the connection is lost")
            self._members = Members.told(self._client.scheduler_info(n_workers=-1)["workers"])
        self._looked = time.monotonic()

    def _fill(self, run: Run) -> None:
        """Submit tasks while there is room for them."""
        while self._has_slot(run) or not run.submitted:
            task = run.next()
            if task is None or not self._has_room(run, task):
                return
            self._submit(run, task)
            run.held = None

    def _has_room(self, run: Run, task: Task) -> bool:
        free = not task.measures or run.measuring < self._members.measuring(self._cpu)
        return free and self._has_slot(run)

    def _has_slot(self, run: Run) -> bool:
        ahead = 2 if run.seconds < SHORT_SECONDS else 1
        return len(run.submitted) < ahead * self._members.slots

    def _can_progress(self, run: Run) -> bool:
        """Whether there are workers for what was submitted, or for the task that waits."""
        measures = run.measuring or (run.held is not None and run.held.measures)
        return bool(self._members.measuring(self._cpu) if measures else self._members.slots)

    def _submit(self, run: Run, task: Task) -> None:
        threads = thread_count() if task.measures else None
        tag = {measuring_tag(self._cpu): 1} if task.measures else {}
        packed = pickle.dumps(task)
        with self._answering():
            key = run.new_key()
            future = self._client.submit(
                execute, identity(), packed, threads, key=key, pure=False, resources=tag
            )
        run.add(key, Submitted(task, future))

    def _outcome(self, done: Submitted) -> Outcome | None:
        """None where another task may have ended the workers; raises what is no error of the task's
        own."""
        from distributed import KilledWorker

        task, future = done.task, done.future
        with self._answering():
            if future.status == "cancelled":
                raise OSError("the connection is lost")
            error = future.exception()
            if error is None:
                return Outcome(task, future.result())
        if isinstance(error, KilledWorker):
            if done.beside_others:
                return None
            return Outcome(task, error=_ended(task, error.allowed_failures + 1))
        if isinstance(error, OtherVersion):
            raise OtherVersion(f"{error}: install the same on both sides")
        if isinstance(error, CpembedError):
            return Outcome(task, error=error)
        if _is_unreadable(error):
            raise OtherVersion(
                f"the scheduler or a worker of {self._address} has no cpembed, or an older one, "
                "and cannot read tasks: install the same on all sides"
            )
        raise error

    @contextmanager
    def _answering(self) -> Generator[None]:
        """In which the scheduler is talked with."""
        try:
            yield
        except (OSError, TimeoutError) as error:
            raise self._lost(f"does not answer any more ({_reason(error)})") from None

    def _lost(self, why: str) -> BackendUnavailable:
        return BackendUnavailable(f"the cluster at {self._address} {why}; what came back is kept")


def _is_unreadable(error: BaseException) -> bool:
    """Whether a scheduler or a worker could not import what a task names."""
    unknown = isinstance(error, ImportError) and "cpembed" in str(error)
    # Dask's words of its scheduler.
    return unknown or (isinstance(error, RuntimeError) and "deserialization" in str(error))


def _ended(task: Task, workers: int) -> CrashError:
    words = f"{task.doing} ended each of the {workers} workers that tried it"
    error = CrashError(f"{words}: out of memory, or killed by somebody")
    error.doing = task.doing
    return error


def _reason(error: BaseException) -> str:
    """The first words of what a library says."""
    return str(error).partition("\n")[0][:120] or type(error).__name__
