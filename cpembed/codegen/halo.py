"""Index-set splitting at the halo: products that a kernel need not compute.

At the image's border a task sees only padding through some rows or columns of a filter: those steps
of the reductions are left out. Of the points of a register tile some alone may see padding: where
the nest's :class:`~cpembed.codegen.nest.Peeling` says so, tasks at a border have a body of their
own, in which each step has the points that see more. Nothing of the padding is read then, so the
image need not have it. Tasks with shorter remainder tiles are split off in the same way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.nest import KernelOperand, Nest, Peeling
from cpembed.ir.index import IndexExpr
from cpembed.transform.program import Loop

_POSITIONS = 1 << 20
"""Places of a halo coordinate that are looked at to say how much is left out; with more it is
little."""
_INDEX_SETS = 15
"""Index sets at most: the inside of an image and two peeling by columns, and by rows, of
which a filter of five sees padding in two at each."""
_WRITTEN = 256
"""Points of a register tile, over the steps in which they differ, that are written one after the
other at most."""


@dataclass(frozen=True)
class IndexSet:
    """What tasks compute where ``condition`` holds and those of earlier sets do not; the last has
    none. Halo coordinates that are the same in all of its tasks have no task's iterator."""

    condition: str
    nest: Nest

    @property
    def unrolled(self) -> set[str]:
        """Reductions whose steps differ in the points that are computed, in a way that is known
        when the kernel is compiled."""
        nest = self.nest
        apart = [c for c in nest.halo if _is_known(nest, c) and _steps(nest, c)]
        return {loop.name for coordinate in apart for loop in _reductions(nest, coordinate)}


@dataclass(frozen=True)
class _Place:
    """Tasks in which an index over them is ``at`` a value or ``below`` one, or all; and what a
    halo coordinate is there, or the size of a loop's register tile."""

    index: IndexExpr | None = None
    at: int | None = None
    below: int = 0
    coordinate: KernelOperand | None = None
    tile: tuple[str, int] | None = None

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


def index_sets(nest: Nest) -> list[IndexSet]:
    """The index sets of a nest's tasks: at each border and inside, with whole and shorter tiles."""
    kinds = [*_kinds(nest), *_lengths(nest)]
    indices = [place.index for kind in kinds for place in kind if place.index is not None]
    names = {name for index in indices for name in index.iterators}
    starts = {t.name: list(map(t.start, range(t.count))) for t in nest.tasks if t.name in names}
    tasks = _grid(starts)
    left = np.ones([len(places) for places in starts.values()], bool)
    found: list[IndexSet] = []
    for kind in itertools.product(*kinds):
        holds = reduce(np.logical_and, (place.holds(tasks) for place in kind), left)
        if holds.any():
            left &= ~holds
            condition = " and ".join(place.condition for place in kind if place.index is not None)
            found.append(IndexSet(condition if left.any() else "", _in_places(nest, kind)))
    return found


def _in_places(nest: Nest, places: Sequence[_Place]) -> Nest:
    points = dict(place.tile for place in places if place.tile is not None)
    inner = (replace(o, extent=points.get(o.name, o.extent)) for o in nest.inner)
    halo = (place.coordinate for place in places if place.coordinate is not None)
    return replace(nest, inner=tuple(inner), halo=tuple(halo))


def _lengths(nest: Nest) -> list[list[_Place]]:
    """Of each loop with shorter remainder tiles, these and the others."""
    return [
        [
            _Place(IndexExpr.iterator(task.name), below=task.start(task.count - task.remainder)),
            _Place(tile=(task.step, task.tile - 1)),
        ]
        for task in nest.tasks
        if task.remainder
    ]


def _kinds(nest: Nest) -> list[list[_Place]]:
    """Of each halo coordinate, the places that get an index set of their own: first those that
    nothing else can leave out."""
    kinds: dict[KernelOperand, list[_Place]] = {}
    for coordinate in sorted(nest.halo, key=lambda coordinate: _is_seen_whole(nest, coordinate)):
        together = [_Place(coordinate=coordinate)]
        apart = _places(nest, coordinate) if _is_worth_splitting(nest, coordinate) else together
        few = math.prod(map(len, kinds.values())) * len(apart) <= _INDEX_SETS
        kinds[coordinate] = apart if few else together
    return [kinds[coordinate] for coordinate in nest.halo]


def _is_worth_splitting(nest: Nest, coordinate: KernelOperand) -> bool:
    if _is_seen_whole(nest, coordinate):
        return nest.peeling is Peeling.EVERY
    if nest.peeling is Peeling.STEPS or not _steps(nest, coordinate):
        return False
    loops = (*_reductions(nest, coordinate), *nest.steps)
    return math.prod(loop.extent for loop in loops) <= _WRITTEN


def _places(nest: Nest, coordinate: KernelOperand) -> list[_Place]:
    """Tasks that see a halo coordinate alike, those that see none of the halo last."""
    tasks = {task.name for task in nest.tasks}
    own = IndexExpr.of(t for t in coordinate.access.terms if set(t.iterators) <= tasks)
    rest = [t for t in coordinate.access.terms if not set(t.iterators) <= tasks]
    others = IndexExpr.of(rest, coordinate.access.constant)
    low, high = others.bounds({loop.name: loop.extent for loop in (*nest.reductions, *nest.inner)})
    places = np.unique(own.evaluate(_grid(_starts(nest, coordinate))))
    seen = places[(places + low < 0) | (places + high >= coordinate.elements)]
    found = [
        _Place(own, int(v), coordinate=replace(coordinate, access=others + int(v))) for v in seen
    ]
    return found if len(seen) == len(places) else [*found, _Place()]


def guarded(nest: Nest, opened: Sequence[Loop], variable: Mapping[str, str]) -> list[str]:
    """Conditions of what is inside the loops that have been ``opened``, the last of which decides
    them, if any does; ``variable`` names loops as the text does."""
    found: list[str] = []
    for coordinate in nest.halo:
        if list(opened[-1:]) != _deciding(nest, coordinate)[-1:]:
            continue
        outside, low, high = _range(nest, coordinate)
        at = outside.rename(lambda name: variable.get(name, name))
        least, most = outside.bounds(_extents(nest))
        end = coordinate.elements - low
        conditions = [f"{at} >= {-high}"] if least < -high else []
        conditions += [f"{at} < {end}"] if most >= end else []
        if conditions:
            found.append(f"if {' and '.join(conditions)}:")
    return found


def reads_no_padding(nest: Nest) -> bool:
    """Whether all that :func:`guarded` lets the index sets of a nest read is there."""
    return all(
        _is_seen_whole(part.nest, coordinate)
        for part in index_sets(nest)
        for coordinate in part.nest.halo
    )


def stepped_share(nest: Nest) -> float:
    """Of the steps of all tasks, those in which any point of a register tile is computed."""
    tasks = tuple(replace(task, remainder=0) for task in nest.tasks)
    return executed_share(replace(nest, tasks=tasks, peeling=Peeling.STEPS))


def executed_share(nest: Nest) -> float:
    """Of the products of all tasks, those that are not left out."""
    share = math.prod(task.points / (task.count * task.tile) for task in nest.tasks)
    for coordinate, kind in zip(nest.halo, _kinds(nest), strict=True):
        places = _starts(nest, coordinate)
        apart = kind != [_Place(coordinate=coordinate)]
        deciding = [*_reductions(nest, coordinate), *(_steps(nest, coordinate) if apart else [])]
        places |= {loop.name: range(loop.extent) for loop in deciding}
        if math.prod(map(len, places.values())) > _POSITIONS:
            continue
        own = [term for term in coordinate.access.terms if set(term.iterators) <= places.keys()]
        others = [term for term in coordinate.access.terms if term not in own]
        inner = {loop.name: loop.extent for loop in nest.inner}
        low, high = IndexExpr.of(others, coordinate.access.constant).bounds(inner)
        grid = _grid(places)
        at = np.asarray(IndexExpr.of(own).evaluate(grid))
        seen = (at + high >= 0) & (at + low < coordinate.elements)
        weights = np.ones(at.shape)
        for task in nest.tasks:
            if task.remainder and task.name in places:
                is_shorter = grid[task.name] >= task.start(task.count - task.remainder)
                missing = grid[task.step] == task.tile - 1 if task.step in places else 1 / task.tile
                weights *= 1 - is_shorter * missing
        share *= float(np.average(seen, weights=weights))
    return share


def _reductions(nest: Nest, coordinate: KernelOperand) -> list[Loop]:
    return [loop for loop in nest.reductions if loop.name in coordinate.access.iterators]


def _steps(nest: Nest, coordinate: KernelOperand) -> list[Loop]:
    return [loop for loop in nest.steps if loop.name in coordinate.access.iterators]


def _is_known(nest: Nest, coordinate: KernelOperand) -> bool:
    """Whether a halo coordinate is the same in all tasks, as in an index set of its own."""
    tasks = {task.name for task in nest.tasks}
    return nest.peeling is not Peeling.STEPS and not tasks & set(coordinate.access.iterators)


def _deciding(nest: Nest, coordinate: KernelOperand) -> list[Loop]:
    """Loops inside a task whose place decides whether something is left out."""
    steps = _steps(nest, coordinate) if _is_known(nest, coordinate) else []
    return [*_reductions(nest, coordinate), *steps]


def _is_seen_whole(nest: Nest, coordinate: KernelOperand) -> bool:
    """Whether one coordinate is seen where the deciding loops are: it is left out, or there."""
    _, low, high = _range(nest, coordinate)
    return low == high


def _range(nest: Nest, coordinate: KernelOperand) -> tuple[IndexExpr, int, int]:
    """A coordinate over tasks and deciding loops, and what the others add to it at least and at
    most."""
    deciding = {loop.name for loop in _deciding(nest, coordinate)}
    inner = {loop.name: loop.extent for loop in nest.inner if loop.name not in deciding}
    own = [term for term in coordinate.access.terms if set(term.iterators) <= inner.keys()]
    outside = [term for term in coordinate.access.terms if term not in own]
    low, high = IndexExpr.of(own).bounds(inner)
    return IndexExpr.of(outside, coordinate.access.constant), low, high


def _extents(nest: Nest) -> dict[str, int]:
    tasks = {task.name: task.start(task.count - 1) + 1 for task in nest.tasks}
    return tasks | {loop.name: loop.extent for loop in (*nest.reductions, *nest.steps)}


def _starts(nest: Nest, coordinate: KernelOperand) -> dict[str, Sequence[int]]:
    """Where tasks begin, by the loops that a halo coordinate depends on."""
    return {
        task.name: [task.start(number) for number in range(task.count)]
        for task in nest.tasks
        if task.name in coordinate.access.iterators
    }


def _grid(places: Mapping[str, Sequence[int]]) -> dict[str, NDArray[np.int64]]:
    """All combinations, an array a name."""
    return dict(zip(places, np.meshgrid(*places.values(), indexing="ij"), strict=True))
