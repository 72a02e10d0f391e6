"""Products with zero padding that a kernel need not compute.

At the image's border a task sees nothing but padding through some rows or columns of a filter:
those steps of the reductions are left out. What a task sees partly it computes whole, on zeros:
those of a copy with margins or, where the factor lies unpadded, in place of what is not read.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from cpembed.backends.nest import KernelOperand, Nest, TaskLoop
from cpembed.ir.index import IndexExpr
from cpembed.transform.program import Loop

_PLACES = 2
"""Of a task loop, those that have a body of their own: the first and the last one."""
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
    """An unpadded nest for tasks at the border and for the others, each with the condition of what
    the ones before leave, the last with none: what a task at a known place reads is known, and
    conditions inside would keep steps from sharing registers."""
    found = [("", nest)]
    for loop in nest.tasks:
        found = [part for one in found for part in _at_places(*one, loop)]
    result: list[tuple[str, Nest]] = []
    for condition, body in found:
        if inside := _interior(body):
            result.append((_both(condition, inside), _in_the_interior(body)))
        result.append((condition, body))
    return result


def _both(*conditions: str) -> str:
    return " and ".join(condition for condition in conditions if condition)


def _at_places(condition: str, nest: Nest, loop: TaskLoop) -> list[tuple[str, Nest]]:
    """Bodies of their own for the places of a task loop where elements are missing that a step of
    the reductions sees beside others, if these are few."""
    left = _seen_whole(nest)
    seen = [m for m in nest.margins if m not in left and loop.name in m.access.iterators]
    if not seen or loop.count == 1:
        return [(condition, nest)]
    last = loop.extent - loop.block
    found: list[tuple[str, Nest]] = []
    for place in dict.fromkeys(min(n * loop.block, last) for n in range(loop.count)):
        here = {loop.name: IndexExpr((), place)}
        fixed = [replace(m, access=m.access.substitute(here)) for m in seen]
        if not any(_leaves(nest, margin) for margin in fixed):
            continue
        if len(found) == _PLACES:
            return [(condition, nest)]
        others = [m for m in nest.margins if m not in seen]
        at_place = _both(condition, f"{loop.name} == {place}")
        found.append((at_place, replace(nest, margins=(*others, *fixed))))
    rest = replace(nest, margins=tuple(m for m in nest.margins if m not in seen))
    return [*found, (condition, rest)]


def _leaves(nest: Nest, margin: KernelOperand) -> bool:
    extents = _extents(nest) | {loop.name: loop.extent for loop in nest.inner}
    least, most = margin.access.bounds(extents)
    return least < 0 or most >= margin.elements


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
    """The condition of elements of an unpadded factor that are there, given those of
    :func:`guarded`; empty where that is true."""
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
