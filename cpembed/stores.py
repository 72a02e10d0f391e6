"""Everything that the package keeps between processes: rows in JSON lines, and sealed files.

=====================  ==============================  =======================================
kind                   folder in the store             what names another folder
=====================  ==============================  =======================================
benchmark rows         ``bench`` (user's cache)        ``--results``
exploration costs      ``explore`` (user's cache)      ``--results``
tuning trials          ``tune`` (user's data)          ``CPEMBED_TUNE_DIR``, ``--database``
calibrations of CPUs   ``calibration`` (user's data)   ``CPEMBED_CALIBRATION_DIR``
MetaSchedule's tunes   ``metaschedule`` (cache)
kernels of networks    ``network`` (cache), sealed     ``CPEMBED_NETWORK_CACHE``, empty: none
libraries of networks  beside them, sealed
imported choices       beside them, as rows
compiled executors     by executor (cache), sealed     ``CPEMBED_..._EXECUTOR_CACHE``, empty: none
=====================  ==============================  =======================================

``CPEMBED_STORE_DIR`` moves all of them at once; a variable of one kind wins over it.

Files are kept for months, and edited, copied and torn meanwhile. A row without the types and ranges
of its kind is left out, and said in one line; the other rows count as before, and nothing is
rewritten. There is no version of the form: whatever results depend on, the package's version
included, is in a file's key, and a digest of the key in its name, so that files of another version
are other files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import hmac
import json
import os
import re
import stat
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import msgspec
import platformdirs

from cpembed.errors import CpembedError, DamagedStore
from cpembed.files import draft, read_regular, shortened

FOLDER_VARIABLE = "CPEMBED_STORE_DIR"
"""Environment variable that names the folder of all stores."""


def store_folder(name: str, *, variable: str | None = None, durable: bool = False) -> Path:
    """Return the default folder of a store.

    Parameters
    ----------
    name
        Name of the folder within the common one.
    variable
        Environment variable that names another folder for this store alone.
    durable
        True for measurements that took hours, which belong to the user's data and not to a cache
        that may be emptied.
    """
    if variable is not None and (folder := os.environ.get(variable)):
        return Path(folder)
    if folder := os.environ.get(FOLDER_VARIABLE):
        return Path(folder) / name
    user_path = platformdirs.user_data_path if durable else platformdirs.user_cache_path
    return user_path("cpembed") / name


# ------------------------------------------------------------------------------ rows

T = TypeVar("T")

# A month in nanoseconds is a third of it, and sums and products of such numbers stay finite.
LARGEST = 1e15
"""Maximum of a stored number."""

LARGEST_STORE = 2**29
"""Maximum size in bytes of a file of rows that is read: a row has a few thousand."""

Time = Annotated[float, msgspec.Meta(ge=0, le=LARGEST)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=LARGEST)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class DamagedRowError(Exception):
    """The reason why a row is damaged, in a few words."""


def no_flaw(row: object) -> str | None:
    """Return None: the types and ranges of a row's kind say everything."""


def decoded(
    text: bytes,
    kind: type[T],
    flaw: Callable[[T], str | None] = no_flaw,
    hook: Callable[[type[Any], Any], Any] | None = None,
) -> T:
    """Return a row.

    Parameters
    ----------
    text
        The row as JSON.
    kind
        The type of the row, whose annotations are checked.
    flaw
        Function that says what is wrong with a row whose types and ranges are right, or None.
    hook
        msgspec's ``dec_hook``: makes a value of a type that msgspec does not know.

    Raises
    ------
    DamagedRowError
        If the text is no such row.
    """
    try:
        row = msgspec.json.decode(text, type=kind, dec_hook=hook)
    except msgspec.MsgspecError as error:
        problem, _, place = str(error).partition(" - at ")
        # msgspec names places as `$.knobs.split_k`.
        place = place.strip("`").removeprefix("$").removeprefix(".")
        raise DamagedRowError(f"{place}: {problem}" if place else problem) from None
    except UnicodeDecodeError:
        raise DamagedRowError("not UTF-8") from None
    except RecursionError:
        raise DamagedRowError("nested too deeply") from None
    reason = flaw(row)
    if reason is not None:
        raise DamagedRowError(reason)
    return row


def decoded_rows(
    path: Path,
    lines: Iterable[tuple[int, bytes]],
    kind: type[T],
    flaw: Callable[[T], str | None] = no_flaw,
) -> list[T]:
    """Return the rows of a file without the damaged ones, about which there is one warning.

    Parameters
    ----------
    path
        The file, for the warning.
    lines
        The lines, each with its number in the file.
    kind
        The type of the rows.
    flaw
        As for :func:`decoded`.
    """
    rows: list[T] = []
    damaged: list[str] = []
    for number, line in lines:
        try:
            rows.append(decoded(line, kind, flaw))
        except DamagedRowError as error:
            damaged.append(f"line {number}: {error}")
    if damaged:
        warn_damaged(
            f"{path}: {len(damaged)} of {len(rows) + len(damaged)} rows left out as damaged "
            f"({damaged[0]}); the others are used; delete such lines to end this message"
        )
    return rows


def warn_damaged(text: str) -> None:
    """Warn about a store in one line: the command line prints it on stderr, once.

    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warn_damaged("notes.jsonl: not read")
    >>> caught[0].category.__name__
    'DamagedStore'
    """
    warnings.warn(text, DamagedStore, stacklevel=2)


# ------------------------------------------------------------------------------ files of rows


class AppendedFile:
    """A file to which one thread of one process appends at a time, each piece as a whole.

    The system releases the lock with the last reference to this object, or at the end of the
    process. Code of one thread that opens the file again shares it; another thread is rejected as
    another process is, since both would measure the same missing rows.
    """

    # By process, device and inode number: a fork and a link are other writers, or the same file.
    _open: ClassVar[weakref.WeakValueDictionary[tuple[int, int, int], AppendedFile]] = (
        weakref.WeakValueDictionary()
    )
    _opening: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._thread = threading.current_thread()
        self._appending = threading.Lock()
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def locked(cls, path: Path) -> AppendedFile:
        """Return the file, created if it does not exist.

        Raises
        ------
        OSError
            If it cannot be written.
        CpembedError
            If another process, or another living thread, appends to it.
        """
        with cls._opening:
            return cls._locked(path)

    @classmethod
    def _locked(cls, path: Path) -> AppendedFile:
        # O_NONBLOCK: should it be a pipe, opening does not wait for a reader.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o644)
        try:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            place = os.getpid(), state.st_dev, state.st_ino
            shared = cls._open.get(place)
            if shared is None:
                _lock(descriptor, path)
                shared = cls._open[place] = cls(descriptor)
                return shared
            shared._take_over(path)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return shared

    def _take_over(self, path: Path) -> None:
        """Make this thread the writer if the former one has ended."""
        current = threading.current_thread()
        if self._thread is not current and self._thread.is_alive():
            raise CpembedError(
                f"{path}: another thread is writing it: wait until it ends, or name another folder"
            )
        self._thread = current

    def is_at(self, path: Path) -> bool:
        """True if the path still names this file, which somebody may have removed."""
        try:
            return os.path.samestat(path.stat(), os.fstat(self._descriptor))
        except OSError:
            return False

    def append(self, data: bytes) -> None:
        """Append a piece as a whole, or, raising :class:`OSError`, nothing of it."""
        with self._appending:
            size = os.fstat(self._descriptor).st_size
            rest = memoryview(data)
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError:
                # A full disk may have taken a part of the piece.
                os.ftruncate(self._descriptor, size)
                raise

    def clear(self) -> None:
        """Remove the contents."""
        os.ftruncate(self._descriptor, 0)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CpembedError(
            f"{path}: another process is writing it: wait until it ends, or name another folder"
        ) from None
    except OSError as error:
        # Some network file systems have no locks.
        warn_damaged(f"{path}: cannot be locked ({error.strerror}): have no other process write it")


# Three of them and a digest stay below the 255 that a name can have. The rest of a name is in the
# key, and so in the digest.
LONGEST_NAME = 60
"""Maximum size in bytes of each part of a file's name."""

Row = TypeVar("Row", bound=msgspec.Struct)


class ResultStore(Generic[Row]):
    """A file of results that survives an interruption: one JSON line a result, appended at once.

    The first line is the key, for people; every other line is a result. Anybody may read at any
    time; a writer calls :meth:`open` first.

    Parameters
    ----------
    directory
        The folder of the file.
    names
        The beginning of the file's name; a digest of the key ends it.
    key
        Everything that the results depend on.
    kind
        The type of the rows.
    flaw
        Function that says what is wrong with a row of the right types, or None.
    """

    def __init__(
        self,
        directory: Path,
        names: tuple[str, ...],
        key: Mapping[str, Any],
        kind: type[Row],
        flaw: Callable[[Row], str | None] = no_flaw,
    ) -> None:
        stem = "-".join(shortened(re.sub(r"[^\w.]+", "_", name), LONGEST_NAME) for name in names)
        self.path = directory / f"{stem}-{key_digest(key)}.jsonl"
        self._header = f'{{"key": {_canonical(key)}}}'.encode()
        self._kind = kind
        self._flaw = flaw
        self._file: AppendedFile | None = None

    def load(self) -> list[Row]:
        """Return the results, oldest first; none if the file is missing or cannot be read.

        Damaged lines, such as one that an interruption tore, are left out with one warning.
        """
        try:
            lines = read_regular(self.path, LARGEST_STORE).split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            warn_damaged(f"{self.path}: cannot be read ({error.strerror}) and is left out")
            return []
        rows = [(n, line) for n, line in enumerate(lines, 1) if line not in (b"", self._header)]
        return decoded_rows(self.path, rows, self._kind, self._flaw)

    def append(self, result: Row) -> None:
        """Append a result, which is in the file when this returns.

        Raises :class:`CpembedError` if the file cannot be written; it is then as before.
        """
        self._append(msgspec.json.encode(result) + b"\n")

    def open(self, *, fresh: bool = False) -> None:
        """Make the file this thread's to append to until the store is no longer referred to.

        Parameters
        ----------
        fresh
            True to remove what the file holds.

        Raises
        ------
        CpembedError
            If the file cannot be written, or somebody else appends to it.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = AppendedFile.locked(self.path)
            if fresh:
                self._file.clear()
            content = read_regular(self.path, LARGEST_STORE)
        except OSError as error:
            raise self._failure(error) from None
        # A torn last line must not swallow the next one, and a damaged key is written once more.
        end = b"\n" if content and not content.endswith(b"\n") else b""
        if self._header not in content.split(b"\n"):
            end += self._header + b"\n"
        if end:
            self._append(end)

    def _append(self, data: bytes) -> None:
        # Results are not lost in a file that somebody has removed meanwhile.
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
    """Return the part of a file's name that stands for its key."""
    return hashlib.sha256(_canonical(key).encode()).hexdigest()[:12]


def _canonical(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


# ------------------------------------------------------------------------------ sealed files

LARGEST_SEALED = 2**30
"""Maximum size in bytes of a sealed file that is read."""

_KEY_BYTES = 32
_SEAL_BYTES = 32


@dataclass(frozen=True)
class SealedFolder:
    """Files that are executed or unpickled: only those are read that this user has written.

    A file begins with its seal: a digest of its name and contents under a key that nobody but the
    user can read. Whoever can write the folder still cannot make a seal. A folder of None keeps
    nothing.
    """

    folder: Path | None

    def get(self, name: str) -> bytes | None:
        """Return the contents of a file; None if there is none that this user sealed."""
        if self.folder is None:
            return None
        try:
            data = read_regular(self.folder / name, LARGEST_SEALED)
        except OSError:
            return None
        # Read whole before the check: nothing is unpickled of a file without the seal.
        mark, contents = data[:_SEAL_BYTES], data[_SEAL_BYTES:]
        return contents if hmac.compare_digest(mark, _seal(name, contents)) else None

    def write(self, name: str, contents: bytes) -> None:
        """Write a file in one step; a folder that cannot be written keeps nothing."""
        if self.folder is None:
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with draft(self.folder, ".", _seal(name, contents) + contents) as file:
                file.replace(self.folder / name)

    def get_or_make(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return the contents of a file, made and written if there is none."""
        contents = self.get(name)
        if contents is None:
            contents = make()
            self.write(name, contents)
        return contents


def _seal(name: str, contents: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=_SEAL_BYTES, key=user_key(key_path()))
    # With the name: a sealed file copied over another one is no longer sealed.
    digest.update(name.encode() + b"\0")
    digest.update(contents)
    return digest.digest()


def key_path() -> Path:
    """Return the path of the user's key, which no variable moves to a shared store."""
    return platformdirs.user_data_path("cpembed") / "cache.key"


@cache
def user_key(path: Path) -> bytes:
    """Return the user's key, created if missing; this process's own if it cannot be written."""
    key = os.urandom(_KEY_BYTES)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Another process may be faster: its key then stands there complete, or not at all.
        with draft(path.parent, ".cache.key.", key) as file, contextlib.suppress(FileExistsError):
            os.link(file, path)
    # Read back, since another process may have written its key first.
    return _private_key(path) or key


def _private_key(path: Path) -> bytes | None:
    """Return the key in a file that nobody but the user can read or write; None for another."""
    try:
        # No link: it could name a file of a key that somebody else knows.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        key = file.read(_KEY_BYTES + 1) if stat.S_ISREG(state.st_mode) else b""
    private = state.st_uid == os.getuid() and not state.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return key if private and len(key) == _KEY_BYTES else None
