"""Output: JSON or a report to stdout, messages and progress to stderr, in any encoding."""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from cpembed.bulk import without_collection
from cpembed.errors import readable

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.status import Status

    from cpembed.blocks import Block

READER_LEFT = 128 + signal.SIGPIPE
"""Exit code of a program whose reader went away, as shells report it."""

PATIENCE = 1.0
"""Seconds before progress is shown: most commands have ended by then."""

UNFOLDED = 1000
"""Number of columns of a page that is no terminal: more than any line has, so that none is
folded."""

_REDRAW = 0.1
"""Minimum number of seconds between two drawings of a bar whose updates follow each other
quickly."""

_ASCII = {"←": "<-", "◀": "<", "─": "-", "━": "-", "·": ".", "…": "..."}
"""ASCII forms of the characters that reports are drawn with."""

_HANDLER = "cpembed.plain"

_PHASES = {
    "model": "building the model",
    "search": "searching",
    "derive": "deriving programs",
    "prove": "proving",
    "explain": "looking for the conflict",
    "build": "compiling",
    "lower": "lowering",
    "pack": "packing",
    "check": "checking the program",
    "functional": "simulating",
    "reference": "verifying",
    "timed": "counting cycles",
    "verify": "verifying",
    "measure": "measuring",
}


# -- streams --------------------------------------------------------------------------------------


def accept_any_text() -> None:
    """Let stdout and stderr print in ASCII, or as ``?``, the characters that their encoding
    lacks.
    """
    codecs.register_error(_HANDLER, _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors != "ignore":
            stream.reconfigure(errors=_HANDLER)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Return a character in ASCII and the position after it: spaces that follow a character give
    way to a longer form, so that columns stay aligned.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text, start = error.object, error.start
    form = _ASCII.get(text[start], "?")
    end = start + 1
    if len(form) > 1 and text[end : end + len(form) - 1].isspace():
        end += len(form) - 1
    return form, end


def _can_print(text: str) -> bool:
    """Return whether stdout's encoding has all characters of a text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def write(text: str, *, err: bool = False) -> None:
    """Write a text to stdout or stderr at once.

    Raises :class:`OSError` if it cannot be written, also to a stdout that the shell closed
    (``>&-``); a closed stderr is ignored.
    """
    stream: TextIO | None = sys.stderr if err else sys.stdout
    if stream is not None:
        stream.write(text)
        stream.flush()
    elif not err:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def discard_output() -> None:
    """Redirect stdout to nowhere: Python flushes it once more on exit, and would report an
    error.
    """
    stream: TextIO | None = sys.stdout
    if stream is not None:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# -- results and messages -------------------------------------------------------------------------


def print_json(document: dict[str, Any]) -> None:
    import msgspec

    # Infinities and NaN are no JSON: a document that has them is a bug, which must not be printed.
    text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    if not _can_print(text):
        text = json.dumps(document, allow_nan=False)
    # The library's own indentation takes ten times as long, seconds for thousands of candidates.
    write(f"{msgspec.json.format(text, indent=2)}\n")


def print_text(*parts: Block) -> None:
    """Print the parts of a report: to the width of a terminal; elsewhere no line is folded, padded
    or cut off.
    """
    from rich.console import Console
    from rich.text import Text

    # Names may contain brackets, which are markup in plain strings.
    blocks = [Text(part) if isinstance(part, str) else part for part in parts]
    console = Console(highlight=False)
    if console.is_terminal:
        for block in blocks:
            console.print(block)
        return
    page = io.StringIO()
    plain = Console(file=page, highlight=False, width=UNFOLDED, color_system=None)
    for block in blocks:
        plain.print(block)
    write("".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines()))


class Document(Protocol):
    """Result that has a JSON document."""

    def to_json(self) -> dict[str, Any]: ...


# The values of a large document live to its end, among the millions of a complete search.
@without_collection()
def print_report(result: Document, report: Callable[[], Iterable[Block]], *, as_json: bool) -> None:
    """Print a result.

    Parameters
    ----------
    result
        Result with a JSON document.
    report
        Makes the text.
    as_json
        True prints the document instead of the text.
    """
    if as_json:
        print_json(result.to_json())
    else:
        print_text(*report())


def message(text: str) -> None:
    """Print a line on stderr."""
    write(f"cpembed: {readable(text)}\n", err=True)


# -- progress -------------------------------------------------------------------------------------


class ProgressLine:
    """Line on the terminal with the phase of a search and its count, shown once patience runs out.

    A context manager; calling it reports, as :data:`cpembed.driver.solve.Progress` does.
    """

    def __init__(self) -> None:
        self._text = "working"
        self._status: Status | None = None
        self._stopped = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True

    def __call__(self, phase: str, count: int) -> None:
        text = _PHASES.get(phase, phase)
        if phase == "measure":
            # A thread that draws would disturb the times.
            self._stop()
            return
        with self._lock:
            self._text = f"{text}: {count:,}" if count else text
            if self._status is not None:
                self._status.update(self._text)

    def __enter__(self) -> ProgressLine:
        if sys.stderr.isatty():
            self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def _stop(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._stopped = True
            if self._status is not None:
                self._status.stop()
                self._status = None

    def _show(self) -> None:
        from rich.console import Console

        with self._lock:
            if self._stopped:
                return
            self._status = Console(stderr=True).status(self._text)
            self._status.start()


class Bar:
    """Progress bar on a terminal, as a context manager; nothing elsewhere, or if all is done
    already.

    It is drawn only by :meth:`show`: a thread that draws would disturb measurements.

    Parameters
    ----------
    text
        Text next to the bar.
    total
        Number of steps; None if unknown.
    done
        Number of steps that are done already.
    """

    def __init__(self, text: str = "", total: int | None = None, done: int = 0) -> None:
        self._bar: Progress | None = None
        self._drawn = 0.0
        if sys.stderr.isatty() and done != total:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

            counts = [] if total is None else [MofNCompleteColumn()]
            left = [] if total is None else [TimeRemainingColumn()]
            columns = (*counts, BarColumn(bar_width=20), *left, "{task.description}")
            error = Console(stderr=True)
            self._bar = Progress(*columns, console=error, auto_refresh=False, transient=True)
            self._bar.add_task(text, total=total, completed=done)

    def __enter__(self) -> Bar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, text: str, done: int, total: int) -> None:
        """Draw ``done`` of ``total`` steps, as the progress callbacks of the library report
        them.
        """
        self.show(text, total=total, completed=done)

    def show(self, text: str | None = None, *, often: bool = False, **changes: Any) -> None:
        """Draw the bar with a new text and the changed fields ``advance``, ``total``,
        ``completed``; with ``often`` only if it was not drawn a moment ago.
        """
        now = time.perf_counter()
        if self._bar is None or (often and now - self._drawn < _REDRAW):
            return
        self._drawn = now
        self._bar.update(self._bar.task_ids[0], description=text, refresh=True, **changes)
