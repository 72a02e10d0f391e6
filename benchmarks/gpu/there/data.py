"""A layer's inputs, and whether a result is right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

UNIT_ROUNDOFF = {"float16": 2.0**-11, "float32": 2.0**-24}
SMALLEST = {"float16": 2.0**-25, "float32": 2.0**-126}
"""What an operation on numbers near 0 may be off by."""

TRUNCATION = 2.0
"""Tensor Cores cut what they add where a processor rounds, which is twice as far off."""


def inputs(layer: Mapping[str, Any], seed: int | None = None) -> dict[str, Array]:
    """Random arrays by operand: integers over the whole range of their type, floats from -1 to 1;
    the same for the same seed, everywhere.
    """
    generator = np.random.default_rng(layer["seed"] if seed is None else seed)
    arrays: dict[str, Array] = {}
    for operand in layer["inputs"]:
        dtype, shape = np.dtype(operand["dtype"]), tuple(operand["shape"])
        if dtype.kind in "iu":
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
            found: Array = generator.integers(low, high, shape, dtype=dtype, endpoint=True)
        else:
            found = generator.uniform(-1, 1, shape).astype(dtype)
        arrays[operand["name"]] = found
    return arrays


@dataclass(frozen=True)
class Exact:
    """What a layer's sums are, in float64, and ``magnitudes``, the sums of its products' absolute
    values; where the sums are integers, both are exact.
    """

    sums: Array
    magnitudes: Array


@dataclass(frozen=True)
class Judgement:
    """``worst``: the largest difference as a part of what rounding may cause; 0 where integers are
    equal, infinite where they are not. ``place`` of it, in the flat result.
    """

    right: bool
    worst: float
    largest_error: float
    place: int

    def __str__(self) -> str:
        return (
            f"element {self.place} is off by {self.largest_error:g}, "
            f"{self.worst:.3g} times what rounding may cause"
        )


def judge(
    found: Array, exact: Exact, layer: Mapping[str, Any], *, loose: bool = False
) -> Judgement:
    """Integers have to be equal. Floats may be off by one rounding for each addition of the sum,
    relative to the products' magnitudes, and by one to the stored type; ``loose``: by the roundings
    of sums in the stored type, which a library may make.

    >>> layer = {"depth": 4, "output": {"sums": "int32", "stored": "int32"}}
    >>> sums = np.array([3.0, -7.0])
    >>> judge(np.array([3, -7], np.int32), Exact(sums, abs(sums)), layer).right
    True
    >>> print(judge(np.array([3, -6], np.int32), Exact(sums, abs(sums)), layer))
    element 1 is off by 1, inf times what rounding may cause
    """
    values, expected = found.astype(np.float64).reshape(-1), exact.sums.reshape(-1)
    if values.shape != expected.shape:
        raise ValueError(f"a result of {values.size} elements, not {expected.size}")
    difference = np.abs(values - expected)
    # What is no number is as wrong as can be.
    difference[np.isnan(difference)] = math.inf
    if layer["output"]["sums"].startswith("int"):
        allowed = np.zeros(1)
    else:
        allowed = _allowed(exact, layer, loose=loose)
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(difference <= allowed, 0.0, math.inf)
        part = np.where(allowed > 0, difference / np.maximum(allowed, 1e-300), part)
    place = int(np.argmax(part))
    worst = float(part[place])
    return Judgement(worst <= 1, worst, float(difference[place]), place)


def _allowed(exact: Exact, layer: Mapping[str, Any], *, loose: bool) -> Array:
    output = layer["output"]
    kind = output["stored"] if loose else output["sums"]
    additions = layer["depth"] + 1
    unit, least = UNIT_ROUNDOFF[kind] * TRUNCATION, SMALLEST[kind]
    allowed = additions * (unit * exact.magnitudes.reshape(-1) + least)
    if output["stored"] != output["sums"]:
        unit, least = UNIT_ROUNDOFF[output["stored"]], SMALLEST[output["stored"]]
        allowed = allowed + unit * (np.abs(exact.sums.reshape(-1)) + allowed) + least
    return allowed
