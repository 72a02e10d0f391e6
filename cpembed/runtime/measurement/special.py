"""Special values among the data on which results are verified: no numbers, infinities, zeros of
either sign, the smallest numbers, the ends of integer types."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

FLOATS = (math.nan, math.inf, -math.inf, 0.0, -0.0)
"""Beside these stand the smallest number of the type and the smallest normal one."""

_EXTREME_SHARE = 4
"""Every so many integers is the least or the largest of its type."""

_MOST_TIMES = 4
"""How often a special float stands in a tensor at most: a sum has no number as soon as one of its
terms has none, so that more of them would leave little else to be seen."""


def with_special_values(
    array: NDArray[Any],
    generator: np.random.Generator,
    limits: tuple[int, int] | None = None,
    finite: bool = False,
) -> NDArray[Any]:
    """A copy of data with special values at random places.

    Parameters
    ----------
    array : ndarray
        Floats (bfloat16 included), integers or Booleans. Booleans, and tensors of one element, are
        copied as they are.
    generator : numpy.random.Generator
        Chooses the places.
    limits : (int, int), optional
        The least and the largest integer, where they are not those of the array's type.
    finite : bool, optional
        Only special floats that are numbers: zeros and the smallest ones.

    Returns
    -------
    ndarray
        Of the same shape and type. Floats: each special value once to four times, in at most half
        of the places; integers: a quarter of them the least or the largest.
    """
    found, flat = array.copy(), array.size
    if flat < 2 or array.dtype == np.bool_:
        return found
    if array.dtype.kind in "iu":
        low, high = limits or (int(np.iinfo(array.dtype).min), int(np.iinfo(array.dtype).max))
        values = np.asarray([low, high], array.dtype)
        count = max(1, flat // _EXTREME_SHARE)
    else:
        values = _special_floats(array.dtype)
        values = values[np.isfinite(values.astype(np.float64))] if finite else values
        count = min(flat // 2, len(values) * max(1, min(_MOST_TIMES, flat // 250)))
    places = generator.permutation(flat)[:count]
    found.reshape(-1)[places] = np.resize(generator.permutation(values), count)
    return found


def _special_floats(dtype: np.dtype[Any]) -> NDArray[Any]:
    import ml_dtypes

    # It knows numpy's own types as well.
    info = cast(Any, ml_dtypes).finfo(dtype)
    small = np.asarray([info.smallest_subnormal, info.smallest_normal]).astype(dtype)
    return np.concatenate([np.asarray(FLOATS).astype(dtype), small])
