"""A store of results that survives an interruption: one JSON line a result, appended as it comes.

A store is a file whose name holds a digest of its key. What the results depend on is in the key, so
that results of another machine, version or specification are in another file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import platformdirs

from cpembed.errors import CpembedError
from cpembed.stores import decoded_rows, say, sound

T = TypeVar("T", bound=msgspec.Struct)


def default_directory() -> Path:
    """Where results of suites are kept unless told otherwise."""
    return platformdirs.user_cache_path("cpembed") / "bench"


class ResultStore(Generic[T]):
    """Results of one kind under one key.

    The first line is the key, for people; every other line is a result. Several processes may
    append at once: each line is one write to a file opened for appending. ``flaw`` says what is
    wrong with a result of the right types.
    """

    def __init__(
        self,
        directory: Path,
        names: tuple[str, ...],
        key: Mapping[str, Any],
        kind: type[T],
        flaw: Callable[[T], str | None] = sound,
    ) -> None:
        stem = "-".join(re.sub(r"[^\w.]+", "_", name) for name in names)
        self.path = directory / f"{stem}-{key_digest(key)}.jsonl"
        self._header = f'{{"key": {_canonical(key)}}}'.encode()
        self._kind = kind
        self._flaw = flaw

    def load(self) -> list[T]:
        """The results, oldest first; none where there is no file, or one that cannot be read.

        Lines that are neither the key nor a result, such as one that an interruption tore, are left
        out, and said in one line.
        """
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            say(f"{self.path}: cannot be read ({error.strerror}) and is left out")
            return []
        rows = [(n, line) for n, line in enumerate(lines, 1) if line not in (b"", self._header)]
        return decoded_rows(self.path, rows, self._kind, self._flaw)

    def append(self, result: T) -> None:
        """Add a result; it is in the file when this returns."""
        self._write(msgspec.json.encode(result) + b"\n")

    def open(self, *, fresh: bool = False) -> None:
        """Make the file ready for appending; ``fresh`` forgets what it holds. A key that is damaged
        is written once more."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if fresh:
                self.path.unlink(missing_ok=True)
            old = self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            raise self._failure("written", error) from None
        # A torn line must not swallow the next one.
        end = b"\n" if old and not old.endswith(b"\n") else b""
        if self._header not in old.split(b"\n"):
            end += self._header + b"\n"
        if end:
            self._write(end)

    def _write(self, data: bytes) -> None:
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._failure("written", error) from None

    def _failure(self, action: str, error: OSError) -> CpembedError:
        return CpembedError(
            f"{self.path}: cannot be {action} ({error.strerror}): name another folder for results"
        )


def key_digest(key: Mapping[str, Any]) -> str:
    """Part of the name of a key's file."""
    return hashlib.sha256(_canonical(key).encode()).hexdigest()[:12]


def _canonical(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)
