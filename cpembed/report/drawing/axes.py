"""Which workload axes feed which instruction axes: bars, digits and the curves between them."""

from __future__ import annotations

from cpembed.embedding.embedding import Digit
from cpembed.report import words
from cpembed.report.drawing.canvas import LANES, LINE, Canvas, curve, width_of
from cpembed.transform.program import DerivedProgram

_BAR, _HIGH = 300.0, 22.0
"""Size of a workload axis's bar."""
_ROW = 36.0
_GAP = 150.0
"""Room for the curves."""
_DIGIT = 230.0
_MOST_TICKS, _MOST_RUNS = 64, 128
"""Beyond these a bar would only be grey: ticks are left out, runs become one."""


def lane_numbers(program: DerivedProgram) -> dict[str, int]:
    """The colour of each instruction axis."""
    return {axis.name: n % LANES for n, axis in enumerate(program.instruction.axes)}


def draw_axes(program: DerivedProgram) -> Canvas:
    """Workload axes on the left, the digits of the instruction axes on the right."""
    canvas = Canvas()
    extents = program.workload.extents
    labels = {axis: _label(program, axis) for axis in extents}
    left = max(width_of(label) for label in labels.values()) + 12
    top = 2 * LINE
    canvas.text(left, LINE - 4, f"workload {program.workload.name}", "dim")
    right = left + _BAR + _GAP
    several = any(len(digits) > 1 for digits in program.embedding.digits.values())
    order = ", innermost digit first" if several else ""
    canvas.text(right, LINE - 4, f"instruction {program.instruction.name}{order}", "dim")
    feet = {axis: top + n * _ROW + _HIGH / 2 for n, axis in enumerate(extents)}
    for axis in extents:
        y = feet[axis] - _HIGH / 2
        canvas.text(left - 12, y + 16, labels[axis], "text bold", "end")
        _workload_bar(canvas, program, axis, left, y)
    fed = _instruction_axes(canvas, program, right, top)
    numbers = lane_numbers(program)
    for (lane, digit), y in fed.items():
        ends = (left + _BAR, feet[digit.axis], right, y)
        canvas.path(curve(*ends), f"feed feed{numbers[lane]}")
    for axis in extents.keys() - {digit.axis for _, digit in fed}:
        canvas.text(left + 8, feet[axis] + 5, "outer loop", "dim")
    foot = canvas.height + LINE
    canvas.box(left, foot - 11, 14, 12, f"lane whole lane{next(iter(numbers.values()))}")
    canvas.text(left + 20, foot, "one execution; ticks: the next ones", "dim")
    canvas.box(right, foot - 11, 14, 12, "padding")
    canvas.text(right + 20, foot, "padding, or not used", "dim")
    return canvas


def _label(program: DerivedProgram, axis: str) -> str:
    """``p 54 +2``: the extent and its padding."""
    extent = program.workload.extents[axis]
    padding = program.padded_extents[axis] - extent
    return f"{axis} {extent}" + (f" +{padding}" if padding > 0 else "")


def covered(program: DerivedProgram, axis: str) -> list[tuple[int, int]]:
    """Coordinates of a workload axis in one execution, as runs (first, beyond the last).

    An axis that no digit walks has the one coordinate of the outer loop.
    """
    coordinates = [0]
    for digits in program.embedding.digits.values():
        for digit in digits:
            if digit.axis == axis:
                steps = [step * digit.stride for step in range(digit.count)]
                coordinates = [at + step for at in coordinates for step in steps]
    runs: list[tuple[int, int]] = []
    for at in sorted(coordinates):
        if runs and runs[-1][1] == at:
            runs[-1] = runs[-1][0], at + 1
        else:
            runs.append((at, at + 1))
    return runs


def _workload_bar(
    canvas: Canvas, program: DerivedProgram, axis: str, left: float, y: float
) -> None:
    extent, padded = program.workload.extents[axis], program.padded_extents[axis]
    scale = _BAR / padded
    canvas.box(left, y, _BAR, _HIGH, "box")
    lane, block = None, 1
    for name, digits in program.embedding.digits.items():
        for digit in digits:
            if digit.axis == axis:
                lane, block = name, block * digit.count * digit.stride
    if lane is not None:
        runs = covered(program, axis)
        if len(runs) > _MOST_RUNS:
            runs = [(0, runs[-1][1])]
        style = f"lane whole lane{lane_numbers(program)[lane]}"
        for first, last in runs:
            canvas.box(left + first * scale, y, (last - first) * scale, _HIGH, style)
    if padded > extent:
        hint = f"{axis} is padded from {extent} to {padded}"
        canvas.box(left + extent * scale, y, (padded - extent) * scale, _HIGH, "padding", hint)
    if lane is not None and padded // block <= _MOST_TICKS:
        for tick in range(block, padded, block):
            x = left + tick * scale
            canvas.path(f"M{x:.1f} {y} L{x:.1f} {y + _HIGH}", "edge")


def _instruction_axes(
    canvas: Canvas, program: DerivedProgram, left: float, top: float
) -> dict[tuple[str, Digit], float]:
    """A box per digit, innermost first; where the curve to each arrives."""
    arrivals: dict[tuple[str, Digit], float] = {}
    numbers = lane_numbers(program)
    y = top
    for axis in program.instruction.axes:
        digits = program.embedding.digits[axis.name]
        used = program.embedding.extents[axis.name]
        start, width = y, _DIGIT * used / axis.maximum
        for digit in digits:
            style = f"lane lane{numbers[axis.name]}"
            canvas.box(left, y, width, _HIGH, style, _sentence(program, axis.name, digit))
            canvas.text(left + 8, y + 16, words.digit(digit))
            arrivals[axis.name, digit] = y + _HIGH / 2
            y += _ROW - 6
        if not digits:
            canvas.box(left, y, width, _HIGH, "box", f"no axis feeds {axis.name}")
            canvas.text(left + 8, y + 16, words.NOTHING, "dim")
            y += _ROW - 6
        foot = y - (_ROW - 6) + _HIGH
        if used < axis.maximum:
            hint = f"{used} of {axis.maximum} steps of {axis.name} are used"
            canvas.box(left + width, start, _DIGIT - width, foot - start, "padding", hint)
        bracket = left + _DIGIT + 8
        canvas.path(f"M{bracket} {start} h6 V{foot} h-6", "edge")
        whole = f"{axis.name} {used}" + ("" if used == axis.maximum else f" of {axis.maximum}")
        style = f"bold name{numbers[axis.name]}" if digits else "dim"
        canvas.text(bracket + 14, (start + foot) / 2 + 5, whole, style)
        y += 8
    return arrivals


def _sentence(program: DerivedProgram, lane: str, digit: Digit) -> str:
    extent = program.workload.extents[digit.axis]
    step = f" in steps of {digit.stride}" if digit.stride > 1 else ""
    return f"{lane} walks {digit.count} of {extent} coordinates of {digit.axis}{step}"
