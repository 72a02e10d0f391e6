"""Writing a file as a whole."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from cpembed.errors import CpembedError


def write_whole(path: Path, text: str) -> None:
    """Write a file in one step: whoever reads it sees the old text or the new one, never a part.

    Raises :class:`CpembedError` where it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            # A device or a pipe is written to; to put a file in its place would destroy it.
            path.write_text(text, encoding="utf-8")
            return
        handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.resolve().parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(draft).chmod(0o666 & ~_umask())
            # A link keeps pointing where it points.
            Path(draft).replace(path.resolve())
        except BaseException:
            with contextlib.suppress(OSError):
                Path(draft).unlink()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise CpembedError(f"{path} cannot be written: {reason}; name another file") from None


def _umask() -> int:
    """The process's mask for new files, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
