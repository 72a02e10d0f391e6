"""Layouts in main memory that suit the plans of an operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cpembed.accelerator.operand_rows import walked_steps
from cpembed.accelerator.program import MainTensor
from cpembed.accelerator.template import Template, shared_index


def default_layouts(template: Template, tensor: str, ends: Mapping[int, int]) -> list[MainTensor]:
    """List layouts of a tensor in main memory, the best first, that reach to these ends.

    Constants are packed with blocks of lanes outermost, so that a box is contiguous; other tensors
    have their lanes last.

    Parameters
    ----------
    template : Template
    tensor : str
        Name of the tensor.
    ends : mapping of int to int
        End of the last transfer along dimensions in which transfers reach beyond the elements.
    """
    specification = template.problem.specification
    if tensor in template.problem.layouts:
        return [template.problem.layouts[tensor]]
    operand = specification.operands[tensor]
    shape = operand.shape
    before, after = _margins(template, tensor, shape)
    for dimension, end in ends.items():
        after[dimension] = max(after[dimension], end - shape[dimension])
    lanes = next((b.lanes for b in template.buffers if b.tensor == tensor), ())
    last = _contiguous(template, tensor)
    role = "temporary"
    if tensor in specification.constants:
        role = "constant"
    elif tensor in specification.inputs:
        role = "input"
    elif tensor in specification.outputs:
        role = "output"
    lane_dimensions = tuple(d for d, _ in lanes)
    outer_dimensions = tuple(d for d in range(len(shape)) if d not in lane_dimensions)
    plain = MainTensor(
        tensor,
        shape,
        operand.dtype,
        (*outer_dimensions, *lane_dimensions),
        tuple(before),
        tuple(after),
        role=role,
    )
    if template.problem.keeps_order and role != "constant":
        return [replace(plain, order=tuple(range(len(shape))))]
    blocks = dict(lanes)
    blocked = MainTensor(
        tensor,
        shape,
        operand.dtype,
        (*lane_dimensions, *outer_dimensions, *lane_dimensions),
        tuple(before),
        tuple(after),
        blocks,
        role=role,
    )
    if not blocks:
        order = tuple(range(len(shape)))
        orders = [order]
        orders += [(*(d for d in order if d != e), e) for e in last if e != len(shape) - 1]
        # What instructions move at once in blocks, so that the next block lies where a step of
        # another dimension leads.
        in_blocks = [
            replace(plain, order=(e, *(d for d in order if d != e), e), blocks={e: count})
            for e, count in last.items()
            if 1 < count < shape[e]
        ]
        return [*(replace(plain, order=order) for order in orders), *in_blocks]
    return [blocked, plain] if role == "constant" else [plain, blocked]


def _contiguous(template: Template, tensor: str) -> dict[int, int]:
    """Return how far instructions walk dimensions in steps of one element of main memory."""
    counts: dict[int, int] = {}
    for number, operand in template.direct:
        step = template.steps[number]
        if step.tensor(operand) != tensor:
            continue
        place = step.instruction.places[operand]
        index = step.instruction.computation.access(operand).index
        for position, (name, e) in enumerate(zip(place.dimensions, index, strict=True)):
            is_last = position == len(index) - 1
            if place.strides.get(name, 1 if is_last else "any") == 1 and e.single_iterator:
                for dimension, _, count in walked_steps(step, e.single_iterator, operand):
                    counts.setdefault(dimension, count)
    return counts


def _margins(
    template: Template, tensor: str, shape: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    """Return the positions before and after the elements that instructions may touch."""
    before, after = [0] * len(shape), [0] * len(shape)
    for step in template.steps:
        computation = step.statement.computation
        for access in (*computation.reads, computation.statement.store):
            if computation.operand(access.operand).tensor != tensor:
                continue
            for dimension, e in enumerate(shared_index(step, access)):
                low, high = e.bounds(template.extents)
                before[dimension] = max(before[dimension], -low)
                after[dimension] = max(after[dimension], high + 1 - shape[dimension])
    return before, after
