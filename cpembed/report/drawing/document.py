"""The picture of a candidate as a file: sections of drawings and text, stacked."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from cpembed.driver.result import Explanation
from cpembed.report import nest
from cpembed.report.drawing.axes import draw_axes
from cpembed.report.drawing.canvas import DEFINITIONS, LINE, STYLE, Canvas, page_colours
from cpembed.report.drawing.costs import draw_costs
from cpembed.report.drawing.layouts import draw_layouts
from cpembed.report.solve import found, problem_rows

_MARGIN = 24.0

_PAGE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.4rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}"
    "figure{margin:0;overflow-x:auto}svg{display:block}svg.defs{position:absolute}"
    "pre,dd{font:13px/1.5 ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;margin:0}"
    "pre{overflow-x:auto}dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}"
    "dl{align-items:baseline}dd{overflow-wrap:anywhere;white-space:pre-wrap}"
)


@dataclass(frozen=True)
class Section:
    """A titled drawing or, in a fixed-width font, lines of text."""

    title: str
    body: Canvas | list[str]


def sections(explanation: Explanation) -> list[Section]:
    """Axes, layouts, loop nest, cost, rank."""
    program = explanation.program
    return [
        Section("Instruction axes and the workload axes that feed them", draw_axes(program)),
        Section("Layouts", draw_layouts(explanation)),
        Section("Loop nest", nest.pseudo_code(program).splitlines()),
        Section("Workload axes", nest.axis_map(program).splitlines()),
        Section("Cost", draw_costs(explanation)),
        Section(f"Why rank {explanation.candidate.rank}", list(explanation.reasons)),
    ]


def svg(explanation: Explanation) -> str:
    """The whole story as one SVG document."""
    sheet = Canvas()
    y = _MARGIN + 15
    sheet.text(_MARGIN, y, _title(explanation), "text title")
    label_width = max(len(label) for label, _ in _header(explanation))
    for label, value in _header(explanation):
        y += LINE
        sheet.text(_MARGIN, y, f"{label:<{label_width}}  {value}")
    for section in sections(explanation):
        y += 2.4 * LINE
        sheet.text(_MARGIN, y, section.title, "text title")
        y += 12
        body = section.body
        if not isinstance(body, Canvas):
            lines, body = body, Canvas()
            body.lines(0, 14, lines)
        sheet.place(body, _MARGIN, y)
        y += body.height
    whole = Canvas()
    whole.box(-1, -1, sheet.width + _MARGIN + 3, sheet.height + _MARGIN + 3, "bg")
    whole.place(sheet, 0, 0)
    head = f"<title>{escape(_title(explanation))}</title><style>{STYLE}</style>{DEFINITIONS}"
    return whole.svg(_title(explanation), head) + "\n"


def html(explanation: Explanation) -> str:
    """The same as a page: text flows, drawings scroll where the window is narrow."""
    title = escape(_title(explanation))
    rows = "".join(
        f"<dt>{escape(label)}</dt><dd>{escape(value)}</dd>" for label, value in _header(explanation)
    )
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{title}</title>\n<style>{_PAGE}{page_colours()}{STYLE}</style>\n</head>\n<body>",
        f'<svg class="defs" width="0" height="0" aria-hidden="true">{DEFINITIONS}</svg>',
        f"<h1>{title}</h1>\n<dl>{rows}</dl>",
    ]
    for section in sections(explanation):
        body = section.body
        if isinstance(body, Canvas):
            inner = f"<figure>{body.svg(section.title)}</figure>"
        else:
            inner = f"<pre>{escape(chr(10).join(body))}</pre>"
        parts.append(f"<section>\n<h2>{escape(section.title)}</h2>\n{inner}\n</section>")
    return "\n".join([*parts, "</body>\n</html>\n"])


def _title(explanation: Explanation) -> str:
    solved = explanation.solved
    return f"{solved.target.name} in {solved.workload.name}, rank {explanation.candidate.rank}"


def _header(explanation: Explanation) -> list[tuple[str, str]]:
    solved = explanation.solved
    return [
        *problem_rows(solved),
        ("found", found(solved)),
        ("embedding", f"{explanation.candidate.identifier}, program proven"),
    ]
