"""Short texts that many messages and reports share: sizes, times, counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def sizes(extents: Mapping[str, int]) -> str:
    """``n 1  k 64``."""
    return "  ".join(f"{axis} {extent}" for axis, extent in extents.items())


def shape(numbers: Iterable[int]) -> str:
    """``1x64x56x56``; a scalar is ``1``."""
    return "x".join(str(number) for number in numbers) or "1"


def scaled(number: float, units: tuple[str, ...], step: int) -> str:
    """A number with the largest unit that keeps it at 1 or more."""
    position = 0
    while number >= step and position < len(units) - 1:
        number /= step
        position += 1
    text = f"{number:,.0f}" if position == 0 or number >= 100 else f"{number:.3g}"
    return f"{text} {units[position]}".rstrip()


def count(number: float) -> str:
    """``115.6 M``."""
    return scaled(number, ("", "k", "M", "G", "T"), 1000)


def data_size(number: float) -> str:
    return scaled(number, ("B", "KiB", "MiB", "GiB"), 1024)


def duration(microseconds: float) -> str:
    """Three digits, and a unit that suits them."""
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3g} s"
    if microseconds >= 1e3:
        return f"{microseconds / 1e3:.3g} ms"
    return f"{microseconds:.3g} us"


def amount(value: float, unit: str) -> str:
    """Time or cycles.

    >>> amount(1546, "cycles"), amount(1546, "us")
    ('1,546 cycles', '1.55 ms')
    """
    return duration(value) if unit == "us" else f"{value:,.0f} {unit}"


def plural(number: int, noun: str, nouns: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def verb(number: int, plural: str) -> str:
    """``stays`` of one, ``stay`` of several."""
    return plural + "s" if number == 1 else plural


def ratio(value: float) -> str:
    """An overhead: two decimals, more where they would hide that something is wasted."""
    return f"{value:.2f}" if value == 1 or value >= 1.005 else f"{value:.4g}"
