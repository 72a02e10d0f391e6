"""Keys of a specification's tables: read from text, looked up, and replaced by other values.

A key is spelled as in TOML, with positions of arrays in brackets. In an array of tables that have a
``name``, the name selects the table::

    instruction.axes.x
    memories."gemmini.scratchpad".capacity_bytes
    operands.A.tile[0]
    instructions.mvin.cycles

>>> key_path(read_key('memories."core.a" .banks'))
'memories."core.a".banks'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from cpembed.errors import SpecError
from cpembed.hw.schema import Key, close_match, joined, key_path
from cpembed.hw.specification import Tables

MAX_KEY_LENGTH = 500
"""Maximum number of characters of a key."""


class _Absent:
    """Type of :data:`ABSENT`."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
"""Value of a key that tables do not have; as a replacement it removes the key."""

PART = r'(?:[A-Za-z0-9_-]+|"[^"\n]*")'
"""Regular expression of a part of a key: bare, or in quotes."""

_FIRST = re.compile(rf"\s*({PART})\s*")
_NEXT = re.compile(rf"\s*(?:\.\s*({PART})|\[\s*(\d{{1,6}})\s*\])\s*")


def read_key(text: str) -> Key:
    """Parse a key.

    >>> read_key("operands.A.tile[0]")
    ('operands', 'A', 'tile', 0)

    Raises
    ------
    SpecError
        For a text that is no key.
    """
    shortened = text if len(text) <= 80 else f"{text[:80]}…"
    match = _FIRST.match(text) if len(text) <= MAX_KEY_LENGTH else None
    parts: list[str | int] = []
    place = 0
    while match is not None:
        word, number = match.group(1), match.group(2) if match.re is _NEXT else None
        parts.append(int(number) if number is not None else word.strip('"'))
        place = match.end()
        if place == len(text):
            return tuple(parts)
        match = _NEXT.match(text, place)
    raise SpecError(
        f"{shortened!r} is no key: write it as in TOML, instruction.axes.x or "
        'memories."on.chip".banks'
    )


def value_at(tables: Tables, key: Key) -> Any:
    """Return the value of a key; :data:`ABSENT` where the tables have none."""
    value: Any = tables
    for part in key:
        value = _entry(value, part)
        if value is ABSENT:
            return ABSENT
    return value


def require_place(tables: Tables, key: Key) -> None:
    """Check that a key can be set: everything but its last part is in the tables.

    Raises
    ------
    SpecError
        Names the first part that is missing and the keys that are there.
    """
    for length in range(1, len(key)):
        if value_at(tables, key[:length]) is ABSENT:
            raise _missing(tables, key, length)
    parent = value_at(tables, key[:-1])
    is_table = isinstance(parent, dict) and isinstance(key[-1], str)
    if not is_table and value_at(tables, key) is ABSENT:
        raise _missing(tables, key, len(key))


def replaced(tables: Tables, key: Key, value: Any) -> Tables:
    """Return tables with another value of a key; :data:`ABSENT` removes it.

    Only the tables on the way to the key are copied; the argument stays as it is.

    >>> replaced({"axes": {"x": 4, "y": 4}}, ("axes", "x"), 8)
    {'axes': {'x': 8, 'y': 4}}

    Parameters
    ----------
    tables
        The tables.
    key
        The key.
    value
        Its new value.

    Raises
    ------
    SpecError
        As :func:`require_place`.
    """
    require_place(tables, key)
    return _replaced(tables, key, value)


def _replaced(table: Any, key: Key, value: Any) -> Any:
    part, rest = key[0], key[1:]
    inner = _replaced(_entry(table, part), rest, value) if rest else value
    if isinstance(table, dict):
        entries = dict(cast(dict[Any, Any], table))
        entries[part] = inner
        return {name: entry for name, entry in entries.items() if entry is not ABSENT}
    elements = list(cast(Sequence[Any], table))
    position = _position(elements, part)
    assert position is not None, "require_place has found it"
    elements[position] = inner
    return [element for element in elements if element is not ABSENT]


def _entry(value: Any, part: str | int) -> Any:
    if isinstance(value, dict):
        return cast(dict[Any, Any], value).get(part, ABSENT)
    if isinstance(value, list):
        elements = cast(list[Any], value)
        position = _position(elements, part)
        return ABSENT if position is None else elements[position]
    return ABSENT


def _position(elements: Sequence[Any], part: str | int) -> int | None:
    """Return the position of an array's element by its number, or by the ``name`` of a table."""
    if isinstance(part, int):
        return part if part < len(elements) else None
    names = [
        cast(dict[str, Any], element).get("name") if isinstance(element, dict) else None
        for element in elements
    ]
    return names.index(part) if part in names else None


def _missing(tables: Tables, key: Key, length: int) -> SpecError:
    """Return the error of the part of a key that the tables do not have."""
    parent = value_at(tables, key[: length - 1])
    names = list(_names(parent))
    text = key_path(key[:length])
    if not names:
        return SpecError(f"there is no {text}: {key_path(key[: length - 1])} is no table")
    return SpecError(f"there is no {text}{close_match(str(key[length - 1]), names)}; "
                     f"allowed there: {joined(names)}")  # fmt: skip


def _names(value: Any) -> Iterable[str]:
    if isinstance(value, Mapping):
        yield from map(str, cast(Mapping[Any, Any], value))
    elif isinstance(value, list):
        for position, element in enumerate(cast(list[Any], value)):
            name = cast(dict[str, Any], element).get("name") if isinstance(element, dict) else None
            yield str(name or f"[{position}]")
