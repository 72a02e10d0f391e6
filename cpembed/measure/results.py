"""A store of results that survives an interruption: one JSON line a result, appended as it comes.

A store is a file whose name holds a digest of its key. What the results depend on is in the key, so
that results of another machine, version or specification are in another file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import platformdirs

from cpembed.errors import CpembedError

T = TypeVar("T", bound=msgspec.Struct)


def default_directory() -> Path:
    """Where results of suites are kept unless told otherwise."""
    return platformdirs.user_cache_path("cpembed") / "bench"


class ResultStore(Generic[T]):
    """Results of one kind under one key.

    The first line is the key, for people; every other line is a result. Several processes may
    append at once: each line is one write to a file opened for appending.
    """

    def __init__(
        self, directory: Path, names: tuple[str, ...], key: Mapping[str, Any], kind: type[T]
    ) -> None:
        canonical = json.dumps(key, sort_keys=True)
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:12]
        stem = "-".join(re.sub(r"[^\w.]+", "_", name) for name in names)
        self.path = directory / f"{stem}-{digest}.jsonl"
        self._header = f'{{"key": {canonical}}}'
        self._kind = kind

    def load(self) -> list[T]:
        """The results, oldest first; none where there is no file.

        Lines that are no result are passed over: the header, and a line that an interruption tore.
        """
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._failure("read", error) from None
        found: list[T] = []
        for line in lines:
            try:
                found.append(msgspec.json.decode(line, type=self._kind))
            except msgspec.MsgspecError:
                continue
        return found

    def append(self, result: T) -> None:
        """Add a result; it is in the file when this returns."""
        self._write(msgspec.json.encode(result) + b"\n")

    def open(self, *, fresh: bool = False) -> None:
        """Make the file ready for appending; ``fresh`` forgets what it holds."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if fresh:
                self.path.unlink(missing_ok=True)
            old = self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            raise self._failure("written", error) from None
        if not old:
            self._write(self._header.encode() + b"\n")
        elif not old.endswith(b"\n"):
            # A torn line must not swallow the next one.
            self._write(b"\n")

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
