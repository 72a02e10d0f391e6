"""Independent tasks and their executors; only the client keeps results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from cpembed.errors import CpembedError


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
