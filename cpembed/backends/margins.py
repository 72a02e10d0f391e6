"""Products with zero padding that a kernel need not compute.

At the image's border a task sees nothing but padding through some rows or columns of a filter:
those steps of the reductions are left out. What a task sees partly it computes whole, on zeros:
those of a copy with margins or, where the factor lies unpadded, in place of what is not read.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

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


def bodies(nest: Nest) -> list[tuple[str, Nest]]:
    """What tasks compute that see no margin of an unpadded factor, with their condition, and what
    the others do: conditions inside would keep steps from sharing registers."""
    inside = _interior(nest) if nest.unpadded else ""
    return [*([(inside, _in_the_interior(nest))] if inside else []), ("", nest)]


def is_alike(nest: Nest) -> bool:
    """Whether what a step sees of a margin beside other elements is the same in every task, and so
    known when the kernel is compiled: where it is not, packing is faster (measured on Zen 5: images
    of 112 and 56 columns in bfloat16, 1.7 times the time of packing and computing)."""
    moving = {loop.name for loop in nest.tasks if loop.count > 1}
    left = _seen_whole(nest)
    return not any(moving & set(m.access.iterators) for m in nest.margins if m not in left)


def _interior(nest: Nest) -> str:
    """The condition of tasks in which :func:`guarded` leaves nothing out; empty where that is
    true."""
    extents = _extents(nest)
    tasks = {task.name for task in nest.tasks}
    found: list[str] = []
    for margin in _seen_whole(nest):
        own = [term for term in margin.access.terms if set(term.iterators) <= tasks]
        others = [term for term in margin.access.terms if term not in own]
        at = IndexExpr.of(own, margin.access.constant)
        low, high = IndexExpr.of(others).bounds(extents)
        least, most = at.bounds(extents)
        found += [f"{at} >= {-low}"] if least + low < 0 else []
        found += [f"{at} < {margin.elements - high}"] if most + high >= margin.elements else []
    return " and ".join(found)


def _in_the_interior(nest: Nest) -> Nest:
    """What such tasks compute."""
    left = _seen_whole(nest)
    return replace(nest, margins=tuple(margin for margin in nest.margins if margin not in left))


def readable(nest: Nest) -> str:
    """The condition of elements of the first factor that are there, given those of
    :func:`guarded`; empty where that is true."""
    if not nest.unpadded:
        return ""
    extents = _extents(nest) | {loop.name: loop.extent for loop in nest.inner}
    left = _seen_whole(nest)
    found: list[str] = []
    for margin in nest.margins:
        if margin not in left:
            least, most = margin.access.bounds(extents)
            found += [f"{margin.access} >= 0"] if least < 0 else []
            found += [f"{margin.access} < {margin.elements}"] if most >= margin.elements else []
    return " and ".join(found)


def _seen_whole(nest: Nest) -> list[KernelOperand]:
    """Margins of which a step of the reductions sees one coordinate: all of it is left out, or
    none."""
    return [m for m in nest.margins if len(set(_range(nest, m)[1:])) == 1]


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
