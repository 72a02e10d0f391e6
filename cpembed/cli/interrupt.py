"""Ctrl-C.

Python raises KeyboardInterrupt wherever the main thread is: also in a function that a library
written in C++ has called, which turns it into an error of its own, and in a finaliser, which
swallows it. So while trials and rows are measured it is only noted, and looked at between them;
elsewhere whatever comes of it ends the command as an interruption.
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
"""Exit code."""

_CLEAR, _SHOW_CURSOR = "\r\x1b[2K", "\x1b[?25h"
_Handler = Callable[[int, FrameType | None], object]


@contextmanager
def interruptible(*, then_ignored: bool) -> Generator[None]:
    """Ctrl-C raises KeyboardInterrupt out of this context, whatever becomes of it on the way.

    ``then_ignored``: the process ends with what is known then.
    """
    seen = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen = True
        if then_ignored and _is_importing(frame):
            # Libraries in C print what ends an import of theirs; nothing is under way yet.
            _end("interrupted")
        raise KeyboardInterrupt

    usual = sys.unraisablehook

    def swallowed(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            _end("interrupted")
        usual(unraisable)

    sys.unraisablehook = swallowed
    try:
        with _handled_by(interrupt, signal.SIG_IGN if then_ignored else None):
            yield
    except Exception as error:
        if seen:
            raise KeyboardInterrupt from error
        raise
    finally:
        sys.unraisablehook = usual


class Stop:
    """A context in which Ctrl-C sets ``asked`` and raises nothing; the second one ends the process
    at once, saying ``line``. What is kept is written row by row, so nothing is lost.

    ``current`` is what is waited for: a trial, a row.
    """

    def __init__(self, current: str, line: Callable[[], str]) -> None:
        self.asked = False
        self._current = current
        self._line = line

    def __enter__(self) -> Stop:
        self._handling = _handled_by(self._interrupt)
        self._handling.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> bool:
        """An interrupt that was raised all the same, by a library or a test, was asked for too."""
        self._handling.__exit__(None, None, None)
        raised = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.asked |= raised
        return raised

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            _end(self._line())
        self.asked = True
        if sys.stderr.isatty():
            _write(f"{_CLEAR}stopping after this {self._current}; Ctrl-C again stops at once\n")


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def end() -> NoReturn:
    """End an interrupted process with the exit code that says so. Python may have it killed by the
    signal instead, where KeyboardInterrupt passed through ``exec``, as in a dataclass."""
    # Also those that remove temporary files and end a worker.
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(INTERRUPTED)


@contextmanager
def _handled_by(handler: _Handler, after: signal.Handlers | None = None) -> Generator[None]:
    """In the main thread, which gets the signals; a process that was started to ignore Ctrl-C (by
    nohup, in the background of a script) goes on ignoring it. ``after``: what follows, if not what
    was before."""
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
    """Say a line and end, from wherever a signal was handled."""
    line = f"cpembed: {' '.join(text.split())}\n"
    _write(f"{_CLEAR}{_SHOW_CURSOR}{line}" if sys.stderr.isatty() else line)
    os._exit(INTERRUPTED)


def _write(text: str) -> None:
    """Not by ``sys.stderr``, which may be in the middle of a write."""
    os.write(2, text.encode("utf-8", "backslashreplace"))
