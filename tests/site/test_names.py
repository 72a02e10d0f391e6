"""What the pages name exists: modules, functions, files of the package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.site.hooks import ROOT, hook

griffe = pytest.importorskip("griffe", reason="the extra `docs` is not installed")
references = hook("references")

PAGES = sorted((ROOT / "docs").rglob("*.md"))
NAME = re.compile(r"\bcpembed(?:\.[A-Za-z]\w*)+")
FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.py)`")

FOREIGN = {"cpembed.vta.execute", "cpembed.execute", "cpembed.layer"}
"""Functions of compiled modules and an operator of PyTorch, named like parts of the package."""

GROUPS = {
    *("accelerators", "constraint_sets", "constraints", "families", "hw_specs", "operators"),
    "targets",
}
"""Groups of entry points."""


@pytest.fixture(scope="module")
def package() -> Any:
    return griffe.load("cpembed", search_paths=[ROOT], try_relative_path=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_on_a_page_exist(page: Path, package: Any) -> None:
    names = set(NAME.findall(page.read_text(encoding="utf-8"))) - FOREIGN
    names -= {f"cpembed.{group}" for group in GROUPS}
    missing = [name for name in names if references.resolve(package, package, name) is None]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_on_a_page_exist(page: Path) -> None:
    folders = (ROOT, ROOT / "cpembed", ROOT / "cpembed" / "targets")
    missing = [
        name
        for name in FILE.findall(page.read_text(encoding="utf-8"))
        if not any((folder / name).exists() for folder in folders) and "cpembed_keep" not in name
    ]
    assert missing == []
