"""Handling of Ctrl-C.

Python raises KeyboardInterrupt wherever the main thread is: also in a callback of a C++ library,
which turns it into another error, and in a finaliser, which swallows it. Therefore it only sets a
flag while trials and rows are measured, which is checked between them; elsewhere any error that
follows it ends the command as an interruption.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
"""Exit code of an interrupted command, as shells report SIGINT."""

_CLEAR, _SHOW_CURSOR = "\r\x1b[2K", "\x1b[?25h"
_Handler = Callable[[int, FrameType | None], object]


@contextmanager
def interruptible(*, then_ignored: bool) -> Generator[None]:
    """Return a context that Ctrl-C leaves with KeyboardInterrupt, whatever a library makes of it.

    With ``then_ignored`` the process ends after the context, and later interrupts have no effect.
    """
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        if then_ignored and _is_importing(frame):
            # C libraries print the error that ends their import; no work is lost yet.
            _end("interrupted")
        raise KeyboardInterrupt

    original = sys.unraisablehook

    def swallowed(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            _end("interrupted")
        original(unraisable)

    # An interrupt inside a finaliser reaches only this hook.
    sys.unraisablehook = swallowed
    try:
        with _handled_by(interrupt, signal.SIG_IGN if then_ignored else None):
            yield
    except Exception as error:
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        sys.unraisablehook = original


class Stop:
    """Context in which Ctrl-C sets ``requested`` and raises nothing.

    The second one ends the process. Nothing is lost then: results are written row by row.

    Parameters
    ----------
    current
        Name of the step that is still completed: ``trial``, ``row``.
    line
        Function that returns the message of a process that ends at once.
    """

    def __init__(self, current: str, line: Callable[[], str]) -> None:
        self.requested = False
        self._current = current
        self._line = line

    def __enter__(self) -> Stop:
        self._handling = _handled_by(self._interrupt)
        self._handling.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> bool:
        """Treat a KeyboardInterrupt that a library or a test raised like a request."""
        self._handling.__exit__(None, None, None)
        raised = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.requested |= raised
        return raised

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            _end(self._line())
        self.requested = True
        if sys.stderr.isatty():
            _write(f"{_CLEAR}stopping after this {self._current}; Ctrl-C again stops at once\n")


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        # Every import in progress has a frame of this file, whichever module is being loaded.
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def end() -> NoReturn:
    """End an interrupted process with its exit code."""
    # Python would let the signal kill it if KeyboardInterrupt passed through `exec`, as in a
    # dataclass. The exit functions remove temporary files and end the worker.
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(INTERRUPTED)


@contextmanager
def _handled_by(handler: _Handler, after: signal.Handlers | None = None) -> Generator[None]:
    """Return a context with a handler of Ctrl-C.

    After it ``after`` handles Ctrl-C, or the previous handler. A process that was started to ignore
    Ctrl-C (by nohup, in the background of a script) goes on ignoring it, and only the main thread
    gets signals.
    """
    before = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or before is signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if after is None else after)


def _end(text: str) -> NoReturn:
    """Print a line and end the process, from within a signal handler."""
    line = f"cpembed: {' '.join(text.split())}\n"
    _write(f"{_CLEAR}{_SHOW_CURSOR}{line}" if sys.stderr.isatty() else line)
    os._exit(INTERRUPTED)


def _write(text: str) -> None:
    """Write to stderr, bypassing ``sys.stderr``, which may be in the middle of a write."""
    os.write(2, text.encode("utf-8", "backslashreplace"))
