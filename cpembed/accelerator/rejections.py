"""Reasons why instructions do not compute a statement, from the nearest one on."""

from __future__ import annotations

from dataclasses import dataclass

from cpembed.accelerator.instruction_forms import InstructionForm, Operations, operations
from cpembed.accelerator.specification import Statement

UNLIKE = 1000
"""Distance of an instruction that shares no operation and no reduction with a statement."""


@dataclass(frozen=True)
class Rejection:
    """An instruction that does not compute a statement; ``distance`` is 0 for the nearest ones."""

    instruction: str
    reason: str
    distance: int


def other_operations(statement: Statement, form: InstructionForm) -> Rejection:
    """Return which operations a statement and an instruction do not share."""
    required, available = operations(statement.computation), form.operations
    counts, present = dict(required[1]), dict(available[1])
    shared = [name for name in counts if name in present]
    copies = not counts and not present and bool(form.instruction.axes)
    reduces = required[0] is not None and required[0] == available[0]
    is_alike = bool(shared) or reduces or copies
    lacks = [name for name in counts if counts[name] > present.get(name, 0)]
    adds = [name for name in present if present[name] > counts.get(name, 0)]
    parts: list[str] = []
    if required[0] != available[0]:
        parts.append(f"reduces by {available[0]}" if available[0] else "reduces nothing")
    if lacks:
        parts.append(f"lacks {' and '.join(lacks)}")
    if adds:
        parts.append(f"has {' and '.join(adds)} besides")
    if not parts:
        parts.append("has other constants")
    distance = 4 + difference(required, available) + (0 if is_alike else UNLIKE)
    reason = f"it {', '.join(parts)} ({form.computation})"
    return Rejection(form.instruction.name, reason, distance)


def difference(left: Operations, right: Operations) -> int:
    """Count operations that one statement has more of than the other; reductions count 3."""
    counts = dict(left[1])
    for label, count in right[1]:
        counts[label] = counts.get(label, 0) - count
    return sum(map(abs, counts.values())) + 3 * (left[0] != right[0])
