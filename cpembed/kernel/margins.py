"""Products that a kernel need not compute: those with zero padding, and those of a point twice.

At the image's border a task sees nothing but padding through some rows or columns of a filter:
those steps of the reductions are left out. Of a block of points only some may see padding: where a
kernel's :class:`~cpembed.kernel.nest.Borders` say so, tasks at a border have a body of their own,
in which each step has the points that see more. Nothing of the padding is read then, so the image
need not have it. So have tasks whose block is a point shorter than others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from cpembed.ir.index import IndexExpr
from cpembed.kernel.nest import Borders, KernelOperand, Nest
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


@dataclass(frozen=True)
class _Place:
    """Tasks in which an index over them is ``at`` a value or ``below`` one, or all; and what is
    there of a margin, or of a block of a loop: its points."""

    index: IndexExpr | None = None
    at: int | None = None
    below: int = 0
    margin: KernelOperand | None = None
    block: tuple[str, int] | None = None

    @property
    def condition(self) -> str:
        if self.index is None:
            return ""
        return f"{self.index} < {self.below}" if self.at is None else f"{self.index} == {self.at}"

    def holds(self, tasks: Mapping[str, NDArray[np.int64]]) -> NDArray[np.bool_]:
        if self.index is None:
            return np.array(True)
        value = np.asarray(self.index.evaluate(tasks))
        return value < self.below if self.at is None else value == self.at


def bodies(nest: Nest) -> list[Body]:
    """What tasks compute, at each border and inside, in longer and in shorter blocks."""
    kinds = [*_kinds(nest), *_lengths(nest)]
    indices = [place.index for kind in kinds for place in kind if place.index is not None]
    names = {name for index in indices for name in index.iterators}
    starts = {t.name: list(map(t.start, range(t.count))) for t in nest.tasks if t.name in names}
    tasks = _grid(starts)
    left = np.ones([len(places) for places in starts.values()], bool)
    found: list[Body] = []
    for kind in itertools.product(*kinds):
        holds = reduce(np.logical_and, (place.holds(tasks) for place in kind), left)
        if holds.any():
            left &= ~holds
            condition = " and ".join(place.condition for place in kind if place.index is not None)
            found.append(Body(condition if left.any() else "", _in_places(nest, kind)))
    return found


def _in_places(nest: Nest, places: Sequence[_Place]) -> Nest:
    points = dict(place.block for place in places if place.block is not None)
    inner = (replace(o, extent=points.get(o.name, o.extent)) for o in nest.inner)
    margins = (place.margin for place in places if place.margin is not None)
    return replace(nest, inner=tuple(inner), margins=tuple(margins))


def _lengths(nest: Nest) -> list[list[_Place]]:
    """Of each loop that has shorter blocks, these and the others."""
    return [
        [
            _Place(IndexExpr.iterator(task.name), below=task.start(task.count - task.shorter)),
            _Place(block=(task.step, task.block - 1)),
        ]
        for task in nest.tasks
        if task.shorter
    ]


def _kinds(nest: Nest) -> list[list[_Place]]:
    """Of each margin, as many places as bodies may be made of: first those that only bodies can
    leave out."""
    kinds: dict[KernelOperand, list[_Place]] = {}
    for margin in sorted(nest.margins, key=lambda margin: _is_seen_whole(nest, margin)):
        together = [_Place(margin=margin)]
        apart = _places(nest, margin) if _is_worth_bodies(nest, margin) else together
        few = math.prod(map(len, kinds.values())) * len(apart) <= _BODIES
        kinds[margin] = apart if few else together
    return [kinds[margin] for margin in nest.margins]


def _is_worth_bodies(nest: Nest, margin: KernelOperand) -> bool:
    if _is_seen_whole(nest, margin):
        return nest.borders is Borders.EVERY
    written = math.prod(loop.extent for loop in (*_reductions(nest, margin), *nest.steps))
    return nest.borders is not Borders.WHOLE and bool(_steps(nest, margin)) and written <= _WRITTEN


def _places(nest: Nest, margin: KernelOperand) -> list[_Place]:
    """Tasks that see a margin alike, those that see nothing of it last."""
    tasks = {task.name for task in nest.tasks}
    own = IndexExpr.of(t for t in margin.access.terms if set(t.iterators) <= tasks)
    rest = [t for t in margin.access.terms if not set(t.iterators) <= tasks]
    others = IndexExpr.of(rest, margin.access.constant)
    low, high = others.bounds({loop.name: loop.extent for loop in (*nest.reductions, *nest.inner)})
    places = np.unique(own.evaluate(_grid(_starts(nest, margin))))
    seen = places[(places + low < 0) | (places + high >= margin.elements)]
    found = [_Place(own, int(v), margin=replace(margin, access=others + int(v))) for v in seen]
    return found if len(seen) == len(places) else [*found, _Place()]


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


def stepped_share(nest: Nest) -> float:
    """Of the steps of all tasks, those in which any point of a block is computed."""
    tasks = tuple(replace(task, shorter=0) for task in nest.tasks)
    return executed_share(replace(nest, tasks=tasks, borders=Borders.WHOLE))


def executed_share(nest: Nest) -> float:
    """Of the products of all tasks, those that are not left out."""
    share = math.prod(task.points / (task.count * task.block) for task in nest.tasks)
    for margin, kind in zip(nest.margins, _kinds(nest), strict=True):
        places = _starts(nest, margin)
        apart = kind != [_Place(margin=margin)]
        deciding = [*_reductions(nest, margin), *(_steps(nest, margin) if apart else [])]
        places |= {loop.name: range(loop.extent) for loop in deciding}
        if math.prod(map(len, places.values())) > _POSITIONS:
            continue
        own = [term for term in margin.access.terms if set(term.iterators) <= places.keys()]
        others = [term for term in margin.access.terms if term not in own]
        inner = {loop.name: loop.extent for loop in nest.inner}
        low, high = IndexExpr.of(others, margin.access.constant).bounds(inner)
        grid = _grid(places)
        at = np.asarray(IndexExpr.of(own).evaluate(grid))
        seen = (at + high >= 0) & (at + low < margin.elements)
        weights = np.ones(at.shape)
        for task in nest.tasks:
            if task.shorter and task.name in places:
                shorter = grid[task.name] >= task.start(task.count - task.shorter)
                missing = (
                    grid[task.step] == task.block - 1 if task.step in places else 1 / task.block
                )
                weights *= 1 - shorter * missing
        share *= float(np.average(seen, weights=weights))
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
    tasks = {task.name: task.start(task.count - 1) + 1 for task in nest.tasks}
    return tasks | {loop.name: loop.extent for loop in (*nest.reductions, *nest.steps)}


def _starts(nest: Nest, margin: KernelOperand) -> dict[str, Sequence[int]]:
    """Where tasks begin, by the loops that a margin depends on."""
    return {
        task.name: [task.start(number) for number in range(task.count)]
        for task in nest.tasks
        if task.name in margin.access.iterators
    }


def _grid(places: Mapping[str, Sequence[int]]) -> dict[str, NDArray[np.int64]]:
    """All combinations, an array a name."""
    return dict(zip(places, np.meshgrid(*places.values(), indexing="ij"), strict=True))
