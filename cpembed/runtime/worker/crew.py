"""Independent calls of one function in several processes at a time."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from cpembed.runtime.worker.parent import IN_PROCESS_VARIABLE, Worker, call
from cpembed.steps import in_worker

T = TypeVar("T")
R = TypeVar("R")


def call_each(
    function: Callable[[T], R], arguments: Sequence[T], processes: int
) -> Generator[tuple[T, R]]:
    """Each argument with the function's result, in the order in which they are done.

    The function, its arguments and results are as of :func:`~cpembed.runtime.worker.call`. What it
    raises first is raised here and ends the others, as everything does that ends the iteration.
    """
    alone = in_worker() or bool(os.environ.get(IN_PROCESS_VARIABLE)) or not sys.executable
    count = min(processes, len(arguments))
    if alone or count < 2:
        for argument in arguments:
            yield argument, call(function, argument)
        return
    crew = [Worker() for _ in range(count)]
    waiting: queue.SimpleQueue[T] = queue.SimpleQueue()
    for argument in arguments:
        waiting.put(argument)
    done: queue.SimpleQueue[tuple[Any, Any, BaseException | None]] = queue.SimpleQueue()
    threads = [
        threading.Thread(target=_work, args=(worker, function, waiting, done), daemon=True)
        for worker in crew
    ]
    try:
        for thread in threads:
            thread.start()
        for _ in arguments:
            argument, result, error = done.get()
            if error is not None:
                raise error
            yield argument, result
    finally:
        for worker in crew:
            worker.stop()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        for worker in crew:
            worker.close()


def _work(
    worker: Worker,
    function: Callable[[Any], Any],
    waiting: queue.SimpleQueue[Any],
    done: queue.SimpleQueue[tuple[Any, Any, BaseException | None]],
) -> None:
    """In a thread: have a worker do what waits."""
    while True:
        try:
            argument = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            done.put((argument, worker.call(function, (argument,), {}), None))
        except BaseException as error:
            done.put((argument, None, error))
            return
