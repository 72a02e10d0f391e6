"""``docs/tvm.md``: every example gives what the page shows."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[4] / "docs" / "tvm.md"


def test_every_example_of_the_page_gives_what_it_shows():
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted > 10
    assert found.failed == 0
