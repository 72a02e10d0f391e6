"""What is kept between calls: kernels chosen and compiled, each in a file of its own.

A file is named by a digest of all that its contents depend on, the package's source included; what
cannot be read, or was written by another user, is made again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from cpembed.stores import SealedFolder, store_folder

T = TypeVar("T")

FOLDER_VARIABLE = "CPEMBED_NETWORK_CACHE"
"""Another folder; empty: nothing is kept."""

_PACKAGE = Path(__file__).resolve().parents[1]


def default_folder() -> Path | None:
    """Where kernels are kept."""
    told = os.environ.get(FOLDER_VARIABLE)
    if told is not None:
        return Path(told) if told else None
    return store_folder("network")


@cache
def source_digest(packages: tuple[str, ...]) -> str:
    """Of the code and the tables in some packages and modules, by their paths."""
    digest = hashlib.sha256()
    for package in packages:
        root = _PACKAGE / package
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            if path.suffix in (".py", ".toml") and path.is_file():
                digest.update(path.relative_to(_PACKAGE).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def digest_of(*parts: Any) -> str:
    """Of values whose texts say all of them."""
    return hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()


@dataclass(frozen=True)
class Cache:
    """Files of ``folder``; None keeps nothing."""

    folder: Path | None

    @property
    def _files(self) -> SealedFolder:
        return SealedFolder(self.folder)

    def get(self, kind: type[T], key: str) -> T | None:
        """What is kept under a key; None where there is nothing of the kind that can be read."""
        contents = self._files.get(key)
        if contents is None:
            return None
        try:
            found = pickle.loads(contents)  # Of this user: it is sealed.
        except Exception:  # Of other versions of Python or of a library: anything.
            return None
        return found if isinstance(found, kind) else None

    def put(self, key: str, value: Any) -> None:
        """Keep a value; a folder that cannot be written keeps nothing."""
        self._files.put(key, pickle.dumps(value))

    def of(self, kind: type[T], key: str, make: Callable[[], T]) -> T:
        """What is kept, or what is made and then kept."""
        found = self.get(kind, key)
        if found is None:
            found = make()
            self.put(key, found)
        return found
