"""Data that ships with the package: constraint sets and hardware specifications.

A checkout keeps both in top-level folders, where people read and edit them; a wheel carries the
same folders under ``cpembed/_data``. The functions here work in both and return plain paths.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Literal, TypeVar, get_args

from cpembed.errors import InvariantError

DataKind = Literal["constraints", "hw_specs"]

T = TypeVar("T")

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


def accelerator_files() -> dict[str, Path]:
    """Return the paths of the shipped instruction sets by the accelerator's name."""
    return dict(_toml_files(data_directory("hw_specs") / "accelerators"))


def read_once(load: Callable[[Path], T]) -> Callable[[Path], T]:
    """Return a loader that reads each shipped file once in a process, and any other every time.

    Callers share the values, so these must not be changed.
    """
    cached = cache(load)

    @wraps(load)
    def loaded(path: Path) -> T:
        # A user's file may be edited between two calls in a notebook.
        shipped = [data_directory(kind) for kind in get_args(DataKind)]
        is_shipped = any(folder in (path.parent, path.parent.parent) for folder in shipped)
        return cached(path) if is_shipped else load(path)

    return loaded
