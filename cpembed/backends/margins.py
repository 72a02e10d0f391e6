"""Products with zero padding that a kernel need not compute.

At the image's border a task sees nothing but padding through some rows or columns of a filter:
those steps of the reductions are left out. Of a block of points only some may see padding: where a
kernel's :class:`~cpembed.backends.nest.Borders` say so, tasks at a border have a body of their own,
in which each step has the points that see more. Nothing of the padding is read then, so the image
need not have it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cpembed.backends.nest import Borders, KernelOperand, Nest
from cpembed.ir.index import IndexExpr
from cpembed.transform.program import Loop

_POSITIONS = 1 << 20
"""Places of a margin that are looked at to say how much is left out; with more it is little."""
_BODIES = 15
"""Bodies of a task at most: the inside of an image and two borders by columns, and by rows, of
which a filter of five sees padding in two at each."""
_WRITTEN = 256
"""Points of a block, over the steps in which they differ, that are written one after the other at
most."""


@dataclass(frozen=True)
class Body:
    """What tasks compute where ``condition`` holds and those of earlier bodies do not; the last has
    none. Of its margins those that are the same in all of its tasks have no task's iterator."""

    condition: str
    nest: Nest

    @property
    def unrolled(self) -> set[str]:
        """Reductions whose steps differ in the points that are computed, in a way that is known
        when the kernel is compiled."""
        nest = self.nest
        apart = [m for m in nest.margins if _is_known(nest, m) and _steps(nest, m)]
        return {loop.name for margin in apart for loop in _reductions(nest, margin)}


def bodies(nest: Nest) -> list[Body]:
    """What tasks compute, at each border and inside."""
    return [
        Body(
            " and ".join(condition for condition, _ in kind if condition),
            replace(nest, margins=tuple(margin for _, margin in kind if margin is not None)),
        )
        for kind in itertools.product(*_kinds(nest))
    ]


_Places = list[tuple[str, KernelOperand | None]]
"""Conditions of the tasks that see a margin alike, each with the margin as they see it, None for
those that see nothing of it."""


def _kinds(nest: Nest) -> list[_Places]:
    """Of each margin, as many as bodies may be made of: first those that only bodies can leave
    out."""
    kinds: dict[KernelOperand, _Places] = {}
    for margin in sorted(nest.margins, key=lambda margin: _is_seen_whole(nest, margin)):
        together: _Places = [("", margin)]
        apart = _places(nest, margin) if _is_worth_bodies(nest, margin) else together
        few = math.prod(map(len, kinds.values())) * len(apart) <= _BODIES
        kinds[margin] = apart if few else together
    return [kinds[margin] for margin in nest.margins]


def _is_worth_bodies(nest: Nest, margin: KernelOperand) -> bool:
    if nest.borders is Borders.EVERY:
        return True
    loops = [*_reductions(nest, margin), *nest.steps]
    written = math.prod(loop.extent for loop in loops)
    apart = not _is_seen_whole(nest, margin) and bool(_steps(nest, margin))
    return nest.borders is Borders.POINTS and apart and written <= _WRITTEN


def _places(nest: Nest, margin: KernelOperand) -> _Places:
    tasks = {task.name for task in nest.tasks}
    own = IndexExpr.of(t for t in margin.access.terms if set(t.iterators) <= tasks)
    rest = [t for t in margin.access.terms if not set(t.iterators) <= tasks]
    others = IndexExpr.of(rest, margin.access.constant)
    low, high = others.bounds({loop.name: loop.extent for loop in (*nest.reductions, *nest.inner)})
    at = np.unique(_values(own, _starts(nest, margin)))
    seen = (at + low < 0) | (at + high >= margin.elements)
    found: _Places = [
        (f"{own} == {value}", replace(margin, access=others + int(value))) for value in at[seen]
    ]
    if not seen.all():
        return [*found, ("", None)]
    return [*found[:-1], ("", found[-1][1])]


def guarded(nest: Nest, opened: Sequence[Loop], variable: Mapping[str, str]) -> list[str]:
    """Conditions of what is inside the loops that have been ``opened``, the last of which decides
    them, if any does; ``variable`` names loops as the text does."""
    found: list[str] = []
    for margin in nest.margins:
        if list(opened[-1:]) != _deciding(nest, margin)[-1:]:
            continue
        outside, low, high = _range(nest, margin)
        at = outside.rename(lambda name: variable.get(name, name))
        least, most = outside.bounds(_extents(nest))
        conditions = [f"{at} >= {-high}"] if least < -high else []
        conditions += [f"{at} < {margin.elements - low}"] if most >= margin.elements - low else []
        if conditions:
            found.append(f"if {' and '.join(conditions)}:")
    return found


def reads_no_padding(nest: Nest) -> bool:
    """Whether all that :func:`guarded` lets the bodies of a nest read is there."""
    return all(
        _is_seen_whole(body.nest, margin) for body in bodies(nest) for margin in body.nest.margins
    )


def executed_share(nest: Nest) -> float:
    """Of the products of all tasks, those that are not left out."""
    share = 1.0
    for margin, kind in zip(nest.margins, _kinds(nest), strict=True):
        places = _starts(nest, margin)
        apart = kind != [("", margin)]
        deciding = [*_reductions(nest, margin), *(_steps(nest, margin) if apart else [])]
        places |= {loop.name: range(loop.extent) for loop in deciding}
        if math.prod(map(len, places.values())) > _POSITIONS:
            continue
        own = [term for term in margin.access.terms if set(term.iterators) <= places.keys()]
        others = [term for term in margin.access.terms if term not in own]
        inner = {loop.name: loop.extent for loop in nest.inner}
        low, high = IndexExpr.of(others, margin.access.constant).bounds(inner)
        at = _values(IndexExpr.of(own), places)
        share *= float(((at + high >= 0) & (at + low < margin.elements)).mean())
    return share


def _reductions(nest: Nest, margin: KernelOperand) -> list[Loop]:
    return [loop for loop in nest.reductions if loop.name in margin.access.iterators]


def _steps(nest: Nest, margin: KernelOperand) -> list[Loop]:
    return [loop for loop in nest.steps if loop.name in margin.access.iterators]


def _is_known(nest: Nest, margin: KernelOperand) -> bool:
    """Whether a margin is the same in all tasks, as bodies have it."""
    tasks = {task.name for task in nest.tasks}
    return nest.borders is not Borders.WHOLE and not tasks & set(margin.access.iterators)


def _deciding(nest: Nest, margin: KernelOperand) -> list[Loop]:
    """Loops inside a task whose place decides whether something is left out."""
    steps = _steps(nest, margin) if _is_known(nest, margin) else []
    return [*_reductions(nest, margin), *steps]


def _is_seen_whole(nest: Nest, margin: KernelOperand) -> bool:
    """Whether one coordinate is seen where the deciding loops are: it is left out, or there."""
    _, low, high = _range(nest, margin)
    return low == high


def _range(nest: Nest, margin: KernelOperand) -> tuple[IndexExpr, int, int]:
    """A coordinate over tasks and deciding loops, and what the others add to it at least and at
    most."""
    deciding = {loop.name for loop in _deciding(nest, margin)}
    inner = {loop.name: loop.extent for loop in nest.inner if loop.name not in deciding}
    own = [term for term in margin.access.terms if set(term.iterators) <= inner.keys()]
    outside = [term for term in margin.access.terms if term not in own]
    low, high = IndexExpr.of(own).bounds(inner)
    return IndexExpr.of(outside, margin.access.constant), low, high


def _extents(nest: Nest) -> dict[str, int]:
    tasks = {task.name: task.extent - task.block + 1 for task in nest.tasks}
    return tasks | {loop.name: loop.extent for loop in (*nest.reductions, *nest.steps)}


def _starts(nest: Nest, margin: KernelOperand) -> dict[str, Sequence[int]]:
    """Where tasks begin, by the loops that a margin depends on."""
    return {
        task.name: [min(n * task.block, task.extent - task.block) for n in range(task.count)]
        for task in nest.tasks
        if task.name in margin.access.iterators
    }


def _values(index: IndexExpr, places: Mapping[str, Sequence[int]]) -> NDArray[np.int64]:
    """An index at all places."""
    grid = np.meshgrid(*(np.array(p) for p in places.values()), indexing="ij", sparse=True)
    return np.asarray(index.evaluate(dict(zip(places, grid, strict=True))), dtype=np.int64)
