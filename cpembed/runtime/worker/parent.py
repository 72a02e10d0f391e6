"""The parent's side: starts the worker, sends calls, outlives it."""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Pipe
from multiprocessing.reduction import ForkingPickler
from typing import IO, Any, ParamSpec, TypeVar

from cpembed.errors import CpembedError, CrashError, LoweringError
from cpembed.files import FOLDER_GONE, is_folder_gone
from cpembed.steps import LIMIT_VARIABLE, in_worker

P = ParamSpec("P")
R = TypeVar("R")

IN_PROCESS_VARIABLE = "CPEMBED_IN_PROCESS"
"""Set to anything: no worker, calls happen in this process, for debuggers and profilers."""

PRELOAD = ("cpembed.codegen.runtime:tvm", "cpembed.driver.run:run")
"""What nearly every call needs: ``module:name``, loaded before the first one comes; a name that
takes no arguments is called."""

_MAIN = """\
import sys; sys.path[:] = {path!r}; from cpembed.runtime.worker.child import serve; serve({rest})"""
_LAST_WORDS = 4096
"""Bytes of a worker's stderr that are looked through for the reason of its death."""
_PATIENCE = 5.0
"""Seconds for a worker that closed its connection to end."""


def call(function: Callable[P, R], *arguments: P.args, **keywords: P.kwargs) -> R:
    """The function's result, from the worker of this process.

    The function is a module's or a bound method; it, its arguments and its result can be pickled,
    but for a keyword ``progress``, which is called here with what the function reports there.
    What it raises is raised here; where it ends its process, :class:`CrashError`.
    """
    if in_worker() or os.environ.get(IN_PROCESS_VARIABLE) or not sys.executable:
        return function(*arguments, **keywords)
    with _one_at_a_time:
        return _current().call(function, arguments, keywords)


def prepare() -> None:
    """Start the worker where there is none, to be warm when it is called."""
    if not (in_worker() or os.environ.get(IN_PROCESS_VARIABLE) or not sys.executable):
        with _one_at_a_time:
            _current()


def retire() -> None:
    """End the worker; the next call starts another."""
    for worker in _workers:
        worker.close()
    _workers.clear()


@dataclass(frozen=True)
class _Surroundings:
    """What of the parent a worker has from its start."""

    environment: dict[str, str]
    directory: str
    cores: frozenset[int]
    path: tuple[str, ...]

    @classmethod
    def now(cls) -> _Surroundings:
        if is_folder_gone():
            raise CpembedError(FOLDER_GONE)
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
        return cls(dict(os.environ), os.getcwd(), frozenset(cores), tuple(sys.path))


class Worker:
    """A child process that executes one call at a time; ``preload`` as :data:`PRELOAD`, which is
    taken where it is None. ``environment`` is added to that of this process, where it says nothing.
    """

    def __init__(
        self, preload: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.surroundings = _Surroundings.now()
        self.owner = os.getpid()
        self._connection, theirs = Pipe()
        # Not a pipe: nobody reads it while the worker works.
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        descriptor = theirs.fileno()
        rest = f"{descriptor}, {os.getpid()}, {list(PRELOAD if preload is None else preload)!r}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN.format(path=sys.path, rest=rest)],
            stdin=subprocess.DEVNULL,
            stdout=self._words,
            stderr=self._words,
            pass_fds=(descriptor,),
            start_new_session=True,
            env={**(environment or {}), **os.environ},
        )
        theirs.close()

    @property
    def is_usable(self) -> bool:
        """Whether it lives and everything around it is as when it was started."""
        return (
            self._process.poll() is None
            and self.owner == os.getpid()
            and self.surroundings == _Surroundings.now()
        )

    def call(
        self,
        function: Callable[..., R],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        task: str | None = None,
    ) -> R:
        """As :func:`call`; ``task`` is what is being done outside steps, for the line about a
        crash."""
        report: Callable[..., Any] | None = keywords.get("progress")
        sent = {name: value for name, value in keywords.items() if name != "progress"}
        try:
            request = ForkingPickler.dumps((function, arguments, sent, report is not None))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            return _here(function, arguments, keywords, error)
        doing = task
        try:
            self._connection.send_bytes(request)
            deadline: float | None = None
            while True:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not self._connection.poll(left):
                    raise CrashError.too_long(doing, LIMIT_VARIABLE)
                kind, *what = self._connection.recv()
                if kind == "step":
                    step, limit = what
                    doing = step or task
                    deadline = None if limit is None else time.monotonic() + limit
                elif kind == "report":
                    if report is not None:
                        report(*what[0])
                elif kind == "warning":
                    warnings.warn(what[0], what[1], stacklevel=2)
                elif kind == "unknown":
                    return _here(function, arguments, keywords, what[0])
                else:
                    return _outcome(kind, what, doing)
        except (EOFError, ConnectionError) as error:
            raise self._crash(doing) from error
        except LoweringError:
            # An answer: this kernel cannot be made.
            raise
        except BaseException:
            # Interrupted, or a check that failed: what the worker does now, or what a kernel
            # did to its memory, nobody knows.
            self.close()
            raise

    def stop(self) -> None:
        """End the process, whatever it does; a thread that waits for its answer gets a crash."""
        if self.owner == os.getpid():
            self._process.kill()

    def close(self) -> None:
        """End the process, and what it is talked with by."""
        self.stop()
        if self.owner == os.getpid():
            self._process.wait()
        self._connection.close()
        self._words.close()

    def _crash(self, doing: str | None) -> CrashError:
        """What became of a worker that ended by itself."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)
        code, reason = self._process.poll(), self._reason()
        self.close()
        return CrashError.of(doing, code, reason)

    def _reason(self) -> str:
        """The line in which a library said why it aborts, of what the worker printed last."""
        size = self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, size - _LAST_WORDS))
        lines = self._words.read().decode(errors="replace").splitlines()
        told = [line.strip() for line in lines if "ERROR" in line or "rror:" in line]
        told = told or [line.strip() for line in lines if "what()" in line]
        return told[-1] if told else ""


def _here(
    function: Callable[..., R],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    why: object,
) -> R:
    """A call of what a script or a prompt defines, which another process cannot import."""
    name = getattr(function, "__name__", function)
    text = f"{name} runs in this process, which a crash of a kernel would end: {why}"
    warnings.warn(text, RuntimeWarning, stacklevel=2)
    return function(*arguments, **keywords)


def _outcome(kind: str, what: list[Any], doing: str | None) -> Any:
    if kind == "result":
        return what[0]
    if kind == "memory":
        raise CrashError.no_memory(doing)
    error, trace = what
    error.add_note(trace)
    raise error


_workers: list[Worker] = []
_one_at_a_time = threading.RLock()


def _current() -> Worker:
    """The process's worker, warm where it can be."""
    if _workers and not _workers[0].is_usable:
        retire()
    if not _workers:
        _workers.append(Worker())
    return _workers[0]


atexit.register(retire)
