"""Trials of tuning as tasks of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any

from cpembed.driver.chosen import AnyTarget
from cpembed.cluster import Task, Workers
from cpembed.errors import CrashError, LoweringError
from cpembed.provenance import Provenance
from cpembed.tuning.session import Together
from cpembed.tuning.space import Proposal


def measures(target: AnyTarget) -> bool:
    """Whether trials are times of the CPU that makes them."""
    return target.provenance is Provenance.MEASURED


def made_together(
    workers: Workers, target: AnyTarget, epilogue: Any, stop: Callable[[], bool]
) -> Together[Any, Any]:
    """Trials of several proposals at a time, none of them begun after ``stop`` says so."""

    def together(proposals: Sequence[Proposal[Any]]) -> Iterator[tuple[Proposal[Any], Any]]:
        by_key = {proposal.key: proposal for proposal in proposals}
        tasks = (
            Task(key, *target.trial_call(proposal, epilogue), "trying a schedule")
            for key, proposal in by_key.items()
        )
        for outcome in workers.outcomes(takewhile(lambda _: not stop(), tasks)):
            proposal, error = by_key[outcome.task.key], outcome.error
            if error is not None and not isinstance(error, LoweringError | CrashError):
                raise error
            reason = None if error is None else str(error)
            yield proposal, target.trial_of(proposal, outcome.result, reason)

    return together


def measured_by(workers: Workers) -> Callable[..., Any]:
    """Executes functions that time kernels, one after the other, on a worker that may."""

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        task = Task(function.__name__, function, arguments, "measuring a schedule", measures=True)
        ((_, result),) = workers.results([task])
        return result

    return call
