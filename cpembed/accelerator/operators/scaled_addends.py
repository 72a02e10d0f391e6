"""Sums of bytes times scales in an accumulator: how each addend is rounded, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.accelerator.operators.forms import FormBuilder, number

_ADDEND_BITS = 8
"""Bits behind the binary point of the addends of a sum."""


@dataclass(frozen=True)
class ScaledAddends:
    """Arithmetic of a sum of scaled bytes in an accumulator.

    Each addend is multiplied by its factor and rounded to ``dtype``; the sum is multiplied by
    ``scale``. ``quanta`` bounds the distance from the rounded sum of the exact products.
    """

    label: str
    factors: tuple[float, ...]
    scale: float
    dtype: str
    quanta: int

    @property
    def deviation(self) -> str:
        return "at most 1 quantum" if self.quanta == 1 else f"at most {self.quanta} quanta"


_FLOAT_ERROR = 0.25
"""Bound of the roundings of float32 that :func:`scaled_addends` allows for."""


def scaled_addends(scales: Sequence[float]) -> Iterator[ScaledAddends]:
    """Yield ways to add bytes times scales by rounding each addend.

    An addend that is rounded to an integer and multiplied by c is off by ``c / 2`` at most, and by
    0 if its factor is 1, since bytes are integers. Where their sum d, with the roundings of
    float32, is below a whole number n, the rounded results differ by n at most: rounding is
    monotone and commutes with adding integers. If c is 1, the sum is an integer already, and
    ``d + 1/2 < n + 1`` suffices.
    """
    # Each of the three roundings of a term is within 2^-24 of it; bytes are 128 at most.
    if 3 * 128 * sum(map(abs, scales)) * 2.0**-24 >= _FLOAT_ERROR or not any(scales):
        return
    terms = len(scales)
    for bits in (_ADDEND_BITS, 0):
        scale = 2.0**-bits
        factors = tuple(float(np.float32(s / scale)) for s in scales)
        distance = terms * scale / 2 + _FLOAT_ERROR
        quanta = math.floor(distance + 0.5) if bits == 0 else math.floor(distance) + 1
        label = f"added in an accumulator with {bits} bits of fraction"
        yield ScaledAddends(label, factors, scale, "int32", max(1, quanta))
    largest = float(np.float32(max(scales)))
    if min(scales) > 0:
        # No factor exceeds 1, so that no addend leaves eight bits.
        factors = tuple(min(1.0, float(np.float32(s / largest))) for s in scales)
        distance = sum(f < 1 for f in factors) * largest / 2 + _FLOAT_ERROR
        label = "added in an accumulator as bytes"
        yield ScaledAddends(label, factors, largest, "int8", math.floor(distance) + 1)


def add_scaled(
    builder: FormBuilder,
    extents: Mapping[str, int],
    sources: Sequence[str],
    addends: ScaledAddends,
) -> str:
    """Add the statements of a sum of scaled bytes; return the text of the sum of T.

    Parameters
    ----------
    builder : FormBuilder
    extents : mapping of str to int
        Axes of all tensors.
    sources : sequence of str
        Tensors that are added.
    addends : ScaledAddends
    """
    total = builder.temporary("total", tuple(extents.values()), "int32")
    index = ",".join(extents)
    for place, (source, factor) in enumerate(zip(sources, addends.factors, strict=True)):
        sign = "+=" if place else "="
        scaled = f"{addends.dtype}(X[{index}] * {number(factor)})"
        names = {"T": total, "X": source}
        builder.add(f"T[{index}] {sign} {scaled}", extents, names, accumulates=bool(place))
    return f"T[{index}]" if addends.scale == 1 else f"(T[{index}] * {number(addends.scale)})"
