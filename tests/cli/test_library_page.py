"""``docs/library.md``: every example gives what the page shows."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import cpembed

PAGE = Path(__file__).parents[2] / "docs" / "library.md"


def test_every_example_gives_what_the_page_shows() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert found.attempted > 40
    assert found.failed == 0


def test_the_page_names_every_function_of_the_package() -> None:
    functions = {name for name in cpembed.__all__ if name[0].islower()}
    assert set(re.findall(r"^\| `cpembed\.(\w+)\(", PAGE.read_text(), re.MULTILINE)) == functions
