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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from cpembed.bulk import without_collection
from cpembed.errors import readable

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.status import Status

    from cpembed.blocks import Block
    from cpembed.cost.ranking import RankedCandidate
    from cpembed.driver.options import BackendName
    from cpembed.driver.result import SolveResult
    from cpembed.targets.choice import ModelChoice

READER_LEFT = 128 + signal.SIGPIPE
"""Exit code of a program whose reader went away, as shells report it."""

PATIENCE = 1.0
"""Seconds before progress is shown: most commands have ended by then."""

LOG_INTERVAL = 30.0
"""Seconds between two lines of progress where stderr is no terminal, such as the log of a job."""

INFEASIBLE, STOPPED, UNAVAILABLE = 3, 4, 5
"""Exit codes: proven infeasible, stopped without a result, back end or device missing."""

UNFOLDED = 1000
"""Number of columns of a page that is no terminal: more than any line has."""

# Minimum number of seconds between two drawings of a bar whose updates follow each other quickly.
_REDRAW = 0.1

# ASCII forms of the characters that reports are drawn with.
_ASCII = {"←": "<-", "◀": "<", "─": "-", "━": "-", "·": ".", "…": "..."}

_HANDLER = "cpembed.plain"

_PHASES = {
    "plan": "planning",
    "executor": "compiling the machine's executor, once",
    "emulate": "emulating",
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
    """Let stdout and stderr print any text: in ASCII, or as ``?``, what their encoding lacks."""
    codecs.register_error(_HANDLER, _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors != "ignore":
            stream.reconfigure(errors=_HANDLER)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Return a character in ASCII and the position after it."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text, start = error.object, error.start
    form = _ASCII.get(text[start], "?")
    end = start + 1
    # Spaces that follow give way to a longer form, so that columns stay aligned.
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
    """Redirect stdout to nowhere."""
    stream: TextIO | None = sys.stdout
    if stream is not None:
        with suppress(OSError, ValueError):
            # Python flushes it once more on exit, and would report an error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# -- results and messages -------------------------------------------------------------------------


def print_json(document: dict[str, Any]) -> None:
    """Print a document as JSON."""
    import msgspec

    # Infinities and NaN are no JSON: a document that has them is a bug, which must not be printed.
    text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    if not _can_print(text):
        text = json.dumps(document, allow_nan=False)
    # The library's own indentation takes ten times as long, seconds for thousands of candidates.
    write(f"{msgspec.json.format(text, indent=2)}\n")


def print_text(*parts: Block) -> None:
    """Print the parts of a report to the width of a terminal.

    Elsewhere no line is folded, padded or cut off.
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


# -- outcomes of searches -----------------------------------------------------------------------


def print_solved(result: SolveResult, *, as_json: bool, verbose: bool = False) -> int:
    """Print a search's result, or one line on stderr on why there is none; return the exit code.

    Parameters
    ----------
    result
        Result of the search.
    as_json
        True prints the JSON document instead of the text.
    verbose
        True adds the solver's effort to the text.

    Raises
    ------
    TransformError
        If no embedding has a program.
    """
    from cpembed.report.solve import report

    print_waste(result, result.best)
    return print_result(result, result, lambda: report(result, verbose=verbose), as_json=as_json)


def print_result(
    result: Document, solved: SolveResult, report: Callable[[], Iterable[Block]], *, as_json: bool
) -> int:
    """Print a result that is made from a search; return the exit code.

    Parameters
    ----------
    result
        Result to print.
    solved
        Search that it is made from.
    report
        Makes the text.
    as_json
        True prints the JSON document instead.

    Raises
    ------
    TransformError
        No embedding has a program.
    """
    # Messages come first: a reader of stdout may leave while the result is printed.
    code = _search_messages(solved)
    print_report(result, report, as_json=as_json)
    if not code:
        # Raises the reason if embeddings were found, but none has a program.
        solved.of_rank(1)
    return code


def _search_messages(result: SolveResult) -> int:
    """Print messages about a search on stderr; return the exit code."""
    from cpembed.driver.advice import better_order
    from cpembed.embedding.cpsat import Status

    print_notes(result)
    problem = f"{result.target.name} in {result.workload.name} under {result.constraints.name}"
    if result.status is Status.INFEASIBLE:
        unfinished = ", ".join(result.open_searches)
        more = f"; {unfinished} not searched to the end: give a longer --timeout"
        message(f"no embedding of {problem}: proven infeasible{more if unfinished else ''}")
        return INFEASIBLE
    if result.status is Status.UNKNOWN:
        reason = f": {result.why_nothing}" if result.unsearched else f" {result.why_stopped}"
        message(f"no embedding of {problem}{reason}")
        return STOPPED
    better = better_order(result)
    if better is not None:
        message(better)
    return 0


def print_notes(result: SolveResult) -> None:
    """Print on stderr options without effect on this workload, and sums that can overflow."""
    from cpembed.driver.advice import idle_padding, overflow, undeclared_stride

    for note in (idle_padding(result), undeclared_stride(result), overflow(result.workload)):
        if note is not None:
            message(note)


def print_waste(
    result: SolveResult, candidate: RankedCandidate | None, model: ModelChoice | None = None
) -> None:
    """Print on stderr why a candidate leaves most of the unit idle, and the remedy.

    Parameters
    ----------
    result
        Search of the candidate.
    candidate
        Candidate that runs, or the best one; None if there is none.
    model
        Candidates that were compared and rejected when it was chosen.
    """
    from cpembed.driver.advice import empty_places

    note = None if candidate is None else empty_places(result, candidate, model)
    if note is not None:
        message(note)


def print_missing(missing: Sequence[str], backend: BackendName, consequence: str) -> int:
    """Print on stderr that portable code stands in for the instruction; return the exit code.

    Parameters
    ----------
    missing
        What keeps the instruction from being used; if empty, nothing is printed.
    backend
        Requested back end; if it is portable code, nothing is printed.
    consequence
        Consequence for the result, the end of the message.
    """
    if not missing or backend == "generic":
        return 0
    message(f"{'; '.join(missing)}: {consequence}")
    return UNAVAILABLE


# -- progress -------------------------------------------------------------------------------------


class ProgressLog:
    """Progress where stderr is no terminal: a line now and then, for logs.

    No thread draws: a line is written by the report that comes after :data:`LOG_INTERVAL` seconds.
    """

    def __init__(self) -> None:
        self._started = self._written = time.perf_counter()

    def report(self, text: str) -> None:
        """Write a line if the last one was long ago."""
        now = time.perf_counter()
        if now - self._written >= LOG_INTERVAL:
            self._written = now
            message(f"{text} ({now - self._started:.0f} s)")


class ProgressLine:
    """Line on the terminal with the phase of a search and its count, shown once patience runs out.

    Elsewhere a :class:`ProgressLog`. A context manager; calling it reports, as
    :data:`cpembed.driver.solve.Progress` does.
    """

    def __init__(self) -> None:
        self._text = "working"
        self._status: Status | None = None
        self._stopped = False
        self._log = None if sys.stderr.isatty() else ProgressLog()
        self._lock = threading.Lock()
        self._timer = threading.Timer(PATIENCE, self._show)
        # A command that ends before is not kept waiting.
        self._timer.daemon = True

    def __call__(self, phase: str, count: int) -> None:
        text = _PHASES.get(phase, phase)
        if phase == "measure":
            # A thread that draws would disturb the times.
            self._stop()
            return
        with self._lock:
            self._text = f"{text}: {count:,}" if count else text
            if self._log is not None:
                self._log.report(self._text)
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
    """Progress bar on a terminal, as a context manager; elsewhere a :class:`ProgressLog`.

    It is drawn only by :meth:`show`: a thread that draws would disturb measurements.

    Parameters
    ----------
    text
        Text next to the bar.
    total
        Number of steps; None if unknown.
    completed
        Number of steps that are complete already; with all of them nothing is shown.
    """

    def __init__(self, text: str = "", total: int | None = None, completed: int = 0) -> None:
        self._bar: Progress | None = None
        self._drawn = 0.0
        self._log = None if sys.stderr.isatty() else ProgressLog()
        self._text, self._completed, self._total = text, completed, total
        if sys.stderr.isatty() and completed != total:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

            # Without a total rich would print `3/?` and an unknown remaining time.
            counts = [] if total is None else [MofNCompleteColumn()]
            left = [] if total is None else [TimeRemainingColumn()]
            columns = (*counts, BarColumn(bar_width=20), *left, "{task.description}")
            error = Console(stderr=True)
            self._bar = Progress(*columns, console=error, auto_refresh=False, transient=True)
            self._bar.add_task(text, total=total, completed=completed)

    def __enter__(self) -> Bar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, text: str, completed: int, total: int) -> None:
        """Draw so many of ``total`` steps, as the progress callbacks of the library report them."""
        self.show(text, total=total, completed=completed)

    def show(self, text: str | None = None, *, often: bool = False, **changes: Any) -> None:
        """Draw the bar with a new text and changes of ``advance``, ``total`` and ``completed``.

        With ``often`` it is drawn only if it was not a moment ago.
        """
        self._text = self._text if text is None else text
        self._completed = changes.get("completed", self._completed + changes.get("advance", 0))
        self._total = changes.get("total", self._total)
        if self._log is not None:
            steps = f" {self._completed:,} of {self._total:,}" if self._total else ""
            self._log.report(f"{self._text}{steps}")
        now = time.perf_counter()
        # Steps that follow each other quickly would spend their time on drawing.
        if self._bar is None or (often and now - self._drawn < _REDRAW):
            return
        self._drawn = now
        self._bar.update(self._bar.task_ids[0], description=text, refresh=True, **changes)
