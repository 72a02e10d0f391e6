"""A derived program as text: the drawing of its axes and the loop nest as pseudo code."""

from __future__ import annotations

from collections.abc import Mapping

from cpembed import wording
from cpembed.embedding.embedding import Digit
from cpembed.ir.index import IndexExpr
from cpembed.report import words
from cpembed.transform.program import DerivedProgram, Loop


def drawing(program: DerivedProgram) -> str:
    """Which workload axes feed which instruction axes, and which stay outer loops.

    ::

        x  14 of 16  <----  p : 14 of 56
        y  16        <----  k : 16 of 64
        z  64        <----  c : 64 of 64
             outer  n 1  q 56  r 3  s 3
    """
    embedding, workload = program.embedding, program.workload
    rows: list[tuple[str, str]] = []
    for axis in program.instruction.axes:
        used = embedding.extents[axis.name]
        whole = "" if used == axis.maximum else f" of {axis.maximum}"
        digits = embedding.digits[axis.name]
        label = f"{axis.name}  {used}{whole}"
        if not digits:
            rows.append((label, f"{words.NOTHING}  (one step: no axis feeds it)"))
        for position, digit in enumerate(digits):
            place = f"  {_place(digits, position)}" if len(digits) > 1 else ""
            rows.append((label if position == 0 else "", f"{_feed(program, digit)}{place}"))
    fed = {digit.axis for digits in embedding.digits.values() for digit in digits}
    free = {axis: extent for axis, extent in workload.extents.items() if axis not in fed}
    width = max(len(label) for label, _ in rows)
    lines = [f"{label:<{width}}  ◀────  {text}".rstrip() for label, text in rows]
    if free:
        lines.append(f"{'':<{width}}  outer  {wording.sizes(free)}")
    return "\n".join(lines)


def _place(digits: tuple[Digit, ...], position: int) -> str:
    return "(innermost)" if position == 0 else f"(digit {position + 1} of {len(digits)})"


def _feed(program: DerivedProgram, digit: Digit) -> str:
    step = f" in steps of {digit.stride}" if digit.stride > 1 else ""
    extent = program.workload.extents[digit.axis]
    fused = _fused(program, digit.axis)
    return f"{digit.axis} : {digit.count} of {extent}{fused}{step}{_padding(program, digit)}"


def _fused(program: DerivedProgram, axis: str) -> str:
    """The members of a fused axis, outermost first."""
    members = program.embedding.flattened.get(axis, ())
    if not members or program.original is None:
        return ""
    extents = program.original.extents
    apart = {member: f" in rows of {pitch}" for member, pitch in program.embedding.pitches.items()}
    sizes = ", ".join(f"{member} {extents[member]}{apart.get(member, '')}" for member in members)
    return f" (fused: {sizes})"


def _padding(program: DerivedProgram, digit: Digit) -> str:
    extent = program.workload.extents[digit.axis]
    padded = program.padded_extents[digit.axis]
    return f", padded to {padded}" if padded > extent else ""


def axis_map(program: DerivedProgram) -> str:
    """Workload axes over loops and instruction axes; coordinates beyond an extent are padding."""
    rows = {
        axis: shortened(index, program.extents)
        for axis, index in program.axis_map.items()
        if program.workload.extents[axis] > 1
    }
    width = max((len(axis) for axis in rows), default=0)
    lines = [f"{axis:<{width}} = {index}" for axis, index in rows.items()]
    return "\n".join(lines) or "every axis has one step"


def pseudo_code(program: DerivedProgram) -> str:
    """The loop nest around one execution of the instruction; loops of one step are left out.

    A packed operand is written with a prime, one that is used in place without.
    """
    lines: list[str] = []
    depth = 0
    width = max((len(_head(loop)) + 2 * n for n, loop in enumerate(_steps(program))), default=0)
    for loop in _steps(program):
        head = "  " * depth + _head(loop)
        lines.append(f"{head:<{width}}  # {loop.kind.value}")
        depth += 1
    margin = "  " * depth
    inner = ", ".join(f"{axis.name} < {axis.extent}" for axis in program.instruction_axes)
    lines.append(f"{margin}{program.instruction.name}  for {inner}:")
    for role, name in program.roles.items():
        operand = program.operand(name)
        access = ", ".join(str(shortened(index, program.extents)) for index in operand.access)
        lines.append(f"{margin}  {role} is {name}{'' if operand.is_identity else QUOTE}[{access}]")
    lines.append(f"{margin}  {program.instruction.computation}")
    return "\n".join(lines)


QUOTE = "'"
"""Marks a packed operand."""


def _steps(program: DerivedProgram) -> list[Loop]:
    return [loop for loop in program.loops if loop.extent > 1]


def _head(loop: Loop) -> str:
    return f"for {loop.name} in 0..{loop.extent - 1}:"


def shortened(index: IndexExpr, extents: Mapping[str, int]) -> IndexExpr:
    """The expression without iterators of one step, which are 0."""
    return IndexExpr.of(
        (term for term in index.terms if any(extents[name] > 1 for name in term.iterators)),
        index.constant,
    )
