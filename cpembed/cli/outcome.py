"""How a search came out: what is printed and the exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cpembed.cli.output import message, print_json, print_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cpembed.driver.options import BackendName
    from cpembed.driver.result import SolveResult


class _Document(Protocol):
    def to_json(self) -> dict[str, Any]: ...


R = TypeVar("R", bound=_Document)

INFEASIBLE, STOPPED, UNAVAILABLE = 3, 4, 5
"""Exit codes of results that are not what was asked for."""


def print_solved(result: SolveResult, *, as_json: bool, verbose: bool = False) -> int:
    """Print a search's result, or say in one line on stderr why there is none; the exit code.

    What is said on stderr comes first: whoever reads the result may leave while it is printed.

    Raises :class:`~cpembed.errors.TransformError` where nothing that was found has a program.
    """

    def report(result: SolveResult) -> Iterable[RenderableType]:
        from cpembed.report.solve import report

        return report(result, verbose=verbose)

    return print_result(result, result, report, as_json=as_json)


def print_result(
    result: R,
    solved: SolveResult,
    report: Callable[[R], Iterable[RenderableType]],
    *,
    as_json: bool,
) -> int:
    """As :func:`print_solved`, of a result that is made from a search; ``report`` makes the text,
    and loads what that needs."""

    code = _say(solved)
    if as_json:
        print_json(result.to_json())
    else:
        print_text(*report(result))
    if not code:
        solved.of_rank(1)
    return code


def _say(result: SolveResult) -> int:
    """Lines on stderr about a search; the exit code."""
    from cpembed.driver.advice import better_order
    from cpembed.embedding.cpsat import Status

    print_notes(result)
    what = f"{result.target.name} in {result.workload.name} under {result.constraints.name}"
    if result.status is Status.INFEASIBLE:
        unfinished = ", ".join(result.open_searches)
        more = f"; {unfinished} not searched to the end: give a longer --timeout"
        message(f"no embedding of {what}: proven infeasible{more if unfinished else ''}")
        return INFEASIBLE
    if result.status is Status.UNKNOWN and result.unsearched:
        message(f"no embedding of {what}: {result.why_nothing}")
        return STOPPED
    if result.status is Status.UNKNOWN:
        message(f"no embedding of {what} {result.why_stopped}")
        return STOPPED
    better = better_order(result)
    if better is not None:
        message(better)
    return 0


def print_notes(result: SolveResult) -> None:
    """What in the constraint set has no effect on this workload, and what would have one if the
    target's file said it, on stderr."""
    from cpembed.driver.advice import idle_padding, undeclared_stride

    for note in (idle_padding(result), undeclared_stride(result)):
        if note is not None:
            message(note)


def say_missing(missing: Sequence[str], backend: BackendName, stood_in: str) -> int:
    """Say on stderr that portable code stands in for the instruction, and return the exit code.

    Parameters
    ----------
    missing : sequence of str
        What keeps the instruction from being used; nothing is said if it is empty.
    backend : str
        Back end that was asked for; nothing is said if portable code was.
    stood_in : str
        Consequence for the result, the end of the message.
    """
    if not missing or backend == "generic":
        return 0
    message(f"{'; '.join(missing)}: {stood_in}")
    return UNAVAILABLE
