"""Inputs on which kernels are verified: special values, and integers with exact sums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.dtypes import is_integer, numpy_dtype

FLOATS = (math.nan, math.inf, -math.inf, 0.0, -0.0)
"""Special values of every float type; its smallest number and smallest normal number are added."""

# One in so many integers is the least or the largest of its type.
_EXTREME_SHARE = 4

# Maximum number of copies of a special float in a tensor: one NaN in a term makes the whole sum
# NaN, so that more of them would leave little else to compare.
_MAX_COPIES = 4


def with_special_values(
    array: NDArray[Any],
    generator: np.random.Generator,
    limits: tuple[int, int] | None = None,
    finite: bool = False,
) -> NDArray[Any]:
    """Return a copy of data with special values at random places.

    Parameters
    ----------
    array
        Floats (bfloat16 included), integers or Booleans. Booleans, and tensors of one element, are
        copied as they are.
    generator
        Random generator of the places.
    limits
        Least and largest integer, if they are not those of the array's type.
    finite
        True for special floats that are numbers only: zeros and the smallest ones.

    Returns
    -------
    ndarray
        Array of the same shape and type. Floats: each special value once to four times, in at most
        half of the places; integers: a quarter of them the least or the largest.
    """
    result, size = array.copy(), array.size
    if size < 2 or array.dtype == np.bool_:
        return result
    if array.dtype.kind in "iu":
        low, high = limits or (int(np.iinfo(array.dtype).min), int(np.iinfo(array.dtype).max))
        values = np.asarray([low, high], array.dtype)
        count = max(1, size // _EXTREME_SHARE)
    else:
        values = _special_floats(array.dtype)
        values = values[np.isfinite(values.astype(np.float64))] if finite else values
        # In at most half of the places, so that ordinary numbers are compared as well.
        count = min(size // 2, len(values) * max(1, min(_MAX_COPIES, size // 250)))
    places = generator.permutation(size)[:count]
    result.reshape(-1)[places] = np.resize(generator.permutation(values), count)
    return result


def _special_floats(dtype: np.dtype[Any]) -> NDArray[Any]:
    import ml_dtypes

    # It describes numpy's own types as well.
    info = cast(Any, ml_dtypes).finfo(dtype)
    small = np.asarray([info.smallest_subnormal, info.smallest_normal]).astype(dtype)
    return np.concatenate([np.asarray(FLOATS).astype(dtype), small])


LARGEST_EXACT_FLOAT16 = 2**11
"""Maximum integer up to which float16 has all integers."""
_NO_ZEROS = (-4, -3, -2, -1, 1, 2, 3, 4)


def exact_data(workload: Computation, seed: int) -> dict[str, NDArray[Any]] | None:
    """Return random inputs of which every sum is exact in float16, in any order.

    The roundings of a long sum of float16 exceed a product, so a kernel that loses one passes on
    other data. Factors are small integers without a zero as long as the sums stay exact; longer
    sums have zeros among them.

    Parameters
    ----------
    workload : Computation
        Operator.
    seed : int
        Seed of the random numbers.

    Returns
    -------
    dict of str to ndarray or None
        Data by tensor; None unless the workload sums products of two tensors of floats in float16.
    """
    floats = all(not is_integer(operand.dtype) for operand in workload.inputs)
    if workload.output.dtype != "float16" or len(workload.inputs) != 2 or not floats:
        return None
    generator = np.random.default_rng(seed)
    terms = addition_count(workload) - 1
    # Each magnitude is at most the root of the share that one product may have of the sum.
    largest = min(4, math.isqrt(LARGEST_EXACT_FLOAT16 // terms)) if terms else 1
    values = [value for value in _NO_ZEROS if abs(value) <= max(1, largest)]
    density = 1.0 if largest else math.sqrt(LARGEST_EXACT_FLOAT16 / (2 * terms))
    data = dict[str, NDArray[Any]]()
    for operand in workload.inputs:
        array = generator.choice(values, operand.shape)
        array[generator.random(operand.shape) >= density] = 0
        data[operand.tensor] = array.astype(numpy_dtype(operand.dtype))
    return data


def are_exact_sums(inputs: Mapping[str, NDArray[Any]], magnitudes: NDArray[np.float64]) -> bool:
    """Tell whether all products are integers and no partial sum exceeds what float16 counts to."""
    with np.errstate(invalid="ignore"):
        small = bool((magnitudes <= LARGEST_EXACT_FLOAT16).all())
        return small and all(bool((array == np.rint(array)).all()) for array in inputs.values())


def addition_count(workload: Computation) -> int:
    """Return the number of roundings on the way to one output element."""
    return 1 + math.prod(a.extent for a in workload.axes if a.kind is AxisKind.REDUCTION)
