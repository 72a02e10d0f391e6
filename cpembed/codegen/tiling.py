"""Tiling passes: register tiles, cache tiles, instruction axes split into their digits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cpembed.codegen.nest import KernelOperand, Nest, TileLoop
from cpembed.errors import LoweringError
from cpembed.ir.computation import AxisKind
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import Loop


@dataclass(frozen=True)
class _Digit:
    """A digit of an inner loop: ``extent`` steps, each ``weight`` steps of the loop."""

    name: str
    weight: int
    extent: int


def can_tile(nest: Nest, loop: TileLoop, *, results: bool = False) -> bool:
    """Whether a tile of the loop advances both factors by a constant, and with ``results`` what is
    stored too: that of overlapping tiles it need not."""
    return all(
        term.is_affine
        for operand in (nest.accessed if results else nest.operands[:2])
        for term in operand.access.terms
        if loop.name in term.iterators
    )


def register_tile(nest: Nest, tiles: Mapping[str, int]) -> Nest:
    """Give each task ``tiles[loop]`` steps of a task loop; they become inner loops, outside the
    instruction axes and in the order of ``tiles``."""
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
        split[name] = IndexExpr.of([IndexTerm(name), IndexTerm(task.step, task.unit)])
    return substituted(nest, split, tasks=tasks, inner=(*steps, *nest.inner))


def cache_tile(nest: Nest, tiles: Mapping[str, int]) -> Nest:
    """Cut task loops into tiles of ``tiles[loop]`` steps: a loop over these, outermost, and one
    over the points of a tile, at the loop's place and with its name."""
    outside: list[TileLoop] = []
    tasks = list(nest.tasks)
    split: dict[str, IndexExpr] = {}
    for name, size in tiles.items():
        place = next(number for number, task in enumerate(tasks) if task.name == name)
        task = tasks[place]
        points = size * task.unit
        if points >= task.extent:
            continue
        if size < 1 or not can_tile(nest, task):
            raise LoweringError(f"a loop of {task.steps} steps has no cache tiles of {size}")
        outside.append(TileLoop(f"{name}_panel", task.extent, points, f"{task.origin} panel"))
        tasks[place] = replace(task, extent=points)
        split[name] = IndexExpr.of([IndexTerm(f"{name}_panel"), IndexTerm(name)])
    return substituted(nest, split, tasks=(*outside, *tasks))


def split_axes(nest: Nest, keep: Mapping[str, Sequence[int]] | None = None) -> Nest:
    """Replace each instruction axis by the digits in which the accesses use it, outermost first.

    Afterwards every access is affine in the inner loops. Digits that every operand walks as one
    loop are merged again, except at the weights that ``keep`` names. An axis that needs no split
    keeps its name; digits are named ``<axis>_<weight>``.
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


def substituted(nest: Nest, split: Mapping[str, IndexExpr], **others: Any) -> Nest:
    """The nest with iterators replaced in every access, and other fields replaced."""
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
                f"axis {loop.name} of extent {loop.extent} is read in digits of {low} and {high}, "
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
