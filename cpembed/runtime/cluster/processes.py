"""Worker processes on this machine."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable, Sequence
from typing import Any

from cpembed.errors import CpembedError
from cpembed.runtime.cluster.base import Outcome, Task, Workers
from cpembed.runtime.cluster.host_lock import HostLock
from cpembed.runtime.cluster.isolation import ONE_THREAD, Isolation

_Todo = queue.SimpleQueue[Task | None]
_Done = queue.SimpleQueue[tuple[Task, Any, BaseException | None]]


class Processes(Workers):
    """So many processes, each of which executes one task at a time.

    They start at once, so that what they import is there when the first task comes. What is
    measured beside others is no time: there is no place for such tasks. ``preload`` as for
    :class:`~cpembed.runtime.worker.parent.Worker`.
    """

    def __init__(self, count: int, preload: Sequence[str] | None = None) -> None:
        self._lock = HostLock.taken(alone=False)
        self._todo: _Todo = queue.SimpleQueue()
        self._done: _Done = queue.SimpleQueue()
        self._slots = [_Slot(self._todo, self._done, preload) for _ in range(count)]

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
                while running < self.count and (task := next(waiting, None)) is not None:
                    if task.measures:
                        self.require_measuring()
                    self._todo.put(task)
                    running += 1
                if not running:
                    return
                done, result, error = self._done.get()
                running -= 1
                if error is not None and not isinstance(error, CpembedError):
                    raise error
                yield Outcome(done, result, error)
        finally:
            self._abandon(running)

    def _abandon(self, running: int) -> None:
        """End what is executed and what is about to be; processes start anew for later tasks."""
        if not running:
            return
        for slot in self._slots:
            slot.process.stop()
        for _ in range(running):
            self._done.get()
        for slot in self._slots:
            slot.process.resume()

    def close(self) -> None:
        for _ in self._slots:
            self._todo.put(None)
        for slot in self._slots:
            slot.thread.join()
        self._lock.release()


class _Slot:
    """A thread that has tasks executed in a process of its own."""

    def __init__(self, todo: _Todo, done: _Done, preload: Sequence[str] | None) -> None:
        self._todo = todo
        self._done = done
        self.process = Isolation(preload, ONE_THREAD)
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        self.process.prepare()
        while (task := self._todo.get()) is not None:
            try:
                self._done.put((task, self.process.execute(task), None))
            except BaseException as error:
                self._done.put((task, None, error))
        self.process.close()
