"""The check of names and docstrings that ``make lint`` runs finds each kind of offence."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "readability.py"


@pytest.fixture(scope="module")
def tool() -> Any:
    if not TOOL.exists():
        pytest.skip("no checkout")
    spec = importlib.util.spec_from_file_location("readability", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "line, is_offence",
    [
        ("found = 1", True),
        ("found_embeddings = 1", False),
        ("def f(kept): pass", True),
        ("class Others: pass", True),
        ("import numpy as whole", True),
        ("for one_of in range(3): pass", True),
        ("[its for its in range(3)]", False),
        ("result = found", False),
        ("found = 1  # readability: ignore", False),
    ],
)
def test_names(tool: Any, line: str, *, is_offence: bool) -> None:
    assert bool(list(tool.offences(line, sections=False))) is is_offence


@pytest.mark.parametrize(
    "text, is_offence",
    [
        ("Return the sum.", False),
        ("Where the sum is stored.", True),
        ("Whether it is stored.", True),
        ("Number of sums.", False),
    ],
)
@pytest.mark.parametrize("form", ['"""{}"""', 'def f():\n    """{}"""', 'LIMIT = 3\n"""{}"""'])
def test_docstrings(tool: Any, text: str, form: str, *, is_offence: bool) -> None:
    assert bool(list(tool.offences(form.format(text), sections=False))) is is_offence


def test_sections(tool: Any) -> None:
    function = 'def f(a, b, c):\n    """Return the sum."""'
    assert [line for line, _ in tool.offences(function, sections=True)] == [1]
    assert not list(tool.offences(f"@command\n{function}", sections=True))
    assert not list(tool.offences(function.replace("f(", "_f("), sections=True))
    assert not list(tool.offences(function.replace(", c", ""), sections=True))
