"""Each operand's layout before and after every rewrite, as strips of dimensions."""

from __future__ import annotations

import math

from cpembed.driver.result import Explanation
from cpembed.report import words
from cpembed.report.drawing.axes import lane_numbers
from cpembed.report.drawing.canvas import LINE, Canvas, strip, width_of
from cpembed.report.nest import shortened
from cpembed.report.rewrites import step_words
from cpembed.transform.replay import Layout, Step, original_layout

_HIGH = 38.0
_BETWEEN = 22.0
"""Height of what joins two strips."""
_LEFT = 20.0

Segments = dict[str, tuple[float, float]]
"""Dimension -> its left and right end."""


def draw_layouts(explanation: Explanation) -> Canvas:
    """One operand below the other: its original layout, then a strip for each rewrite."""
    canvas = Canvas()
    phrases = [step_words(step) for steps in explanation.steps.values() for step in steps]
    column = _LEFT + max((width_of(phrase) for phrase in phrases), default=0) + 24
    column = max(column, _LEFT + width_of("as stored") + 24)
    y = 0.0
    for role, name in explanation.program.roles.items():
        y = _operand(canvas, explanation, role, name, column, y) + 1.5 * LINE
    return canvas


def _operand(
    canvas: Canvas, explanation: Explanation, role: str, name: str, column: float, y: float
) -> float:
    """Draws from ``y`` down; where it ends."""
    program = explanation.program
    operand, numbers = program.operand(name), lane_numbers(program)
    fate = "used in place" if operand.is_identity else "packed"
    sizes = f"{math.prod(operand.original_shape):,} to {operand.elements:,} elements"
    canvas.text(0, y + 14, f"{role} is {name}", "text bold")
    tile = words.tile(program.instruction.memory[role], program.embedding.extents)
    canvas.text(column, y + 14, f"{operand.dtype}   {tile}   {sizes}   {fate}", "dim")
    y += LINE + 6
    before = original_layout(program, name)
    canvas.text(_LEFT, y + _HIGH / 2 + 4, "as stored", "dim")
    segments = _strip(canvas, before, numbers, column, y)
    for step in explanation.steps[name]:
        below = y + _HIGH + _BETWEEN
        canvas.text(_LEFT, below + _HIGH / 2 + 4, step_words(step))
        after = _strip(canvas, step.after, numbers, column, below)
        _padding(canvas, step, after, below)
        _joints(canvas, segments, after, y + _HIGH, below)
        segments, y = after, below
    y += _HIGH + LINE
    access = ", ".join(str(shortened(index, program.extents)) for index in operand.access)
    canvas.text(
        _LEFT, y, "read at" if name != program.workload.output.name else "written at", "dim"
    )
    canvas.text(column, y, f"[{access}]")
    return y


def _strip(
    canvas: Canvas, layout: Layout, numbers: dict[str, int], left: float, y: float
) -> Segments:
    """A box per dimension, wider for a larger extent, in the colour of the lane that walks it."""
    segments: Segments = {}
    x = left
    for name, extent, lanes in zip(layout.names, layout.shape, layout.lanes, strict=True):
        width = max(width_of(name), width_of(str(extent))) + 14
        width = max(width, 30 + 9 * math.log2(extent))
        style = f"lane lane{numbers[lanes[0]]}" if lanes else "box"
        walked = f", walked by {' and '.join(lanes)}" if lanes else ""
        canvas.box(x, y, width, _HIGH, style, f"{name}: {extent}{walked}")
        canvas.text(x + width / 2, y + 15, name, "text", "middle")
        canvas.text(x + width / 2, y + 32, str(extent), "text bold", "middle")
        segments[name] = x, x + width
        x += width + 5
    return segments


def _padding(canvas: Canvas, step: Step, segments: Segments, y: float) -> None:
    """Hatch what a padding rewrite adds to a dimension."""
    given = step.rewrite.describe()
    if step.rewrite.name != "pad":
        return
    name = str(given["axes"][0])
    left, right = segments[name]
    extent = dict(zip(step.after.names, step.after.shape, strict=True))[name]
    for count, from_left in ((given["before"], True), (given["after"], False)):
        if count:
            width = max(5.0, (right - left) * count / extent)
            hint = f"{count} padded"
            canvas.box(left if from_left else right - width, y, width, _HIGH, "padding", hint)


def _joints(canvas: Canvas, above: Segments, below: Segments, y0: float, y1: float) -> None:
    """Joins between two strips: kept dimensions by name, those that go with those that come."""
    gone = [segment for name, segment in above.items() if name not in below]
    come = [segment for name, segment in below.items() if name not in above]
    pairs = [(above[name], below[name]) for name in above if name in below]
    if len(gone) == 1 or len(come) == 1:
        pairs += [(a, b) for a in gone for b in come]
    for (a, b), (c, d) in pairs:
        canvas.path(strip((a, b, y0 + 1), (c, d, y1 - 1)), "join")
