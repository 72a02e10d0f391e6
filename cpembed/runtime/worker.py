"""Functions called in a child process, which a crash ends instead of this one.

Compiling and running generated code can end a process: an abort inside the compiler, SIGILL,
SIGSEGV, exhausted memory, an endless loop. Both therefore happen in a child process that is warm
after its first call and is replaced when it dies; the parent gets a
:class:`~cpembed.errors.CrashError`, one line that names the step.
:func:`cpembed.steps.step` names the steps and limits their time.
"""

from __future__ import annotations

import atexit
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Pipe
from multiprocessing.reduction import ForkingPickler
from typing import IO, Any, ParamSpec, TypeVar

from cpembed.errors import CpembedError, CrashError, LoweringError
from cpembed.files import FOLDER_GONE, is_folder_gone
from cpembed.steps import LIMIT_VARIABLE, in_worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

IN_PROCESS_VARIABLE = "CPEMBED_IN_PROCESS"
"""Environment variable that, if not empty, keeps calls in this process, for debuggers."""

PRELOAD = ("cpembed.codegen.runtime:tvm", "cpembed.driver.run:run")
"""Objects that nearly every call of a kernel needs, as ``module:name``, which a worker that is
prepared imports before its first call; a function without parameters is called."""

_MAIN = """\
import sys; sys.path[:] = {path!r}; from cpembed.runtime.worker_child import serve; serve({rest})"""

# Number of bytes at the end of a worker's stderr that are searched for the reason of its death.
_STDERR_TAIL = 4096

# Seconds to wait for the exit code of a worker that closed its connection.
_EXIT_SECONDS = 5.0

# Seconds of one wait for a message; operating systems take at most 2^31 milliseconds.
_LONGEST_WAIT = 1e6


def call(function: Callable[P, R], *arguments: P.args, **keywords: P.kwargs) -> R:
    """Return the function's result, computed by the worker of this process.

    The function belongs to a module or is a bound method. It, its arguments and its result can be
    pickled, except for a keyword ``progress``, which is called in this process whenever the
    function calls it there.

    Raises :class:`CrashError` if the function ends its process; what it raises is raised here
    otherwise.
    """
    if _runs_in_process():
        return function(*arguments, **keywords)
    with _one_at_a_time:
        return _current()[0].call(function, arguments, keywords)


def call_each(
    function: Callable[[T], R], arguments: Sequence[T], processes: int
) -> Generator[tuple[T, R]]:
    """Yield each argument with the function's result, in the order of completion.

    The processes are the worker of this process and further ones like it, which stay for the next
    calls. The first error is raised here and ends all of them, as does closing the generator.

    Parameters
    ----------
    function
        The function, with the requirements of :func:`call`.
    arguments
        The arguments, one for each call.
    processes
        Maximum number of processes.
    """
    count = min(processes, len(arguments))
    # One process is the usual worker, which is warm already.
    if _runs_in_process() or count < 2:
        for argument in arguments:
            yield argument, call(function, argument)
        return
    with open_calls(function, count) as submit:
        calls = {submit(argument): argument for argument in arguments}
        for future in as_completed(calls):
            yield calls[future], future.result()


@contextmanager
def open_calls(function: Callable[[T], R], processes: int) -> Generator[Callable[[T], Future[R]]]:
    """Provide a function that calls another one in several processes, at once or as one is idle.

    The processes are those of :func:`call_each`; an error inside the context ends them.

    Parameters
    ----------
    function
        The function, with the requirements of :func:`call`.
    processes
        Maximum number of processes.
    """
    if _runs_in_process():
        yield lambda argument: _completed(function, argument)
        return
    workers: list[Worker] = []
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()

    def work(argument: T) -> R:
        worker = idle.get()
        try:
            return worker.call(function, (argument,), {})
        finally:
            idle.put(worker)

    pool = ThreadPoolExecutor(processes)

    def submit(argument: T) -> Future[R]:
        # Where nothing is called no process starts.
        if not workers:
            with _one_at_a_time:
                workers.extend(_current(processes))
                # Whoever waits for results may call functions meanwhile, in another worker.
                del _workers[:processes]
            for worker in workers:
                idle.put(worker)
        return pool.submit(work, argument)

    is_complete = False
    try:
        yield submit
        is_complete = True
    finally:
        # No thread may begin another call, and each that waits for an answer has to get one.
        pool.shutdown(wait=False, cancel_futures=not is_complete)
        if not is_complete:
            for worker in workers:
                worker.stop()
        pool.shutdown()
        if is_complete:
            _workers.extend(workers)
        else:
            for worker in workers:
                worker.close()


def _completed(function: Callable[[T], R], argument: T) -> Future[R]:
    """Return the result of a call in this process."""
    future: Future[R] = Future()
    try:
        future.set_result(function(argument))
    except Exception as error:
        future.set_exception(error)
    return future


def prepare() -> None:
    """Start the worker of this process, to be warm when it is called."""
    if not _runs_in_process():
        with _one_at_a_time:
            _current(preload=PRELOAD)


def retire() -> None:
    """End the workers of this process; the next call starts another."""
    for worker in _workers:
        worker.close()
    _workers.clear()


def _runs_in_process() -> bool:
    return in_worker() or bool(os.environ.get(IN_PROCESS_VARIABLE)) or not sys.executable


@dataclass(frozen=True)
class _Surroundings:
    """The part of the parent's state that a worker takes over when it starts."""

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
    """A child process that executes one call at a time.

    Parameters
    ----------
    preload
        Objects to import before the first call; None for :data:`PRELOAD`.
    environment
        Variables for the child, unless this process's environment sets them.
    """

    def __init__(
        self, preload: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        # A worker keeps them for life, so a change of any makes it unusable.
        self.surroundings = _Surroundings.now()
        self.owner = os.getpid()
        self._connection, child_end = Pipe()
        # A file and not a pipe: nobody reads it while the worker works.
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        descriptor = child_end.fileno()
        rest = f"{descriptor}, {os.getpid()}, {list(PRELOAD if preload is None else preload)!r}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN.format(path=sys.path, rest=rest)],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            pass_fds=(descriptor,),
            # Ctrl-C at the terminal reaches the parent alone, which decides.
            start_new_session=True,
            # The user's environment wins.
            env={**(environment or {}), **os.environ},
        )
        child_end.close()

    @property
    def is_usable(self) -> bool:
        """True if the process lives and its surroundings are those of its start."""
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
        """Return the function's result, as the function :func:`call` does.

        Parameters
        ----------
        function
            The function.
        arguments
            Its positional arguments.
        keywords
            Its keyword arguments.
        task
            Words for the message about a crash outside all steps.
        """
        report: Callable[..., Any] | None = keywords.get("progress")
        # A callback draws on this terminal: its calls are sent back instead.
        picklable = {name: value for name, value in keywords.items() if name != "progress"}
        try:
            request = ForkingPickler.dumps((function, arguments, picklable, report is not None))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            return _call_in_process(function, arguments, keywords, error)
        doing = task
        try:
            self._connection.send_bytes(request)
            # Steps have limits: none runs yet.
            deadline: float | None = None
            while True:
                if not self._has_answer(deadline):
                    raise CrashError.too_long(doing, LIMIT_VARIABLE)
                kind, *values = self._connection.recv()
                if kind == "step":
                    step, limit = values
                    doing = step or task
                    deadline = None if limit is None else time.monotonic() + limit
                elif kind == "report":
                    if report is not None:
                        report(*values[0])
                elif kind == "warning":
                    warnings.warn(values[0], values[1], stacklevel=2)
                elif kind == "unknown":
                    return _call_in_process(function, arguments, keywords, values[0])
                else:
                    return _result(kind, values, doing)
        except (EOFError, ConnectionError) as error:
            raise self._crash(doing) from error
        except LoweringError:
            # A proper answer: this kernel cannot be compiled. The worker stays warm.
            raise
        except BaseException:
            # After an interrupt or a failed check nobody knows what the worker does now, or what a
            # kernel did to its memory.
            self.close()
            raise

    def _has_answer(self, deadline: float | None) -> bool:
        """Wait for a message; return False if none has come by the deadline."""
        while deadline is not None:
            seconds = max(0.0, deadline - time.monotonic())
            if self._connection.poll(min(seconds, _LONGEST_WAIT)):
                return True
            if seconds <= _LONGEST_WAIT:
                return False
        return self._connection.poll(None)

    def stop(self) -> None:
        """Kill the process; a thread that waits for its answer gets a :class:`CrashError`."""
        if self.owner == os.getpid():
            self._process.kill()

    def close(self) -> None:
        """Kill the process and close the connection."""
        self.stop()
        if self.owner == os.getpid():
            self._process.wait()
        self._connection.close()
        self._output.close()

    def _crash(self, doing: str | None) -> CrashError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_SECONDS)
        # The output is read only after the end, when it is complete.
        code, reason = self._process.poll(), self._reason()
        self.close()
        return CrashError.from_exit(doing, code, reason)

    def _reason(self) -> str:
        """Return the last line of output in which a library says why it aborts."""
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - _STDERR_TAIL))
        lines = self._output.read().decode(errors="replace").splitlines()
        # LLVM prints `LLVM ERROR: …`, Python `…Error: …`, and C++'s terminate `what(): …`.
        reasons = [line.strip() for line in lines if "ERROR" in line or "rror:" in line]
        reasons = reasons or [line.strip() for line in lines if "what()" in line]
        return reasons[-1] if reasons else ""


def _call_in_process(
    function: Callable[..., R],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    reason: object,
) -> R:
    """Call a function that a script or a prompt defines, which no other process can import."""
    name = getattr(function, "__name__", function)
    text = f"{name} runs in this process, which a crash of a kernel would end: {reason}"
    warnings.warn(text, RuntimeWarning, stacklevel=2)
    return function(*arguments, **keywords)


def _result(kind: str, values: list[Any], doing: str | None) -> Any:
    if kind == "result":
        return values[0]
    if kind == "memory":
        raise CrashError.no_memory(doing)
    error, trace = values
    error.add_note(trace)
    raise error


_workers: list[Worker] = []
_one_at_a_time = threading.RLock()


def _current(count: int = 1, preload: Sequence[str] = ()) -> list[Worker]:
    """Return some workers of this process, started anew if its surroundings have changed.

    Unless it is prepared, a worker imports what its calls need: few of those of a network, whose
    kernels may all be cached, need a compiler.
    """
    usable = [worker for worker in _workers if worker.is_usable]
    for worker in _workers:
        if worker not in usable:
            worker.close()
    _workers[:] = usable
    while len(_workers) < count:
        _workers.append(Worker(preload))
    return _workers[:count]


atexit.register(retire)
