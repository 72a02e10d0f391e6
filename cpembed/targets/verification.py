"""What a target's artifact computes, beside the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import dtype_info, is_integer
from cpembed.ir.reference import random_inputs
from cpembed.measure.special import with_special_values
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
    """The worst of what an artifact computes on random data of a seed, and on the same with special
    values, beside the reference, and the random data; in the worker."""
    inputs = random_inputs(workload, seed)
    vectors = target.vectors(Expected(workload, inputs), epilogue, seed)
    judged: list[Verification] = []
    stores_integers = epilogue is not None and is_integer(epilogue.dtype)
    for data in (inputs, special_data(workload, inputs, seed, finite=stores_integers)):
        expected = Expected(workload, data)
        with step(f"running the {target.executed_by(artifact)} kernel", workload.macs):
            execution = target.execute(artifact, {**data, **vectors})
        judged += [target.judge(expected, epilogue, vectors, found) for found in execution.outputs]
    worst = max(judged, key=lambda one: (not one.verified, one.max_error))
    spreads = any(one.spreads_nan for one in judged)
    worst = replace(worst, spreads_nan=spreads, with_special_values=True)
    return worst, inputs | vectors


def special_data(
    workload: Computation, inputs: Mapping[str, NDArray[Any]], seed: int, *, finite: bool = False
) -> dict[str, NDArray[Any]]:
    """Data of a workload with special values of its element types among them
    (:func:`~cpembed.measure.special.with_special_values`).

    Where an operand is padded, the others stay finite: products with padding may be left out, so
    that an infinite factor makes no NaN there. ``finite``: all do, as where floats are stored as
    integers, which do not tell a NaN.
    """
    generator = np.random.default_rng(seed)
    padded = {operand.tensor for operand in workload.inputs if operand.zero_outside}
    limits = {
        operand.tensor: dtype_info(operand.dtype).integer_range
        for operand in workload.inputs
        if is_integer(operand.dtype)
    }
    stays_finite = {n for n in inputs if finite or (padded and n not in padded)}
    return {
        name: with_special_values(array, generator, limits.get(name), finite=name in stays_finite)
        for name, array in inputs.items()
    }
