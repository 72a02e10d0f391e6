"""Tuning on a CPU: kernels are timed on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from cpembed.api.solve import SolveResult
from cpembed.api.tuning import Task, TuneResult, Tuning
from cpembed.errors import CrashError, LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.kernel.plan import Knobs
from cpembed.selection.ranking import RankedCandidate
from cpembed.targets.cpu.calibration import Calibration
from cpembed.targets.cpu.choice import Objective, choose, contenders
from cpembed.targets.cpu.contest import Failed, Moves, Timed
from cpembed.targets.cpu.search import CpuSearch
from cpembed.targets.cpu.space import CpuDesign, CpuProposal, design_of, distinct
from cpembed.targets.cpu.trials import CpuTrial, key_of
from cpembed.targets.cpu.variants import require_variant, with_variants
from cpembed.tuning.database import store_of

FINALISTS = 4
"""The best schedules, which are timed again beside each other when a search is over."""


class Measurer(Protocol):
    """What times kernels: :class:`~cpembed.targets.cpu.measure.Isolated`."""

    known: dict[str, Moves]

    def measure(self, proposal: CpuProposal, champion: CpuProposal | None) -> Timed | Failed: ...

    def final(self, proposals: Sequence[CpuProposal]) -> list[Timed]: ...


@dataclass(frozen=True)
class Field:
    """The embeddings that take part; what runs untuned is ``untuned`` on the first one.

    ``refused`` says of the others why the instruction cannot execute them.
    """

    designs: tuple[CpuDesign, ...]
    untuned: Knobs
    refused: tuple[str, ...]

    @classmethod
    def of(
        cls,
        found: Sequence[tuple[SolveResult, int]],
        spec: HardwareSpec,
        machine: Calibration | None = None,
        fused: Sequence[RankedCandidate] = (),
        *,
        fuses: bool = True,
    ) -> Field:
        """``found`` holds embeddings and how many of each search take part, beside ``fused`` and
        the one that the model chooses among these and the best of the first search. ``fuses``: see
        :func:`with_variants`.

        Raises :class:`LoweringError` where the instruction executes none of them.
        """
        beside = partial(with_variants, spec=spec, fuses=fuses)
        groups = beside(fused)
        first = [*beside(contenders(found[0][0].embeddings)), *groups]
        chosen = choose(first, spec, machine).estimates[:1]
        entries = [item.ranked for item in chosen]
        for solved, count in found:
            entries += beside(solved.embeddings[:count])
        designs: list[CpuDesign] = []
        refused: dict[str, str] = {}
        for ranked in [*entries, *groups]:
            try:
                designs.append(design_of(ranked, spec, machine))
            except LoweringError as error:
                refused[ranked.candidate.identifier] = str(error)
        if not designs:
            raise LoweringError(next(iter(refused.values())))
        untuned = chosen[0].knobs if chosen else designs[0].ranked[0][1]
        taking_part = distinct(designs)
        for design in taking_part:
            require_variant(design.candidate)
        return cls(tuple(taking_part), untuned, tuple(refused.values()))


@dataclass(frozen=True)
class CpuTuneResult(TuneResult[CpuTrial]):
    """``not_expressed``: embeddings that the instruction cannot execute and that took no part."""

    objective: Objective
    not_expressed: int

    def _about_json(self) -> dict[str, Any]:
        return {"objective": self.objective, "not_expressed": self.not_expressed}

    def _trial_json(self, trial: CpuTrial) -> dict[str, Any]:
        return {**super()._trial_json(trial), "total_us": trial.total_us}


class CpuTuning(Tuning[CpuTrial, CpuProposal]):
    """Schedules timed beside the best one so far, and the best of all beside each other."""

    def __init__(
        self, task: Task, field: Field, measurer: Measurer, objective: Objective, database: Path
    ) -> None:
        self.objective: Objective = objective
        self._field = field
        self._measurer = measurer
        self._champion: tuple[float, CpuProposal] | None = None
        self._proposals: dict[str, CpuProposal] = {}
        key = key_of(task.workload, task.target, task.constraints, objective)
        store = store_of(database, key, CpuTrial)
        store.open()
        search = CpuSearch(field.designs, field.untuned, objective, task.seed)
        super().__init__(task, search, store, CpuTrial)
        for trial in self._kept:
            if trial.latency_us is not None and not trial.rejected:
                moves = Moves(trial.packing_us or 0.0, trial.unpacking_us or 0.0)
                measurer.known.setdefault(trial.identifier, moves)

    @property
    def field(self) -> Field:
        """What takes part."""
        return self._field

    def _measure(self, proposal: CpuProposal) -> CpuTrial:
        champion = None if self._champion is None else self._champion[1]
        found = self._measurer.measure(proposal, champion)
        if isinstance(found, Failed):
            return _trial(proposal, None, None, error=found.reason)
        base = self._base(found) if self._champion is None else self._champion[0]
        return _trial(proposal, found, found.ratio * base)

    def _base(self, timed: Timed) -> float:
        """The ratio of a first trial of this call to the file's first, if that is another one: what
        runs untuned has changed since. Nothing was timed in turns with both, so medians decide."""
        first = next((t for t in self._kept if t.us(self.objective) is not None), None)
        if first is None:
            return 1.0
        return timed.us(self.objective) / (first.us(self.objective) or 1.0)

    def _told(self, proposal: CpuProposal, trial: CpuTrial) -> None:
        self._proposals[proposal.key] = proposal
        if trial.ratio is None or trial.rejected:
            return
        if self._champion is None or trial.ratio < self._champion[0]:
            self._champion = trial.ratio, proposal

    def _finish(self) -> None:
        """Time the best, and what runs untuned, once more, unless that was done undisturbed and
        nothing was measured since."""
        last = max((trial.final for trial in self._kept), default=0)
        again = [trial for trial in self._kept if trial.final == last]
        if last and self._kept[-1].final and not any(trial.noisy for trial in again):
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
        self._keep(
            [
                _trial(proposal, timed, timed.ratio * base, final=last + 1)
                for proposal, timed in zip(proposals, found, strict=True)
            ]
        )

    def result(self) -> CpuTuneResult:
        best, untuned = self._outcome()
        # Timed beside the best one, if the search is over.
        again = [t for t in self._kept if t.key == untuned.key and t.final == best.final]
        return CpuTuneResult(
            self.task.workload,
            self.task.target,
            self.task.constraints.name,
            self.task.seed,
            len(self._field.designs),
            tuple(self.done),
            self.measured,
            self.kept,
            self.stopped,
            best,
            again[-1] if again else untuned,
            time.perf_counter() - self.task.started,
            self.store.path,
            self.objective,
            len(self._field.refused),
        )


def _trial(
    proposal: CpuProposal,
    timed: Timed | None,
    ratio: float | None,
    *,
    error: str | None = None,
    final: int = 0,
) -> CpuTrial:
    design = proposal.design
    return CpuTrial(
        design.candidate.embedding.to_json(),
        design.identifier,
        design.rank,
        design.constraints,
        error,
        proposal.knobs,
        proposal.kernel.us,
        proposal.moves_us,
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
