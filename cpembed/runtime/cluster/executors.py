"""Independent tasks, and their executors on this machine: this process, or several of them.

Only the client keeps results. A lock keeps other workers off a host that measures.
"""

from __future__ import annotations

import fcntl
import os
import platform
import queue
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cpembed.errors import BackendUnavailable, CpembedError, CrashError
from cpembed.runtime.worker import Worker


@dataclass(frozen=True)
class Task:
    """A call that depends on no other: a module's function with arguments that can be pickled.

    ``key`` tells the tasks of a run apart; ``doing`` is for messages (``enumerating layer 12``).
    ``measures`` is True if the result is a time of the processor that executes the task.
    """

    key: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    doing: str
    measures: bool = False


@dataclass(frozen=True)
class Outcome:
    """The result of a task, or the error that it raised or that ended its worker.

    An error that is no :class:`CpembedError` is a bug, and is raised where outcomes are read.
    """

    task: Task
    result: Any = None
    error: CpembedError | None = None


class Workers(ABC):
    """Executors of tasks. Leaving the context ends the processes that it has started."""

    @abstractmethod
    def outcomes(self, tasks: Iterable[Task]) -> Generator[Outcome, None, None]:
        """Yield an outcome for each task, in the order of completion.

        Tasks are taken from the iterable as there is room for them, not all at once. Closing the
        generator abandons those that are not complete.
        """

    def results(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Any]]:
        """Yield each task with its result; raise the first error."""
        for outcome in self.outcomes(tasks):
            if outcome.error is not None:
                raise outcome.error
            yield outcome.task, outcome.result

    @property
    def count(self) -> int:
        """Number of tasks that are executed at the same time, as far as is known."""
        return 1

    def require_measuring(self) -> None:  # noqa: B027 - most can
        """Raise :class:`CpembedError` if no executor may run tasks that measure."""

    def close(self) -> None:  # noqa: B027 - most start nothing
        """End the processes that were started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class ThisProcess(Workers):
    """Execution in this process, one task after the other."""

    def outcomes(self, tasks: Iterable[Task]) -> Generator[Outcome, None, None]:
        for task in tasks:
            try:
                result = task.function(*task.arguments)
            except CpembedError as error:
                yield Outcome(task, error=error)
            else:
                yield Outcome(task, result)


# The first kill may be due to a neighbour who took the memory.
ATTEMPTS = 2
"""Maximum number of attempts at a task whose process is killed."""

WITHOUT_COMPILER = ("cpembed.driver.run:run",)
"""Objects that a process imports ahead for tasks that only solve."""

ONE_THREAD: Mapping[str, str] = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
)
"""Environment of processes that share the cores: numerical libraries use one thread each, unless
the user's environment says otherwise."""


class HostLock:
    """Lock on this host for all workers of a user: exclusive for one that measures, else shared.

    The system releases it with the process.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, *, exclusive: bool) -> HostLock:
        """Return the lock.

        Raises :class:`BackendUnavailable` if another process holds it in a way that conflicts.
        """
        # The run-time folder belongs to this host alone; a home folder may be shared by several.
        path = _run_time_folder() / "workers.lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Anybody can write a folder of temporary files: follow no link of another person.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise BackendUnavailable(
                f"{path}: cannot be made ({error.strerror}): name another folder by XDG_RUNTIME_DIR"
            ) from None
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise BackendUnavailable(_conflict(path, exclusive=exclusive)) from None
        return cls(descriptor)

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _conflict(path: Path, *, exclusive: bool) -> str:
    if exclusive:
        reason = "other workers are running, beside which nothing can be measured"
    else:
        reason = "a worker measures, beside which nothing else may run"
    return f"on {host_name()} {reason}: end them first ({path})"


def _run_time_folder() -> Path:
    folder = os.environ.get("XDG_RUNTIME_DIR")
    if folder:
        return Path(folder) / "cpembed"
    usual = Path(f"/run/user/{os.getuid()}")
    return usual / "cpembed" if usual.is_dir() else _temporary()


def _temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"cpembed-{os.getuid()}"


def host_name() -> str:
    """Return the name of this host for messages."""
    return platform.node() or "this machine"


class Isolation:
    """Child process for one task at a time, warm between tasks and replaced when it ends.

    It ends with the thread that calls :meth:`prepare` or :meth:`execute` first. The parameters are
    those of :class:`~cpembed.runtime.worker.Worker`.
    """

    def __init__(
        self, preload: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._parameters = preload, environment
        self._worker: Worker | None = None
        self._stopped = threading.Event()

    def prepare(self) -> Worker:
        """Return the process, started if necessary."""
        if self._worker is None or not self._worker.is_usable:
            self.close()
            # Surroundings, such as the number of threads, count only at the start of a process.
            self._worker = Worker(*self._parameters)
        return self._worker

    def execute(self, task: Task) -> Any:
        """Return the task's result, or raise its error; :class:`CrashError` if its process ends."""
        for attempt in range(1, ATTEMPTS + 1):
            # A process that a kill has ended is replaced here, before the second attempt.
            worker = self.prepare()
            if self._stopped.is_set():
                # `stop` was called while the process started.
                worker.stop()
            try:
                return worker.call(task.function, task.arguments, {}, task.doing)
            except CrashError as error:
                if not error.killed or self._stopped.is_set() or attempt == ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def stop(self) -> None:
        """Kill the process, and those of later tasks until :meth:`resume`; from any thread."""
        self._stopped.set()
        if self._worker is not None:
            self._worker.stop()

    def resume(self) -> None:
        """Execute tasks again."""
        self._stopped.clear()

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None


_TaskQueue = queue.SimpleQueue[Task | None]
_ResultQueue = queue.SimpleQueue[tuple[Task, Any, BaseException | None]]


class Processes(Workers):
    """Processes on this machine, each of which executes one task at a time.

    They start at once, so that their imports are done when the first task comes. Timing tasks are
    rejected: concurrent processes would distort them.

    Parameters
    ----------
    count
        Number of processes.
    preload
        Objects to import ahead, as for :class:`~cpembed.runtime.worker.Worker`.
    """

    def __init__(self, count: int, preload: Sequence[str] | None = None) -> None:
        # Before any process starts: a worker that measures here must not be disturbed.
        self._lock = HostLock.acquire(exclusive=False)
        self._tasks: _TaskQueue = queue.SimpleQueue()
        self._results: _ResultQueue = queue.SimpleQueue()
        self._slots = [_Slot(self._tasks, self._results, preload) for _ in range(count)]

    @property
    def count(self) -> int:
        return len(self._slots)

    def require_measuring(self) -> None:
        raise CpembedError(
            "times that are measured beside other workers of this machine are wrong: leave the "
            "workers out, solve only, or measure on a cluster whose workers do nothing else "
            "(`cpembed worker ADDRESS --measure`)"
        )

    def outcomes(self, tasks: Iterable[Task]) -> Generator[Outcome, None, None]:
        waiting = iter(tasks)
        running = 0
        task: Task | None = None
        try:
            while True:
                # One task for each slot: what is not handed out yet need not be abandoned.
                while running < self.count and (task := next(waiting, None)) is not None:
                    if task.measures:
                        self.require_measuring()
                    self._tasks.put(task)
                    running += 1
                if not running:
                    return
                finished, result, error = self._results.get()
                running -= 1
                # Any other error is a bug, and belongs to no single task.
                if error is not None and not isinstance(error, CpembedError):
                    raise error
                yield Outcome(finished, result, error)
        finally:
            self._abandon(running)

    def _abandon(self, running: int) -> None:
        """End the tasks that run or are about to; processes start anew for later tasks."""
        if not running:
            return
        for slot in self._slots:
            slot.process.stop()
        # Each task that was put yields one result, also one whose process was stopped.
        for _ in range(running):
            self._results.get()
        for slot in self._slots:
            slot.process.resume()

    def close(self) -> None:
        for _ in self._slots:
            # None ends the thread of a slot, which ends its process.
            self._tasks.put(None)
        for slot in self._slots:
            slot.thread.join()
        self._lock.release()


class _Slot:
    """A thread that has tasks executed in a process of its own."""

    def __init__(
        self, tasks: _TaskQueue, results: _ResultQueue, preload: Sequence[str] | None
    ) -> None:
        self._tasks = tasks
        self._results = results
        self.process = Isolation(preload, ONE_THREAD)
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        self.process.prepare()
        while (task := self._tasks.get()) is not None:
            try:
                self._results.put((task, self.process.execute(task), None))
            except BaseException as error:
                # Raised by `outcomes`, in the thread of the caller.
                self._results.put((task, None, error))
        self.process.close()
