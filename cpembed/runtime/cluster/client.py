"""A running Dask cluster, seen from the process that keeps the results."""

from __future__ import annotations

import pickle
import queue
import time
import uuid
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from cpembed.codegen.host_cpu import cpu_model
from cpembed.codegen.runtime import thread_count
from cpembed.errors import BackendUnavailable, CpembedError, CrashError
from cpembed.runtime.cluster import connection
from cpembed.runtime.cluster.executors import Outcome, Task, Workers
from cpembed.runtime.cluster.member import (
    OtherVersion,
    execute,
    identity,
    measured_cpu,
    measuring_tag,
)

LOOK_SECONDS = 1.0
"""Seconds between two looks at the workers while nothing completes."""

# A worker that has nothing else would idle during each round trip to the client.
SHORT_SECONDS = 0.5
"""Mean time of recent tasks in seconds below which each worker has one more task waiting."""

PATIENCE_SECONDS = 300.0
"""Seconds to wait for a worker to come back after the last one that can do the tasks is lost."""


def open_cluster(address: str, tls: connection.Tls = connection.CONFIGURED) -> Cluster:
    """Connect to a scheduler that has workers.

    Raises :class:`BackendUnavailable` within a few seconds if there is none.
    """
    at = connection.scheduler_address(address, "tls" if tls.is_given else "tcp")
    connection.require_distributed()
    cluster = Cluster(connection.connected(at, connection.security(at, tls, "client")), at)
    try:
        cluster.require_workers()
    except BaseException:
        cluster.close()
        raise
    return cluster


# ------------------------------------------------------------------------------ workers


@dataclass(frozen=True)
class Member:
    """Worker process, its concurrent tasks, and the CPU model that it may measure, or None."""

    host: str
    slots: int
    measures_on: str | None


@dataclass(frozen=True)
class Members:
    """The workers of a cluster at one moment, as its scheduler knows them."""

    all: tuple[Member, ...]

    @classmethod
    def from_scheduler(cls, workers: Mapping[str, Mapping[str, Any]]) -> Members:
        """Return the running workers of a scheduler's description, which has them by address."""
        members: list[Member] = []
        for worker in workers.values():
            if worker["status"] == "running":
                cpus = filter(None, map(measured_cpu, worker["resources"]))
                members.append(Member(worker["host"], worker["nthreads"], next(cpus, None)))
        return cls(tuple(members))

    @property
    def slots(self) -> int:
        """Number of concurrent tasks of all workers."""
        return sum(member.slots for member in self.all)

    def measuring(self, cpu: str) -> int:
        """Return the number of workers that may measure on a CPU model, alone on their hosts."""
        # Any other worker on the host would compete for its cores and distort the times.
        hosts = Counter(member.host for member in self.all)
        return sum(hosts[member.host] == 1 for member in self.all if member.measures_on == cpu)

    def cannot_measure(self, cpu: str) -> str:
        """Return why no worker can measure on a CPU model, in words."""
        models = sorted({m.measures_on for m in self.all if m.measures_on is not None})
        if cpu in models:
            return f"those on {cpu} share their host with other workers"
        if models:
            return f"its measuring workers have {'; '.join(models)}"
        return f"of its {len(self.all)} workers none measures"


# ------------------------------------------------------------------------------ tasks


@dataclass
class Submitted:
    """Task with its future.

    ``was_concurrent`` is True if other tasks were ever submitted at the same time: Dask may then
    blame it for the end of a worker that another one caused.
    """

    task: Task
    future: Any
    was_concurrent: bool = False
    started: float = field(default_factory=time.monotonic)


class Run:
    """The tasks of a call of :meth:`Cluster.outcomes`.

    ``held`` is the next task, which waits for room. ``suspects`` are tasks to be retried alone.
    ``seconds`` is the moving mean of the time from submission to completion.
    """

    def __init__(self, tasks: Iterator[Task]) -> None:
        self._tasks = tasks
        self._name = uuid.uuid4().hex
        self._number = 0
        self._completed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.submitted: dict[str, Submitted] = {}
        self.suspects: list[Task] = []
        self.held: Task | None = None
        self.seconds = float("inf")

    @property
    def measuring(self) -> int:
        """Number of submitted tasks that measure."""
        return sum(item.task.measures for item in self.submitted.values())

    def next(self) -> Task | None:
        """Return the held task, or hold the next one; None after the last."""
        if self.held is None:
            self.held = next(self._tasks, None)
        return self.held

    def new_key(self) -> str:
        """Return a key for a future that no other run uses."""
        self._number += 1
        return f"cpembed-{self._name}-{self._number}"

    def add(self, key: str, submitted: Submitted) -> None:
        """Add a task that was just submitted."""
        self.submitted[key] = submitted
        if len(self.submitted) > 1:
            for item in self.submitted.values():
                item.was_concurrent = True

        def on_completion(_: Any) -> None:
            self._completed.put(key)

        submitted.future.add_done_callback(on_completion)

    def completed(self, seconds: float) -> Submitted | None:
        """Return a complete task; None if none completes within so many seconds."""
        try:
            key = self._completed.get(timeout=seconds)
        except queue.Empty:
            return None
        item = self.submitted.pop(key)
        duration = time.monotonic() - item.started
        # The mean starts from the first duration: infinity would never wear off.
        first = self.seconds == float("inf")
        self.seconds = duration if first else (3 * self.seconds + duration) / 4
        return item

    def abandon(self, client: Any) -> None:
        """Cancel the submitted tasks."""
        if self.submitted:
            with suppress(Exception):
                client.cancel([item.future for item in self.submitted.values()])


class Cluster(Workers):
    """A client of a scheduler.

    No more tasks are submitted than are executed at a time, and of short ones twice as many, so
    that a worker that joins late gets the next one. Dask blames the end of a worker on every task
    that it had: those that are blamed too often are retried at the end, each alone.
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
        """Raise :class:`BackendUnavailable` if the cluster has no workers."""
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
                # Suspects come last and one at a time: whoever ends a worker then is to blame.
                if not run.submitted and run.held is None:
                    if not run.suspects:
                        return
                    self._submit(run, run.suspects.pop())
                if self._can_progress(run):
                    alive = time.monotonic()
                elif time.monotonic() - alive > PATIENCE_SECONDS:
                    raise self._lost("has lost the workers that can do what is left")
                if (item := run.completed(LOOK_SECONDS)) is not None:
                    if (outcome := self._outcome(item)) is not None:
                        yield outcome
                    else:
                        run.suspects.append(item.task)
        finally:
            run.abandon(self._client)

    def close(self) -> None:
        with suppress(Exception):
            # The scheduler may be gone, and nobody needs the connection any more.
            self._client.close(timeout=connection.CONNECT_SECONDS)

    def _look(self) -> None:
        """Update the list of workers."""
        with self._answering():
            if self._client.status != "running":
                raise OSError("the connection is lost")
            workers = self._client.scheduler_info(n_workers=-1)["workers"]
            self._members = Members.from_scheduler(workers)
        self._looked = time.monotonic()

    def _fill(self, run: Run) -> None:
        """Submit tasks while there is room for them."""
        # Even without a slot the next task is held: its kind says which workers it waits for.
        while self._has_slot(run) or not run.submitted:
            task = run.next()
            if task is None or not self._has_room(run, task):
                return
            self._submit(run, task)
            # Only after the submission: if that fails, the task is still there to be counted.
            run.held = None

    def _has_room(self, run: Run, task: Task) -> bool:
        free = not task.measures or run.measuring < self._members.measuring(self._cpu)
        return free and self._has_slot(run)

    def _has_slot(self, run: Run) -> bool:
        per_slot = 2 if run.seconds < SHORT_SECONDS else 1
        return len(run.submitted) < per_slot * self._members.slots

    def _can_progress(self, run: Run) -> bool:
        """True if there are workers for the submitted tasks, or for the held one."""
        measures = run.measuring or (run.held is not None and run.held.measures)
        return bool(self._members.measuring(self._cpu) if measures else self._members.slots)

    def _submit(self, run: Run, task: Task) -> None:
        threads = thread_count() if task.measures else None
        tag = {measuring_tag(self._cpu): 1} if task.measures else {}
        # Pickled here, so that the scheduler passes bytes on and need not import anything.
        packed = pickle.dumps(task)
        with self._answering():
            key = run.new_key()
            # `pure=False`: two tasks of equal arguments, such as two timings, are both executed.
            future = self._client.submit(
                execute, identity(), packed, threads, key=key, pure=False, resources=tag
            )
        run.add(key, Submitted(task, future))

    def _outcome(self, item: Submitted) -> Outcome | None:
        """Return the outcome of a complete task; None if another task may have ended its workers.

        Errors that are not the task's own are raised.
        """
        from distributed import KilledWorker

        task, future = item.task, item.future
        with self._answering():
            if future.status == "cancelled":
                raise OSError("the connection is lost")
            error = future.exception()
            if error is None:
                return Outcome(task, future.result())
        if isinstance(error, KilledWorker):
            if item.was_concurrent:
                return None
            return Outcome(task, error=_killed(task, error.allowed_failures + 1))
        if isinstance(error, OtherVersion):
            raise OtherVersion(f"{error}: install the same on both sides")
        if isinstance(error, CpembedError):
            return Outcome(task, error=error)
        if _is_import_failure(error):
            raise OtherVersion(
                f"the scheduler or a worker of {self._address} has no cpembed, or an older one, "
                "and cannot read tasks: install the same on all sides"
            )
        raise error

    @contextmanager
    def _answering(self) -> Generator[None]:
        """Translate errors of the connection inside."""
        try:
            yield
        except (OSError, TimeoutError) as error:
            raise self._lost(f"does not answer any more ({connection.first_line(error)})") from None

    def _lost(self, reason: str) -> BackendUnavailable:
        return BackendUnavailable(
            f"the cluster at {self._address} {reason}; what came back is kept"
        )


def _is_import_failure(error: BaseException) -> bool:
    """True if a scheduler or a worker could not import a task's function."""
    unknown = isinstance(error, ImportError) and "cpembed" in str(error)
    # Dask's message about its scheduler.
    return unknown or (isinstance(error, RuntimeError) and "deserialization" in str(error))


def _killed(task: Task, workers: int) -> CrashError:
    # Dask says only that workers ended, not how: the usual reasons are named.
    text = f"{task.doing} ended each of the {workers} workers that tried it"
    error = CrashError(f"{text}: out of memory, or killed by somebody")
    error.doing = task.doing
    return error
