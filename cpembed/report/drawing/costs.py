"""Overheads as bars: what is needed, and what the candidate takes beyond it."""

from __future__ import annotations

import math

from cpembed import wording
from cpembed.driver.result import Explanation
from cpembed.ir.dtypes import size_bytes
from cpembed.report.drawing.canvas import LINE, Canvas, width_of

_BAR, _HIGH = 320.0, 18.0
_ROW = 30.0


def draw_costs(explanation: Explanation) -> Canvas:
    """MACs, then each operand's elements; hatched is what padding and copies add."""
    canvas = Canvas()
    cost, program = explanation.candidate.overheads, explanation.program
    calls = f"{cost.calls:,} executions, {cost.utilisation:.1%} of their MACs useful"
    rows = [("MACs", cost.macs, cost.executed_macs, calls)]
    for operand in program.operands:
        original = math.prod(operand.original_shape)
        size = wording.data_size(operand.elements * size_bytes(operand.dtype))
        place = "in place" if operand.is_identity else "packed"
        rows.append((operand.name, original, operand.elements, f"{size}, {place}"))
    left = max(width_of(label) for label, *_ in rows) + 14
    for number, (label, needed, taken, note) in enumerate(rows):
        y = number * _ROW
        scale = _BAR / max(needed, taken)
        canvas.text(left - 14, y + 14, label, "text bold", "end")
        canvas.box(left, y, needed * scale, _HIGH, "lane lane0", f"{needed:,} needed")
        if taken > needed:
            hint = f"{taken - needed:,} more"
            canvas.box(left + needed * scale, y, (taken - needed) * scale, _HIGH, "padding", hint)
        what = f"{taken:,} for {needed:,} (x{wording.ratio(taken / needed)}); {note}"
        canvas.text(left + _BAR + 14, y + 14, what)
    y = len(rows) * _ROW + LINE - 4
    moved = wording.data_size(cost.packing_bytes) if cost.packing_bytes else "nothing"
    canvas.text(left, y, f"packing and unpacking move {moved}", "dim")
    return canvas
