"""Typed TOML: a file as a struct, and every fault as one line with file, key and remedy."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin

import msgspec

from cpembed.errors import SpecError
from cpembed.files import read_toml

Key = tuple[str | int, ...]
"""Path of a value in a file: names of tables and keys, positions in arrays."""


def spec_error(path: str, key: Key, problem: str) -> SpecError:
    """Make the error of a key, in one line.

    >>> str(spec_error("a.toml", ("memories", "L1", "banks"), "is 0; allowed: at least 1"))
    'a.toml: memories.L1.banks: is 0; allowed: at least 1'

    Parameters
    ----------
    path : str
        The file.
    key : tuple of str or int
        Path of the value in the file.
    problem : str
        What is wrong and what is allowed.
    """
    # Split and joined, because values of the file that it quotes may have line breaks.
    error = SpecError(f"{path}: " + " ".join(f"{key_path(key)}: {problem}".split()))
    error.key = key
    return error


def key_path(key: Key) -> str:
    """Spell a key as in TOML, with array positions in brackets."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        bare = part.replace("_", "").replace("-", "").isalnum() and part.isascii()
        text += ("." if text else "") + (part if bare else f'"{part}"')
    return text


def joined(values: Iterable[str]) -> str:
    """Join allowed values for a message."""
    return ", ".join(values)


def close_match(word: str, choices: Iterable[str]) -> str:
    """Return ``" (did you mean X?)"`` if a choice is close to the word, else an empty string.

    >>> close_match("strid", ["stride", "scope"])
    ' (did you mean stride?)'
    """
    matches = difflib.get_close_matches(word, list(choices), n=1)
    return f" (did you mean {matches[0]}?)" if matches else ""


Table = TypeVar("Table", bound=msgspec.Struct)


def read_table(path: Path, table: type[Table]) -> Table:
    """Read a TOML file into a struct; every fault is a one-line :class:`SpecError`."""
    return convert_table(read_toml(path), table, lambda _: str(path))


def convert_table(
    data: Mapping[str, Any], table: type[Table], place: Callable[[Key], str]
) -> Table:
    """Convert the contents of one file or several to a struct.

    Parameters
    ----------
    data : mapping
        The tables, as TOML gives them.
    table : type
        The struct.
    place : callable
        Maps a key to the path of the file that holds it, for error messages.

    Raises
    ------
    SpecError
        For the first value that does not have the type of its key.
    """
    try:
        return msgspec.convert(data, table)
    except msgspec.ValidationError as error:
        key, problem = _first_fault(data, table, ()) or (("file",), str(error))
        raise spec_error(place(key), key, problem) from None


def _first_fault(value: Any, expected: Any, key: Key) -> tuple[Key, str] | None:
    """Return the first (key, problem) in a value that does not have the expected type."""
    # msgspec converts and checks types but does not name the keys of dictionaries in its messages,
    # so the faulty entry is located a second time.
    for choice in _alternatives(expected):
        struct = _struct(choice)
        if isinstance(value, dict) and struct is not None:
            return _fault_in_struct(cast(dict[str, Any], value), struct, key)
        if isinstance(value, dict) and get_origin(choice) is dict:
            item = get_args(choice)[1]
            return _fault_in_items(
                ((name, v, item) for name, v in cast(dict[str, Any], value).items()), key
            )
        if isinstance(value, list) and get_origin(choice) is list:
            item = get_args(choice)[0]
            return _fault_in_items(
                (
                    (_entry(position, v), v, item)
                    for position, v in enumerate(cast(list[Any], value))
                ),
                key,
            )
    if _accepts(value, expected):
        return None
    # The allowed words help more than the type's name.
    if isinstance(value, str) and _is_enum(expected):
        return key, f"{value!r} is not allowed; allowed: {joined(str(v.value) for v in expected)}"
    return key, f"is {_describe_value(value)}, must be {_describe_type(expected)}"


def _fault_in_struct(
    entries: dict[str, Any], struct: type[msgspec.Struct], key: Key
) -> tuple[Key, str] | None:
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    # Unknown keys first: a misspelled key also makes the right one missing, which helps less.
    for name in entries:
        if name not in fields:
            allowed = f"unknown key; allowed: {joined(fields)}"
            return (*key, name), allowed + close_match(name, fields)
    for name, field in fields.items():
        if field.required and name not in entries:
            return (*key, name), f"is missing; it must be {_describe_type(field.type)}"
    return _fault_in_items(((name, v, fields[name].type) for name, v in entries.items()), key)


def _fault_in_items(
    items: Iterable[tuple[str | int, Any, Any]], key: Key
) -> tuple[Key, str] | None:
    """Return the first fault among (name, value, expected type) of a table or an array."""
    faults = (_first_fault(value, expected, (*key, name)) for name, value, expected in items)
    return next((fault for fault in faults if fault), None)


def _entry(position: int, value: Any) -> str | int:
    """Return what people call an entry of an array by: its name if it has one."""
    name: Any = cast(dict[str, Any], value).get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) and name else position


def _struct(expected: Any) -> type[msgspec.Struct] | None:
    if isinstance(expected, type) and issubclass(expected, msgspec.Struct):
        return expected
    return None


def _is_enum(expected: Any) -> bool:
    return isinstance(expected, type) and issubclass(expected, Enum)


def _alternatives(expected: Any) -> tuple[Any, ...]:
    # TOML has no null: None stands for a key that is left out.
    if get_origin(expected) in (Union, UnionType):
        return tuple(choice for choice in get_args(expected) if choice is not type(None))
    return (expected,)


def _accepts(value: Any, expected: Any) -> bool:
    try:
        msgspec.convert(value, expected)
    except msgspec.ValidationError:
        return False
    return True


_NAMES: dict[Any, str] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    list: "an array",
    dict: "a table",
}


def _describe_value(value: Any) -> str:
    name = _NAMES.get(type(value), "a date or time")
    return f"{name} ({value!r})" if isinstance(value, str | int | float) else name


def _describe_type(expected: Any) -> str:
    return " or ".join(_describe_choice(choice) for choice in _alternatives(expected))


def _describe_choice(choice: Any) -> str:
    struct = _struct(choice)
    if struct is not None:
        return f"a table of {joined(struct.__struct_encode_fields__)}"
    if get_origin(choice) is list:
        return f"an array of {_describe_type(get_args(choice)[0]).removeprefix('a ')}s"
    if get_origin(choice) is dict:
        return "a table"
    if _is_enum(choice):
        return f"one of {joined(str(member.value) for member in choice)}"
    return _NAMES.get(choice, str(choice))
