"""What is kept between calls survives damage and interruption."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.network.cache import FOLDER_VARIABLE, Cache, default_folder, digest_of


def test_what_is_kept_is_made_once(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> tuple[int, ...]:
        made.append(1)
        return (1, 2)

    cache = Cache(tmp_path / "new")
    assert cache.of(tuple, "key", make) == cache.of(tuple, "key", make) == (1, 2)
    assert len(made) == 1
    assert cache.get(list, "key") is None


@pytest.mark.parametrize("contents", [b"", b"\x80\x05torn", b"cos\nnothing\n."])
def test_a_damaged_file_is_made_again(tmp_path: Path, contents: bytes) -> None:
    cache = Cache(tmp_path)
    cache.put("key", (1,))
    (tmp_path / "key").write_bytes(contents)
    assert cache.get(tuple, "key") is None
    assert cache.of(tuple, "key", lambda: (2,)) == (2,)
    assert cache.get(tuple, "key") == (2,)


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    cache = Cache(file / "below")
    cache.put("key", (1,))
    assert cache.get(tuple, "key") is None
    assert Cache(None).of(tuple, "key", lambda: (3,)) == (3,)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_environment_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert default_folder() == tmp_path
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    assert default_folder() is None


def test_digests_tell_values_apart() -> None:
    assert digest_of(1, "a") == digest_of(1, "a")
    assert len({digest_of(1, "a"), digest_of("1", "a"), digest_of(1), digest_of("1a")}) == 4
