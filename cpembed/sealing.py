"""Files of a cache that are executed, or trusted as if: only those are used that processes of this
user have written.

A file begins with a seal: a digest of its name and contents, keyed. The key is in a file that
nobody but the user can read, so whoever can write the cache's folder still cannot make a seal.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import platformdirs

from cpembed.files import read_regular

LARGEST = 2**30
"""Bytes of a file that is read."""

_KEY_BYTES = 32
_SEAL_BYTES = 32


@dataclass(frozen=True)
class SealedFolder:
    """Files of ``folder`` by name; None keeps nothing."""

    folder: Path | None

    def get(self, name: str) -> bytes | None:
        """The contents under a name; None where there are none that this user sealed."""
        if self.folder is None:
            return None
        try:
            data = read_regular(self.folder / name, LARGEST)
        except OSError:
            return None
        mark, contents = data[:_SEAL_BYTES], data[_SEAL_BYTES:]
        return contents if hmac.compare_digest(mark, _seal(name, contents)) else None

    def put(self, name: str, contents: bytes) -> None:
        """Keep contents; a folder that cannot be written keeps nothing."""
        if self.folder is None:
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, draft = tempfile.mkstemp(prefix=".", dir=self.folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_seal(name, contents))
                    file.write(contents)
                Path(draft).replace(self.folder / name)
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(draft).unlink()
                raise

    def of(self, name: str, make: Callable[[], bytes]) -> bytes:
        """What is kept, or what is made and then kept."""
        contents = self.get(name)
        if contents is None:
            contents = make()
            self.put(name, contents)
        return contents


def _seal(name: str, contents: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=_SEAL_BYTES, key=user_key(key_path()))
    digest.update(name.encode() + b"\0")
    digest.update(contents)
    return digest.digest()


def key_path() -> Path:
    return platformdirs.user_data_path("cpembed") / "cache.key"


@cache
def user_key(path: Path) -> bytes:
    """The user's key, made where there is none; one of this process where it cannot be kept."""
    key = os.urandom(_KEY_BYTES)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, draft = tempfile.mkstemp(prefix=".cache.key.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(key)
            # Another process may be faster: its key is there whole, or not at all.
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
        finally:
            Path(draft).unlink()
    return _read(path) or key


def _read(path: Path) -> bytes | None:
    """The key of a file that is the user's, and that nobody else can read or write."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        found = file.read(_KEY_BYTES + 1) if stat.S_ISREG(state.st_mode) else b""
    private = state.st_uid == os.getuid() and not state.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return found if private and len(found) == _KEY_BYTES else None
