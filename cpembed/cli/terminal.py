"""The streams that a command writes to, whatever characters they take and whoever reads them."""

from __future__ import annotations

import codecs
import errno
import os
import signal
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO

_PLAIN = {"←": "<-", "◀": "<", "─": "-", "━": "-", "·": ".", "…": "..."}
"""ASCII for the characters that reports are drawn with."""

_HANDLER = "cpembed.plain"

READER_LEFT = 128 + signal.SIGPIPE
"""The exit code of a program whose reader went away, as shells report it."""


def accept_any_text() -> None:
    """From here on stdout and stderr print in ASCII, or as ``?``, what their encoding has not."""
    codecs.register_error(_HANDLER, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors != "ignore":
            stream.reconfigure(errors=_HANDLER)


def can_print(text: str) -> bool:
    """Whether stdout's encoding has all characters of a text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def write(text: str, *, err: bool = False) -> None:
    """Write a text at once.

    Raises :class:`OSError` where it cannot be written, also to a stdout that the shell closed
    (``>&-``); a closed stderr takes nothing.
    """
    stream: TextIO | None = sys.stderr if err else sys.stdout
    if stream is not None:
        stream.write(text)
        stream.flush()
    elif not err:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def discard_output() -> None:
    """Python flushes stdout once more on the way out, and would complain."""
    stream: TextIO | None = sys.stdout
    if stream is not None:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _plain(error: UnicodeError) -> tuple[str, int]:
    """The characters in ASCII, as wide as they are where a space that follows makes room."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text, at = error.object, error.start
    plain = _PLAIN.get(text[at], "?")
    end = at + 1
    if len(plain) > 1 and text[end : end + len(plain) - 1].isspace():
        end += len(plain) - 1
    return plain, end
