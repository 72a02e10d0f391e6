"""Measurement of kernels in another process, whose crash is a failed kernel."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cpembed.codegen.plan import Knobs
from cpembed.cost.ranking import Candidate
from cpembed.errors import CrashError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime import worker
from cpembed.steps import step
from cpembed.targets.cpu.measure import CopyTimes, Failed, KernelMeasurer, Timeable, Timed
from cpembed.targets.cpu.space import Objective

_TIMED_CALLS = 100
"""Approximate number of calls of a slow kernel in all its rounds, for its time limit."""


@dataclass(frozen=True)
class _Picklable:
    """Schedule for the worker process, without the model that proposed it."""

    key: str
    candidate: Candidate
    schedule: Knobs

    @classmethod
    def from_proposal(cls, proposal: Timeable) -> _Picklable:
        return cls(proposal.key, proposal.candidate, proposal.schedule)


class IsolatedMeasurer:
    """A :class:`KernelMeasurer` in another process, in which ``call`` executes functions.

    A crash is a failed kernel.
    """

    def __init__(
        self,
        workload: Computation,
        spec: HardwareSpec,
        objective: Objective,
        seed: int = 0,
        call: Callable[..., Any] = worker.call,
    ) -> None:
        self.copy_times: dict[str, CopyTimes] = {}
        arguments = workload, spec, objective, seed
        self._session = _Session(uuid.uuid4().hex, arguments, self.copy_times)
        self._call = call

    def measure(self, proposal: Timeable, incumbent: Timeable | None) -> Timed | Failed:
        """Time a schedule; see :meth:`KernelMeasurer.measure`."""
        try:
            best = None if incumbent is None else _Picklable.from_proposal(incumbent)
            picklable = _Picklable.from_proposal(proposal)
            result = self._call(_measure, self._session, picklable, best)
        except CrashError as error:
            return Failed(str(error))
        if isinstance(result, Timed) and not result.rejected:
            self.copy_times.setdefault(proposal.candidate.identifier, result.copies)
        return result

    def final(self, proposals: Sequence[Timeable]) -> list[Timed]:
        """Time finalists; see :meth:`KernelMeasurer.final`. Raises :class:`CrashError`."""
        picklable = [_Picklable.from_proposal(proposal) for proposal in proposals]
        return self._call(_final, self._session, picklable)


class _Session(NamedTuple):
    """Description of a measurer, sent with each call so that a new worker can rebuild it.

    ``key`` identifies the measurer and ``arguments`` construct it. ``copy_times`` are the packing
    and unpacking times that the parent process already has, by embedding identifier.
    """

    key: str
    arguments: tuple[Computation, HardwareSpec, Objective, int]
    copy_times: Mapping[str, CopyTimes]


_current: dict[str, KernelMeasurer] = {}
"""Most recent measurer of the worker process, by key."""


def _measurer(session: _Session) -> KernelMeasurer:
    # One at a time, because each holds packed data. After a crash the worker is a new process, so
    # that the copy times come with each call.
    if session.key not in _current:
        _current.clear()
        _current[session.key] = KernelMeasurer(*session.arguments)
    _current[session.key].copy_times.update(session.copy_times)
    return _current[session.key]


def _measure(session: _Session, proposal: Timeable, incumbent: Timeable | None) -> Timed | Failed:
    with step("measuring a schedule", _TIMED_CALLS * session.arguments[0].macs):
        return _measurer(session).measure(proposal, incumbent)


def _final(session: _Session, proposals: Sequence[Timeable]) -> list[Timed]:
    macs = _TIMED_CALLS * len(proposals) * session.arguments[0].macs
    with step("measuring the best schedules", macs):
        return _measurer(session).final(proposals)
