"""A Dask cluster that others have started, seen from the process that keeps the results."""

from __future__ import annotations

import pickle
import queue
import time
import uuid
import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from cpembed.cluster.address import scheduler_address
from cpembed.cluster.base import Outcome, Task, Workers
from cpembed.cluster.execution import OtherVersion, execute
from cpembed.cluster.identity import identity, measuring_tag
from cpembed.cluster.library import require_distributed
from cpembed.cluster.members import Members
from cpembed.errors import BackendUnavailable, CpembedError, CrashError
from cpembed.kernel.runtime import thread_count
from cpembed.kernel.system import cpu_model

CONNECT_SECONDS = 3.0
"""To reach the scheduler."""

LOOK_SECONDS = 1.0
"""Between two looks at which workers there are, where nothing completes."""

SHORT_SECONDS = 0.5
"""Tasks that take less, in the mean of the last few, wait at the workers, one for each: the next is
there when one is done."""

PATIENCE_SECONDS = 300.0
"""For a worker to come back where the last one that can do what waits is lost."""


def open_cluster(address: str) -> Cluster:
    """Connect to a scheduler that has workers.

    Raises :class:`BackendUnavailable` within a few seconds where there is none.
    """
    at = scheduler_address(address)
    require_distributed()
    cluster = Cluster(connected(at), at)
    try:
        cluster.require_workers()
    except BaseException:
        cluster.close()
        raise
    return cluster


def connected(address: str) -> Any:
    """A client of the scheduler at an address; raises :class:`BackendUnavailable`."""
    from distributed import Client

    try:
        with warnings.catch_warnings():
            # Versions are compared in our own words.
            warnings.simplefilter("ignore")
            return Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, RuntimeError, TimeoutError) as error:
        raise BackendUnavailable(
            f"no Dask scheduler answers at {address} ({_reason(error)}): start one by "
            "`dask scheduler`"
        ) from None


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
        run = _Run(iter(tasks))
        alive = time.monotonic()
        try:
            while run.next is not None or run.submitted or run.suspects:
                if time.monotonic() - self._looked > LOOK_SECONDS:
                    self._look()
                while run.next is not None and self._has_room(run, run.next):
                    self._submit(run, run.next)
                    run.advance()
                if not run.submitted and run.next is None:
                    self._submit(run, run.suspects.pop())
                if self._can_progress(run):
                    alive = time.monotonic()
                elif time.monotonic() - alive > PATIENCE_SECONDS:
                    raise self._lost("has lost the workers that can do what is left")
                if (done := run.completed()) is not None:
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
            self._members = Members.told(self._client.scheduler_info()["workers"])
        self._looked = time.monotonic()

    def _has_room(self, run: _Run, task: Task) -> bool:
        ahead = 2 if run.seconds < SHORT_SECONDS else 1
        if len(run.submitted) >= ahead * self._members.slots:
            return False
        return not task.measures or run.measuring < self._members.measuring(self._cpu)

    def _can_progress(self, run: _Run) -> bool:
        """Whether there are workers for what was submitted, or for the next task."""
        measures = run.measuring or (run.next is not None and run.next.measures)
        return bool(self._members.measuring(self._cpu) if measures else self._members.slots)

    def _submit(self, run: _Run, task: Task) -> None:
        threads = thread_count() if task.measures else None
        tag = {measuring_tag(self._cpu): 1} if task.measures else {}
        packed = pickle.dumps(task)
        with self._answering():
            key = run.new_key()
            future = self._client.submit(
                execute, identity(), packed, threads, key=key, pure=False, resources=tag
            )
        run.add(key, _Submitted(task, future))

    def _outcome(self, done: _Submitted) -> Outcome | None:
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


@dataclass
class _Submitted:
    """A task with its future, and whether others were submitted while it was not complete."""

    task: Task
    future: Any
    beside_others: bool = False
    begun: float = field(default_factory=time.monotonic)


class _Run:
    """The tasks of a call of :meth:`Cluster.outcomes`: the next one, those submitted, and how long
    one takes from there to its completion, as a moving mean."""

    def __init__(self, tasks: Iterator[Task]) -> None:
        self._tasks = tasks
        self._name = uuid.uuid4().hex
        self._number = 0
        self._completed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.submitted: dict[str, _Submitted] = {}
        self.suspects: list[Task] = []
        self.seconds = float("inf")
        self.next = next(tasks, None)

    @property
    def measuring(self) -> int:
        return sum(one.task.measures for one in self.submitted.values())

    def new_key(self) -> str:
        """Of a future: what no other run has."""
        self._number += 1
        return f"cpembed-{self._name}-{self._number}"

    def add(self, key: str, submitted: _Submitted) -> None:
        self.submitted[key] = submitted
        if len(self.submitted) > 1:
            for one in self.submitted.values():
                one.beside_others = True

        def completed(_: Any) -> None:
            self._completed.put(key)

        submitted.future.add_done_callback(completed)

    def advance(self) -> None:
        self.next = next(self._tasks, None)

    def completed(self) -> _Submitted | None:
        """A task that is complete; None where none is for a while."""
        try:
            key = self._completed.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            return None
        done = self.submitted.pop(key)
        took = time.monotonic() - done.begun
        self.seconds = took if self.seconds == float("inf") else (3 * self.seconds + took) / 4
        return done

    def abandon(self, client: Any) -> None:
        """What is submitted is not waited for."""
        if self.submitted:
            with suppress(Exception):
                client.cancel([one.future for one in self.submitted.values()])


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
