"""Data that ships with the package: constraint sets and hardware specifications.

A checkout keeps both in top-level folders, where people read and edit them; a wheel carries the
same folders under ``cpembed/_data``. The functions here work in both and return plain paths.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from cpembed.errors import InvariantError

DataKind = Literal["constraints", "hw_specs"]

_PACKAGE = Path(__file__).resolve().parent


def data_directory(kind: DataKind) -> Path:
    """Return the folder of the shipped files of one kind.

    Raises :class:`InvariantError` if it is neither in the package nor next to it: the installation
    is broken.
    """
    candidates = (_PACKAGE / "_data" / kind, _PACKAGE.parent / kind)
    for directory in candidates:
        if directory.is_dir():
            return directory
    raise InvariantError(
        f"the data folder {kind} is missing: looked in {' and '.join(map(str, candidates))}; "
        "reinstall cpembed"
    )


def constraint_files() -> dict[str, Path]:
    """Return the paths of the shipped constraint sets by name (the file name without ``.toml``)."""
    return dict(_toml_files(data_directory("constraints")))


def hardware_spec_files() -> dict[str, Path]:
    """Return the paths of the shipped hardware specifications by the target's name."""
    return dict(_toml_files(data_directory("hw_specs")))


# Shipped files do not change while a process runs, and one command looks several times.
@cache
def _toml_files(directory: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(directory.glob("*.toml"))}
