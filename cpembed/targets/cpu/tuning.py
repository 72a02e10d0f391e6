"""Tuning on a CPU: schedules timed beside the best one so far, on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from cpembed.codegen.host_cpu import cpu_model
from cpembed.codegen.plan import Knobs
from cpembed.codegen.runtime import thread_count
from cpembed.embedding.constraint_set import ConstraintSet
from cpembed.embedding.embedding import Embedding
from cpembed.errors import CrashError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.runtime import worker
from cpembed.runtime.measurement.environment import versions
from cpembed.runtime.measurement.runner import Quantiles
from cpembed.runtime.tuning.database import Trial, problem_key, sources_digest, trial_store
from cpembed.runtime.tuning.session import CandidatePool, Task, Tuning
from cpembed.runtime.tuning.space import Proposal
from cpembed.stores import LARGEST, Natural, Positive, Time
from cpembed.targets.base import Row
from cpembed.targets.cpu.measure import Failed, IsolatedMeasurer, Moves, Timed
from cpembed.targets.cpu.space import Objective, objective_named, schedule_json, schedule_key
from cpembed.targets.tuner import Tuner
from cpembed.wording import duration

_PACKAGE = Path(__file__).resolve().parents[2]


class CpuTrial(Trial, frozen=True):
    """A schedule of an embedding and its times in microseconds, None where it has no kernel.

    ``estimate_us`` and ``estimated_moves_us`` are the model's, of the contraction and of packing
    and unpacking. ``latency_us`` is the contraction alone; ``packing_us``, of what is not packed
    ahead, and ``unpacking_us`` are medians, as the first schedule of an embedding that was timed
    shares them out. ``whole_us`` is one call of all three, where that was timed: threads can pack
    for themselves, inside the kernel. ``ratio`` is what tuning minimises over the same of the
    file's first trial, by way of the best one so far, beside which the trial was timed interleaved.
    ``noisy``: the machine had other work, or the times varied. ``rejected``: clearly slower in the
    first rounds, and not timed any further. ``final``: the number of the search of this file after
    which the trial was timed again, beside the best others; 0 for the first times. ``in_place`` are
    the operands that the program keeps as they are.
    """

    kind = "cpu"

    knobs: Knobs
    estimate_us: Positive
    estimated_moves_us: Time
    latency_us: Quantiles | None
    packing_us: Time | None
    unpacking_us: Time | None
    ratio: Positive | None
    noisy: bool
    rejected: bool
    final: Natural = 0
    in_place: tuple[str, ...] = ()
    whole_us: Quantiles | None = None

    def flaw(self) -> str | None:
        for name, times in (("latency_us", self.latency_us), ("whole_us", self.whole_us)):
            if times is not None and not 0 < times.p10 <= times.median <= times.p90 <= LARGEST:
                return f"{name}: not the quantiles of a time"
        if self.latency_us is None and self.ratio is not None:
            return "latency_us: none, but a ratio"
        if list(self.in_place) != self.identifier.split("+")[1:]:
            return f"in_place: not that of {self.identifier}"
        return super().flaw()

    @property
    def operands_in_place(self) -> tuple[str, ...]:
        return self.in_place

    @property
    def key(self) -> str:
        return f"{self.identifier} {schedule_key(self.knobs)}"

    @property
    def cost(self) -> float | None:
        return self.ratio

    @property
    def decision(self) -> int:
        return self.final

    @property
    def is_measured(self) -> bool:
        return self.ratio is not None and not self.rejected

    @property
    def moves_us(self) -> float:
        return (self.packing_us or 0.0) + (self.unpacking_us or 0.0)

    @property
    def total_us(self) -> float | None:
        """The contraction with packing and unpacking."""
        if self.whole_us is not None:
            return self.whole_us.median
        return None if self.latency_us is None else self.latency_us.median + self.moves_us

    def us(self, objective: Objective) -> float | None:
        """What tuning minimises, by medians of its own rounds."""
        if self.latency_us is None or objective == "kernel":
            return None if self.latency_us is None else self.latency_us.median
        return self.total_us

    def figure(self, objective: str | None) -> float | None:
        return self.us(objective_named(objective))

    @property
    def estimated(self) -> float:
        return self.estimate_us + self.estimated_moves_us

    def document(self) -> dict[str, Any]:
        return super().document() | {"knobs": schedule_json(self.knobs)}

    def standing(self, objective: str | None = None) -> str:
        ratio = 1 / (self.ratio or 1)
        time = duration(self.figure(objective) or 0)
        what = "" if objective is None else f" {objective}"
        return f"best {time}{what}, {ratio:.3f} times as fast as untuned"

    @classmethod
    def is_current(cls, key: Mapping[str, Any]) -> bool:
        here = _machine_key(key.get("executor"))
        return all(key.get(name) == value for name, value in here.items())


def key_of(
    workload: Computation, spec: HardwareSpec, constraints: ConstraintSet, objective: Objective
) -> dict[str, Any]:
    """Everything that the trials of a file depend on."""
    return {
        **problem_key(workload, spec, constraints),
        "kind": CpuTrial.kind,
        "objective": objective,
        **_machine_key(spec.backend),
    }


def _machine_key(backend: str | None) -> dict[str, Any]:
    """This machine, and what generates kernels here."""
    return {
        "executor": backend,
        "cpu": cpu_model(),
        "threads": thread_count(),
        "version": versions()["cpembed"],
        "tvm": versions()["apache-tvm"],
        "backend": _sources_digest(backend),
    }


@cache
def _sources_digest(backend: str | None) -> str:
    """Of what kernels are generated by: under one version of the package, times change with these
    sources and figures only. Every CPU's model falls back on figures of :mod:`..x86`."""
    folders = {"codegen", "targets/cpu", "targets/x86", f"targets/{backend}"}
    found = (path for name in folders for path in (_PACKAGE / name).rglob("*"))
    return sources_digest(path for path in found if path.suffix in (".py", ".toml"))


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


class CpuTuner(Tuner[Knobs]):
    """Tuning by interleaved measurements of the sums, whatever is stored of them."""

    trial = CpuTrial
    objectives = ("total", "kernel")
    tunes_outputs = False

    def minimising(self, objective: str) -> CpuTuner:
        return type(self)(type(self.target)(self.spec, objective_named(objective)))

    def trial_key(
        self,
        workload: Computation,
        constraints: ConstraintSet,
        epilogue: Any,
        objective: str | None,
    ) -> dict[str, Any]:
        return key_of(workload, self.spec, constraints, objective_named(objective))

    def open(
        self,
        task: Task,
        pool: CandidatePool[Knobs],
        epilogue: Any,
        folder: Path,
        call: Callable[..., Any] = worker.call,
    ) -> CpuTuning:
        objective = self.target.objective
        measurer = IsolatedMeasurer(task.workload, self.spec, objective, call=call)
        return CpuTuning(task, pool, measurer, objective, folder, self.spread)

    def rows(self, best: CpuTrial, untuned: CpuTrial) -> list[Row]:
        return _rows(best, untuned, self.target.objective)

    def trial_json(self, trial: CpuTrial) -> dict[str, Any]:
        return super().trial_json(trial) | {"total_us": trial.total_us}


_MINIMISED: dict[Objective, str] = {
    "total": "latency, packing and unpacking; weights are packed ahead",
    "kernel": "latency alone",
}


def schedule_text(knobs: Knobs, embedding: Embedding) -> str:
    """``k.o:2  q.o:2 in registers, W outermost, cache tiles of p.o:8``: what a task computes, the
    factor whose loops are outside the other's, what comes before anything else.

    >>> knobs = Knobs({"k.o": 2, "q.o": 2}, "rows", {"p.o": 8})
    >>> schedule_text(knobs, Embedding({"A": "I", "B": "W", "C": "O"}, {}, {}))
    'k.o:2  q.o:2 in registers, I outermost, cache tiles of p.o:8'
    """
    first, second, *_ = embedding.operands.values()
    blocks = "  ".join(f"{loop}:{size}" for loop, size in knobs.register_tiles.items())
    panels = "  ".join(f"{loop}:{size}" for loop, size in knobs.cache_tiles.items())
    return ", ".join(
        (
            f"{blocks or 'one tile'} in registers",
            f"{second if knobs.columns_outermost else first} outermost",
            *((f"cache tiles of {panels}",) if panels else ()),
            *(("non-temporal loads",) if knobs.non_temporal else ()),
            *((f"split-K in {knobs.split_k}",) if knobs.split_k > 1 else ()),
        )
    )


def _rows(best: CpuTrial, untuned: CpuTrial, objective: Objective) -> list[tuple[str, str]]:
    """The best trial beside what runs untuned."""
    again = "" if best.key == untuned.key else f", rank {untuned.rank} of {untuned.constraints}"
    speedup = (untuned.cost or 0) / (best.cost or 1)
    rows = [
        ("minimised", _MINIMISED[objective]),
        ("untuned", f"{_times(untuned)}{again}"),
        ("tuned", f"{_times(best)}; {speedup:.3f} times as fast"),
        ("model", f"tuned: {_model(best)}; untuned: {_model(untuned)}"),
    ]
    if best.noisy:
        disturbed = "other work on the machine disturbed the times, or they varied"
        rows.append(("noisy", f"{disturbed}; the same command times the best once more"))
    return rows


def _times(trial: CpuTrial) -> str:
    if trial.latency_us is None:
        return f"no kernel: {trial.error}"
    times = trial.latency_us
    latency = f"{duration(times.median)} (p10 {duration(times.p10)})"
    apart = f"{latency}, packing and unpacking {duration(trial.moves_us)}"
    if trial.whole_us is None:
        return apart
    return f"{apart}; {duration(trial.whole_us.median)} in one call"


def _model(trial: CpuTrial) -> str:
    """What was expected of a trial beside what was measured."""
    share = trial.estimated / (trial.total_us or 1.0)
    return f"{duration(trial.estimated)} estimated is {share:.2f} times the measured"
