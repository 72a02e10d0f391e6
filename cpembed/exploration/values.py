"""Values of a parameter: lists and ranges as text, and the labels that name them in a point.

A point of a space holds numbers and words. Values of other kinds, such as arrays, have a label, a
word, by which their family finds them again.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Sequence
from typing import Any

from cpembed.errors import SpecError
from cpembed.targets.family import Value

MAX_VALUES = 4096
"""Maximum number of values of a parameter."""

MAX_TEXT_LENGTH = 20_000
"""Maximum number of characters of a list of values."""

_SUFFIXES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_NUMBER = r"\d[\d_]*(?:KiB|MiB|GiB)?"
_RANGE = re.compile(rf"({_NUMBER})\s*\.\.\s*({_NUMBER})\s*(?:([*+])\s*({_NUMBER}))?")
_SIZE = re.compile(r"(\d[\d_]*)(KiB|MiB|GiB)")
_BARE = re.compile(r"[A-Za-z_][\w.+-]*")


def read_values(text: str) -> list[Any]:
    """Read a comma list of values and ranges.

    A range is ``8..64``, ``8..64+8`` in steps, or ``16KiB..256KiB*2`` by a factor; both ends are
    values. Other values are spelled as in TOML; a word needs no quotes.

    >>> read_values("8, 16..64*2, int8")
    [8, 16, 32, 64, 'int8']

    Raises
    ------
    SpecError
        For a text that is no such list.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise SpecError(f"the values have more than {MAX_TEXT_LENGTH:,} characters")
    values: list[Any] = []
    for part in _parts(text):
        match = _RANGE.fullmatch(part)
        values += [_value(part)] if match is None else _range(match)
        if len(values) > MAX_VALUES:
            raise SpecError(f"has more than {MAX_VALUES:,} values")
    return values


def _parts(text: str) -> list[str]:
    """Split at commas outside of brackets and quotes."""
    parts, depth, quoted, begin = list[str](), 0, False, 0
    for place, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif not quoted:
            depth += (character in "[{") - (character in "]}")
            if character == "," and not depth:
                parts.append(text[begin:place].strip())
                begin = place + 1
    parts.append(text[begin:].strip())
    if "" in parts:
        raise SpecError(f"{text!r} has an empty value: write 8,16,32 or 8..64+8 or 8..64*2")
    return parts


def _value(text: str) -> Any:
    if _SIZE.fullmatch(text):
        return _number(text)
    if _BARE.fullmatch(text) and text not in ("true", "false", "inf", "nan"):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError, RecursionError):
        raise SpecError(
            f"{text!r} is no value: write a number, a word, or a value as in TOML"
        ) from None


def _number(text: str) -> int:
    match = _SIZE.fullmatch(text)
    return int(text) if match is None else int(match[1]) * _SUFFIXES[match[2]]


def _range(match: re.Match[str]) -> list[int]:
    first, last = _number(match[1]), _number(match[2])
    step = 1 if match[4] is None else _number(match[4])
    values = times_range(first, last, step) if match[3] == "*" else step_range(first, last, step)
    return list(values)


def step_range(first: int, last: int, step: int) -> range:
    """Return the values of a range in steps.

    Parameters
    ----------
    first, last
        Both ends, which are values.
    step
        Difference between neighbours.

    Raises
    ------
    SpecError
        If ``last`` is not met.
    """
    if first > last:
        raise SpecError(f"from {first} is above to {last}")
    if step < 1:
        raise SpecError(f"step {step} is no integer of at least 1")
    if (last - first) % step:
        raise SpecError(f"{last} is not reached from {first} in steps of {step}")
    # Before the range is listed, which might take all memory.
    if (last - first) // step >= MAX_VALUES:
        raise SpecError(f"has more than {MAX_VALUES:,} values")
    return range(first, last + 1, step)


def times_range(first: int, last: int, factor: int) -> Sequence[int]:
    """Return the values of a range by a factor.

    Parameters
    ----------
    first, last
        Both ends, which are values.
    factor
        Ratio of neighbours.

    Raises
    ------
    SpecError
        If ``last`` is not met.
    """
    if first > last:
        raise SpecError(f"from {first} is above to {last}")
    if first < 1 or factor < 2:
        raise SpecError(f"a range by a factor begins at 1 or more and has a factor of 2 or more, "
                        f"not {first} and {factor}")  # fmt: skip
    values = [first]
    while values[-1] < last:
        values.append(values[-1] * factor)
    if values[-1] != last:
        raise SpecError(f"{last} is not reached from {first} by factors of {factor}")
    return values


def labelled(values: Sequence[Any]) -> dict[Value, Any]:
    """Return values by their labels: numbers as they are if all are numbers, else words.

    Numbers ascend, so that neighbouring positions are neighbouring sizes; other values stay in
    their order.

    >>> labelled([["x", "z"], ["z", "x"]])
    {'["x", "z"]': ['x', 'z'], '["z", "x"]': ['z', 'x']}

    Raises
    ------
    SpecError
        For no value, for a value that comes twice, or for a number that is not finite.
    """
    if not values:
        raise SpecError("is empty: name at least one value")
    if len(values) > MAX_VALUES:
        raise SpecError(f"has more than {MAX_VALUES:,} values")
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    if any(isinstance(v, float) and not math.isfinite(v) for v in values):
        raise SpecError("has a value that is no finite number")
    labels: dict[Value, Any] = {}
    for value in sorted(values) if numeric else values:
        label = value if numeric else _label(value)
        if label in labels:
            raise SpecError(f"has {label!r} twice: keep one")
        labels[label] = value
    return labels


def _label(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        raise SpecError("has a value that is no number, word, array or table") from None
