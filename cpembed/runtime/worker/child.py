"""The worker's side: calls come over a connection, results and steps go back."""

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
from cpembed.runtime.worker.memory import available_bytes

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = 1000
"""The kernel ends this process first when memory runs out."""


def serve(descriptor: int, parent: int, preload: list[str]) -> None:
    """Execute calls until the connection ends."""
    _die_with(parent)
    _limit_memory()
    with Connection(descriptor) as connection:
        for name in preload:
            # What is wrong with it is said by the call that needs it.
            with suppress(Exception):
                _load(name)
        steps.listen(lambda doing, limit: connection.send(("step", doing, limit)))

        def warned(text: Warning | str, kind: type[Warning], *_: Any, **__: Any) -> None:
            connection.send(("warning", str(text), kind))

        warnings.simplefilter("always")
        warnings.showwarning = warned
        while True:
            try:
                request = connection.recv()
            except EOFError:
                return
            except Exception as error:
                # It names what cannot be imported here.
                connection.send(("unknown", str(error)))
                continue
            connection.send(_answer(connection, *request))


def _load(name: str) -> None:
    module, _, attribute = name.partition(":")
    found = getattr(import_module(module), attribute)
    if not inspect.signature(found).parameters:
        found()


def _answer(
    connection: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    reports: bool,
) -> tuple[Any, ...]:
    def report(*what: Any) -> None:
        connection.send(("report", what))

    if reports:
        keywords["progress"] = report
    try:
        return "result", function(*arguments, **keywords)
    except MemoryError:
        return ("memory",)
    except Exception as error:
        text = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return "error", error, text


def _die_with(parent: int) -> None:
    """Without its parent nobody wants the results, also where that was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _limit_memory() -> None:
    """No more than there is: a process that asks for more gets none, instead of everybody's. Nor is
    there a file of its memory when it dies."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    available = available_bytes()
    if available is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = available if hard == resource.RLIM_INFINITY else min(available, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
