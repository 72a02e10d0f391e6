"""How a search came out: what is printed and the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpembed.cli.output import message, print_text

if TYPE_CHECKING:
    from cpembed.api.solve import SolveResult

INFEASIBLE, STOPPED, UNAVAILABLE = 3, 4, 5
"""Exit codes of results that are not what was asked for."""


def print_solved(result: SolveResult, *, as_json: bool) -> int:
    """Print a search's result, or say in one line on stderr why there is none; the exit code.

    Raises :class:`~cpembed.errors.TransformError` where nothing that was found has a program.
    """
    from cpembed.api.choice import better_order, pick
    from cpembed.embedding.cpsat import Status

    if not as_json:
        from cpembed.report.solve import report

        print_text(*report(result))
    print_notes(result)
    what = f"{result.target.name} in {result.workload.name} under {result.constraints.name}"
    if result.status is Status.INFEASIBLE:
        message(f"no embedding of {what}: proven infeasible")
        return INFEASIBLE
    if result.status is Status.UNKNOWN:
        message(f"no embedding of {what} found before the limit: give a longer --timeout")
        return STOPPED
    pick(result, 1)
    better = better_order(result)
    if better is not None:
        message(f"{better}: exchange them or use --constraints complete")
    return 0


def print_notes(result: SolveResult) -> None:
    """What in the constraint set has no effect on this workload, on stderr."""
    from cpembed.api.choice import idle_padding

    idle = idle_padding(result)
    if idle is not None:
        message(idle)
