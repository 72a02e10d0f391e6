"""Products with zero padding that a kernel need not compute.

At the image's border a task sees nothing but padding through some rows or columns of a filter:
those steps of the reductions are left out. What a task sees partly it computes whole, on zeros.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from cpembed.backends.nest import KernelOperand, Nest
from cpembed.ir.index import IndexExpr
from cpembed.transform.program import Loop

_POSITIONS = 4096
"""Of a margin, those that are looked at to say how much is left out; with more it is little."""


def guarded(nest: Nest, opened: Sequence[Loop], variable: dict[str, str]) -> list[str]:
    """Conditions of the steps inside the reduction loops that have been ``opened``, the last of
    which decides them, if any does; ``variable`` names reductions as the text does."""
    found: list[str] = []
    for margin in nest.margins:
        if list(opened[-1:]) != _reductions(nest, margin)[-1:]:
            continue
        outside, low, high = _range(nest, margin)
        at = outside.rename(lambda name: variable.get(name, name))
        least, most = outside.bounds(_extents(nest))
        conditions = [f"{at} >= {-high}"] if least < -high else []
        conditions += [f"{at} < {margin.elements - low}"] if most >= margin.elements - low else []
        if conditions:
            found.append(f"if {' and '.join(conditions)}:")
    return found


def executed_share(nest: Nest) -> float:
    """Of the steps of the reductions, over all tasks, those that are not left out."""
    share = 1.0
    for margin in nest.margins:
        outside, low, high = _range(nest, margin)
        positions = {o.name: list(range(o.extent)) for o in _reductions(nest, margin)}
        for task in nest.tasks:
            if task.name in margin.access.iterators:
                last = task.extent - task.block
                positions[task.name] = [min(n * task.block, last) for n in range(task.count)]
        count = 1
        for places in positions.values():
            count *= len(places)
        if count > _POSITIONS:
            continue
        seen = 0
        for point in itertools.product(*positions.values()):
            at = int(outside.evaluate(dict(zip(positions, point, strict=True))))
            seen += at + high >= 0 and at + low < margin.elements
        share *= seen / count
    return share


def _reductions(nest: Nest, margin: KernelOperand) -> list[Loop]:
    return [loop for loop in nest.reductions if loop.name in margin.access.iterators]


def _range(nest: Nest, margin: KernelOperand) -> tuple[IndexExpr, int, int]:
    """A coordinate over tasks and reductions, and what a task's inner loops add to it at least and
    at most."""
    inner = {loop.name: loop.extent for loop in nest.inner}
    own = [term for term in margin.access.terms if set(term.iterators) <= inner.keys()]
    outside = [term for term in margin.access.terms if term not in own]
    low, high = IndexExpr.of(own).bounds(inner)
    return IndexExpr.of(outside, margin.access.constant), low, high


def _extents(nest: Nest) -> dict[str, int]:
    tasks = {task.name: task.extent - task.block + 1 for task in nest.tasks}
    return tasks | {loop.name: loop.extent for loop in nest.reductions}
