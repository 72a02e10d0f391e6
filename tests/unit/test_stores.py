"""A store of rows: one writer at a time, whole rows only, names that file systems take."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from cpembed.errors import CpembedError
from cpembed.stores import ResultStore


class Number(msgspec.Struct, frozen=True):
    value: int
    text: str = ""


def store(folder: Path, *names: str) -> ResultStore[Number]:
    return ResultStore(folder, names or ("numbers",), {"version": 1}, Number)


def values(folder: Path) -> list[int]:
    return [row.value for row in store(folder).load()]


WRITER = """
import sys, time
from pathlib import Path
from tests.unit.test_stores import Number, store
found = store(Path(sys.argv[1]))
found.open()
done = len(found.load())
print("opened", flush=True)
for value in range(done, 1000):
    found.append(Number(value, "x" * 20_000))
    if value == int(sys.argv[2]):
        print("waiting", flush=True)
        time.sleep(60)
"""


def begun(folder: Path, waits_at: int) -> subprocess.Popen[str]:
    path = os.pathsep.join(part for part in sys.path if part)
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), str(waits_at)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


def test_a_second_writer_is_refused_until_the_first_one_is_killed(tmp_path: Path) -> None:
    first = begun(tmp_path, 3)
    assert first.stdout is not None
    assert [first.stdout.readline() for _ in range(2)] == ["opened\n", "waiting\n"]
    with pytest.raises(CpembedError, match="another process is writing it: wait until it ends"):
        store(tmp_path).open()
    assert values(tmp_path) == [0, 1, 2, 3]
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=10)
    again = store(tmp_path)
    again.open()
    again.append(Number(4))
    assert values(tmp_path) == [0, 1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_writers_that_are_killed_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    for attempt in range(6):
        writers = [begun(tmp_path, 1000), begun(tmp_path, 1000)]
        for writer in writers:
            if attempt < 5:
                try:
                    writer.wait(0.5 + 0.07 * seed)
                except subprocess.TimeoutExpired:
                    writer.kill()
            writer.communicate(timeout=100)
    assert values(tmp_path) == list(range(1000))


def test_stores_of_one_process_share_a_file(tmp_path: Path) -> None:
    first, second = store(tmp_path), store(tmp_path)
    first.open()
    second.open()
    first.append(Number(1))
    del first
    second.append(Number(2))
    assert values(tmp_path) == [1, 2]


def test_a_second_thread_is_refused_until_the_first_one_has_ended(tmp_path: Path) -> None:
    """Both would find the same rows missing, and make each twice."""
    refusals: list[str] = []
    tried = threading.Barrier(8)

    def work() -> None:
        mine, is_refused = store(tmp_path), False
        try:
            mine.open()
        except CpembedError as error:
            is_refused = True
            refusals.append(str(error))
        tried.wait(10)
        if not is_refused:
            for value in range(len(mine.load()), 50):
                mine.append(Number(value))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(refusals) == 7
    assert all("another thread is writing it: wait" in text for text in refusals)
    assert values(tmp_path) == list(range(50))
    assert store(tmp_path).path.read_bytes().count(b'{"key"') == 1
    later = store(tmp_path)
    later.open()
    later.append(Number(50))
    assert values(tmp_path) == list(range(51))


def test_pieces_of_several_threads_are_whole(tmp_path: Path) -> None:
    """A store may be opened in one thread and appended to in others."""
    found = store(tmp_path)
    found.open()

    def work(first: int) -> None:
        for value in range(first, first + 50):
            found.append(Number(value, "x" * 5_000))

    threads = [threading.Thread(target=work, args=(50 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(values(tmp_path)) == list(range(200))


def test_a_row_for_which_there_is_no_room_leaves_nothing(tmp_path: Path) -> None:
    found = store(tmp_path)
    found.open()
    found.append(Number(1))
    before = found.path.read_bytes()
    usual, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, usual[1]))
    try:
        with pytest.raises(CpembedError, match=r"cannot be written .File too large"):
            found.append(Number(2, "x" * 1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        signal.signal(signal.SIGXFSZ, handler)
    assert found.path.read_bytes() == before
    found.append(Number(3))
    assert values(tmp_path) == [1, 3]


def test_a_file_that_is_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    found = store(tmp_path)
    found.open()
    found.append(Number(1))
    found.path.unlink()
    found.append(Number(2))
    assert values(tmp_path) == [2]


def test_what_is_forgotten_is_gone(tmp_path: Path) -> None:
    found = store(tmp_path)
    found.open()
    found.append(Number(1))
    store(tmp_path).open(fresh=True)
    assert values(tmp_path) == []


@pytest.mark.parametrize("names", [("x" * 300, "y" * 255, "z"), ("ä" * 200, "日本" * 100, "\0/..")])
def test_names_of_any_length_make_a_file(tmp_path: Path, names: tuple[str, ...]) -> None:
    found = store(tmp_path, *names)
    found.open()
    found.append(Number(1))
    assert [row.value for row in found.load()] == [1]
    assert found.path.parent == tmp_path
    assert found.path != store(tmp_path, "x").path


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop"])
def test_what_is_no_file_is_refused_in_a_line(tmp_path: Path, kind: str) -> None:
    found = store(tmp_path)
    if kind == "folder":
        found.path.mkdir()
    elif kind == "pipe":
        os.mkfifo(found.path)
    else:
        found.path.symlink_to(found.path)
    with pytest.raises(CpembedError, match=re.escape(f"{found.path}: cannot be written (")):
        found.open()
    with pytest.warns(UserWarning, match="cannot be read .* and is left out"):
        assert found.load() == []
