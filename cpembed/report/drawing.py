"""A candidate as a picture: an SVG file, or an HTML page that loads nothing from elsewhere.

The picture stacks sections: curves from workload axes to instruction axes, the layouts of each
operand as strips before and after every rewrite, the loop nest, and the overheads as bars.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

from cpembed import wording
from cpembed.driver.result import Explanation
from cpembed.embedding.embedding import Digit
from cpembed.ir.dtypes import size_bytes
from cpembed.report import explain, messages
from cpembed.report.canvas import (
    DEFINITIONS,
    LANES,
    LINE,
    STYLE,
    Canvas,
    curve,
    page_colours,
    strip,
    width_of,
)
from cpembed.report.solve import problem_rows, search_text
from cpembed.transform.layout import Layout, Step, original_layout
from cpembed.transform.program import DerivedProgram

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
    """A titled drawing, or lines of text in a fixed-width font."""

    title: str
    body: Canvas | list[str]


def sections(explanation: Explanation) -> list[Section]:
    """Return the sections on axes, layouts, loop nest, cost and rank."""
    program = explanation.program
    return [
        Section("Instruction axes and the workload axes that feed them", draw_axes(program)),
        Section("Layouts", draw_layouts(explanation)),
        Section("Loop nest", explain.pseudo_code(program).splitlines()),
        Section("Workload axes", explain.axis_map_text(program).splitlines()),
        Section("Cost", draw_costs(explanation)),
        Section(f"Why rank {explanation.candidate.rank}", list(explanation.reasons)),
    ]


def svg(explanation: Explanation) -> str:
    """Return the picture as an SVG document."""
    sheet = Canvas()
    y = _MARGIN + 15
    sheet.text(_MARGIN, y, _title(explanation), "text title")
    # Labels are padded with spaces: the font is monospaced.
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
    page = Canvas()
    page.box(-1, -1, sheet.width + _MARGIN + 3, sheet.height + _MARGIN + 3, "bg")
    page.place(sheet, 0, 0)
    head = f"<title>{escape(_title(explanation))}</title><style>{STYLE}</style>{DEFINITIONS}"
    return page.svg(_title(explanation), head) + "\n"


def html(explanation: Explanation) -> str:
    """Return the picture as an HTML page: text flows, drawings scroll in a narrow window."""
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
        ("found", search_text(solved)),
        ("embedding", f"{explanation.candidate.identifier}, program proven"),
    ]


# -- axes -----------------------------------------------------------------------------------------

# Size of a workload axis's bar, and the distance from one to the next, in pixels.
_AXIS_WIDTH, _AXIS_HEIGHT, _AXIS_DISTANCE = 300.0, 22.0, 36.0

# Width of the curves between workload axes and digits, in pixels.
_CURVE_WIDTH = 150.0

_DIGIT_WIDTH = 230.0

# Maximum numbers of ticks and of runs on a bar: more would make it grey.
_MAX_TICKS, _MAX_RUNS = 64, 128


def lane_numbers(program: DerivedProgram) -> dict[str, int]:
    """Return the number of each instruction axis's colour."""
    return {axis.name: n % LANES for n, axis in enumerate(program.instruction.axes)}


def draw_axes(program: DerivedProgram) -> Canvas:
    """Draw the workload axes on the left, and the digits of the instruction axes on the right."""
    canvas = Canvas()
    extents = program.workload.extents
    labels = {axis: _axis_label(program, axis) for axis in extents}
    left = max(width_of(label) for label in labels.values()) + 12
    top = 2 * LINE
    canvas.text(left, LINE - 4, f"workload {program.workload.name}", "dim")
    right = left + _AXIS_WIDTH + _CURVE_WIDTH
    several = any(len(digits) > 1 for digits in program.embedding.digits.values())
    order = ", innermost digit first" if several else ""
    canvas.text(right, LINE - 4, f"instruction {program.instruction.name}{order}", "dim")
    feet = {axis: top + n * _AXIS_DISTANCE + _AXIS_HEIGHT / 2 for n, axis in enumerate(extents)}
    for axis in extents:
        y = feet[axis] - _AXIS_HEIGHT / 2
        canvas.text(left - 12, y + 16, labels[axis], "text bold", "end")
        _workload_bar(canvas, program, axis, left, y)
    fed = _instruction_axes(canvas, program, right, top)
    numbers = lane_numbers(program)
    for (lane, digit), y in fed.items():
        path = curve((left + _AXIS_WIDTH, feet[digit.axis]), (right, y))
        canvas.path(path, f"feed feed{numbers[lane]}")
    for axis in extents.keys() - {digit.axis for _, digit in fed}:
        canvas.text(left + 8, feet[axis] + 5, "outer loop", "dim")
    foot = canvas.height + LINE
    canvas.box(left, foot - 11, 14, 12, f"lane whole lane{next(iter(numbers.values()))}")
    canvas.text(left + 20, foot, "one execution; ticks: the next ones", "dim")
    canvas.box(right, foot - 11, 14, 12, "padding")
    canvas.text(right + 20, foot, "padding, or not used", "dim")
    return canvas


def _axis_label(program: DerivedProgram, axis: str) -> str:
    """Return ``p 54 +2``: the extent and its padding."""
    extent = program.workload.extents[axis]
    padding = program.padded_extents[axis] - extent
    return f"{axis} {extent}" + (f" +{padding}" if padding > 0 else "")


def covered(program: DerivedProgram, axis: str) -> list[tuple[int, int]]:
    """Return the coordinates of a workload axis in one execution, as runs (first, end).

    An axis that no digit walks has the single coordinate of the outer loop.
    """
    # Each digit multiplies the coordinates: all sums of a step of each.
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
    scale = _AXIS_WIDTH / padded
    canvas.box(left, y, _AXIS_WIDTH, _AXIS_HEIGHT, "box")
    # `block` is the number of coordinates from one execution to the next.
    lane, block = None, 1
    for name, digits in program.embedding.digits.items():
        for digit in digits:
            if digit.axis == axis:
                lane, block = name, block * digit.count * digit.stride
    if lane is not None:
        runs = covered(program, axis)
        # Too fine to be seen: the whole range is filled.
        if len(runs) > _MAX_RUNS:
            runs = [(0, runs[-1][1])]
        style = f"lane whole lane{lane_numbers(program)[lane]}"
        for first, last in runs:
            canvas.box(left + first * scale, y, (last - first) * scale, _AXIS_HEIGHT, style)
    if padded > extent:
        hint = f"{axis} is padded from {extent} to {padded}"
        canvas.box(
            left + extent * scale, y, (padded - extent) * scale, _AXIS_HEIGHT, "padding", hint
        )
    if lane is not None and padded // block <= _MAX_TICKS:
        for tick in range(block, padded, block):
            x = left + tick * scale
            canvas.path(f"M{x:.1f} {y} L{x:.1f} {y + _AXIS_HEIGHT}", "edge")


def _instruction_axes(
    canvas: Canvas, program: DerivedProgram, left: float, top: float
) -> dict[tuple[str, Digit], float]:
    """Draw a box for each digit, innermost first; return the height at which its curve arrives."""
    arrivals: dict[tuple[str, Digit], float] = {}
    numbers = lane_numbers(program)
    y = top
    for axis in program.instruction.axes:
        digits = program.embedding.digits[axis.name]
        used = program.embedding.extents[axis.name]
        start, width = y, _DIGIT_WIDTH * used / axis.maximum
        for digit in digits:
            style = f"lane lane{numbers[axis.name]}"
            canvas.box(left, y, width, _AXIS_HEIGHT, style, _digit_title(program, axis.name, digit))
            canvas.text(left + 8, y + 16, str(digit))
            arrivals[axis.name, digit] = y + _AXIS_HEIGHT / 2
            y += _AXIS_DISTANCE - 6
        if not digits:
            canvas.box(left, y, width, _AXIS_HEIGHT, "box", f"no axis feeds {axis.name}")
            canvas.text(left + 8, y + 16, messages.EMPTY, "dim")
            y += _AXIS_DISTANCE - 6
        foot = y - (_AXIS_DISTANCE - 6) + _AXIS_HEIGHT
        if used < axis.maximum:
            hint = f"{used} of {axis.maximum} steps of {axis.name} are used"
            canvas.box(left + width, start, _DIGIT_WIDTH - width, foot - start, "padding", hint)
        bracket = left + _DIGIT_WIDTH + 8
        canvas.path(f"M{bracket} {start} h6 V{foot} h-6", "edge")
        extent = f"{axis.name} {used}" + ("" if used == axis.maximum else f" of {axis.maximum}")
        style = f"bold name{numbers[axis.name]}" if digits else "dim"
        canvas.text(bracket + 14, (start + foot) / 2 + 5, extent, style)
        y += 8
    return arrivals


def _digit_title(program: DerivedProgram, lane: str, digit: Digit) -> str:
    extent = program.workload.extents[digit.axis]
    step = f" in steps of {digit.stride}" if digit.stride > 1 else ""
    return f"{lane} walks {digit.count} of {extent} coordinates of {digit.axis}{step}"


# -- layouts --------------------------------------------------------------------------------------

# Heights of a strip, and of the area that joins it to the next, in pixels.
_STRIP_HEIGHT, _JOINT_HEIGHT = 38.0, 22.0

_INDENT = 20.0

Segments = dict[str, tuple[float, float]]
"""Left and right end of each dimension, in pixels."""


def draw_layouts(explanation: Explanation) -> Canvas:
    """Draw for each operand its original layout, then a strip for each rewrite."""
    canvas = Canvas()
    phrases = [explain.rewrite_text(step) for steps in explanation.steps.values() for step in steps]
    column = _INDENT + max((width_of(phrase) for phrase in phrases), default=0) + 24
    column = max(column, _INDENT + width_of("original") + 24)
    y = 0.0
    for role, name in explanation.program.roles.items():
        y = _draw_operand(canvas, explanation, role, name, column, y) + 1.5 * LINE
    return canvas


def _draw_operand(
    canvas: Canvas, explanation: Explanation, role: str, name: str, column: float, y: float
) -> float:
    """Draw an operand from ``y`` down, strips from ``column`` on; return where it ends."""
    program = explanation.program
    operand, numbers = program.operand(name), lane_numbers(program)
    packing = "used in place" if operand.is_identity else "packed"
    sizes = f"{math.prod(operand.original_shape):,} to {operand.elements:,} elements"
    canvas.text(0, y + 14, f"{role} is {name}", "text bold")
    tile = messages.tile_text(program.instruction.memory[role], program.embedding.extents)
    canvas.text(column, y + 14, f"{operand.dtype}   {tile}   {sizes}   {packing}", "dim")
    y += LINE + 6
    before = original_layout(program, name)
    canvas.text(_INDENT, y + _STRIP_HEIGHT / 2 + 4, "original", "dim")
    segments = _draw_strip(canvas, before, numbers, column, y)
    for step in explanation.steps[name]:
        below = y + _STRIP_HEIGHT + _JOINT_HEIGHT
        canvas.text(_INDENT, below + _STRIP_HEIGHT / 2 + 4, explain.rewrite_text(step))
        after = _draw_strip(canvas, step.after, numbers, column, below)
        _hatch_padding(canvas, step, after, below)
        _join_strips(canvas, segments, after, y + _STRIP_HEIGHT, below)
        segments, y = after, below
    y += _STRIP_HEIGHT + LINE
    canvas.text(
        _INDENT, y, "read at" if name != program.workload.output.name else "written at", "dim"
    )
    canvas.text(column, y, f"[{explain.access_text(program, name)}]")
    return y


def _draw_strip(
    canvas: Canvas, layout: Layout, numbers: dict[str, int], left: float, y: float
) -> Segments:
    """Draw a box for each dimension, wider for a larger extent, in the colour of its lane."""
    segments: Segments = {}
    x = left
    for name, extent, lanes in zip(layout.names, layout.shape, layout.lanes, strict=True):
        width = max(width_of(name), width_of(str(extent))) + 14
        # Logarithmic: extents of 4 and of 50,176 stand in one strip.
        width = max(width, 30 + 9 * math.log2(extent))
        style = f"lane lane{numbers[lanes[0]]}" if lanes else "box"
        walkers = f", walked by {' and '.join(lanes)}" if lanes else ""
        canvas.box(x, y, width, _STRIP_HEIGHT, style, f"{name}: {extent}{walkers}")
        canvas.text(x + width / 2, y + 15, name, "text", "middle")
        canvas.text(x + width / 2, y + 32, str(extent), "text bold", "middle")
        segments[name] = x, x + width
        x += width + 5
    return segments


def _hatch_padding(canvas: Canvas, step: Step, segments: Segments, y: float) -> None:
    """Hatch the elements that a padding rewrite adds to a dimension."""
    parameters = step.rewrite.describe()
    if step.rewrite.name != "pad":
        return
    name = str(parameters["axes"][0])
    left, right = segments[name]
    extent = dict(zip(step.after.names, step.after.shape, strict=True))[name]
    for count, from_left in ((parameters["before"], True), (parameters["after"], False)):
        if count:
            # At least 5 pixels, so that one padded element of many is seen.
            width = max(5.0, (right - left) * count / extent)
            hint = f"{count} padded"
            canvas.box(
                left if from_left else right - width, y, width, _STRIP_HEIGHT, "padding", hint
            )


def _join_strips(canvas: Canvas, above: Segments, below: Segments, y0: float, y1: float) -> None:
    """Join two strips: kept dimensions by name, removed dimensions with added ones."""
    removed = [segment for name, segment in above.items() if name not in below]
    added = [segment for name, segment in below.items() if name not in above]
    pairs = [(above[name], below[name]) for name in above if name in below]
    # A split has one old dimension, a fusion one new one; other rewrites keep all names.
    if len(removed) == 1 or len(added) == 1:
        pairs += [(a, b) for a in removed for b in added]
    for (a, b), (c, d) in pairs:
        canvas.path(strip((a, b, y0 + 1), (c, d, y1 - 1)), "join")


# -- costs ----------------------------------------------------------------------------------------

# Size of a bar of costs, and the distance from one to the next, in pixels.
_COST_WIDTH, _COST_HEIGHT, _COST_DISTANCE = 320.0, 18.0, 30.0


def draw_costs(explanation: Explanation) -> Canvas:
    """Draw MACs, then each operand's elements; padding and copies are hatched."""
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
    for number, (label, needed, executed, note) in enumerate(rows):
        y = number * _COST_DISTANCE
        # Each bar has its own scale: what is compared is waste, not operands.
        scale = _COST_WIDTH / max(needed, executed)
        canvas.text(left - 14, y + 14, label, "text bold", "end")
        canvas.box(left, y, needed * scale, _COST_HEIGHT, "lane lane0", f"{needed:,} needed")
        if executed > needed:
            hint = f"{executed - needed:,} more"
            canvas.box(
                left + needed * scale, y, (executed - needed) * scale, _COST_HEIGHT, "padding", hint
            )
        text = f"{executed:,} for {needed:,} (x{wording.ratio(executed / needed)}); {note}"
        canvas.text(left + _COST_WIDTH + 14, y + 14, text)
    y = len(rows) * _COST_DISTANCE + LINE - 4
    copied = wording.data_size(cost.packing_bytes) if cost.packing_bytes else "nothing"
    canvas.text(left, y, f"packing and unpacking move {copied}", "dim")
    return canvas
