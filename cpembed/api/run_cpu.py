"""Which kernel runs on a CPU: what was tuned, else what the model chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cpembed.api.solve import SolveResult
from cpembed.embedding.constraint_set import ConstraintSet, Weights
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.kernel.compiled import CompiledKernel
from cpembed.kernel.epilogue import Epilogue
from cpembed.kernel.plan import Knobs
from cpembed.selection.ranking import RankedCandidate
from cpembed.targets.cpu.build import build
from cpembed.targets.cpu.choice import (
    Estimated,
    ModelChoice,
    choose,
    machine_weights,
)
from cpembed.targets.cpu.kept import tuned
from cpembed.targets.cpu.trials import CpuTrial
from cpembed.targets.cpu.variants import require_variant, with_variants
from cpembed.tuning.kept import TunedChoice


@dataclass(frozen=True)
class CpuChoice:
    """A candidate with its schedule, and where they come from: ``tuned``, or ``model``, which ranks
    the candidates that it could choose among; ``estimate`` is the model's of this one."""

    candidate: RankedCandidate
    knobs: Knobs
    tuned: TunedChoice[CpuTrial] | None = None
    model: ModelChoice | None = None
    estimate: Estimated | None = None

    def to_json(self) -> dict[str, Any]:
        """A part of the document of ``run --json``."""
        model = None
        if self.model is not None and self.estimate is not None:
            model = self.model.to_json(self.estimate)
        return {
            "schedule": asdict(self.knobs),
            "tuned": None if self.tuned is None else self.tuned.to_json(),
            "model": model,
        }


def tuned_choice(
    workload: Computation,
    spec: HardwareSpec,
    constraints: ConstraintSet | None,
    weights: Weights,
    candidate: RankedCandidate | None = None,
) -> CpuChoice | None:
    """What tuning kept, under a constraint set or any, of a candidate or of all; None where nothing
    is kept. ``weights`` give the score of the candidate that was tuned.
    """
    identifier = None if candidate is None else candidate.candidate.identifier
    kept = tuned(workload, spec, constraints, identifier=identifier)
    if kept is None:
        return None
    return CpuChoice(candidate or kept.ranked(weights), kept.trial.knobs, kept)


def weights_here(first: SolveResult, spec: HardwareSpec) -> Weights | None:
    """Weights that rank by the times that overheads take on this machine; None where nothing can be
    executed."""
    modelled = choose(first.embeddings[:1], spec)
    return machine_weights(modelled.estimates[0]) if modelled.estimates else None


def model_choices(
    candidates: Sequence[RankedCandidate],
    spec: HardwareSpec,
    epilogue: Epilogue | None = None,
    *,
    fuses: bool = True,
) -> list[CpuChoice]:
    """Candidates, and what is considered beside them (:func:`with_variants`), with their fastest
    schedules by the model, the one to run first.

    Raises :class:`LoweringError` where the instruction can execute none of them.
    """
    return _by_model(choose(with_variants(candidates, spec, fuses=fuses), spec, epilogue=epilogue))


def given_choice(
    candidate: RankedCandidate, spec: HardwareSpec, epilogue: Epilogue | None = None
) -> list[CpuChoice]:
    """A candidate as it is, without variants, with its fastest schedule by the model.

    Raises :class:`LoweringError` where the instruction cannot execute it.
    """
    return _by_model(choose([candidate], spec, epilogue=epilogue))


def choices_storing(choice: CpuChoice, spec: HardwareSpec, epilogue: Epilogue) -> list[CpuChoice]:
    """What the model chooses, of what it chose among, where ``epilogue`` is stored; a choice that
    it did not make stays."""
    if choice.model is None:
        return [choice]
    considered = [item.ranked for item in choice.model.estimates]
    return _by_model(choose(considered, spec, epilogue=epilogue))


def _by_model(model: ModelChoice) -> list[CpuChoice]:
    if not model.estimates:
        raise LoweringError(model.refused[0])
    return [CpuChoice(item.ranked, item.knobs, None, model, item) for item in model.estimates]


def build_first(
    choices: Sequence[CpuChoice], spec: HardwareSpec, epilogue: Epilogue | None = None
) -> tuple[CompiledKernel, CpuChoice]:
    """The kernel of the first choice that has one.

    Raises :class:`LoweringError` where none has, :class:`BackendUnavailable`, and
    :class:`InvariantError` for a program in place that cannot be proven.
    """
    failed: list[LoweringError] = []
    for choice in choices:
        program = choice.candidate.candidate.program
        require_variant(choice.candidate.candidate)
        try:
            kernel = build(program, spec, backend="native", knobs=choice.knobs, epilogue=epilogue)
            return kernel, choice
        except LoweringError as error:
            failed.append(error)
    raise failed[0]
