"""Embeddings in which a whole window is one axis (im2col): they fill what few channels do not.

A depth of 64 holds 9 steps of a row of a 3x3 window over 3 channels, or all 27 steps of the window.
The image has to be packed for it, each window in a row of its own; runs of neighbours move together
where the axes are in the order in which the image has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from cpembed.embedding.embedding import Digit, Embedding
from cpembed.embedding.flatten import free_name
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import AxisKind, Computation


def over_windows(
    workload: Computation, instruction: Instruction, embedding: Embedding
) -> Embedding | None:
    """The embedding with a digit along whole windows where it has one along some of their axes, if
    that takes fewer executions; None where there are no windows, or it does not.

    The workload is in port form.
    """
    window = _window(workload)
    extent = math.prod(workload.extents[axis] for axis in window)
    for lane, digits in embedding.digits.items():
        mine = _axes(embedding, digits)
        others = [ds for other, ds in embedding.digits.items() if other != lane]
        theirs = _axes(embedding, [digit for found in others for digit in found])
        if len(window) < 2 or not mine or not mine < set(window) or theirs & set(window):
            continue
        inside = math.prod(workload.extents[axis] for axis in mine)
        steps = -(-inside // embedding.extents[lane]) * (extent // inside)
        allowed = instruction.axis(lane).allowed
        count = next((e for e in allowed if e >= extent), allowed[-1])
        if any(digit.stride != 1 for digit in digits) or -(-extent // count) >= steps:
            continue
        name = free_name(window, workload.extents)
        kept = {n: members for n, members in embedding.flattened.items() if not mine & set(members)}
        return replace(
            embedding,
            extents={**embedding.extents, lane: count},
            digits={**embedding.digits, lane: (Digit(name, count),)},
            flattened={**kept, name: window},
        )
    return None


def _axes(embedding: Embedding, digits: Iterable[Digit]) -> set[str]:
    """Workload axes that digits walk."""
    return {m for d in digits for m in embedding.flattened.get(d.axis, (d.axis,))}


def _window(workload: Computation) -> tuple[str, ...]:
    """The reduction axes of an input that is read by windows, in the order in which it has them;
    none where none is, or where another input lacks some of them, so that they are no one axis."""
    kinds = {axis.name: axis.kind for axis in workload.axes}
    for operand in workload.inputs:
        index = workload.access(operand.name).index
        if any({kinds[name] for name in i.iterators} == set(AxisKind) for i in index):
            walked = dict.fromkeys(name for i in index for name in i.iterators)
            window = tuple(
                name
                for name in walked
                if kinds[name] is AxisKind.REDUCTION and workload.extents[name] > 1
            )
            if len({_readers(workload, name) for name in window}) == 1:
                return window
    return ()


def _readers(workload: Computation, axis: str) -> frozenset[str]:
    """The operands that an axis moves along."""
    return frozenset(
        operand
        for operand, accesses in workload.access_maps.items()
        if any(axis in index.iterators for access in accesses for index in access.index)
    )
