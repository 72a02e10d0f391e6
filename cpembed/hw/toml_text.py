"""Tables as the text of a TOML file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from cpembed.hw.schema import Key, key_path


def toml_text(tables: Mapping[str, Any]) -> str:
    """Return the text of a file with these tables, which TOML's readers read back as they are.

    >>> print(toml_text({"name": "a", "axes": {"x": 4}, "tile": ["x", "y"]}), end="")
    name = "a"
    tile = ["x", "y"]
    <BLANKLINE>
    [axes]
    x = 4
    """
    return "\n".join(_lines(tables, ())).strip("\n") + "\n"


def _lines(table: Mapping[str, Any], key: Key) -> Iterator[str]:
    # Values first: in TOML a key after the heading of a table belongs to that.
    inner = {name: value for name, value in table.items() if _is_table(value)}
    for name, value in table.items():
        if name not in inner:
            yield f"{key_path((name,))} = {_value(value)}"
    for name, value in inner.items():
        path = (*key, name)
        if isinstance(value, dict):
            yield from ("", f"[{key_path(path)}]")
            yield from _lines(cast(dict[str, Any], value), path)
            continue
        for element in cast(list[dict[str, Any]], value):
            yield from ("", f"[[{key_path(path)}]]")
            yield from _lines(element, path)


def _is_table(value: Any) -> bool:
    """True for a table and for an array of tables, which get headings of their own."""
    if isinstance(value, list):
        elements = cast(list[Any], value)
        return bool(elements) and all(isinstance(element, dict) for element in elements)
    return isinstance(value, dict)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        entries = cast(dict[str, Any], value).items()
        return "{ " + ", ".join(f"{key_path((k,))} = {_value(v)}" for k, v in entries) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(element) for element in cast(list[Any], value)) + "]"
    if isinstance(value, str):
        # TOML's basic strings have JSON's escapes, and delete, which JSON leaves alone.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
