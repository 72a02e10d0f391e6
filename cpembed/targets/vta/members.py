"""The files of a saved program, in a directory or a zip: their sizes first, then what they hold."""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import ProgramError

_CHUNK = 1 << 20
"""Bytes that are unpacked at a time."""

_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

_DAMAGE = (
    EOFError,
    OSError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,
    RuntimeError,  # an encrypted member
    ValueError,
)
"""What reading a damaged file or zip raises."""


@dataclass(frozen=True)
class Members:
    """``sizes`` in bytes, unpacked, as the directory or the zip states them; nothing is unpacked
    before :meth:`read`."""

    sizes: dict[str, int]
    _open: Callable[[str], IO[bytes]]
    _where: str
    _expected: str

    def read(self, name: str) -> NDArray[np.uint8]:
        """As many bytes of a member as its size says; raises :class:`ProgramError`."""
        content = np.empty(self.sizes[name], np.uint8)
        done = 0
        with _damage_named(self._where, self._expected), self._open(name) as file:
            while done < len(content):
                part = file.read(min(_CHUNK, len(content) - done))
                if not part:
                    raise EOFError(f"{name} ends after {done:,} of {len(content):,} bytes")
                content[done : done + len(part)] = np.frombuffer(part, np.uint8)
                done += len(part)
        return content


@contextmanager
def members(path: Path, names: Sequence[str]) -> Generator[Members]:
    """The members of a saved program, while it is open.

    Raises :class:`ProgramError` where one is missing, or the zip cannot be read.
    """
    expected = f"a directory or a zip of {', '.join(names[:-1])} and {names[-1]}"
    if not path.is_file():
        sizes = {name: _filed(path, name, expected) for name in reversed(names)}
        yield Members(sizes, lambda name: (path / name).open("rb"), str(path), expected)
        return
    with _damage_named(str(path), expected):
        archive = zipfile.ZipFile(path)
    with archive:
        sizes = {name: _zipped(path, archive, name, expected) for name in reversed(names)}
        yield Members(sizes, archive.open, str(path), expected)


@contextmanager
def _damage_named(where: str, expected: str) -> Generator[None]:
    try:
        yield
    except _DAMAGE as error:
        # zipfile's EOFError of a member that is cut off has no text.
        said = getattr(error, "strerror", None) or str(error) or "it is cut off"
        reason = " ".join(said.split())
        raise ProgramError(f"{where}: not a saved program: {reason}; allowed: {expected}") from None


def _zipped(path: Path, archive: zipfile.ZipFile, name: str, expected: str) -> int:
    found = [member for member in archive.infolist() if member.filename == name]
    if len(found) != 1:
        problem = f"has {len(found)} members {name}" if found else f"has no member {name}"
        raise ProgramError(f"{path}: {problem}; a program is {expected}, one of each")
    if found[0].compress_type not in _COMPRESSIONS:
        raise ProgramError(
            f"{path}: {name} is compressed by method {found[0].compress_type}; "
            "allowed: deflated (8) or stored (0)"
        )
    return found[0].file_size


def _filed(path: Path, name: str, expected: str) -> int:
    try:
        status = (path / name).stat()
        reason = None if stat.S_ISREG(status.st_mode) else "it is no file"
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        status, reason = None, getattr(error, "strerror", None) or str(error)
    if status is None or reason is not None:
        raise ProgramError(f"{path}: {name} cannot be read: {reason}; a program is {expected}")
    return status.st_size
