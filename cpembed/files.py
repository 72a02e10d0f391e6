"""Files that are written in one step, or read after a check of their size and kind."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Generator
from pathlib import Path
from typing import Any

from cpembed.errors import CpembedError, SpecError

FOLDER_GONE = "the current folder has been removed: change to another one"

LARGEST_TOML = 2**20
"""Maximum size in bytes of a TOML file; specifications and constraint sets have a few thousand."""

_KEY_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_LONG_KEY = re.compile(rf"(?<![\w.'\"-]){_KEY_PART}(?:[ \t]*\.[ \t]*{_KEY_PART}){{64}}")
"""A dotted key of more parts than any file has: parsing one takes memory by the square of them."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file in one step: whoever reads it sees the old contents or the new, never a part.

    Raises :class:`CpembedError` if it cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():
            # Replacing a device or a pipe by a file would destroy it.
            _write_through(path, data)
            return
        # A fixed short prefix: the file's own name may be as long as names can be.
        with draft(path.resolve().parent, ".draft.", data) as file:
            file.chmod(0o666 & ~_umask())
            # The target of a link is replaced, not the link.
            file.replace(path.resolve())
    # RuntimeError: a loop of links, of which older versions of Python make one;
    # ValueError: a null character in the path.
    except (OSError, RuntimeError, ValueError) as error:
        raise CpembedError(
            f"{path} cannot be written: {_reason(error)}; name another file"
        ) from None


@contextlib.contextmanager
def draft(folder: Path, prefix: str, contents: bytes) -> Generator[Path]:
    """Return a context with a new file, which is removed at the end unless it was renamed.

    Parameters
    ----------
    folder
        Folder of the file: that of the one that it replaces, as renaming is one step only there.
    prefix
        Beginning of its name.
    contents
        Contents, complete before the context begins.
    """
    handle, name = tempfile.mkstemp(prefix=prefix, dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(contents)
        yield Path(name)
    finally:
        with contextlib.suppress(OSError):
            Path(name).unlink()


@contextlib.contextmanager
def folder_draft(path: Path, last: str) -> Generator[Path]:
    """Return a context with a folder whose files enter ``path`` if it ends without an error.

    A folder that does not exist appears in one step, so that an interrupted call leaves none. Files
    of an existing one are replaced one by one, and ``last`` is absent until all others are there.

    Parameters
    ----------
    path : Path
    last : str
        Name of the file that says what the others are.

    Raises
    ------
    CpembedError
        If the folder cannot be written.
    """
    make_folder(path.absolute().parent)
    try:
        with tempfile.TemporaryDirectory(prefix=".draft.", dir=path.absolute().parent) as name:
            # Within the temporary folder, which only its owner may read.
            draft = Path(name) / "files"
            draft.mkdir()
            yield draft
            if not path.exists():
                draft.rename(path)
                return
            (path / last).unlink(missing_ok=True)
            for file in sorted(draft.iterdir(), key=lambda each: each.name == last):
                file.replace(path / file.name)
    except OSError as error:
        raise CpembedError(
            f"{path} cannot be written: {_reason(error)}; name another folder"
        ) from None


def make_folder(path: Path) -> None:
    """Create a folder and those above it, as far as they are missing.

    Raises :class:`CpembedError` if they cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise CpembedError(
            f"{path} cannot be made: {_reason(error)}; name another folder"
        ) from None


def _write_through(path: Path, data: bytes) -> None:
    """Write to a device, or to a pipe that somebody reads; else raise :class:`OSError`."""
    # Opening a pipe must not wait for a reader; writing to it may.
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def open_regular(path: Path) -> int:
    """Open a regular file, or a link to it, and return a descriptor, which the caller closes.

    Raises :class:`OSError` for a folder, a pipe or a device, without waiting for the other end of a
    pipe.
    """
    try:
        # O_NONBLOCK: opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_regular(path: Path, largest: int) -> bytes:
    """Return the contents of a regular file of at most ``largest`` bytes.

    Raises :class:`OSError` if it is larger, not regular, or cannot be read.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        # One byte more: the file may have grown since its size was read.
        content = file.read(largest + 1) if size <= largest else b""
    if max(size, len(content)) > largest:
        raise OSError(errno.EFBIG, f"more than {largest:,} bytes", str(path))
    return content


def shortened(name: str, longest: int) -> str:
    """Return the beginning of a name, of at most ``longest`` bytes."""
    return name.encode()[:longest].decode(errors="ignore")


def is_folder_gone() -> bool:
    """True if the process's current folder was removed, so that no relative path is valid."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _reason(error: BaseException) -> str:
    """Return the system's message without the path."""
    return getattr(error, "strerror", None) or str(error)


def _umask() -> int:
    # The mask can only be read by setting it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises :class:`SpecError` if it cannot be read or is no TOML; one line with the path.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_TOML + 1)
        if len(content) > LARGEST_TOML:
            raise SpecError(f"{path}: more than {LARGEST_TOML:,} bytes: not a file for this")
        text = content.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not a text file in UTF-8 (byte {error.start})") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise SpecError(f"{path}: cannot be read: {_reason(error)}") from None
    long_key = _LONG_KEY.search(text)
    if long_key is not None:
        line = text.count("\n", 0, long_key.start()) + 1
        raise SpecError(f"{path}: not valid TOML: a key of very many parts (at line {line})")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # An integer of more digits than Python reads is a ValueError of its own.
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        last_line = max(1, len(text.splitlines()))
        problem = problem.replace("at end of document", f"at line {last_line}, end of document")
        raise SpecError(f"{path}: not valid TOML: {' '.join(problem.split())}") from None
