"""Tasks of one run that are at the workers of a cluster, and those that wait."""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cpembed.runtime.cluster.base import Task


@dataclass
class Submitted:
    """A task with its future, and whether others were submitted while it was not complete."""

    task: Task
    future: Any
    beside_others: bool = False
    begun: float = field(default_factory=time.monotonic)


class Run:
    """The tasks of a call of :meth:`~cpembed.runtime.cluster.client.Cluster.outcomes`.

    ``held`` was taken, and waits for room; ``suspects`` are to be tried alone; ``seconds`` is what
    a task takes from when it is submitted, as a moving mean.
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
        return sum(one.task.measures for one in self.submitted.values())

    def next(self) -> Task | None:
        """The task that is held, or the next one, which is held from then on."""
        if self.held is None:
            self.held = next(self._tasks, None)
        return self.held

    def new_key(self) -> str:
        """Of a future: what no other run has."""
        self._number += 1
        return f"cpembed-{self._name}-{self._number}"

    def add(self, key: str, submitted: Submitted) -> None:
        self.submitted[key] = submitted
        if len(self.submitted) > 1:
            for one in self.submitted.values():
                one.beside_others = True

        def completed(_: Any) -> None:
            self._completed.put(key)

        submitted.future.add_done_callback(completed)

    def completed(self, seconds: float) -> Submitted | None:
        """A task that is complete; None where none is within so many seconds."""
        try:
            key = self._completed.get(timeout=seconds)
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
