"""Write and read the JSON documents of benchmarks and experiments, one line a row.

Large lists of rows are written as tables, ``{"columns": [...], "rows": [[...], ...]}``, so that a
document names each key once. Members of a nested dictionary are columns with a dotted name. Nothing
is lost: :func:`read_document` returns the rows as they were.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpembed.files import write_whole

WIDTH = 100
"""Maximum length of a line, in characters, that holds a list or a dictionary with its members."""

Document = dict[str, Any]
Row = dict[str, Any]


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON document in one step: each row, as each member of a list, is one line."""
    write_whole(path, _text(document, 0) + "\n")


def read_document(path: Path) -> Document:
    """Return a document with its tables expanded to lists of rows."""
    return _expanded(json.loads(path.read_text(encoding="utf-8")))


def _text(value: Any, depth: int) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if len(line) <= WIDTH or not value:
        return line
    indent = "\n" + " " * (depth + 1)
    match value:
        case Mapping():
            members = [f"{json.dumps(key)}: {_text(v, depth + 1)}" for key, v in value.items()]
            return "{" + indent + f",{indent}".join(members) + "\n" + " " * depth + "}"
        case list() | tuple():
            members = [json.dumps(member, ensure_ascii=False) for member in value]
            return "[" + indent + f",{indent}".join(members) + "\n" + " " * depth + "]"
        case _:
            return line


def _expanded(value: Any) -> Any:
    match value:
        case {"columns": list(columns), "rows": list(rows), **rest} if not rest:
            return [_nested(dict(zip(columns, row, strict=True))) for row in rows]
        case dict():
            return {key: _expanded(member) for key, member in value.items()}
        case list():
            return [_expanded(member) for member in value]
        case _:
            return value


def table(rows: Sequence[Row]) -> dict[str, list[Any]] | list[Row]:
    """Return rows as a table for :func:`write_document`; rows that no table can hold, as they are.

    A table can hold rows that all have the same keys, if not in the same order. A nested dictionary
    may be missing in some rows, but must be complete in the others.
    """
    flat_rows = [_flat(row) for row in rows]
    columns = list(dict.fromkeys(column for row in flat_rows for column in row))
    packed = {"columns": columns, "rows": [[row.get(c) for c in columns] for row in flat_rows]}
    # A missing value and a null one would be mixed up.
    return packed if _expanded(packed) == list(rows) else list(rows)


def _flat(row: Mapping[str, Any], prefix: str = "") -> Row:
    flat: Row = {}
    for key, value in row.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _nested(flat: Mapping[str, Any]) -> Row:
    row: Row = {}
    groups: dict[str, Row] = {}
    for column, value in flat.items():
        key, dot, rest = column.partition(".")
        if dot:
            # Reserve the place of the group among the row's keys.
            row.setdefault(key, None)
            groups.setdefault(key, {})[rest] = value
        else:
            row[key] = value
    for key, group in groups.items():
        if any(value is not None for value in group.values()):
            row[key] = _nested(group)
        else:
            del row[key]
    return row
