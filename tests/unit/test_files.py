"""Writing into what is no regular file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from cpembed.errors import CpembedError
from cpembed.files import folder_draft, write_whole


def test_an_interrupted_folder_does_not_appear(tmp_path: Path) -> None:
    def interrupted() -> None:
        with folder_draft(tmp_path / "new", "last") as draft:
            (draft / "first").write_text("1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_files_of_a_folder_are_replaced_and_others_stay(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    for name in ("mine", "first", "last"):
        (folder / name).write_text("old")
    with folder_draft(folder, "last") as draft:
        (draft / "first").write_text("new")
        # Until the end, the earlier files are those that a reader sees.
        assert (folder / "first").read_text() == (folder / "last").read_text() == "old"
        (draft / "last").write_text("new")
    contents = {file.name: file.read_text() for file in folder.iterdir()}
    assert contents == {"mine": "old", "first": "new", "last": "new"}
    assert [file.name for file in tmp_path.iterdir()] == ["old"]


def test_a_new_folder_may_be_read_as_others_may(tmp_path: Path) -> None:
    with folder_draft(tmp_path / "new", "last") as draft:
        (draft / "last").write_text("1")
    (tmp_path / "plain").mkdir()
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1


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
