"""A store of results that survives an interruption: one JSON line a result, appended as it comes.

A store is a file whose name holds a digest of its key. What the results depend on is in the key, so
that results of another machine, version or specification are in another file. One process at a time
writes it, which holds a lock of the system on it: released with the process, however that ends.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import platformdirs

from cpembed.errors import CpembedError
from cpembed.files import read_regular, shortened
from cpembed.runtime.measurement.appending import AppendedFile
from cpembed.stores import LARGEST_STORE, decoded_rows, say, sound

T = TypeVar("T", bound=msgspec.Struct)

LONGEST_NAME = 60
"""Bytes of each part of a file's name: three of them and a digest stay below the 255 that a name
can have. What is cut is in the key, and so in the digest."""


def default_directory() -> Path:
    """Where results of suites are kept unless told otherwise."""
    return platformdirs.user_cache_path("cpembed") / "bench"


class ResultStore(Generic[T]):
    """Results of one kind under one key.

    The first line is the key, for people; every other line is a result. ``flaw`` says what is wrong
    with a result of the right types. Anybody may read at any time; to append, :meth:`open` first.
    """

    def __init__(
        self,
        directory: Path,
        names: tuple[str, ...],
        key: Mapping[str, Any],
        kind: type[T],
        flaw: Callable[[T], str | None] = sound,
    ) -> None:
        stem = "-".join(shortened(re.sub(r"[^\w.]+", "_", name), LONGEST_NAME) for name in names)
        self.path = directory / f"{stem}-{key_digest(key)}.jsonl"
        self._header = f'{{"key": {_canonical(key)}}}'.encode()
        self._kind = kind
        self._flaw = flaw
        self._file: AppendedFile | None = None

    def load(self) -> list[T]:
        """The results, oldest first; none where there is no file, or one that cannot be read.

        Lines that are neither the key nor a result, such as one that an interruption tore, are left
        out, and said in one line.
        """
        try:
            lines = read_regular(self.path, LARGEST_STORE).split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            say(f"{self.path}: cannot be read ({error.strerror}) and is left out")
            return []
        rows = [(n, line) for n, line in enumerate(lines, 1) if line not in (b"", self._header)]
        return decoded_rows(self.path, rows, self._kind, self._flaw)

    def append(self, result: T) -> None:
        """Add a result; it is in the file when this returns.

        Raises :class:`CpembedError` where it cannot be written; then the file is as before.
        """
        self._append(msgspec.json.encode(result) + b"\n")

    def open(self, *, fresh: bool = False) -> None:
        """Make the file this process's to append to, until the store is no longer referred to;
        ``fresh`` forgets what it holds. A key that is damaged is written once more.

        Raises :class:`CpembedError` where it cannot be written, and while another process appends.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = AppendedFile.locked(self.path)
            if fresh:
                self._file.clear()
            old = read_regular(self.path, LARGEST_STORE)
        except OSError as error:
            raise self._failure(error) from None
        # A torn line must not swallow the next one.
        end = b"\n" if old and not old.endswith(b"\n") else b""
        if self._header not in old.split(b"\n"):
            end += self._header + b"\n"
        if end:
            self._append(end)

    def _append(self, data: bytes) -> None:
        if self._file is None or not self._file.is_at(self.path):
            self.open()
        assert self._file is not None
        try:
            self._file.append(data)
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> CpembedError:
        return CpembedError(
            f"{self.path}: cannot be written ({error.strerror}): name another folder for results"
        )


def key_digest(key: Mapping[str, Any]) -> str:
    """Part of the name of a key's file."""
    return hashlib.sha256(_canonical(key).encode()).hexdigest()[:12]


def _canonical(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)
