"""Tuning of kernels for GPUs by times that a GPU of this machine takes, or another one took."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from cpembed.codegen.epilogue import Epilogue
from cpembed.cost.ranking import Candidate, RankedCandidate, derive_candidate, overheads
from cpembed.embedding.constraint_set import ConstraintSet, load_constraint_set
from cpembed.embedding.embedding import Embedding
from cpembed.errors import BackendUnavailable, LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.provenance import Provenance
from cpembed.runtime import worker
from cpembed.runtime.tuning.database import PlainTrial, module_digest, trial_store
from cpembed.runtime.tuning.session import CandidatePool, Task, Tuning
from cpembed.runtime.tuning.space import Design, Proposal, S
from cpembed.steps import step
from cpembed.targets.base import Row
from cpembed.targets.cuda.build import text_digest
from cpembed.targets.cuda.measurement import device_facts, measured_us
from cpembed.targets.cuda.model import gpu
from cpembed.targets.cuda.remote.load import capability_of
from cpembed.targets.tuner import Call, Tuner
from cpembed.transform.proof import require

MEASURED = 3
"""Number of schedules with the smallest estimates that are worth measuring before one is taken."""

_ELSEWHERE = (
    "`cpembed bench … --pack FILE.zip` packs kernels for a machine with a GPU, and `cpembed tune "
    "--results results.json` takes the times that it measures"
)

_MODULE = "cpembed.targets.cuda.target"
"""Module whose package has all sources of the kernels, those of warp groups included."""


class CudaTuner(Tuner[S]):
    """Tuning by the medians of calls on a GPU, whose results are compared before and after."""

    trials = MEASURED
    device: str | None = None
    """Name of the GPU that measures; None where trials are looked up."""

    @property
    def provenance(self) -> Provenance:
        return Provenance.MEASURED

    def unavailable(self) -> str | None:
        try:
            device_facts()
        except BackendUnavailable as error:
            return f"{error}: {_ELSEWHERE}"
        return None

    def measured_machine(self) -> str:
        """Return the described machine that the GPU here is, or is most like.

        Raises :class:`BackendUnavailable` if no machine has its compute capability.
        """
        facts = device_facts()
        capability = tuple(facts["capability"])
        described = [gpu(self.spec, name) for name in self.spec.machines]
        same = [each for each in described if capability_of(each.architecture) == capability]
        if not same:
            major, minor = capability
            names = ", ".join(f"{each.name} ({each.architecture})" for each in described)
            raise BackendUnavailable(
                f"{self.spec.name}: {facts['device']} is of sm_{major}{minor}, and described are "
                f"{names}: name the machine whose estimates propose schedules (--machine)"
            )
        return min(same, key=lambda each: abs(each.multiprocessors - facts["multiprocessors"])).name

    def trial_key(
        self,
        workload: Computation,
        constraints: ConstraintSet,
        epilogue: Epilogue | None,
        objective: str | None,
    ) -> dict[str, Any]:
        # Steps in registers between the sums and the result hardly change the order of schedules.
        stored = workload.output.dtype if epilogue is None else epilogue.dtype
        return {
            **super().trial_key(workload, constraints, None, objective),
            "module": _MODULE,
            "source": module_digest(_MODULE),
            "stored": stored,
            "machine": self.target.described_machine,
            "device": self.device,
        }

    def open(
        self,
        task: Task,
        pool: CandidatePool[S],
        epilogue: Any,
        folder: Path,
        call: Call = worker.call,
    ) -> Tuning[Any, S]:
        self.device = str(device_facts()["device"])
        return super().open(task, pool, epilogue, folder, call)

    def document_entries(self, workload: Computation, epilogue: Any) -> dict[str, Any]:
        return {"machine": self.target.described_machine, "device": self.device}

    def trial_call(
        self, proposal: Proposal[S], epilogue: Any
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return measured_us, self._arguments(proposal.candidate, proposal.schedule, epilogue)

    def _arguments(self, candidate: Candidate, schedule: Any, epilogue: Any) -> tuple[Any, ...]:
        """Return what a worker builds a schedule from; a class can always be pickled."""
        kind = cast("type[Any]", type(self.target))
        return kind, self.spec, candidate, schedule, epilogue

    def rows(self, best: PlainTrial, untuned: PlainTrial) -> list[Row]:
        before, after = ((trial.time or 0.0) for trial in (untuned, best))
        text = "{:.4g} us, {:.2f} times the estimate"
        rows = [
            (name, text.format(trial.time, (trial.time or 0.0) / (trial.estimate or 1.0)))
            for name, trial in (("untuned", untuned), ("tuned", best))
        ]
        return [*rows, ("measured", f"on {self.device}; {before / after:.3f} times as fast")]

    def store_results(
        self,
        workload: Computation,
        epilogue: Epilogue | None,
        layer: Mapping[str, Any],
        device: str,
        folder: Path,
    ) -> int:
        """Store what the programs of a pack measured of a layer (:class:`TakesResults`)."""
        self.device = device
        constraints = load_constraint_set(layer["constraints"])
        key = self.trial_key(workload, constraints, epilogue, None)
        store = trial_store(folder, key, self.trial)
        store.open()
        stored = {trial.key for trial in store.load()}
        new = 0
        for variant in layer["variants"]:
            times = layer["times"].get(variant["name"])
            if times is None:
                continue
            trial = self._trial_of(workload, epilogue, variant["program"], times["us"])
            if trial.key not in stored:
                store.append(trial)
                new += 1
        return new

    def _trial_of(
        self,
        workload: Computation,
        epilogue: Epilogue | None,
        program: Mapping[str, Any],
        us: float,
    ) -> PlainTrial:
        """Return the trial of a kernel of a pack, whose program is derived and proven again."""
        embedding = Embedding.from_json(program["embedding"])
        candidate = derive_candidate(workload, self.spec.instruction, embedding)
        require(candidate.program)
        lowered = self.target.lower(candidate.program, epilogue)
        space = self.target.space(lowered)
        scored = space.scored(self.target.schedule_from(program["schedule"]))
        # The time is that of this text and no other.
        arguments = self._arguments(candidate, scored.schedule, epilogue)
        if worker.call(_text_digest, *arguments) != program["text"]:
            raise LoweringError("its kernels are generated differently now: pack it again")
        cost = overheads(candidate.program)
        ranked = RankedCandidate(program["rank"], candidate, cost, 0.0, program["constraints"])
        trial: PlainTrial = self.trial_of(
            Proposal(Design(ranked, lowered, space), scored), us, None
        )
        return trial


def _text_digest(
    kind: type[Any],
    spec: HardwareSpec,
    candidate: Candidate,
    schedule: Any,
    epilogue: Epilogue | None,
) -> str:
    """Return the digest of the text of a schedule's kernels; called in a worker."""
    target = kind(spec)
    with step("building a schedule", candidate.program.unfused.macs):
        artifact = target.build(target.lower(candidate.program, epilogue), schedule)
    return text_digest(artifact.text)
