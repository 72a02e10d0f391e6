"""Printing: JSON or a table to stdout, messages and progress to stderr."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from cpembed.cli.terminal import can_print, write
from cpembed.errors import readable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress
    from rich.status import Status

PATIENCE = 1.0
"""Seconds before progress is shown: most commands are done by then."""

_REDRAW = 0.1
"""Seconds between two drawings of a bar, of what follows each other quickly."""

UNFOLDED = 1000
"""Columns of a page that is not a terminal: more than any line has."""

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


def print_json(document: dict[str, Any]) -> None:
    import msgspec

    text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    if not can_print(text):
        text = json.dumps(document, allow_nan=False)
    # The library's own indentation takes ten times as long, seconds for thousands of candidates.
    write(f"{msgspec.json.format(text, indent=2)}\n")


def print_text(*parts: RenderableType) -> None:
    """Print to stdout: as wide as the terminal; elsewhere no line is folded or padded."""
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal:
        for part in parts:
            console.print(part)
        return
    page = io.StringIO()
    plain = Console(file=page, highlight=False, width=UNFOLDED, color_system=None)
    for part in parts:
        plain.print(part)
    write("".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines()))


def message(text: str) -> None:
    """One line on stderr."""
    write(f"cpembed: {readable(text)}\n", err=True)


class ProgressLine:
    """A line on the terminal with the phase and its count, once patience runs out.

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
        words = _PHASES.get(phase, phase)
        if phase == "measure":
            # A thread that draws would disturb the times.
            self._stop()
            return
        with self._lock:
            self._text = f"{words}: {count:,}" if count else words
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
    """A progress bar on a terminal, as a context manager; nothing elsewhere, or where all is done.

    It is drawn when told only: a thread that draws would disturb what is measured.
    """

    def __init__(self, text: str, total: int | None, done: int = 0) -> None:
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

    def show(self, text: str | None = None, *, often: bool = False, **changed: Any) -> None:
        """Draw it with a text and what has changed: ``advance``, ``total``, ``completed``; what is
        told ``often`` not each time."""
        now = time.perf_counter()
        if self._bar is None or (often and now - self._drawn < _REDRAW):
            return
        self._drawn = now
        self._bar.update(self._bar.task_ids[0], description=text, refresh=True, **changed)
