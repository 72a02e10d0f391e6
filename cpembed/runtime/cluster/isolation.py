"""Tasks in a child process, which may end in the place of the process that has many to do."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from cpembed.errors import CrashError
from cpembed.runtime.cluster.base import Task
from cpembed.runtime.worker.parent import Worker

ATTEMPTS = 2
"""How often a task is begun whose process is killed: once may be somebody else's doing, such as
that of a neighbour who took the memory."""

WITHOUT_COMPILER = ("cpembed.driver.run:run",)
"""What a process loads ahead for tasks that only solve."""

ONE_THREAD: Mapping[str, str] = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
)
"""Environment of processes that share the cores: numerical libraries take one thread each, unless
somebody says otherwise."""


class Isolation:
    """A child process for one task at a time, warm between tasks and replaced when it ends.

    It ends with the thread that calls :meth:`prepare` or :meth:`execute` first. ``preload`` as for
    :class:`~cpembed.runtime.worker.parent.Worker`, and so is ``environment``.
    """

    def __init__(
        self, preload: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._made = preload, environment
        self._worker: Worker | None = None
        self._stopped = threading.Event()

    def prepare(self) -> Worker:
        """Start the process where there is none."""
        if self._worker is None or not self._worker.is_usable:
            self.close()
            self._worker = Worker(*self._made)
        return self._worker

    def execute(self, task: Task) -> Any:
        """The task's result; what it raises is raised here, and where its process ends,
        :class:`CrashError`."""
        for attempt in range(1, ATTEMPTS + 1):
            worker = self.prepare()
            if self._stopped.is_set():
                # It was asked for while the process started.
                worker.stop()
            try:
                return worker.call(task.function, task.arguments, {}, task.doing)
            except CrashError as error:
                if not error.killed or self._stopped.is_set() or attempt == ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def stop(self) -> None:
        """End the process, whatever it does, and those of later tasks until :meth:`resume`; from
        any thread."""
        self._stopped.set()
        if self._worker is not None:
            self._worker.stop()

    def resume(self) -> None:
        """Tasks are executed again."""
        self._stopped.clear()

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
