"""A growing sheet of SVG elements, whose looks are classes of one style sheet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

CHARACTER = 7.9
"""Width of a character in pixels, slightly more than monospaced fonts of this size need."""
LINE = 19
"""Distance between two lines of text in pixels."""
LANES = 6
"""Number of colours for instruction axes; a seventh axis gets the first colour again."""

_LIGHT: Mapping[str, str] = {
    "bg": "#ffffff",
    "text": "#1f2328",
    "dim": "#59636e",
    "box": "#f3f5f7",
    "line": "#9aa4ae",
    "hatch": "#8a5a00",
    "lanes": "#1f6feb #c4570c #1a7f4b #8250df #bf3989 #0a7b83",
}
_DARK: Mapping[str, str] = {
    "bg": "#0f141a",
    "text": "#e6edf3",
    "dim": "#9aa7b4",
    "box": "#1c242d",
    "line": "#5c6873",
    "hatch": "#e3b341",
    "lanes": "#58a6ff #f0883e #3fb950 #bc8cff #f778ba #39c5cf",
}

DEFINITIONS = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><line class="hatching" x1="0" y1="0" x2="0" y2="6"/>'
    "</pattern></defs>"
)
"""Definitions that the classes refer to, needed once in a document."""


def _colours(theme: Mapping[str, str]) -> str:
    # Plain colours instead of variables, which viewers other than browsers do not read.
    rules = [
        f".bg{{fill:{theme['bg']}}}",
        f".text{{fill:{theme['text']}}}",
        f".dim{{fill:{theme['dim']}}}",
        f".box{{fill:{theme['box']};stroke:{theme['line']}}}",
        f".edge{{stroke:{theme['line']}}}",
        f".join{{fill:{theme['line']}}}",
        f".hatching{{stroke:{theme['hatch']}}}",
        f".padding{{stroke:{theme['hatch']}}}",
    ]
    for number, colour in enumerate(theme["lanes"].split()):
        rules += [
            f".lane{number}{{fill:{colour};stroke:{colour}}}",
            f".feed{number}{{stroke:{colour}}}",
            f".name{number}{{fill:{colour}}}",
        ]
    return "".join(rules)


STYLE = (
    "text{font:13px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre}"
    ".title{font-weight:bold;font-size:15px}.bold{font-weight:bold}"
    ".lane{fill-opacity:.3}.whole{fill-opacity:.75}.edge,.feed{fill:none}.feed{stroke-width:2}"
    ".join{fill-opacity:.22}.padding{fill:url(#hatch)}.hatching{stroke-width:2}"
    f"{_colours(_LIGHT)}@media (prefers-color-scheme:dark){{{_colours(_DARK)}}}"
)
"""Style sheet of a drawing, with a light and a dark theme."""


def page_colours() -> str:
    """Return the style sheet of the HTML around drawings, in the same colours."""
    sheets = [
        f":root{{color-scheme:light dark}}body{{background:{t['bg']};color:{t['text']}}}"
        f"dt,figcaption{{color:{t['dim']}}}"
        for t in (_LIGHT, _DARK)
    ]
    return f"{sheets[0]}@media (prefers-color-scheme:dark){{{sheets[1]}}}"


def width_of(text: str) -> float:
    """Return the width of a line of text in pixels."""
    return len(text) * CHARACTER


class Canvas:
    """SVG elements, and the size of the area that they cover in pixels."""

    def __init__(self) -> None:
        self.elements: list[str] = []
        self.width = 0.0
        self.height = 0.0

    def _reach(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def box(
        self, x: float, y: float, width: float, height: float, style: str, title: str = ""
    ) -> None:
        """Add a rectangle; its title is shown while the pointer rests on it."""
        self._reach(x + width, y + height)
        place = f'x="{_px(x)}" y="{_px(y)}" width="{_px(width)}" height="{_px(height)}"'
        # SVG viewers show a title while the pointer rests on its element.
        inner = f"<title>{escape(title)}</title>" if title else ""
        self.elements.append(f'<rect class="{style}" {place}>{inner}</rect>')

    def text(self, x: float, y: float, text: str, style: str = "text", anchor: str = "") -> None:
        """Add a line of text.

        Parameters
        ----------
        x, y
            Position of the anchor on the baseline, in pixels.
        text
            Text, not escaped yet.
        style
            Classes of the style sheet.
        anchor
            Point of the text that is at ``x``: its start by default, ``middle`` or ``end``.
        """
        # Part of the text that is to the right of its anchor.
        share = {"": 1.0, "middle": 0.5, "end": 0.0}[anchor]
        # Letters such as g reach 5 pixels below the baseline.
        self._reach(x + share * width_of(text), y + 5)
        anchored = f' text-anchor="{anchor}"' if anchor else ""
        place = f'x="{_px(x)}" y="{_px(y)}"'
        self.elements.append(f'<text class="{style}" {place}{anchored}>{escape(text)}</text>')

    def lines(self, x: float, y: float, lines: list[str]) -> None:
        for number, line in enumerate(lines):
            self.text(x, y + number * LINE, line)

    def path(self, data: str, style: str) -> None:
        self.elements.append(f'<path class="{style}" d="{data}"/>')

    def place(self, sheet: Canvas, x: float, y: float) -> None:
        """Place another sheet on this one, its corner at a position."""
        self._reach(x + sheet.width, y + sheet.height)
        inner = "".join(sheet.elements)
        self.elements.append(f'<g transform="translate({_px(x)} {_px(y)})">{inner}</g>')

    def svg(self, label: str, before: str = "") -> str:
        """Return the sheet as an ``svg`` element with a margin, described by a label."""
        # A margin of one pixel: half of a line at the border lies outside of its shape.
        width, height = _px(self.width + 2), _px(self.height + 2)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(label)}" '
            f'width="{width}" height="{height}" viewBox="-1 -1 {width} {height}">'
            f"{before}{''.join(self.elements)}</svg>"
        )


def curve(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Return a path from left to right, between points in pixels, with horizontal ends."""
    (x0, y0), (x1, y1) = start, end
    middle = (x0 + x1) / 2
    return _rounded(f"M{x0} {y0} C{middle} {y0} {middle} {y1} {x1} {y1}")


def strip(top: tuple[float, float, float], bottom: tuple[float, float, float]) -> str:
    """Return the area between two horizontal segments, each (left, right, y)."""
    (a, b, y0), (c, d, y1) = top, bottom
    return _rounded(f"M{a} {y0} L{b} {y0} L{d} {y1} L{c} {y1} Z")


def _rounded(data: str) -> str:
    # One decimal: files stay small, and equal on every machine.
    return re.sub(r"-?\d+\.\d+", lambda number: _px(float(number[0])), data)


def _px(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
