from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.cli.calling import Caller

Install = Callable[[str, Mapping[str, Mapping[str, str]], Mapping[str, str]], Path]
"""Distribution name, group -> entry point -> value, path -> text; the folder it is in."""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a distribution on the path of modules: its files and its metadata."""
    before = set(sys.modules)

    def install(
        name: str, groups: Mapping[str, Mapping[str, str]], files: Mapping[str, str]
    ) -> Path:
        folder = tmp_path / name
        info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines: list[str] = []
        for group, entries in groups.items():
            lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(str(folder))
        return folder

    yield install
    # Children first: the path of a namespace package asks for its parent.
    for name in sorted(set(sys.modules) - before, reverse=True):
        module = sys.modules[name]
        # By `vars`: some modules of torch make up any attribute.
        attributes = vars(module)
        places = [attributes.get("__file__") or "", *attributes.get("__path__", ())]
        if any(place.startswith(str(tmp_path)) for place in places):
            del sys.modules[name]


@pytest.fixture
def cpembed(capsys: pytest.CaptureFixture[str]) -> Caller:
    """Calls the command line in this process."""
    return Caller(capsys)
