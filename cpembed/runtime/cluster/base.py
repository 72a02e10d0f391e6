"""Independent tasks and who executes them; the client alone keeps what comes of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from cpembed.errors import CpembedError


@dataclass(frozen=True)
class Task:
    """A call that depends on no other: a function of a module with arguments that can be pickled.

    ``key`` tells the tasks of a run apart; ``doing`` is for messages (``enumerating layer 12``).
    ``measures``: its result is a time of the processor that executes it.
    """

    key: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    doing: str
    measures: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a task: its result, or the error that it raised or that its worker's end is.

    An error that is no :class:`CpembedError` is a bug, and is raised where outcomes are read.
    """

    task: Task
    result: Any = None
    error: CpembedError | None = None


class Workers(ABC):
    """Who executes tasks. A context manager: leaving it ends what it has started."""

    @abstractmethod
    def outcomes(self, tasks: Iterable[Task]) -> Generator[Outcome, None, None]:
        """An outcome for each task, in the order in which they complete.

        Tasks are taken from the iterable as there is room for them, not all at once. Closing the
        generator abandons those that are not complete.
        """

    def results(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Any]]:
        """Each task with its result, for those who need all of them: the first error is raised."""
        for outcome in self.outcomes(tasks):
            if outcome.error is not None:
                raise outcome.error
            yield outcome.task, outcome.result

    @property
    def count(self) -> int:
        """How many tasks are executed at the same time, as far as is known."""
        return 1

    def require_measuring(self) -> None:  # noqa: B027 - most can
        """Raises :class:`CpembedError` where there is nobody for tasks that measure."""

    def close(self) -> None:  # noqa: B027 - most start nothing
        """End what was started."""

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
    """Tasks one after the other, in their order."""

    def outcomes(self, tasks: Iterable[Task]) -> Generator[Outcome, None, None]:
        for task in tasks:
            try:
                result = task.function(*task.arguments)
            except CpembedError as error:
                yield Outcome(task, error=error)
            else:
                yield Outcome(task, result)
