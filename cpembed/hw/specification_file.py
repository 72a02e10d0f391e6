"""A specification's file, with the machines that it shares with others in it.

``machines_from`` names a TOML file beside it that holds tables ``[machines.NAME]`` and nothing
else. Of the machines that the specification names itself, keys that it leaves out are taken from
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from cpembed.errors import SpecError
from cpembed.files import read_toml
from cpembed.hw.schema import HardwareTable, Key, convert_table, spec_error

Tables = Mapping[str, Any]
"""What a TOML file holds."""


@dataclass(frozen=True)
class SpecificationFile:
    """``table`` is the whole; ``own`` is what the file at ``path`` says itself, ``shared`` what the
    one at ``shared_path`` does."""

    path: Path
    table: HardwareTable
    own: Tables
    shared_path: Path
    shared: Tables

    def place(self, key: Key) -> str:
        """The file in which a key stands; that of the specification where it is in neither."""
        return _place(key, self.path, self.own, self.shared_path, self.shared)


def read_specification(path: Path) -> SpecificationFile:
    """Every fault is a one-line :class:`SpecError` that names the file in which it is."""
    own = read_toml(path)
    shared_path, shared = _shared(path, own)
    table = convert_table(
        _completed(own, shared),
        HardwareTable,
        lambda key: _place(key, path, own, shared_path, shared),
    )
    return SpecificationFile(path, table, own, shared_path, shared)


def _shared(path: Path, own: Tables) -> tuple[Path, Tables]:
    """The other file; ``path`` itself, and nothing, where it names none."""
    name = own.get("machines_from")
    if not isinstance(name, str):
        return path, {}
    shared_path = path.parent / name
    try:
        shared = read_toml(shared_path)
    except SpecError as error:
        raise spec_error(str(path), ("machines_from",), str(error)) from None
    machines: object = shared.get("machines")
    if shared.keys() != {"machines"} or not isinstance(machines, dict):
        problem = f"{shared_path} holds more, or less, than tables [machines.NAME]"
        raise spec_error(str(path), ("machines_from",), problem)
    return shared_path, shared


def _completed(own: Tables, shared: Tables) -> Tables:
    named: object = own.get("machines")
    if not isinstance(named, dict):
        return own
    known: Tables = shared.get("machines", {})
    machines = {
        name: _merged(table, known.get(name, {})) for name, table in cast(Tables, named).items()
    }
    return {**own, "machines": machines}


def _merged(value: Any, other: Any) -> Any:
    """A table with the keys of another one that it lacks, at every depth; any other value alone."""
    if not (isinstance(value, dict) and isinstance(other, dict)):
        return cast(Any, value)
    first, second = cast(dict[str, Any], value), cast(dict[str, Any], other)
    merged = {name: _merged(first[name], second.get(name)) for name in first}
    return {**second, **merged}


def _place(key: Key, path: Path, own: Tables, shared_path: Path, shared: Tables) -> str:
    return str(shared_path if not _holds(own, key) and _holds(shared, key) else path)


def _holds(tables: Tables, key: Key) -> bool:
    value: object = tables
    for part in key:
        if isinstance(value, dict) and part in value:
            value = cast(dict[str | int, object], value)[part]
        elif isinstance(value, list) and isinstance(part, int):
            elements = cast(list[object], value)
            if part >= len(elements):
                return False
            value = elements[part]
        else:
            return False
    return True
