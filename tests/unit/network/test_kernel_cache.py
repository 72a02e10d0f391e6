"""What is kept between calls survives damage and interruption."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cpembed import stores as sealing
from cpembed.network.kernel_cache import FOLDER_VARIABLE, Cache, default_folder, digest_of
from cpembed.stores import SealedFolder


def get_or_make(
    cache: Cache, kind: type[tuple[int, ...]], key: str, make: Callable[[], tuple[int, ...]]
) -> tuple[int, ...]:
    value = cache.get(kind, key)
    if value is None:
        value = make()
        cache.store(key, value)
    return value


def test_what_is_kept_is_made_once(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> tuple[int, ...]:
        made.append(1)
        return (1, 2)

    cache = Cache(tmp_path / "new")
    assert (
        get_or_make(cache, tuple, "key", make) == get_or_make(cache, tuple, "key", make) == (1, 2)
    )
    assert len(made) == 1
    assert cache.get(list, "key") is None


@pytest.mark.parametrize("contents", [b"", b"\x80\x05torn", b"cos\nnothing\n."])
def test_a_damaged_file_is_made_again(tmp_path: Path, contents: bytes) -> None:
    cache = Cache(tmp_path)
    cache.store("key", (1,))
    (tmp_path / "key").write_bytes(contents)
    assert cache.get(tuple, "key") is None
    assert get_or_make(cache, tuple, "key", lambda: (2,)) == (2,)
    assert cache.get(tuple, "key") == (2,)


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    cache = Cache(file / "below")
    cache.store("key", (1,))
    assert cache.get(tuple, "key") is None
    assert get_or_make(Cache(None), tuple, "key", lambda: (3,)) == (3,)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("sealed_as", [None, "other name", "other user"])
def test_what_another_user_wrote_is_not_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sealed_as: str | None
) -> None:
    trap, contents = tmp_path / "executed", pickle.dumps(Trap(tmp_path / "executed"))
    folder = tmp_path / "cache"
    folder.mkdir()
    if sealed_as is None:
        (folder / "key").write_bytes(contents)
    elif sealed_as == "other name":
        SealedFolder(folder).write("other", contents)
        (folder / "other").rename(folder / "key")
    else:
        with monkeypatch.context() as patch:
            patch.setattr(sealing, "key_path", lambda: tmp_path / "theirs" / "cache.key")
            SealedFolder(folder).write("key", contents)
    assert get_or_make(Cache(folder), tuple, "key", lambda: (2,)) == (2,)
    assert not trap.exists()
    assert Cache(folder).get(tuple, "key") == (2,)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_key_that_others_can_read_is_none(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "cache.key"
    path.write_bytes(bytes(32))
    path.chmod(mode)
    assert sealing.user_key.__wrapped__(path) != bytes(32)
    path.chmod(0o600)
    assert sealing.user_key.__wrapped__(path) == bytes(32)


def test_a_key_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "cache.key"
    first = sealing.user_key.__wrapped__(path)
    assert first == sealing.user_key.__wrapped__(path) == path.read_bytes()
    assert [one.name for one in path.parent.iterdir()] == ["cache.key"]


def test_the_environment_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert default_folder() == tmp_path
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    assert default_folder() is None


def test_digests_tell_values_apart() -> None:
    assert digest_of(1, "a") == digest_of(1, "a")
    assert len({digest_of(1, "a"), digest_of("1", "a"), digest_of(1), digest_of("1a")}) == 4
