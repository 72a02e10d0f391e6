"""Axes of plots that people read: ticks at round numbers, thousands, logarithms of wide spans."""

from __future__ import annotations

import math
from dataclasses import dataclass

WIDE = 20.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""

_TICKS = 5
"""Number of ticks that a linear axis has at least."""


def number(value: float, digits: int = 4) -> str:
    """Return a number with some digits at least, thousands apart.

    >>> number(12345.6), number(0.00012), number(3_400_000)
    ('12,346', '0.00012', '3,400,000')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1e12 or abs(value) < 1e-5:
        return f"{value:.3g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True)
class Scale:
    """An axis from ``first`` to ``last``, logarithmic where ``logarithmic`` is set."""

    first: float
    last: float
    logarithmic: bool
    ticks: tuple[float, ...]

    def share(self, value: float) -> float:
        """Return the place of a value on the axis, 0 at its beginning and 1 at its end."""
        first, last, at = self.first, self.last, value
        if self.logarithmic:
            first, last, at = math.log(first), math.log(last), math.log(value)
        return (at - first) / (last - first)


def scale(low: float, high: float) -> Scale:
    """Return the axis of values between two, with ticks at round numbers.

    >>> scale(1, 3000).ticks
    (1, 10, 100, 1000, 10000)
    >>> scale(12, 47).ticks
    (10, 20, 30, 40, 50)

    Parameters
    ----------
    low, high
        Smallest and largest value.
    """
    if low > 0 and high / low > WIDE:
        return _logarithmic(low, high)
    if low == high:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    step = _step((high - low) / _TICKS)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(_round(place * step) for place in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], logarithmic=False, ticks=ticks)


def _logarithmic(low: float, high: float) -> Scale:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    # Between few powers of ten there are ticks at 2 and 5 too.
    factors = (1, 2, 5) if last - first < 3 else (1,)
    ticks = [_round(factor * 10.0**power) for power in range(first, last) for factor in factors]
    ticks.append(_round(10.0**last))
    while len(ticks) > 2 and ticks[1] <= low:
        del ticks[0]
    while len(ticks) > 2 and ticks[-2] >= high:
        del ticks[-1]
    return Scale(ticks[0], ticks[-1], logarithmic=True, ticks=tuple(ticks))


def _step(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20 … that is not less than a number."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))


def _round(value: float) -> float:
    rounded = float(f"{value:.12g}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e15 else rounded
