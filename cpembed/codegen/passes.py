"""Passes on loop nests: digits of instruction axes, register and cache tiles, order, split-K."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cpembed.codegen.nest import KernelOperand, Nest, Peeling, SplitK, TileLoop
from cpembed.errors import LoweringError
from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import Loop

PARTIAL_SUMS = "Sums"
"""Name of the buffer of partial sums in the text."""


def order_tasks(nest: Nest, outermost_first: Sequence[str]) -> Nest:
    """Reorder the task loops; loops that are not named stay outside, in their order."""
    named = {task.name: task for task in nest.tasks}
    rest = [task for task in nest.tasks if task.name not in outermost_first]
    return replace(nest, tasks=(*rest, *(named[name] for name in outermost_first)))


def order_reductions(nest: Nest) -> Nest:
    """Sum in the order in which the second factor lies in memory."""
    # Hardware prefetch follows a few streams, not one for each point of a window.
    second = nest.operands[1]

    def inward(loop: Loop) -> int:
        return -abs(second.stride(loop.name))

    return replace(nest, reductions=tuple(sorted(nest.reductions, key=inward)))


def can_tile(nest: Nest, loop: TileLoop, *, results: bool = False) -> bool:
    """Return True if a tile of the loop advances operands by a constant.

    Parameters
    ----------
    nest : Nest
        Nest with the loop.
    loop : TileLoop
        Task loop.
    results : bool
        Require it of the output and the epilogue's operands too, not of the factors alone.
        Overlapping tiles need not satisfy that.
    """
    return all(
        term.is_affine
        for operand in (nest.accessed if results else nest.operands[:2])
        for term in operand.access.terms
        if loop.name in term.iterators
    )


def register_tile(nest: Nest, tiles: Mapping[str, int]) -> Nest:
    """Give each task ``tiles[loop]`` steps of a task loop.

    The steps become inner loops, outside the instruction axes and in the order of ``tiles``.
    """
    tasks = tuple(
        replace(t, tile=tiles[t.name] * t.unit) if t.name in tiles else t for t in nest.tasks
    )
    by_name = {task.name: task for task in tasks}
    steps: list[Loop] = []
    split: dict[str, IndexExpr] = {}
    for name, size in tiles.items():
        task = by_name[name]
        if size == 1:
            continue
        if size > task.steps or not can_tile(nest, task):
            raise LoweringError(f"a loop of {task.steps} steps has no register tiles of {size}")
        steps.append(Loop(task.step, size, AxisKind.SPATIAL))
        split[name] = IndexExpr.sum([IndexTerm(name), IndexTerm(task.step, task.unit)])
    return _substituted(nest, split, tasks=tasks, inner=(*steps, *nest.inner))


def cache_tile(nest: Nest, tiles: Mapping[str, int]) -> Nest:
    """Cut task loops into tiles of ``tiles[loop]`` steps.

    A loop over the tiles is added outermost; a loop over the points of a tile keeps the place and
    the name of the original.
    """
    panels: list[TileLoop] = []
    tasks = list(nest.tasks)
    split: dict[str, IndexExpr] = {}
    for name, size in tiles.items():
        place = next(number for number, task in enumerate(tasks) if task.name == name)
        task = tasks[place]
        points = size * task.unit
        # A single tile changes nothing.
        if points >= task.extent:
            continue
        if size < 1 or not can_tile(nest, task):
            raise LoweringError(f"a loop of {task.steps} steps has no cache tiles of {size}")
        panel = f"{name}_panel"
        panels.append(TileLoop(panel, task.extent, tile=points, origin=f"{task.origin} panel"))
        tasks[place] = replace(task, extent=points)
        split[name] = IndexExpr.sum([IndexTerm(panel), IndexTerm(name)])
    return _substituted(nest, split, tasks=(*panels, *tasks))


def shorten_remainder(nest: Nest) -> Nest:
    """Replace one shifted remainder tile by shorter tiles that recompute nothing."""
    # A shifted tile needs one body for all tasks, shorter tiles another body. Peeling by steps is
    # that of kernels whose tasks must have one.
    if nest.peeling is Peeling.STEPS:
        return nest
    steps = {loop.name for loop in nest.steps}
    uneven = [
        task
        for task in nest.tasks
        if task.step in steps and task.unit == 1 and 0 < task.points - task.extent <= task.count
    ]
    if not uneven:
        return nest
    # Only the loop that would recompute the largest share: each one doubles the number of bodies.
    most = max(uneven, key=lambda task: task.points / task.extent)
    even = replace(most, remainder=most.points - most.extent)
    return replace(nest, tasks=tuple(even if task is most else task for task in nest.tasks))


def split_axes(nest: Nest, keep: Mapping[str, Sequence[int]] | None = None) -> Nest:
    """Replace each instruction axis by the digits in which the accesses use it, outermost first.

    Every access is then affine in the inner loops. Digits that every operand walks as one loop are
    merged again. An axis that needs no split keeps its name; digits are named ``<axis>_<weight>``.

    Parameters
    ----------
    nest : Nest
        Nest whose inner loops are the instruction axes.
    keep : mapping of str to weights, optional
        Weights by axis at which digits are never merged.
    """
    inner: list[Loop] = []
    weights_of: dict[str, list[tuple[str, int]]] = {}
    for loop in nest.inner:
        fixed = [weight for weight in (keep or {}).get(loop.name, ()) if weight < loop.extent]
        weights = _weights(nest, loop, fixed)
        # Fewer loops are better for pattern matching, so digits are merged wherever possible.
        weights = [w for w in weights if w in fixed or not _is_seam(nest, loop, weights, w)]
        loops: list[Loop] = []
        for low, high in itertools.pairwise(weights):
            name = f"{loop.name}_{low}" if len(weights) > 2 else loop.name
            loops.append(Loop(name, high // low, loop.kind))
            weights_of.setdefault(loop.name, []).append((name, low))
        inner += reversed(loops)

    def in_digits(operand: KernelOperand) -> KernelOperand:
        terms = [t for t in operand.access.terms if t.iterator not in weights_of]
        for axis, digits in weights_of.items():
            terms += [IndexTerm(name, _distance(operand, axis, w)) for name, w in digits]
        return replace(operand, access=IndexExpr.sum(terms, operand.access.constant))

    return nest.changed(in_digits, inner=tuple(inner))


def drop_unit_loops(nest: Nest) -> Nest:
    """Remove reduction and inner loops of one iteration: pattern matching sees only real loops."""
    unit = {loop.name for loop in (*nest.reductions, *nest.inner) if loop.extent == 1}
    if not unit:
        return nest

    def reduced(access: IndexExpr) -> IndexExpr:
        terms = [term for term in access.terms if term.iterator not in unit]
        return access if len(terms) == len(access.terms) else IndexExpr.sum(terms, access.constant)

    return nest.indexed(
        reduced,
        reductions=tuple(loop for loop in nest.reductions if loop.name not in unit),
        inner=tuple(loop for loop in nest.inner if loop.name not in unit),
    )


def loop_to_split(nest: Nest, parts: int) -> Loop | None:
    """Return the outermost reduction whose extent is a multiple of ``parts``."""
    return next((loop for loop in nest.reductions if loop.extent % parts == 0), None)


def split_k(nest: Nest, parts: int) -> Nest:
    """Cut a reduction into ``parts`` that different tasks sum, where tasks are fewer than threads.

    The outermost task loop walks the parts, and each stores to its own part of a buffer of partial
    sums. Once all are complete, the threads add them up, each in its share of the output, and apply
    the epilogue (:func:`~cpembed.codegen.emit.emit`).

    Raises
    ------
    LoweringError
        No reduction is a multiple of ``parts``, or the epilogue has vectors or a place.
    """
    # The threads that add up see flat places of sums, which do not tell an element of a vector.
    if nest.epilogue is not None and not nest.epilogue.is_of_sum_alone:
        raise LoweringError("with a bias, a scale or a place of its own, a reduction is not split")
    reduction = loop_to_split(nest, parts)
    if reduction is None:
        raise LoweringError(f"no loop of the reductions has a multiple of {parts} steps")
    part, steps = f"{reduction.name}_part", reduction.extent // parts
    split = {reduction.name: IndexExpr.sum([IndexTerm(part, steps), IndexTerm(reduction.name)])}
    cut = (replace(loop, extent=steps) if loop is reduction else loop for loop in nest.reductions)
    output = nest.operands[2]
    # Outermost, so that chunks of consecutive tasks, one a thread, divide the parts among them.
    tasks = (TileLoop(part, parts, origin="part of the sums"), *nest.tasks)
    nest = _substituted(nest, split, tasks=tasks, reductions=tuple(cut))
    first, second, result = nest.operands
    access = result.access + IndexExpr.sum([IndexTerm(part, output.elements)])
    partial = KernelOperand(PARTIAL_SUMS, nest.sums, output.elements * parts, access)
    split_nest = replace(
        nest,
        operands=(first, second, partial),
        epilogue=None,
        channels=None,
        sums_dtype=nest.sums,
        split=SplitK(output, nest.epilogue, parts),
    )
    # A reduction with as many steps as parts is now a loop of one iteration.
    return drop_unit_loops(split_nest)


def _substituted(nest: Nest, split: Mapping[str, IndexExpr], **fields: Any) -> Nest:
    """Return the nest with iterators replaced in every access, and other fields replaced."""
    if not split:
        return replace(nest, **fields)
    return nest.indexed(lambda access: access.substitute(split), **fields)


def _weights(nest: Nest, loop: Loop, fixed: Sequence[int]) -> list[int]:
    """Return the weights at which the digits of a loop begin: 1, …, the extent."""
    # Every access must be affine in the digits, so each divisor and modulus in use is a boundary.
    boundaries = {1, loop.extent, *(w for w in fixed if w < loop.extent)}
    for operand in nest.accessed:
        for term in operand.access.terms:
            if term.iterator != loop.name:
                continue
            boundaries.add(min(term.divisor, loop.extent))
            if term.modulus is not None:
                boundaries.add(min(term.divisor * term.modulus, loop.extent))
    weights = sorted(boundaries)
    for low, high in itertools.pairwise(weights):
        if high % low:
            raise LoweringError(
                f"axis {loop.name} of extent {loop.extent} is read in digits of {low} and {high}, "
                "which do not nest"
            )
    return weights if len(weights) > 1 else [1, 1]


def _is_seam(nest: Nest, loop: Loop, weights: Sequence[int], weight: int) -> bool:
    """Return True if the digits below and above a weight are one loop in every operand.

    They are if their distances in memory are proportional to their weights.
    """
    if weight in (1, loop.extent):
        return False
    below = weights[weights.index(weight) - 1]
    return all(
        _distance(operand, loop.name, weight) * below
        == _distance(operand, loop.name, below) * weight
        for operand in nest.accessed
    )


def _distance(operand: KernelOperand, loop: str, weight: int) -> int:
    """Distance in elements of ``weight`` steps of a loop, within the digit that begins there."""
    return sum(
        term.coefficient * (weight // term.divisor)
        for term in operand.access.terms
        if term.iterator == loop
        and weight >= term.divisor
        and (term.modulus is None or weight < term.divisor * term.modulus)
    )
