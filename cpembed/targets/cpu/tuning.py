"""Tuning on a CPU: trials of schedules, timed interleaved with the best one so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from cpembed.codegen.host_cpu import cpu_model, named_processor
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
from cpembed.targets.cpu.isolated_measure import IsolatedMeasurer
from cpembed.targets.cpu.measure import CopyTimes, Failed, Timed
from cpembed.targets.cpu.space import Objective, objective_named, schedule_json, schedule_key
from cpembed.targets.tuner import Tuner
from cpembed.wording import duration

_PACKAGE = Path(__file__).resolve().parents[2]


class CpuTrial(Trial, frozen=True):
    """Schedule of an embedding with its times in microseconds; None if it has no kernel."""

    kind = "cpu"

    knobs: Knobs
    estimate_us: Positive
    estimated_moves_us: Time
    """Estimates of the contraction, and of packing and unpacking."""
    latency_us: Quantiles | None
    """Times of the contraction alone."""
    packing_us: Time | None
    unpacking_us: Time | None
    """Medians of packing what is not packed ahead, and of unpacking, from the first schedule of the
    embedding that was timed."""
    ratio: Positive | None
    """Minimised time over that of the file's first trial. It is the product of ratios to the best
    trials in between, each of which was timed interleaved with the next."""
    noisy: bool
    """True if the machine had other work, or the times varied."""
    rejected: bool
    """True if the first rounds were clearly slower; it was not timed any further."""
    final: Natural = 0
    """Number of the search in this file after which the trial was timed again with the other
    finalists; 0 for first times."""
    in_place: tuple[str, ...] = ()
    """Operands that the program leaves in their original layouts."""
    whole_us: Quantiles | None = None
    """Times of one call of all three, if that was timed: threads may pack for themselves inside the
    kernel."""

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
    def copies_us(self) -> float:
        return (self.packing_us or 0.0) + (self.unpacking_us or 0.0)

    @property
    def total_us(self) -> float | None:
        """Microseconds of the contraction with packing and unpacking."""
        if self.whole_us is not None:
            return self.whole_us.median
        return None if self.latency_us is None else self.latency_us.median + self.copies_us

    def us(self, objective: Objective) -> float | None:
        """Return the median of the times that tuning minimises."""
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
        objective_text = "" if objective is None else f" {objective}"
        return f"best {time}{objective_text}, {ratio:.3f} times as fast as untuned"

    @classmethod
    def is_current(cls, key: Mapping[str, Any]) -> bool:
        current = _machine_key(key.get("executor"))
        return all(key.get(name) == value for name, value in current.items())


def key_of(
    workload: Computation, spec: HardwareSpec, constraints: ConstraintSet, objective: Objective
) -> dict[str, Any]:
    """Return everything that the trials of a file depend on.

    Parameters
    ----------
    workload : Computation
        Operator.
    spec : HardwareSpec
        Target.
    constraints : ConstraintSet
        Set that the embeddings are from.
    objective : str
        Cost that is minimised.
    """
    return {
        **problem_key(workload, spec, constraints),
        "kind": CpuTrial.kind,
        "objective": objective,
        **_machine_key(spec.backend),
    }


def _machine_key(backend: str | None) -> dict[str, Any]:
    """Return the part of the key for this machine and its code generators."""
    # Records of this machine say nothing of another processor that kernels are built for.
    named = named_processor()
    return {
        "executor": backend,
        "cpu": cpu_model() if named is None else f"built for {named.name}",
        "threads": thread_count(),
        "version": versions()["cpembed"],
        "tvm": versions()["apache-tvm"],
        "backend": _sources_digest(backend),
    }


@cache
def _sources_digest(backend: str | None) -> str:
    """Return a digest of the sources that generate kernels."""
    # Under one version of the package, times change only with these sources and constants. The
    # model of every CPU falls back on constants of x86, so that folder always counts.
    folders = {"codegen", "targets/cpu", "targets/x86", f"targets/{backend}"}
    paths = (path for name in folders for path in (_PACKAGE / name).rglob("*"))
    return sources_digest(path for path in paths if path.suffix in (".py", ".toml"))


FINALISTS = 4
"""Number of best schedules that are timed again, interleaved, at the end of a search."""


class Measurer(Protocol):
    """Interface of :class:`~cpembed.targets.cpu.isolated_measure.IsolatedMeasurer`."""

    copy_times: dict[str, CopyTimes]

    def measure(
        self, proposal: Proposal[Knobs], incumbent: Proposal[Knobs] | None
    ) -> Timed | Failed: ...

    def final(self, proposals: Sequence[Proposal[Knobs]]) -> list[Timed]: ...


class CpuTuning(Tuning[CpuTrial, Knobs]):
    """Search that minimises the ratio to the file's first trial, by way of the best trials."""

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
        # Copies of an embedding are timed once, in whichever call came first.
        for trial in self._trials:
            if trial.latency_us is not None and not trial.rejected:
                copies = CopyTimes(trial.packing_us or 0.0, trial.unpacking_us or 0.0)
                measurer.copy_times.setdefault(trial.identifier, copies)

    def about(self) -> dict[str, Any]:
        return {"objective": self.objective, "not_expressed": len(self.field.refused)}

    def _timed(self, proposal: Proposal[Knobs]) -> CpuTrial:
        incumbent = None if self._incumbent is None else self._incumbent[1]
        measured = self._measurer.measure(proposal, incumbent)
        if isinstance(measured, Failed):
            return _trial(proposal, None, None, error=measured.reason)
        base = self._base(measured) if self._incumbent is None else self._incumbent[0]
        return _trial(proposal, measured, measured.ratio * base)

    def _base(self, timed: Timed) -> float:
        """Return the ratio of this call's first trial to the file's first."""
        # Another schedule may run untuned now than in an earlier call. Nothing was timed
        # interleaved with both, so medians decide.
        first = next((t for t in self._trials if t.us(self.objective) is not None), None)
        if first is None:
            return 1.0
        return timed.us(self.objective) / (first.us(self.objective) or 1.0)

    def _on_trial(self, proposal: Proposal[Knobs], trial: CpuTrial) -> None:
        self._proposals[proposal.key] = proposal
        # A rejected trial was timed in a few rounds only.
        if trial.ratio is None or trial.rejected:
            return
        if self._incumbent is None or trial.ratio < self._incumbent[0]:
            self._incumbent = trial.ratio, proposal

    def _finish(self) -> None:
        """Time the best trials and the untuned one once more, interleaved."""
        # Nothing is left if that was done undisturbed and nothing was measured since.
        last = max((trial.final for trial in self._trials), default=0)
        last_finals = [trial for trial in self._trials if trial.final == last]
        if last and self._trials[-1].final and not any(trial.noisy for trial in last_finals):
            return
        measured = [trial for trial in self.done if trial.is_measured]
        if not measured:
            return
        first, best = measured[0], sorted(measured, key=lambda trial: trial.ratio or 0)
        finalists = [first, *(trial for trial in best[:FINALISTS] if trial is not first)]
        proposals = [self._proposals[trial.key] for trial in finalists]
        # Final ratios are over the first finalist, all others over the first trial of the file.
        base = first.ratio or 1.0
        try:
            times = self._measurer.final(proposals)
        except CrashError:
            # The first times remain valid: each finalist was timed in a process of its own.
            return
        self._append(
            [
                _trial(proposal, timed, timed.ratio * base, final=last + 1)
                for proposal, timed in zip(proposals, times, strict=True)
            ]
        )

    def outcome(self) -> tuple[CpuTrial, CpuTrial]:
        """Return the best trial and the untuned one, from the same final comparison if possible."""
        best, untuned = super().outcome()
        finals = [t for t in self._trials if t.key == untuned.key and t.final == best.final]
        return best, finals[-1] if finals else untuned


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
        embedding=design.candidate.embedding.to_json(),
        identifier=design.identifier,
        rank=design.ranked.rank,
        constraints=design.ranked.constraints,
        error=error,
        knobs=proposal.schedule,
        estimate_us=parts["us"],
        estimated_moves_us=parts["moves_us"],
        latency_us=None if timed is None else timed.latency_us,
        packing_us=None if timed is None else timed.copies.packing_us,
        unpacking_us=None if timed is None else timed.copies.unpacking_us,
        ratio=ratio,
        noisy=timed is not None and timed.noisy,
        rejected=timed is not None and timed.rejected,
        final=final,
        in_place=design.candidate.program.in_place,
        whole_us=None if timed is None else timed.whole_us,
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
        return CpuTuning(task, pool, measurer, objective, database=folder, spread=self.spread)

    def rows(self, best: CpuTrial, untuned: CpuTrial) -> list[Row]:
        return _rows(best, untuned, self.target.objective)

    def trial_json(self, trial: CpuTrial) -> dict[str, Any]:
        return super().trial_json(trial) | {"total_us": trial.total_us}


_MINIMISED: dict[Objective, str] = {
    "total": "latency, packing and unpacking; weights are packed ahead",
    "kernel": "latency alone",
}


def schedule_text(knobs: Knobs, embedding: Embedding) -> str:
    """Describe a schedule: register tiles, the outermost factor, then unusual knobs.

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
    """Return the lines of a report for the best trial and the untuned one."""
    rank = "" if best.key == untuned.key else f", rank {untuned.rank} of {untuned.constraints}"
    speedup = (untuned.cost or 0) / (best.cost or 1)
    rows = [
        ("minimised", _MINIMISED[objective]),
        ("untuned", f"{_times(untuned)}{rank}"),
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
    separate = f"{latency}, packing and unpacking {duration(trial.copies_us)}"
    if trial.whole_us is None:
        return separate
    return f"{separate}; {duration(trial.whole_us.median)} in one call"


def _model(trial: CpuTrial) -> str:
    """Compare the estimate of a trial with its time."""
    # The model is compared with the whole call, as it estimates one.
    share = trial.estimated / (trial.total_us or 1.0)
    return f"{duration(trial.estimated)} estimated is {share:.2f} times the measured"
