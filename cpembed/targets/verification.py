"""What a target's artifact computes, beside the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from cpembed.ir.computation import Computation
from cpembed.ir.reference import random_inputs
from cpembed.measure.verification import Expected, Verification
from cpembed.worker import step

if TYPE_CHECKING:
    from cpembed.targets.base import Target


def verified(
    target: Target[Any, Any, Any],
    artifact: Any,
    workload: Computation,
    epilogue: Any,
    seed: int,
) -> tuple[Verification, dict[str, NDArray[Any]]]:
    """The worst of what an artifact computes on random data of a seed, beside the reference, and
    the data; in the worker."""
    inputs = random_inputs(workload, seed)
    expected = Expected(workload, inputs)
    vectors = target.vectors(expected, epilogue, seed)
    inputs |= vectors
    doing = f"running the {target.executed_by(artifact)} kernel"
    with step(doing, workload.macs):
        execution = target.execute(artifact, inputs)
    judged = [target.judge(expected, epilogue, vectors, found) for found in execution.outputs]
    worst = max(judged, key=lambda one: (not one.verified, one.max_error))
    return worst, inputs
