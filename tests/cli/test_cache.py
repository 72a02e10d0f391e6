"""`cpembed cache`: choices of kernels as a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.network.kernel_cache import FOLDER_VARIABLE
from tests.cli.calling import Caller


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))


def test_an_empty_cache_is_an_empty_file(cpembed: Caller, tmp_path: Path) -> None:
    file = tmp_path / "choices.jsonl"
    called = cpembed("cache", "export", str(file))
    assert (called.code, called.out) == (0, f"{file}: 0 choices of kernels\n")
    assert file.read_bytes() == b""
    called = cpembed("cache", "import", str(file))
    assert called.out == f"{tmp_path / 'cache'}: 0 choices of kernels added\n"


def test_another_file_is_one_line(cpembed: Caller, tmp_path: Path) -> None:
    file = tmp_path / "choices.jsonl"
    file.write_text("{}\n")
    cpembed("cache", "import", str(file)).is_one_line_error(2, str(file), "line 1", "export")
    assert not list((tmp_path / "cache").glob("*"))


def test_a_missing_file_and_folder_are_one_line(cpembed: Caller, tmp_path: Path) -> None:
    cpembed("cache", "import", str(tmp_path / "none")).is_one_line_error(2, "none", "read")
    missing = tmp_path / "no" / "folder"
    cpembed("cache", "export", str(missing)).is_one_line_error(2, str(missing), "written")
