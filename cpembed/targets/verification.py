"""Verification of a target's artifacts against the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import dtype_info, is_integer
from cpembed.ir.reference import random_inputs
from cpembed.runtime.measurement.verification import Expected, Verification
from cpembed.runtime.measurement.verification_data import exact_data, with_special_values
from cpembed.steps import step
from cpembed.targets.base import Target
from cpembed.targets.outputs import epilogue_vectors, judge


def verified(
    target: Target[Any, Any, Any],
    artifact: Any,
    workload: Computation,
    epilogue: Any,
    seed: int,
) -> tuple[Verification, dict[str, NDArray[Any]]]:
    """Verify an artifact on random data, and on the same data with special values; in the worker.

    Parameters
    ----------
    target, epilogue
        Target that executes the artifact, and epilogue in its own form.
    artifact, workload
        From :meth:`Target.build`, and its operator.
    seed : int
        Seed of the data.

    Returns
    -------
    verification : Verification
        The worst of all outputs.
    inputs : dict of str to ndarray
        The random data, vectors of the epilogue included.
    """
    target.require_executable(workload.macs)
    inputs = random_inputs(workload, seed)
    vectors = epilogue_vectors(target, Expected(workload, inputs), epilogue, seed)

    def judged(data: Mapping[str, NDArray[Any]]) -> list[Verification]:
        expected = Expected(workload, data)
        with step(f"running the {target.executed_by(artifact)} kernel", workload.macs):
            execution = target.execute(artifact, {**data, **vectors})
        seconds = [expected.judge_second(x, epilogue, vectors) for x in execution.seconds]
        return [
            *(judge(target, expected, epilogue, vectors, x) for x in execution.outputs),
            *seconds,
        ]

    # Integers have no NaN, so what a NaN becomes is undefined.
    second = getattr(epilogue, "second", None)
    stored = [part.dtype for part in (epilogue, second) if part is not None]
    finite = any(map(is_integer, stored))
    return worst_judged(workload, inputs, seed, judged, finite=finite), inputs | vectors


def worst_judged(
    workload: Computation,
    inputs: Mapping[str, NDArray[Any]],
    seed: int,
    judged: Callable[[Mapping[str, NDArray[Any]]], Sequence[Verification]],
    *,
    finite: bool = False,
) -> Verification:
    """Return the worst verification on data, and on the same data with special values.

    Sums of float16 are judged on data of which every sum is exact as well, bit for bit.

    Parameters
    ----------
    workload : Computation
        Operator.
    inputs : mapping of str to ndarray
        Data by tensor.
    seed : int
        Seed of the positions of special values.
    judged : callable
        Computes results of such data and judges each.
    finite : bool
        True to leave out NaN and infinities (:func:`special_data`).
    """
    special = special_data(workload, inputs, seed, finite=finite)
    verifications = [*judged(inputs), *judged(special)]
    exact = exact_data(workload, seed)
    if exact is not None:
        verifications += judged(exact)
    # A wrong output is worse than any error within the tolerance.
    worst = max(verifications, key=lambda v: (not v.verified, v.max_error))
    # Integers have no NaN or infinity, so only data of floats can lack some special values.
    numbers = all(np.isfinite(a.astype(np.float64)).all() for a in special.values())
    floats = not all(is_integer(operand.dtype) for operand in workload.inputs)
    return replace(
        worst,
        spreads_nan=any(v.spreads_nan for v in verifications),
        special_values="finite" if numbers and floats else "all",
    )


def special_data(
    workload: Computation, inputs: Mapping[str, NDArray[Any]], seed: int, *, finite: bool = False
) -> dict[str, NDArray[Any]]:
    """Return data of a workload with special values of its element types.

    If an operand is padded, the others stay finite.

    Parameters
    ----------
    workload : Computation
        Operator.
    inputs : mapping of str to ndarray
        Data by tensor (:func:`~cpembed.runtime.measurement.verification_data.with_special_values`).
    seed : int
        Seed of the positions.
    finite : bool
        True to keep all data finite, as for floats that are stored as integers, which have no NaN.
    """
    generator = np.random.default_rng(seed)
    # A kernel may leave out products with padding, so an infinite factor would give no NaN there.
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
