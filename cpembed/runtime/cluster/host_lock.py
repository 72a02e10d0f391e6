"""One host, one measuring worker and nothing beside it: a lock that the system releases with the
process that holds it."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from cpembed.errors import BackendUnavailable
from cpembed.runtime.cluster.identity import host_name


class HostLock:
    """Held by every worker of a user on this host: alone by one that measures, together by others.

    The file is in the user's run-time folder, which is the host's own.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def taken(cls, *, alone: bool) -> HostLock:
        """Raises :class:`BackendUnavailable` where another holds it alone, or at all."""
        path = _folder() / "workers.lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # A folder of temporary files is everybody's: no link of another person is followed.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise BackendUnavailable(
                f"{path}: cannot be made ({error.strerror}): name another folder by XDG_RUNTIME_DIR"
            ) from None
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise BackendUnavailable(_refusal(path, alone=alone)) from None
        return cls(descriptor)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _refusal(path: Path, *, alone: bool) -> str:
    if alone:
        what = "other workers are at work, beside which nothing can be measured"
    else:
        what = "a worker measures, beside which nothing else is to run"
    return f"on {host_name()} {what}: end them first ({path})"


def _folder() -> Path:
    """The user's run-time folder, or one of the temporary files where the system has none."""
    told = os.environ.get("XDG_RUNTIME_DIR")
    if told:
        return Path(told) / "cpembed"
    usual = Path(f"/run/user/{os.getuid()}")
    return usual / "cpembed" if usual.is_dir() else _temporary()


def _temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"cpembed-{os.getuid()}"
