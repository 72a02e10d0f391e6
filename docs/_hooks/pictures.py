"""Pictures of the site, drawn by the package itself.

As a script the file rewrites those that are committed because the README shows them::

    python docs/_hooks/pictures.py
"""

from __future__ import annotations

from functools import cache
from html import escape
from pathlib import Path

from cpembed import explain, workload
from cpembed.driver.result import Explanation
from cpembed.report.canvas import DEFINITIONS, LINE, STYLE, Canvas
from cpembed.report.drawing import draw_axes, draw_layouts

DOCS = Path(__file__).parents[1]

TARGET = "vta_1x16x16"
CONVOLUTION = "conv2d n=1 c=64 h=14 w=14 k=64 r=3 s=3 pad=1"
PRODUCT = "gemm m=5 n=32 k=40"
MARGIN = 16.0

COMMITTED = ("pictures/embedding.svg", "pictures/pipeline.svg")
"""Pictures that the README shows, and that are therefore files of the repository too."""


@cache
def drawings() -> dict[str, str]:
    """All pictures: path within ``docs/`` and SVG text."""
    return {
        "pictures/embedding.svg": framed(
            draw_axes(explained(CONVOLUTION).program), "An embedding of VTA's matrix product"
        ),
        "pictures/layouts.svg": framed(
            draw_layouts(explained(PRODUCT)), "The layouts that an embedding needs"
        ),
        "pictures/pipeline.svg": framed(
            pipeline(), "From an operator and an instruction to a kernel"
        ),
    }


@cache
def explained(text: str) -> Explanation:
    """The best embedding of :data:`TARGET`'s instruction in a workload."""
    explanation = explain(workload(text, TARGET), TARGET)
    assert isinstance(explanation, Explanation)
    return explanation


def framed(drawing: Canvas, title: str) -> str:
    """Return a drawing as a file of its own, with a background and a margin."""
    sheet = Canvas()
    width, height = drawing.width + 2 * MARGIN, drawing.height + 2 * MARGIN
    sheet.box(-1, -1, width + 2, height + 2, "bg")
    sheet.place(drawing, MARGIN, MARGIN)
    head = f"<title>{escape(title)}</title><style>{STYLE}</style>{DEFINITIONS}"
    return sheet.svg(title, head) + "\n"


STAGES = (
    ("search", "CP-SAT finds every embedding that the constraints admit", "embeddings"),
    ("derive", "loops and data layouts follow from each", "programs"),
    ("prove", "isl shows that a program computes the operator", "proven programs"),
    ("choose", "by overheads, estimates or measurements", "program and schedule"),
    ("generate", "TVM, C, CUDA or instructions of VTA", "kernel"),
    ("verify and time", "the numbers first, then the clock", "result"),
)
"""Stages of the pipeline: name, what it does, and what it hands on."""

BOX_WIDTH, BOX_HEIGHT = 216.0, 104.0
BOX_GAP, ROW_GAP = 44.0, 40.0


def pipeline() -> Canvas:
    """The stages from a workload and an instruction to a verified kernel, in two rows."""
    sheet = Canvas()
    left = 178.0
    for line, (text, style) in enumerate(
        [
            ("workload", "text bold"),
            ("operator and sizes", "dim"),
            ("", "dim"),
            ("instruction", "text bold"),
            ("described in TOML", "dim"),
        ]
    ):
        sheet.text(0, 22 + LINE * line, text, style)
    _arrow(sheet, left - BOX_GAP + 12, BOX_HEIGHT / 2)
    for number, stage in enumerate(STAGES):
        row, column = divmod(number, 3)
        x = left + column * (BOX_WIDTH + BOX_GAP)
        y = row * (BOX_HEIGHT + ROW_GAP)
        _stage(sheet, x, y, number + 1, stage)
        if column < 2:
            _arrow(sheet, x + BOX_WIDTH + 8, y + BOX_HEIGHT / 2)
    right = left + 2 * (BOX_WIDTH + BOX_GAP) + BOX_WIDTH / 2
    middle = BOX_HEIGHT + ROW_GAP / 2
    start = left + BOX_WIDTH / 2
    sheet.path(
        f"M{right} {BOX_HEIGHT} L{right} {middle} L{start} {middle} L{start} {middle + 18} "
        f"m-5 -7 l5 7 l5 -7",
        "edge",
    )
    return sheet


def _stage(sheet: Canvas, x: float, y: float, number: int, stage: tuple[str, str, str]) -> None:
    name, purpose, result = stage
    sheet.box(x, y, BOX_WIDTH, BOX_HEIGHT, "box")
    sheet.text(x + 10, y + 22, f"{number}  {name}", "text bold")
    for line, words in enumerate(_lines(purpose)):
        sheet.text(x + 10, y + 44 + 17 * line, words, "dim")
    sheet.text(x + 10, y + BOX_HEIGHT - 9, f"→ {result}", "text")


def _arrow(sheet: Canvas, x: float, y: float) -> None:
    """An arrow to the right that fills the gap between two boxes."""
    sheet.path(f"M{x} {y} l28 0 m-7 -5 l7 5 l-7 5", "edge")


def _lines(text: str, width: int = 25) -> list[str]:
    """A text in lines that fit into a box."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def main() -> None:
    """Rewrite the pictures that are committed."""
    for path in COMMITTED:
        (DOCS / path).parent.mkdir(exist_ok=True)
        (DOCS / path).write_text(drawings()[path], encoding="utf-8")


if __name__ == "__main__":
    main()
