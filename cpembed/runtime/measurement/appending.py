"""A file to which one process at a time appends, whole pieces only."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import weakref
from pathlib import Path
from typing import ClassVar

from cpembed.errors import CpembedError
from cpembed.stores import say


class AppendedFile:
    """Open for appending, under a lock that the system releases with the last reference to this
    object or the end of the process. Those who open the file in the same thread share it; another
    thread is refused as another process is, as both would find the same rows missing.
    """

    _open: ClassVar[weakref.WeakValueDictionary[tuple[int, int, int], AppendedFile]] = (
        weakref.WeakValueDictionary()
    )
    """By process, device and number of the file."""
    _opening: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._thread = threading.current_thread()
        self._appending = threading.Lock()
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def locked(cls, path: Path) -> AppendedFile:
        """The file, made where there is none.

        Raises :class:`OSError` where it cannot be written, :class:`CpembedError` where another
        process or another thread that lives appends to it.
        """
        with cls._opening:
            return cls._locked(path)

    @classmethod
    def _locked(cls, path: Path) -> AppendedFile:
        # Not to wait for a reader, should it be a pipe.
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
        """Make this thread the one that opened the file, where the former one has ended."""
        current = threading.current_thread()
        if self._thread is not current and self._thread.is_alive():
            raise CpembedError(
                f"{path}: another thread is writing it: wait until it ends, or name another folder"
            )
        self._thread = current

    def is_at(self, path: Path) -> bool:
        """Whether the path still names this file, which somebody may have removed."""
        try:
            return os.path.samestat(path.stat(), os.fstat(self._descriptor))
        except OSError:
            return False

    def append(self, data: bytes) -> None:
        """Add a piece as a whole, or nothing of it.

        Raises :class:`OSError`, such as for a full disk.
        """
        with self._appending:
            size = os.fstat(self._descriptor).st_size
            left = memoryview(data)
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:
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
        say(f"{path}: cannot be locked ({error.strerror}): have no other process write it")
