"""References in docstrings: what each one becomes on the site, and which name nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.site.hooks import hook

griffe = pytest.importorskip("griffe", reason="the extra `docs` is not installed")
references = hook("references")

MODULES = {
    "__init__.py": '"""Has :mod:`cpembed.parts`, of which :func:`~cpembed.parts.make` is one."""',
    "errors.py": 'class Wrong(Exception):\n    """Wrong."""\n',
    "parts.py": '''
"""Parts."""

import pathlib
from cpembed.errors import Wrong as Renamed
from elsewhere import thing

LIMIT = 3


class Base:
    size: int

    def grow(self): ...


class Part(Base):
    """A part: :attr:`size`, :meth:`grow`, :meth:`Base.grow`, :meth:`shrink`."""

    def __call__(self):
        """See :func:`make`, :data:`LIMIT`, :class:`Renamed` and :class:`Wrong`."""


def make():
    """Raise :class:`KeyError` or :class:`pathlib.Path`, use :data:`thing` and :func:`_hidden`.

    See ``docs/vta.md``, docs/cuda.md, "On a
    GPU" and docs/no-page.md. A title: :class:`the part <Part>`; :meth:`Part.__call__`, over
    :func:`~cpembed.
    parts.make`.

    >>> make()[0]
    1
    """


def _hidden(): ...
''',
}


@pytest.fixture
def package(tmp_path: Path) -> Any:
    (tmp_path / "cpembed").mkdir()
    for name, text in MODULES.items():
        (tmp_path / "cpembed" / name).write_text(text)
    loader = griffe.GriffeLoader(search_paths=[tmp_path], allow_inspection=False)
    return loader.load("cpembed", try_relative_path=False)


def test_references_become_links(package: Any) -> None:
    dangling = references.link_references(package)
    assert package.docstring.value == (
        "Has [`cpembed.parts`][cpembed.parts], of which [`make`][cpembed.parts.make] is one."
    )
    assert package["parts.Part"].docstring.value == (
        "A part: [`size`][cpembed.parts.Base.size], [`grow`][cpembed.parts.Base.grow], "
        "[`Base.grow`][cpembed.parts.Base.grow], `shrink`."
    )
    assert package["parts.Part.__call__"].docstring.value == (
        "See [`make`][cpembed.parts.make], [`LIMIT`][cpembed.parts.LIMIT], "
        "[`Renamed`][cpembed.errors.Wrong] and [`Wrong`][cpembed.errors.Wrong]."
    )
    assert package["parts.make"].docstring.value == (
        "Raise `KeyError` or `pathlib.Path`, use `thing` and `_hidden`.\n\n"
        'See [docs/vta.md](../../vta.md), [docs/cuda.md, "On a GPU"]'
        "(../../cuda.md#on-a-gpu) and `docs/no-page.md`. "
        "A title: [`the part`][cpembed.parts.Part]; `Part.__call__`, over\n"
        "[`make`][cpembed.parts.make].\n\n"
        "```pycon\n>>> make()[0]\n1\n```\n"
    )
    assert [(item.owner, item.reference) for item in dangling] == [
        ("cpembed.parts.Part", ":meth:`shrink`"),
        ("cpembed.parts.make", "docs/no-page.md"),
    ]
    end = "parts.py:18: cpembed.parts.Part: :meth:`shrink` names nothing"
    assert str(dangling[0]).endswith(end)


def test_doctests_after_a_section_are_a_section_of_examples() -> None:
    text = "Twice.\n\n>>> twice(1)\n2\n\nReturns\n-------\nint\n    It.\n\n>>> twice(2)\n4"
    assert references.fenced(text) == (
        "Twice.\n\n```pycon\n>>> twice(1)\n2\n```\n\nReturns\n-------\nint\n    It.\n\n"
        "Examples\n--------\n>>> twice(2)\n4"
    )


@pytest.mark.parametrize("strict", [True, False])
def test_only_a_strict_build_warns(
    package: Any, strict: bool, caplog: pytest.LogCaptureFixture
) -> None:
    references.SphinxRoles(strict=strict).on_package(pkg=package)
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == (2 if strict else 0)
