"""Embeddings in which the rows of an image are one axis (docs/embedding.md, "Fused axes").

A tile of 16 rows takes 7 of an image of 7 columns, whose rows of windows begin a row of the image
apart. Walked as one axis over the whole image, in place, they fill it: what begins in the last
columns, where a window would run over the end of its row, is executed for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cpembed.embedding.embedding import Digit, Embedding
from cpembed.embedding.flatten import candidate_groups, fused_extent
from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import AxisKind, Computation
from cpembed.ir.joining import JoinedRows


def over_rows(
    workload: Computation, instruction: Instruction, embedding: Embedding
) -> Embedding | None:
    """The embedding with a digit along the rows of an image where it has one along a row or a
    column, if that takes fewer executions; None where there are no rows, or it does not.

    ``embedding`` has no fused axes; the workload is in port form.
    """
    if embedding.flattened:
        return None
    for lane, digits in embedding.digits.items():
        if len(digits) != 1 or digits[0].stride != 1:
            continue
        (digit,) = digits
        others = [d.axis for name, found in embedding.digits.items() if name != lane for d in found]
        for name, members, pitch in _rows(workload):
            extent = fused_extent(workload, members, {members[-1]: pitch})
            if digit.axis not in members or set(members) & set(others):
                continue
            fitting = [e for e in instruction.axis(lane).allowed if e <= extent]
            if not fitting:
                continue
            count = max(fitting)
            sizes = [workload.extents[member] for member in members]
            own = members.index(digit.axis)
            now = -(-sizes[own] // digit.count) * sizes[1 - own]
            if -(-extent // count) >= now:
                continue
            return replace(
                embedding,
                extents={**embedding.extents, lane: count},
                digits={**embedding.digits, lane: (Digit(name, count),)},
                flattened={name: members},
                pitches={members[-1]: pitch},
            )
    return None


def _rows(workload: Computation) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Fused axes of two spatial ones that an input holds with a gap: their names, members and
    pitches."""
    kinds = {axis.name: axis.kind for axis in workload.axes}
    for name, members in candidate_groups(workload, 2, smallest_extent=2).items():
        if kinds[members[0]] is not AxisKind.SPATIAL:
            continue
        for operand in workload.inputs:
            index = workload.access(operand.name).index
            found = JoinedRows.find(index, operand.shape, workload.extents, members)
            if found is not None and found.pitch > workload.extents[members[-1]]:
                yield name, members, found.pitch
