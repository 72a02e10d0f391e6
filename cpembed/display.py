"""Results that show themselves: text where they are printed, tables and pictures in a notebook."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_REPORTS = "cpembed.report.display"
"""Module that renders results. It is named, and imported when a result is shown: how results look
is known a floor above them, and loading it takes longer than most searches."""


class Displayed:
    """Base of results that a person looks at.

    Their text is what the command of the same name prints.
    """

    def __repr__(self) -> str:
        return import_module(_REPORTS).text(self)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """Return the text's tables as HTML, and a picture if there is one: Jupyter's protocol."""
        return import_module(_REPORTS).html(self)

    def __rich_console__(self, console: Any, options: Any) -> Any:
        """Yield the parts of the report: Rich's protocol."""
        yield from import_module(_REPORTS).parts(self)
