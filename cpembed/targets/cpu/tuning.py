"""Tuning on a CPU: schedules timed beside the best one so far, on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from cpembed.codegen.plan import Knobs
from cpembed.errors import CrashError
from cpembed.runtime.tuning.database import trial_store
from cpembed.runtime.tuning.session import CandidatePool, Task, Tuning
from cpembed.runtime.tuning.space import Proposal
from cpembed.targets.cpu.choice import Objective
from cpembed.targets.cpu.comparison import Failed, Moves, Timed
from cpembed.targets.cpu.trials import CpuTrial, key_of

FINALISTS = 4
"""The best schedules, which are timed again beside each other when a search is over."""


class Measurer(Protocol):
    """What times kernels: :class:`~cpembed.targets.cpu.measure.IsolatedMeasurer`."""

    known: dict[str, Moves]

    def measure(
        self, proposal: Proposal[Knobs], incumbent: Proposal[Knobs] | None
    ) -> Timed | Failed: ...

    def final(self, proposals: Sequence[Proposal[Knobs]]) -> list[Timed]: ...


class CpuTuning(Tuning[CpuTrial, Knobs]):
    """What is minimised is the ratio to the file's first trial, by way of the best ones between."""

    def __init__(
        self,
        task: Task,
        field: CandidatePool[Knobs],
        measurer: Measurer,
        objective: Objective,
        database: Path,
        spread: float = 2.0,
    ) -> None:
        self.objective: Objective = objective
        self._measurer = measurer
        self._incumbent: tuple[float, Proposal[Knobs]] | None = None
        self._proposals: dict[str, Proposal[Knobs]] = {}
        key = key_of(task.workload, task.target, task.constraints, objective)
        store = trial_store(database, key, CpuTrial)
        super().__init__(task, field, store, CpuTrial, self._timed, spread)
        for trial in self._trials:
            if trial.latency_us is not None and not trial.rejected:
                moves = Moves(trial.packing_us or 0.0, trial.unpacking_us or 0.0)
                measurer.known.setdefault(trial.identifier, moves)

    def about(self) -> dict[str, Any]:
        return {"objective": self.objective, "not_expressed": len(self.field.refused)}

    def _timed(self, proposal: Proposal[Knobs]) -> CpuTrial:
        incumbent = None if self._incumbent is None else self._incumbent[1]
        found = self._measurer.measure(proposal, incumbent)
        if isinstance(found, Failed):
            return _trial(proposal, None, None, error=found.reason)
        base = self._base(found) if self._incumbent is None else self._incumbent[0]
        return _trial(proposal, found, found.ratio * base)

    def _base(self, timed: Timed) -> float:
        """The ratio of a first trial of this call to the file's first, if that is another one: what
        runs untuned has changed since. Nothing was timed interleaved with both: medians decide."""
        first = next((t for t in self._trials if t.us(self.objective) is not None), None)
        if first is None:
            return 1.0
        return timed.us(self.objective) / (first.us(self.objective) or 1.0)

    def _on_trial(self, proposal: Proposal[Knobs], trial: CpuTrial) -> None:
        self._proposals[proposal.key] = proposal
        if trial.ratio is None or trial.rejected:
            return
        if self._incumbent is None or trial.ratio < self._incumbent[0]:
            self._incumbent = trial.ratio, proposal

    def _finish(self) -> None:
        """Time the best, and what runs untuned, once more, unless that was done undisturbed and
        nothing was measured since."""
        last = max((trial.final for trial in self._trials), default=0)
        again = [trial for trial in self._trials if trial.final == last]
        if last and self._trials[-1].final and not any(trial.noisy for trial in again):
            return
        measured = [trial for trial in self.done if trial.is_measured]
        if not measured:
            return
        first, best = measured[0], sorted(measured, key=lambda trial: trial.ratio or 0)
        chosen = [first, *(trial for trial in best[:FINALISTS] if trial is not first)]
        proposals = [self._proposals[trial.key] for trial in chosen]
        base = first.ratio or 1.0
        try:
            found = self._measurer.final(proposals)
        except CrashError:
            # Their first times stand: each of them ran alone.
            return
        self._append(
            [
                _trial(proposal, timed, timed.ratio * base, final=last + 1)
                for proposal, timed in zip(proposals, found, strict=True)
            ]
        )

    def outcome(self) -> tuple[CpuTrial, CpuTrial]:
        """What runs untuned as it was timed beside the best one, if the search is over."""
        best, untuned = super().outcome()
        again = [t for t in self._trials if t.key == untuned.key and t.final == best.final]
        return best, again[-1] if again else untuned


def _trial(
    proposal: Proposal[Knobs],
    timed: Timed | None,
    ratio: float | None,
    *,
    error: str | None = None,
    final: int = 0,
) -> CpuTrial:
    design, parts = proposal.design, proposal.scored.parts
    return CpuTrial(
        design.candidate.embedding.to_json(),
        design.identifier,
        design.ranked.rank,
        design.ranked.constraints,
        error,
        proposal.schedule,
        parts["us"],
        parts["moves_us"],
        None if timed is None else timed.latency_us,
        None if timed is None else timed.moves.packing_us,
        None if timed is None else timed.moves.unpacking_us,
        ratio,
        timed is not None and timed.noisy,
        timed is not None and timed.rejected,
        final,
        design.candidate.program.in_place,
        None if timed is None else timed.whole_us,
    )
