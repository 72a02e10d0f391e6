"""Make a layer's inputs, and judge its results."""

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
"""Maximum error of an operation on numbers near 0."""

TRUNCATION = 2.0
"""Ratio of a Tensor Core's rounding error to a processor's: it cuts what it adds."""


def inputs(layer: Mapping[str, Any], seed: int | None = None) -> dict[str, Array]:
    """Return random arrays by operand, the same for the same seed everywhere.

    Integers are over the entire range of their type, floats from -1 to 1.
    """
    generator = np.random.default_rng(layer["seed"] if seed is None else seed)
    arrays: dict[str, Array] = {}
    for operand in layer["inputs"]:
        dtype, shape = np.dtype(operand["dtype"]), tuple(operand["shape"])
        if dtype.kind in "iu":
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
            values: Array = generator.integers(low, high, shape, dtype=dtype, endpoint=True)
        else:
            values = generator.uniform(-1, 1, shape).astype(dtype)
        arrays[operand["name"]] = values
    return arrays


@dataclass(frozen=True)
class Exact:
    """A layer's sums in float64, and the sums of its products' absolute values.

    Both are exact if the sums are integers.
    """

    sums: Array
    magnitudes: Array


@dataclass(frozen=True)
class Judgement:
    """Judgement of a result.

    ``worst``: the largest difference as a part of what rounding may cause; 0 if integers are equal,
    infinite if they are not. ``place`` of it, in the flat result.
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
    result: Array, exact: Exact, layer: Mapping[str, Any], *, loose: bool = False
) -> Judgement:
    """Judge a result.

    Integers have to be equal. Floats may be off by one rounding for each addition of the sum,
    relative to the products' magnitudes, and by one to the stored type.

    Parameters
    ----------
    result : array
        Result of an implementation.
    exact : Exact
        Exact sums.
    layer : mapping
        Document of the layer.
    loose : bool
        True to allow the roundings of sums in the stored type, which a library may make.

    Examples
    --------
    >>> layer = {"depth": 4, "output": {"sums": "int32", "stored": "int32"}}
    >>> sums = np.array([3.0, -7.0])
    >>> judge(np.array([3, -7], np.int32), Exact(sums, abs(sums)), layer).right
    True
    >>> print(judge(np.array([3, -6], np.int32), Exact(sums, abs(sums)), layer))
    element 1 is off by 1, inf times what rounding may cause
    """
    values, expected = result.astype(np.float64).reshape(-1), exact.sums.reshape(-1)
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
