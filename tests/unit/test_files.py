"""Writing into what is no regular file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from cpembed.errors import CpembedError
from cpembed.files import write_whole


def test_a_pipe_that_nobody_reads_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(CpembedError, match="pipe cannot be written: No such device or address"):
        write_whole(pipe, "text")
    assert pipe.is_fifo()


def test_a_pipe_with_a_reader_receives_all_of_a_long_text(tmp_path: Path) -> None:
    pipe, text, received = tmp_path / "pipe", "0123456789" * 50_000, list[str]()
    os.mkfifo(pipe)
    # Open for both directions first, so that a reader is there before anything is written.
    reader = os.open(pipe, os.O_RDWR)
    thread = threading.Thread(target=lambda: received.append(_read(reader, len(text))))
    thread.start()
    write_whole(pipe, text)
    thread.join(10)
    os.close(reader)
    assert received == [text]


def _read(descriptor: int, count: int) -> str:
    content = b""
    while len(content) < count:
        content += os.read(descriptor, count)
    return content.decode()
