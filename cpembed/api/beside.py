"""Another target in place of one whose instruction a workload would leave mostly idle.

A product of few columns fills few lanes of a matrix instruction. The target that a specification
names ``beside`` its own may have a use for them; which of the two is faster, the model of the
machine says.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpembed.api.choice import POOR
from cpembed.api.run_cpu import CpuChoice, model_choices
from cpembed.api.solve import DEFAULT_CONSTRAINTS, SolveResult, solve
from cpembed.backends.epilogue import Epilogue
from cpembed.backends.x86.features import missing_features
from cpembed.errors import LoweringError, WorkloadError
from cpembed.hw.loader import load_hardware_spec
from cpembed.tune.cpu_choice import CONSIDERED, EQUAL


@dataclass(frozen=True)
class Beside:
    """``target`` takes ``us``, the one that was asked for ``asked_us``, packing and unpacking
    included, by the model."""

    target: str
    us: float
    asked_us: float


def faster_beside(
    solved: SolveResult,
    chosen: CpuChoice | None = None,
    epilogue: Epilogue | None = None,
    *,
    timeout: float | None = None,
    seed: int = 0,
) -> Beside | None:
    """The target beside the one that was searched, where this machine has it and the model says it
    is faster than ``chosen``, by default what the model chooses; ``timeout`` and ``seed`` are of
    its search. None where the instruction is well used, nothing is named beside it, or tuning made
    the choice."""
    spec = solved.target
    if spec.beside is None or not solved.embeddings:
        return None
    if solved.embeddings[0].overheads.utilisation >= POOR:
        return None
    other = load_hardware_spec(spec.beside)
    if missing_features(other) or (chosen is not None and chosen.estimate is None):
        return None
    try:
        ours = chosen or model_choices(solved.embeddings, spec, epilogue)[0]
        found = solve(
            solved.workload, other, DEFAULT_CONSTRAINTS, top=CONSIDERED, timeout=timeout, seed=seed
        )
        if not found.embeddings:
            return None
        theirs = model_choices(found.embeddings, other, epilogue, fuses=False)[0]
    except (LoweringError, WorkloadError):
        # Also of types that the other one does not multiply.
        return None
    if ours.estimate is None or theirs.estimate is None:
        return None
    beside = Beside(other.name, theirs.estimate.total_us, ours.estimate.total_us)
    return beside if beside.us * EQUAL < beside.asked_us else None
