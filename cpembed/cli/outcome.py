"""Outcome of a search: messages, printed result and exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from cpembed.cli.output import Document, message, print_report

if TYPE_CHECKING:
    from cpembed.blocks import Block
    from cpembed.driver.options import BackendName
    from cpembed.driver.result import SolveResult


INFEASIBLE, STOPPED, UNAVAILABLE = 3, 4, 5
"""Exit codes: proven infeasible, stopped without a result, back end or device missing."""


def print_solved(result: SolveResult, *, as_json: bool, verbose: bool = False) -> int:
    """Print a search's result, or one line on stderr on why there is none; return the exit code.

    Raises :class:`~cpembed.errors.TransformError` if no embedding has a program.
    """
    from cpembed.report.solve import report

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
    """Print on stderr which part of the constraint set has no effect on this workload, and which
    declaration in the target's file would have one.
    """
    from cpembed.driver.advice import idle_padding, undeclared_stride

    for note in (idle_padding(result), undeclared_stride(result)):
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
