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
from cpembed.errors import LoweringError, WorkloadError
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.kernel.epilogue import Epilogue
from cpembed.targets.cpu.choice import CONSIDERED, EQUAL
from cpembed.targets.x86.features import missing_features


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
    its search. Targets beside it are the one that is named so, where the instruction is badly used,
    and the one that runs what cannot be embedded, where an embedding takes :func:`is_forced`. None
    where there is no such target, or tuning made the choice."""
    spec = solved.target
    names: list[str] = []
    if spec.beside is not None and solved.utilisation < POOR:
        names.append(spec.beside)
    if spec.otherwise is not None and is_forced(solved):
        names.append(spec.otherwise)
    if not names or not solved.embeddings or (chosen is not None and chosen.estimate is None):
        return None
    try:
        ours = (chosen or model_choices(solved.embeddings, spec, epilogue)[0]).estimate
    except LoweringError:
        return None
    times = {name: _us(solved.workload, name, epilogue, timeout, seed) for name in names}
    found = [Beside(name, us, ours.total_us) for name, us in times.items() if us and ours]
    best = min(found, key=lambda beside: beside.us, default=None)
    return best if best is not None and best.us * EQUAL < best.asked_us else None


def is_forced(solved: SolveResult) -> bool:
    """Whether an embedding takes more than the narrow set and the factors in their order."""
    narrower = solved.narrower
    return solved.exchanged or (narrower is not None and not narrower.utilisation)


def _us(
    workload: Computation, name: str, epilogue: Epilogue | None, timeout: float | None, seed: int
) -> float | None:
    """Microseconds that another target takes by the model, packing and unpacking included; None
    where it cannot run the workload here."""
    other = load_hardware_spec(name)
    if missing_features(other):
        return None
    try:
        found = solve(
            workload, other, DEFAULT_CONSTRAINTS, top=CONSIDERED, timeout=timeout, seed=seed
        )
        if not found.embeddings:
            return None
        estimate = model_choices(found.embeddings, other, epilogue, fuses=False)[0].estimate
    except (LoweringError, WorkloadError):
        # Also of types that the other one does not multiply.
        return None
    return None if estimate is None else estimate.total_us
