"""Short texts that many messages and reports share: sizes, times, counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def sizes(extents: Mapping[str, int]) -> str:
    """Return the extents of axes: ``n 1  k 64``."""
    return "  ".join(f"{axis} {extent}" for axis, extent in extents.items())


def shape(numbers: Iterable[int]) -> str:
    """Return a shape: ``1x64x56x56``; a scalar is ``1``."""
    return "x".join(str(number) for number in numbers) or "1"


def scaled(number: float, units: tuple[str, ...], step: int) -> str:
    """Return a number with the largest unit in which it is 1 or more.

    Parameters
    ----------
    number
        The number in the first unit.
    units
        Names of the units, ascending.
    step
        Ratio of a unit to the one before.
    """
    position = 0
    while number >= step and position < len(units) - 1:
        number /= step
        position += 1
    # Three digits, and no exponent from 1,000 on.
    text = f"{number:,.0f}" if position == 0 or number >= 100 else f"{number:.3g}"
    return f"{text} {units[position]}".rstrip()


def count(number: float) -> str:
    """Return a number with a metric prefix: ``115.6 M``."""
    return scaled(number, ("", "k", "M", "G", "T"), 1000)


def data_size(number: float) -> str:
    """Return a number of bytes: ``12.3 KiB``."""
    return scaled(number, ("B", "KiB", "MiB", "GiB"), 1024)


def duration(microseconds: float) -> str:
    """Return a time in three digits and a suitable unit."""
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3g} s"
    if microseconds >= 1e3:
        return f"{microseconds / 1e3:.3g} ms"
    return f"{microseconds:.3g} us"


def amount(value: float, unit: str) -> str:
    """Return a time or a number of cycles.

    >>> amount(1546, "cycles"), amount(1546, "us")
    ('1,546 cycles', '1.55 ms')
    """
    return duration(value) if unit == "us" else f"{value:,.0f} {unit}"


def plural(number: int, noun: str, nouns: str | None = None) -> str:
    """Return a number with its noun.

    Parameters
    ----------
    number
        The number.
    noun
        The noun in the singular.
    nouns
        The noun in the plural, if it does not just end in s.
    """
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def verb(number: int, plural: str) -> str:
    """Return the verb of a number of things: ``stays`` for one, ``stay`` for several."""
    return plural + "s" if number == 1 else plural


def ratio(value: float) -> str:
    """Return an overhead in two decimals, or more where these would hide a small waste."""
    # 1.004 would read 1.00, as if nothing was wasted.
    return f"{value:.2f}" if value == 1 or value >= 1.005 else f"{value:.4g}"
