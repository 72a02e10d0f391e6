"""Layouts in main memory that suit the plans of an operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cpembed.accelerator.buffer_specs import shared_index
from cpembed.accelerator.operand_rows import OperandRows
from cpembed.accelerator.problem import OperatorProblem, PlanningError, problem_variants
from cpembed.accelerator.program import MainTensor
from cpembed.accelerator.template import Template, exact_template, is_possible
from cpembed.hw.isa import InstructionSet, StrideSource


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
    role = specification.roles.get(tensor, "temporary")
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
    order = (*lane_dimensions, *outer_dimensions, *lane_dimensions)
    blocked = replace(plain, order=order, blocks=blocks)
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


def has_own_order(layout: MainTensor) -> bool:
    """True if a layout has the dimensions of its tensor in their own order, and no blocks."""
    return layout.order == tuple(range(len(layout.shape))) and not layout.blocks


def may_reorder(problem: OperatorProblem, machine: InstructionSet) -> bool:
    """Return True if instructions may address tensors in another order better than in their own."""
    has_fixed = _has_fixed_strides(machine)
    specification = problem.specification
    outside = (*specification.inputs, *specification.outputs)
    for variant in problem_variants(problem, is_possible):
        try:
            template = exact_template(variant, machine)
        except PlanningError:
            continue
        for name in outside:
            layouts = default_layouts(template, name, {})
            orders = layouts if has_fixed else [x for x in layouts[1:] if not x.blocks]
            if not all(map(has_own_order, (layouts[0], *orders))):
                return True
    return False


def _has_fixed_strides(machine: InstructionSet) -> bool:
    """True if an instruction reaches main memory only in some distances of its outer dimensions.

    Blocks make these distances; other instructions reach a tensor without blocks as well.
    """
    return any(
        isinstance(place.strides.get(dimension), int)
        or place.strides.get(dimension) == StrideSource.DENSE
        for instruction in machine.instructions.values()
        for place in instruction.places.values()
        if place.memory == machine.main.name
        for dimension in place.dimensions[:-1]
    )


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
                for dimension, _, count in OperandRows(step, operand).walks(e.single_iterator):
                    counts.setdefault(dimension, count)
    return counts


def _margins(
    template: Template, tensor: str, shape: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    """Return the positions before and after the elements that instructions may touch."""
    before, after = [0] * len(shape), [0] * len(shape)
    is_only_stored = _is_only_stored(template, tensor)
    for step in template.steps:
        computation = step.statement.computation
        extents = template.extents
        if is_only_stored:
            # Copies that need more than the elements say so by their ends.
            extents = {a: template.stored_extent(step, a) for a in step.axes.values()}
        for access in (*computation.reads, computation.statement.store):
            if computation.operand(access.operand).tensor != tensor:
                continue
            for dimension, e in enumerate(shared_index(step, access)):
                low, high = e.bounds(extents)
                before[dimension] = max(before[dimension], -low)
                after[dimension] = max(after[dimension], high + 1 - shape[dimension])
    return before, after


def _is_only_stored(template: Template, tensor: str) -> bool:
    """True for an output that this operator's instructions do not read from main memory."""
    main = template.machine.main.name
    reads = any(
        step.tensor(operand) == tensor and step.instruction.places[operand].memory == main
        for step in template.steps
        for operand in step.instruction.inputs
    )
    loads = any(main in b.load for b in template.buffers if b.tensor == tensor)
    return tensor in template.problem.specification.outputs and not reads and not loads
