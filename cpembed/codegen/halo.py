"""Index-set splitting at the halo: products with padding that a kernel need not compute.

At the image's border, a task sees only padding through some rows or columns of a filter: those
steps of the reductions are left out. Within a register tile, padding may be seen by some points
only. If the nest's :class:`~cpembed.codegen.nest.Peeling` allows it, tasks at a border have a body
of their own, in which each step has only the points that see more. Nothing of the padding is read
then, so the image need not contain it. Tasks with shorter remainder tiles are split off in the same
way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.nest import KernelOperand, Nest, Peeling, TileLoop
from cpembed.ir.index import IndexExpr
from cpembed.transform.program import Loop

# A larger nest has a small border, so that no products are assumed to be left out of it.
_POSITIONS = 1 << 20
"""Maximum number of positions of a halo coordinate whose products are counted one by one."""
# The inside of an image and two peelings, by columns and by rows, of which a filter of five taps
# sees padding in two on each side: each set is a body of its own in the kernel.
_INDEX_SETS = 15
"""Maximum number of index sets."""
_UNROLLED_POINTS = 256
"""Maximum number of points of a register tile, times the steps in which they differ, that are
written one after the other."""


@dataclass(frozen=True)
class IndexSet:
    """Tasks with a body of their own: those where ``condition`` holds and no earlier set's does.

    The last set has no condition. In ``nest``, halo coordinates that are equal in all tasks of the
    set depend on no task loop.
    """

    condition: str
    nest: Nest

    @property
    def unrolled(self) -> set[str]:
        """Reductions to unroll: the points computed in their steps differ at compile time."""
        nest = self.nest
        differing = [c for c in nest.halo if _is_constant(nest, c) and _steps(nest, c)]
        return {loop.name for coordinate in differing for loop in _reductions(nest, coordinate)}


@dataclass(frozen=True)
class _Place:
    """Subset of the tasks: those whose ``index`` is ``at`` a value or ``below`` one, or all.

    ``coordinate`` is what a halo coordinate becomes there, ``tile`` the name and the size of a
    loop's register tile.
    """

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
    """Return the index sets of a nest's tasks: borders and inside, full and shorter tiles."""
    borders = _border_places(_walks(nest), _points(nest))
    kinds = [*borders, *_tile_places(nest)]
    indices = [place.index for kind in kinds for place in kind if place.index is not None]
    names = {name for index in indices for name in index.iterators}
    starts = {t.name: list(map(t.start, range(t.count))) for t in nest.tasks if t.name in names}
    tasks = _grid(starts)
    remaining = np.ones([len(places) for places in starts.values()], bool)
    sets: list[IndexSet] = []
    # Sets are tested in this order in the text, so each one has only the tasks that remain.
    for kind in itertools.product(*kinds):
        holds = reduce(np.logical_and, (place.holds(tasks) for place in kind), remaining)
        # Combinations that no remaining task is in would be dead code.
        if holds.any():
            remaining &= ~holds
            condition = " and ".join(place.condition for place in kind if place.index is not None)
            sets.append(IndexSet(condition if remaining.any() else "", _restricted(nest, kind)))
    return sets


def _restricted(nest: Nest, places: Sequence[_Place]) -> Nest:
    points = dict(place.tile for place in places if place.tile is not None)
    inner = (replace(o, extent=points.get(o.name, o.extent)) for o in nest.inner)
    halo = (place.coordinate for place in places if place.coordinate is not None)
    return replace(nest, inner=tuple(inner), halo=tuple(halo))


def _tile_places(nest: Nest) -> list[list[_Place]]:
    """Return, for each loop with shorter remainder tiles, the full tiles and the shorter ones."""
    return [
        [
            _Place(IndexExpr.iterator(task.name), below=task.start(task.count - task.remainder)),
            _Place(tile=(task.step, task.tile - 1)),
        ]
        for task in nest.tasks
        if task.remainder
    ]


@dataclass(frozen=True)
class _Walk:
    """Loops that move a halo coordinate, in a nest of some peeling.

    Schedules of one nest have few different ones of each coordinate, so what depends on nothing
    else is cached by it.
    """

    coordinate: KernelOperand
    tasks: tuple[TileLoop, ...]
    reductions: tuple[Loop, ...]
    steps: tuple[Loop, ...]
    inner: tuple[Loop, ...]
    peeling: Peeling

    @classmethod
    def from_nest(cls, nest: Nest, coordinate: KernelOperand) -> _Walk:
        names = coordinate.access.iterators
        return cls(
            coordinate,
            tuple([task for task in nest.tasks if task.name in names]),
            tuple([loop for loop in nest.reductions if loop.name in names]),
            tuple([loop for loop in nest.steps if loop.name in names]),
            tuple([loop for loop in nest.inner if loop.name in names]),
            nest.peeling,
        )

    @property
    def is_constant(self) -> bool:
        """True if the coordinate is equal in all tasks, as in an index set of its own."""
        return self.peeling is not Peeling.STEPS and not self.tasks

    @property
    def without_points(self) -> _Walk:
        """The same loops where whole steps are left out, and no points."""
        if self.peeling is Peeling.STEPS and not any(task.remainder for task in self.tasks):
            return self
        tasks = tuple([replace(task, remainder=0) for task in self.tasks])
        return replace(self, tasks=tasks, peeling=Peeling.STEPS)

    @property
    def deciding(self) -> list[Loop]:
        """Loops inside a task that decide if something is left out."""
        return [*self.reductions, *(self.steps if self.is_constant else ())]

    @property
    def starts(self) -> dict[str, Sequence[int]]:
        """First points of the tasks, by the task loops that move the coordinate."""
        return {t.name: [t.start(number) for number in range(t.count)] for t in self.tasks}


def _walks(nest: Nest) -> tuple[_Walk, ...]:
    return tuple([_Walk.from_nest(nest, coordinate) for coordinate in nest.halo])


def _points(nest: Nest) -> int:
    """Return the number of points of a register tile."""
    return math.prod([loop.extent for loop in nest.steps])


def _border_places(walks: Sequence[_Walk], points: int) -> list[Sequence[_Place]]:
    """Return, for each halo coordinate, the places that get an index set of their own.

    Coordinates whose border nothing else can leave out use up the limit on index sets first.
    """
    kinds: dict[_Walk, Sequence[_Place]] = {}
    # A uniform coordinate needs no set: a condition around the step leaves its border out.
    for walk in sorted(walks, key=_is_uniform):
        joint = [_Place(coordinate=walk.coordinate)]
        split = _places(walk) if _is_worth_splitting(walk, points) else joint
        few = math.prod(map(len, kinds.values())) * len(split) <= _INDEX_SETS
        kinds[walk] = split if few else joint
    return [kinds[walk] for walk in walks]


def _is_worth_splitting(walk: _Walk, points: int) -> bool:
    if _is_uniform(walk):
        return walk.peeling is Peeling.EVERY
    if walk.peeling is Peeling.STEPS or not walk.steps:
        return False
    return math.prod(loop.extent for loop in walk.reductions) * points <= _UNROLLED_POINTS


@lru_cache(1 << 12)
def _places(walk: _Walk) -> tuple[_Place, ...]:
    """Return the tasks that see a halo coordinate alike; those that see no halo come last."""
    coordinate, tasks = walk.coordinate, {task.name for task in walk.tasks}
    of_tasks = IndexExpr.sum(t for t in coordinate.access.terms if set(t.iterators) <= tasks)
    rest = [t for t in coordinate.access.terms if not set(t.iterators) <= tasks]
    inside = IndexExpr.sum(rest, coordinate.access.constant)
    low, high = inside.bounds({loop.name: loop.extent for loop in (*walk.reductions, *walk.inner)})
    places = np.unique(of_tasks.evaluate(_grid(walk.starts)))
    border = places[(places + low < 0) | (places + high >= coordinate.elements)]
    split = [
        _Place(of_tasks, int(v), coordinate=replace(coordinate, access=inside + int(v)))
        for v in border
    ]
    return tuple(split if len(border) == len(places) else [*split, _Place()])


def guarded(nest: Nest, opened: Sequence[Loop], variable: Mapping[str, str]) -> list[str]:
    """Return the ``if`` headers to write once a number of loops is open.

    Parameters
    ----------
    nest : Nest
        Nest of an index set.
    opened : sequence of Loop
        Loops that enclose the place, outermost first. A condition is written where the last of
        these is the innermost loop that it depends on.
    variable : mapping of str to str
        Names of the loops in the text.
    """
    headers: list[str] = []
    for coordinate in nest.halo:
        # As far outside as possible: inside, it would be tested more often with the same result.
        walk = _Walk.from_nest(nest, coordinate)
        if list(opened[-1:]) != walk.deciding[-1:]:
            continue
        outside, low, high = _range(walk)
        at = outside.rename(lambda name: variable.get(name, name))
        least, most = outside.bounds(_extents(nest))
        # A step is left out only if all its points lie outside: at + high < 0, at + low >= size.
        end = coordinate.elements - low
        conditions = [f"{at} >= {-high}"] if least < -high else []
        conditions += [f"{at} < {end}"] if most >= end else []
        if conditions:
            headers.append(f"if {' and '.join(conditions)}:")
    return headers


def reads_no_padding(nest: Nest) -> bool:
    """Return True if the conditions of :func:`guarded` exclude every read of padding."""
    return all(_is_uniform(walk) for part in index_sets(nest) for walk in _walks(part.nest))


def stepped_share(nest: Nest) -> float:
    """Return the fraction of steps in which some point of a register tile is computed."""
    # Shorter tiles and peeled points leave out points of a step, never a step.
    walks = tuple([walk.without_points for walk in _walks(nest)])
    return math.prod(_shares(walks, _points(nest)), start=1.0)


def executed_share(nest: Nest) -> float:
    """Return the fraction of all tasks' products that are not left out."""
    share = math.prod(task.points / (task.count * task.tile) for task in nest.tasks)
    return math.prod(_shares(_walks(nest), _points(nest)), start=share)


@lru_cache(1 << 12)
def _shares(walks: tuple[_Walk, ...], points: int) -> tuple[float, ...]:
    """Return the fraction of positions of each coordinate whose products are not left out."""
    # Coordinates are counted one by one and their shares multiplied: rows and columns of a filter
    # are left out independently.
    kinds = _border_places(walks, points)
    joint_places = [[_Place(coordinate=walk.coordinate)] for walk in walks]
    split = [list(kind) != joint for kind, joint in zip(kinds, joint_places, strict=True)]
    return tuple(map(_coordinate_share, walks, split))


def least_share(nest: Nest) -> float:
    """Return a lower bound of :func:`executed_share` of the tilings of a nest without tiles.

    It is the fraction of single points that see something besides padding, 0 where these are too
    many to be counted.
    """
    walks = _walks(nest)
    if any(_positions(walk, is_split=True) > _POSITIONS for walk in walks):
        return 0.0
    return math.prod(_coordinate_share(walk, True) for walk in walks)


def _positions(walk: _Walk, *, is_split: bool) -> int:
    """Return the number of positions of a halo coordinate that are counted one by one."""
    deciding = (*walk.reductions, *(walk.steps if is_split else ()))
    return math.prod([task.count for task in walk.tasks] + [loop.extent for loop in deciding])


@lru_cache(1 << 12)
def _coordinate_share(walk: _Walk, is_split: bool) -> float:
    """Return the fraction of positions of a halo coordinate whose products are not left out."""
    if _positions(walk, is_split=is_split) > _POSITIONS:
        return 1.0
    coordinate, places = walk.coordinate, walk.starts
    deciding = [*walk.reductions, *(walk.steps if is_split else ())]
    places |= {loop.name: range(loop.extent) for loop in deciding}
    outer = [term for term in coordinate.access.terms if set(term.iterators) <= places.keys()]
    rest = [term for term in coordinate.access.terms if term not in outer]
    inner = {loop.name: loop.extent for loop in walk.inner}
    low, high = IndexExpr.sum(rest, coordinate.access.constant).bounds(inner)
    grid = _grid(places)
    at = np.asarray(IndexExpr.sum(outer).evaluate(grid))
    executed = (at + high >= 0) & (at + low < coordinate.elements)
    # The share of points already counts shorter tiles, whose last points must not count twice.
    weights = np.ones(at.shape)
    for task in walk.tasks:
        if task.remainder:
            is_shorter = grid[task.name] >= task.start(task.count - task.remainder)
            missing = grid[task.step] == task.tile - 1 if task.step in places else 1 / task.tile
            weights *= 1 - is_shorter * missing
    return float(np.average(executed, weights=weights))


def _reductions(nest: Nest, coordinate: KernelOperand) -> list[Loop]:
    return [loop for loop in nest.reductions if loop.name in coordinate.access.iterators]


def _steps(nest: Nest, coordinate: KernelOperand) -> list[Loop]:
    return [loop for loop in nest.steps if loop.name in coordinate.access.iterators]


def _is_constant(nest: Nest, coordinate: KernelOperand) -> bool:
    """Return True if a halo coordinate is equal in all tasks, as in an index set of its own."""
    return _Walk.from_nest(nest, coordinate).is_constant


def _is_uniform(walk: _Walk) -> bool:
    """Return True if all points see one coordinate at a time: it lies outside for all or none."""
    _, low, high = _range(walk)
    return low == high


@lru_cache(1 << 12)
def _range(walk: _Walk) -> tuple[IndexExpr, int, int]:
    """Return a coordinate over tasks and deciding loops, and the bounds of what is added to it."""
    deciding = {loop.name for loop in walk.deciding}
    inner = {loop.name: loop.extent for loop in walk.inner if loop.name not in deciding}
    access = walk.coordinate.access
    added = [term for term in access.terms if set(term.iterators) <= inner.keys()]
    outside = [term for term in access.terms if term not in added]
    low, high = IndexExpr.sum(added).bounds(inner)
    return IndexExpr.sum(outside, access.constant), low, high


def _extents(nest: Nest) -> dict[str, int]:
    tasks = {task.name: task.start(task.count - 1) + 1 for task in nest.tasks}
    return tasks | {loop.name: loop.extent for loop in (*nest.reductions, *nest.steps)}


def _grid(places: Mapping[str, Sequence[int]]) -> dict[str, NDArray[np.int64]]:
    """Return all combinations of positions, an array per name."""
    return dict(zip(places, np.meshgrid(*places.values(), indexing="ij"), strict=True))
