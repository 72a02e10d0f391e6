"""The worker process: calls come over a connection, results and steps go back."""

from __future__ import annotations

import ctypes
import inspect
import os
import pickle
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cpembed import steps

# Number of the option in Linux's <sys/prctl.h>, which Python does not expose.
_PR_SET_PDEATHSIG = 1

# Maximum of the scale: when memory runs out, the kernel ends this process first.
_OOM_SCORE = 1000

_SYSTEM = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def serve(descriptor: int, parent: int, preload: list[str]) -> None:
    """Execute calls until the connection ends.

    Parameters
    ----------
    descriptor
        File descriptor of the connection.
    parent
        Process id of the parent.
    preload
        Objects to import before the first call, as in
        :data:`~cpembed.runtime.worker.PRELOAD`.
    """
    _die_with(parent)
    _limit_memory()
    with Connection(descriptor) as connection:
        for name in preload:
            # The call that needs a broken module reports the error.
            with suppress(Exception):
                _load(name)
        steps.listen(lambda doing, limit: connection.send(("step", doing, limit)))

        def show_warning(text: Warning | str, kind: type[Warning], *_: Any, **__: Any) -> None:
            connection.send(("warning", str(text), kind))

        # The parent filters warnings: here each is sent.
        warnings.simplefilter("always")
        warnings.showwarning = show_warning
        while True:
            try:
                request = connection.recv()
            except EOFError:
                return
            except Exception as error:
                # The function is defined where this process cannot import it.
                connection.send(("unknown", str(error)))
                continue
            connection.send(_answer(connection, *request))


def _load(name: str) -> None:
    module, _, attribute = name.partition(":")
    function = getattr(import_module(module), attribute)
    if not inspect.signature(function).parameters:
        function()


def _answer(
    connection: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    reports: bool,
) -> tuple[Any, ...]:
    def report(*values: Any) -> None:
        connection.send(("report", values))

    if reports:
        keywords["progress"] = report
    try:
        return "result", function(*arguments, **keywords)
    # The error itself is not sent: pickling it may need memory that there is not.
    except MemoryError:
        return ("memory",)
    except Exception as error:
        # A pickled error loses its traceback: the parent adds this one as a note.
        text = traceback.format_exc()
        try:
            # Some errors can be pickled but not unpickled: their constructors take other arguments.
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return "error", error, text


def _die_with(parent: int) -> None:
    """End with the parent, even if that is killed: nobody else wants the results."""
    # Ctrl-C concerns the parent alone, which decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may have ended before the call above.
        if os.getppid() != parent:
            os._exit(1)


def _limit_memory() -> None:
    """Limit the process to the available memory, and write no core file."""
    # A core file of gigabytes for each crash would fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    available = available_bytes()
    if available is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        # An allocation then fails here, as a MemoryError, instead of exhausting the machine.
        limit = available if hard == resource.RLIM_INFINITY else min(available, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def available_bytes(system: Path = _SYSTEM, group: Path = _GROUP) -> int | None:
    """Return the available memory of the system or its control group; None if it is unknown."""
    amounts: list[int] = []
    with suppress(OSError, ValueError, IndexError):
        lines = system.read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        amounts.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError):
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        amounts.append(max(0, limit - used))
    return min(amounts) if amounts else None
