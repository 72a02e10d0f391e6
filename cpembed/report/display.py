"""Reports of results for whoever prints one, or sees it in a notebook."""

from __future__ import annotations

import io
import shutil
from base64 import b64encode
from collections.abc import Iterator
from html import escape
from importlib import import_module
from typing import Any

from rich.console import Console, RenderableType

from cpembed.driver.result import Explanation, SolveResult

# Function that reports a result of each class. By name, as some of these load a compiler.
_REPORTS = {
    "Bench": "cpembed.report.bench:report",
    "BuildResult": "cpembed.report.run:build_report",
    "CompileSummary": "cpembed.report.torch_compile:report",
    "EstimateResult": "cpembed.report.solve:estimate_report",
    "Explanation": "cpembed.report.explain:report",
    "ExploreResult": "cpembed.report.exploration:explore_report",
    "LayoutsResult": "cpembed.report.run:layouts_report",
    "MatchResult": "cpembed.report.network:match_report",
    "ParetoResult": "cpembed.report.solve:pareto_report",
    "RunResult": "cpembed.report.run:report",
    "ShapeResult": "cpembed.report.exploration:shape_report",
    "SolveResult": "cpembed.report.solve:report",
    "TuneResult": "cpembed.report.tune:report",
}

# Width of a report in a notebook, and of text where there is no terminal.
_COLUMNS = 100

_PRE = (
    '<pre style="white-space:pre;overflow-x:auto;line-height:1.35;'
    "font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace\">{code}</pre>"
)


def parts(result: object) -> Iterator[RenderableType]:
    """Yield the parts of a result's report, those that its command prints.

    Parameters
    ----------
    result : Displayed
        Result of a class in this module's table, or derived from one.

    Raises
    ------
    KeyError
        If no report belongs to the class.
    """
    # A class derived from one in the table has the same report.
    name = next(base.__name__ for base in type(result).__mro__ if base.__name__ in _REPORTS)
    module, _, function = _REPORTS[name].partition(":")
    yield from getattr(import_module(module), function)(result)


def _console(**options: Any) -> Console:
    # In a notebook, a console of Rich would also show in the cell whatever is printed on it.
    return Console(highlight=False, force_jupyter=False, **options)


def text(result: object) -> str:
    """Return a result's report as lines of text, as wide as the terminal."""
    page = io.StringIO()
    columns = shutil.get_terminal_size((_COLUMNS, 24)).columns
    console = _console(file=page, width=columns, color_system=None)
    for part in parts(result):
        console.print(part)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


def html(result: object) -> str:
    """Return a result's report as HTML, followed by a picture of its candidate if it has one."""
    console = _console(file=io.StringIO(), width=_COLUMNS, record=True)
    for part in parts(result):
        console.print(part)
    report = console.export_html(inline_styles=True, code_format=_PRE)
    return f"<div>{report}{_picture(result)}</div>"


def _picture(result: Any) -> str:
    """Return the picture as an image: its style sheet must not reach the page around it."""
    if isinstance(result, SolveResult):
        if result.best is None:
            return ""
        result = result.explain()
    if not isinstance(result, Explanation):
        return ""
    from cpembed.report.drawing import svg

    data = b64encode(svg(result).encode()).decode()
    title = escape(f"{result.solved.target.name} in {result.solved.workload.name}")
    return f'<img alt="{title}" style="max-width:100%" src="data:image/svg+xml;base64,{data}"/>'
