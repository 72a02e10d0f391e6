"""Rewrites of a nest: register blocks over spatial loops, lanes split into their digits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cpembed.errors import LoweringError
from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.kernel.nest import Borders, KernelOperand, Nest, TaskLoop
from cpembed.transform.program import Loop


@dataclass(frozen=True)
class _Digit:
    """A digit of an inner loop: ``extent`` steps, each ``weight`` steps of the loop."""

    name: str
    weight: int
    extent: int


def can_block(nest: Nest, loop: TaskLoop, *, results: bool = False) -> bool:
    """Whether a block of the loop advances both factors by a constant, and with ``results`` what is
    stored too: that of overlapping tiles it need not."""
    return all(
        term.is_affine
        for operand in (nest.accessed if results else nest.operands[:2])
        for term in operand.access.terms
        if loop.name in term.iterators
    )


def block(nest: Nest, blocks: Mapping[str, int]) -> Nest:
    """Give each task ``blocks[loop]`` steps of a task loop; they become inner loops, outside the
    lanes and in the order of ``blocks``. Of the loops that these do not divide, one has blocks
    that are a point shorter where the nest's tasks may have several bodies."""
    tasks = tuple(
        replace(t, block=blocks[t.name] * t.unit) if t.name in blocks else t for t in nest.tasks
    )
    blocked = [task for task in tasks if task.name in blocks and task.unit == 1]
    uneven = [task for task in blocked if 0 < task.points - task.extent <= task.count]
    if uneven and nest.borders is not Borders.WHOLE:
        most = max(uneven, key=lambda task: task.points / task.extent)
        even = replace(most, shorter=most.points - most.extent)
        tasks = tuple(even if task is most else task for task in tasks)
    by_name = {task.name: task for task in tasks}
    steps: list[Loop] = []
    split: dict[str, IndexExpr] = {}
    for name, size in blocks.items():
        task = by_name[name]
        if size == 1:
            continue
        if size > task.steps or not can_block(nest, task):
            raise LoweringError(f"a loop of {task.steps} steps cannot be blocked by {size}")
        steps.append(Loop(task.step, size, AxisKind.SPATIAL))
        split[name] = IndexExpr.of([IndexTerm(name), IndexTerm(task.step, task.unit)])
    return _substituted(nest, split, tasks=tasks, inner=(*steps, *nest.inner))


def cut_panels(nest: Nest, panels: Mapping[str, int]) -> Nest:
    """Cut task loops into panels of ``panels[loop]`` steps: a loop over panels, outermost, and
    one over the points of a panel, at the loop's place and with its name."""
    outside: list[TaskLoop] = []
    tasks = list(nest.tasks)
    split: dict[str, IndexExpr] = {}
    for name, size in panels.items():
        place = next(number for number, task in enumerate(tasks) if task.name == name)
        task = tasks[place]
        points = size * task.unit
        if points >= task.extent:
            continue
        if size < 1 or not can_block(nest, task):
            raise LoweringError(f"a loop of {task.steps} steps has no panels of {size}")
        outside.append(TaskLoop(f"{name}_panel", task.extent, points, f"{task.origin} panel"))
        tasks[place] = replace(task, extent=points)
        split[name] = IndexExpr.of([IndexTerm(f"{name}_panel"), IndexTerm(name)])
    return _substituted(nest, split, tasks=(*outside, *tasks))


def loop_in_parts(nest: Nest, parts: int) -> Loop | None:
    """The outermost loop of the reductions that can be cut into so many parts."""
    return next((loop for loop in nest.reductions if loop.extent % parts == 0), None)


def cut_sums(nest: Nest, parts: int, sums: str) -> Nest:
    """Make tasks of the ``parts`` of a reduction: the outermost task loop walks them, and each
    stores its sums to its own part of the buffer ``sums``.

    Raises :class:`LoweringError` where no loop can be cut so, or the epilogue has vectors, which
    are not known by the place of an element.
    """
    if nest.epilogue is not None and nest.epilogue.vectors:
        raise LoweringError("with a bias or a scale, sums are not shared by threads")
    found = loop_in_parts(nest, parts)
    if found is None:
        raise LoweringError(f"no loop of the reductions has a multiple of {parts} steps")
    whole = f"{found.name}_part"
    steps = found.extent // parts
    split = {found.name: IndexExpr.of([IndexTerm(whole, steps), IndexTerm(found.name)])}
    shorter = (replace(o, extent=steps) if o is found else o for o in nest.reductions)
    part = TaskLoop(whole, parts, origin="part of the sums")
    nest = _substituted(nest, split, tasks=(part, *nest.tasks), reductions=tuple(shorter))
    first, second, output = nest.operands
    mine = IndexExpr.of([IndexTerm(whole, output.elements)])
    apart = KernelOperand(sums, nest.sums, output.elements * parts, output.access + mine)
    return replace(
        nest,
        operands=(first, second, apart),
        epilogue=None,
        channels=None,
        sums_dtype=nest.sums,
    )


def split_lanes(nest: Nest, keep: Mapping[str, Sequence[int]] | None = None) -> Nest:
    """Replace each inner loop by the digits in which the accesses use it, outermost first.

    Afterwards every access is affine in the inner loops. Digits that every operand walks as one
    loop are merged again, except at the weights that ``keep`` names. A loop that needs no split
    keeps its name; digits are named ``<loop>_<weight>``.
    """
    kept = keep or {}
    inner: list[Loop] = []
    digits: dict[str, list[_Digit]] = {}
    for loop in nest.inner:
        wanted = [weight for weight in kept.get(loop.name, ()) if weight < loop.extent]
        weights = _weights(nest, loop, wanted)
        weights = [w for w in weights if w in wanted or not _is_seam(nest, loop, weights, w)]
        found = [
            _Digit(f"{loop.name}_{low}" if len(weights) > 2 else loop.name, low, high // low)
            for low, high in itertools.pairwise(weights)
        ]
        digits[loop.name] = found
        inner += [Loop(digit.name, digit.extent, loop.kind) for digit in reversed(found)]
    return nest.changed(lambda operand: _in_digits(operand, digits), inner=tuple(inner))


def drop_unit_loops(nest: Nest) -> Nest:
    """Remove reduction and inner loops of one iteration: pattern matching sees only real loops."""
    unit = {loop.name for loop in (*nest.reductions, *nest.inner) if loop.extent == 1}

    def without(operand: KernelOperand) -> KernelOperand:
        kept = [term for term in operand.access.terms if term.iterator not in unit]
        return replace(operand, access=IndexExpr.of(kept, operand.access.constant))

    return nest.changed(
        without,
        reductions=tuple(loop for loop in nest.reductions if loop.name not in unit),
        inner=tuple(loop for loop in nest.inner if loop.name not in unit),
    )


def order_tasks(nest: Nest, outermost_first: Sequence[str]) -> Nest:
    """Change the order in which tasks run; loops not named stay outside, in their order."""
    named = {task.name: task for task in nest.tasks}
    rest = [task for task in nest.tasks if task.name not in outermost_first]
    return replace(nest, tasks=(*rest, *(named[name] for name in outermost_first)))


def order_reductions(nest: Nest) -> Nest:
    """Sum in the order in which the second factor lies in memory: a core foresees a few places that
    it walks along, not one for each point of a window."""
    second = nest.operands[1]

    def inward(loop: Loop) -> int:
        return -abs(second.stride(loop.name))

    return replace(nest, reductions=tuple(sorted(nest.reductions, key=inward)))


def _substituted(nest: Nest, split: Mapping[str, IndexExpr], **others: Any) -> Nest:
    return nest.changed(lambda o: replace(o, access=o.access.substitute(split)), **others)


def _weights(nest: Nest, loop: Loop, wanted: Sequence[int]) -> list[int]:
    """Where the digits of a loop begin: 1, each next weight, the extent."""
    found = {1, loop.extent, *(w for w in wanted if w < loop.extent)}
    for operand in nest.accessed:
        for term in operand.access.terms:
            if term.iterator != loop.name:
                continue
            found.add(min(term.divisor, loop.extent))
            if term.modulus is not None:
                found.add(min(term.divisor * term.modulus, loop.extent))
    weights = sorted(found)
    for low, high in itertools.pairwise(weights):
        if high % low:
            raise LoweringError(
                f"lane {loop.name} of extent {loop.extent} is read in digits of {low} and {high}, "
                "which do not nest"
            )
    return weights if len(weights) > 1 else [1, 1]


def _is_seam(nest: Nest, loop: Loop, weights: Sequence[int], weight: int) -> bool:
    """Whether the digits below and above a weight are one in every operand: their distances in
    memory are as the weights."""
    if weight in (1, loop.extent):
        return False
    below = weights[weights.index(weight) - 1]
    return all(
        _distance(operand, loop.name, weight) * below
        == _distance(operand, loop.name, below) * weight
        for operand in nest.accessed
    )


def _distance(operand: KernelOperand, loop: str, weight: int) -> int:
    """How far ``weight`` steps of a loop move the operand, within the digit that begins there."""
    return sum(
        term.coefficient * (weight // term.divisor)
        for term in operand.access.terms
        if term.iterator == loop
        and weight >= term.divisor
        and (term.modulus is None or weight < term.divisor * term.modulus)
    )


def _in_digits(operand: KernelOperand, digits: Mapping[str, Sequence[_Digit]]) -> KernelOperand:
    split: list[IndexTerm] = [t for t in operand.access.terms if t.iterator not in digits]
    for loop, found in digits.items():
        split += [IndexTerm(digit.name, _distance(operand, loop, digit.weight)) for digit in found]
    return replace(operand, access=IndexExpr.of(split, operand.access.constant))
