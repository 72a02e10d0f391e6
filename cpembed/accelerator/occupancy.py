"""Share of an instruction's peak rate that a match uses, and what keeps it from more."""

from __future__ import annotations

import math

from cpembed.accelerator.matching import Match

POOR = 0.5
"""Share of the peak rate below which the reasons are said: a factor of two is lost."""


def peak_share(match: Match) -> float:
    """Return the statement's operations in a cycle of the match, over the most of the instruction.

    The most is that of an execution at its largest sizes. Cycles that depend on no size count, so
    that a short execution uses less.
    """
    instruction = match.instruction
    peak = math.prod(instruction.extents.values()) / _cycles(match, instruction.extents)
    useful = match.statement.computation.macs / (match.executions * _cycles(match, match.sizes))
    return useful / peak


def _cycles(match: Match, sizes: dict[str, int]) -> float:
    """Return the cycles of an execution, of which free ones take one."""
    return max(float(match.instruction.occupied_cycles(sizes)), 1.0)


def unfilled(match: Match) -> tuple[str, ...]:
    """Return which places of the instruction's axes stay empty, and what would fill them."""
    reasons: list[tuple[float, str]] = []
    extents = match.statement.computation.extents
    for axis, most in match.instruction.extents.items():
        digits = match.axes.get(axis, ())
        size = math.prod(digit.count for digit in digits)
        fed = " ".join(digit.axis for digit in digits) or "nothing"
        if size < most:
            reach = math.prod(extents[digit.axis] for digit in digits)
            # With a larger layer the axis is filled, unless another digit would have to join.
            remedy = f"; {most} along {fed} would fill it" if digits and reach < most else ""
            reasons.append((size / most, f"{fed} fills {size} of {most} places of {axis}{remedy}"))
        for digit in digits:
            extent = extents[digit.axis]
            block = digit.count * digit.stride
            blocks = -(-extent // block)
            share = extent / (blocks * block)
            if blocks > 1 and share < 1:
                text = f"{digit.axis} of {extent} takes {blocks} x {block} places of {axis}"
                reasons.append((share, f"{text}; multiples of {block} leave none empty"))
    return tuple(text for _, text in sorted(reasons))
