"""What a target's artifact computes, beside the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import dtype_info, is_integer
from cpembed.ir.reference import random_inputs
from cpembed.runtime.measurement.verification import Expected, Verification, with_special_values
from cpembed.steps import step
from cpembed.targets.base import Target
from cpembed.targets.capabilities import epilogue_vectors, judge


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
    vectors = epilogue_vectors(target, Expected(workload, inputs), epilogue, seed)

    def judged(data: Mapping[str, NDArray[Any]]) -> list[Verification]:
        expected = Expected(workload, data)
        with step(f"running the {target.executed_by(artifact)} kernel", workload.macs):
            execution = target.execute(artifact, {**data, **vectors})
        return [judge(target, expected, epilogue, vectors, output) for output in execution.outputs]

    finite = epilogue is not None and is_integer(epilogue.dtype)
    return worst_judged(workload, inputs, seed, judged, finite=finite), inputs | vectors


def worst_judged(
    workload: Computation,
    inputs: Mapping[str, NDArray[Any]],
    seed: int,
    judged: Callable[[Mapping[str, NDArray[Any]]], Sequence[Verification]],
    *,
    finite: bool = False,
) -> Verification:
    """The worst of what is computed on data and on the same with special values.

    Parameters
    ----------
    workload : Computation
        What is computed.
    inputs : mapping of str to ndarray
        The data, by tensor.
    seed : int
        Chooses the places of the special values.
    judged : callable
        Computes results of such data and judges each.
    finite : bool, optional
        Without NaN and infinities (:func:`special_data`).

    Returns
    -------
    Verification
    """
    special = special_data(workload, inputs, seed, finite=finite)
    found = [*judged(inputs), *judged(special)]
    worst = max(found, key=lambda one: (not one.verified, one.max_error))
    numbers = all(np.isfinite(a.astype(np.float64)).all() for a in special.values())
    floats = not all(is_integer(operand.dtype) for operand in workload.inputs)
    return replace(
        worst,
        spreads_nan=any(one.spreads_nan for one in found),
        special_values="finite" if numbers and floats else "all",
    )


def special_data(
    workload: Computation, inputs: Mapping[str, NDArray[Any]], seed: int, *, finite: bool = False
) -> dict[str, NDArray[Any]]:
    """Data of a workload with special values of its element types among them
    (:func:`~cpembed.runtime.measurement.verification.with_special_values`).

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
