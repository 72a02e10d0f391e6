"""Search for the best tilings of an operator: exhaustive over its template, in numpy.

Tilings come one by one, those with the fewest estimated cycles first. Where instructions cannot
address a tensor in a tiling, it is excluded with all others that tile the axes of that tensor
alike, so that the next one is the best of those that are left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.buffer_specs import BufferSpec, shared_index
from cpembed.accelerator.problem import CapacityError, Step
from cpembed.accelerator.template import Template
from cpembed.accelerator.tiling import Tiling, copy_options, loop_orders
from cpembed.accelerator.tiling_cost import Costs
from cpembed.accelerator.tiling_grid import Grid, Key, LoopOrder, axis_options
from cpembed.hw.isa import Synchronization

Array = NDArray[Any]

_CHUNK = 1 << 17
"""Maximum number of tilings that are compared at once."""
_BEST = 8
"""Number of tilings of an order and its numbers of copies that are kept of those compared."""
_CLASSES = 2
"""Number of classes of capacities in each octave; of each class the best tiling is kept."""
_REPEATED = 0.04
"""Part by which the cycles of a tiling count as more for each one of its kind that came before.

The estimate errs alike for tilings of one order and as many copies.
"""

_Split = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes of the tiles of an axis in the loops outside of a buffer, and inside of it."""


@dataclass(frozen=True)
class Candidate:
    """A tiling with its cost in the search's model.

    Attributes
    ----------
    cycles : float
        Cycles of the operator.
    busy_cycles : float
        Cycles that the busiest unit, or the path to main memory, is occupied: no program of the
        tiling takes fewer.
    bytes_moved : float
        Bytes to and from main memory.
    capacity_bytes : float
        Bytes of the rows that its buffers occupy.
    """

    tiling: Tiling
    cycles: float
    busy_cycles: float
    bytes_moved: float
    capacity_bytes: float
    place: int = -1


@dataclass(frozen=True)
class _Entries:
    """Tilings that are kept of one order, an element of each array for each of them."""

    place: Array
    option: Array
    cycles: Array
    busy: Array
    moved: Array
    capacity: Array

    @staticmethod
    def joined(parts: Sequence[_Entries]) -> _Entries:
        """Return the entries of several ones."""
        names = ("place", "option", "cycles", "busy", "moved", "capacity")
        return _Entries(*(np.concatenate([getattr(p, n) for p in parts]) for n in names))

    def at(self, places: Array) -> _Entries:
        """Return some of the entries."""
        names = ("place", "option", "cycles", "busy", "moved", "capacity")
        return _Entries(*(getattr(self, n)[places] for n in names))


@dataclass
class _Limits:
    """Tilings that are of use, and the fewest rows of each memory that any tiling needs."""

    below: float
    has_smaller: bool
    shortest: dict[str, int] = field(default_factory=dict[str, int])


class _Model:
    """Costs of all tilings of one order of the buffers."""

    def __init__(self, template: Template, order: LoopOrder, copies: list[dict[Key, int]]) -> None:
        self.template = template
        self.order = order
        self.machine = template.machine
        self.copies = copies
        levels: dict[str, int] = {}
        for slot in order.loops:
            levels[slot.axis] = slot.level + 1
        self.options = {
            a: axis_options(
                template.extents[a],
                template.granules[a],
                n,
                is_fine=a in template.fine,
                is_even=template.machine.synchronization is Synchronization.CHANNELS,
            )
            for a, n in levels.items()
        }
        self.axes = sorted(self.options, key=lambda a: len(self.options[a].sizes))
        self.counts = [len(self.options[a].sizes) for a in self.axes]
        self.count = math.prod(self.counts)
        self.excluded: list[dict[str, Array]] = [
            {axis: mask} for axis in self.axes if (mask := self._unaligned(axis)).any()
        ]
        self.is_cut = False

    def entries(self, limits: _Limits) -> _Entries | None:
        """Return the best tilings; None if there are none."""
        self.is_cut = False
        parts = [
            part
            for first in range(0, self.count, _CHUNK)
            for part in self._part(first, min(self.count, first + _CHUNK), limits)
        ]
        return _Entries.joined(parts) if parts else None

    def _part(self, first: int, end: int, limits: _Limits) -> Iterator[_Entries]:
        flat = np.arange(first, end)
        choice = self.choice(flat)
        grid = Grid(
            self.template,
            {a: list(self.options[a].sizes[choice[a]].T) for a in self.axes},
            {a: list(self.options[a].tiles[choice[a]].T) for a in self.axes},
            self.options,
            choice,
        )
        costs = Costs(self.template, self.order, grid, len(flat))
        busy = costs.busy_cycles()
        is_left = ~self.is_excluded(choice, len(flat)) & (busy < limits.below)
        parts: list[_Entries] = []
        for number, copies in enumerate(self.copies):
            fits, capacity = self._fitting(costs, copies, limits)
            at = np.flatnonzero(fits & is_left)
            if at.size:
                option = np.full(at.size, number)
                cycles = costs.cycles(copies)[at]
                moved = costs.bytes_moved[at]
                parts.append(_Entries(at + first, option, cycles, busy[at], moved, capacity[at]))
        for part in parts:
            self.is_cut |= part.place.size > _BEST
            yield part.at(_smallest(self.ranked(part), _BEST))
        if parts and limits.has_smaller:
            everything = _Entries.joined(parts)
            classes = np.floor(_CLASSES * np.log2(np.maximum(1.0, everything.capacity)))
            best = np.lexsort((self.ranked(everything), classes))
            _, heads = np.unique(classes[best], return_index=True)
            yield everything.at(best[heads])

    def ranked(self, entries: _Entries) -> Array:
        """Return the amounts of the objective of entries.

        Bytes decide between equal cycles, and cycles between equal bytes.
        """
        amounts, secondary = entries.cycles, entries.moved
        if self.template.problem.objective == "bytes":
            amounts, secondary = secondary, amounts
        return amounts * (1 + 1e-9 * secondary / float(np.max(secondary, initial=1.0)))

    def _fitting(
        self, costs: Costs, copies: Mapping[Key, int], limits: _Limits
    ) -> tuple[Array, Array]:
        """Return which tilings fit in the memories, and the bytes of the rows of each."""
        fits, capacity = np.ones(costs.count, bool), np.zeros(costs.count)
        for name, needed in costs.rows(copies).items():
            memory = self.machine.memories[name]
            fits &= needed <= memory.rows
            capacity = capacity + needed * memory.row_bytes
            least = int(np.min(needed))
            limits.shortest[name] = min(limits.shortest.get(name, least), least)
        return fits, capacity

    def choice(self, places: Array) -> dict[str, Array]:
        """Return the option of each axis at places of the grid."""
        index = np.unravel_index(places, self.counts) if self.counts else ()
        return dict(zip(self.axes, index, strict=True))

    def is_excluded(self, choice: Mapping[str, Array], count: int) -> Array:
        """Return which tilings are excluded."""
        excluded = np.zeros(count, bool)
        for masks in self.excluded:
            alike = np.ones(count, bool)
            for axis, mask in masks.items():
                alike &= mask[choice[axis]]
            excluded |= alike
        return excluded

    def exclude(self, tensor: str, splits: Mapping[str, _Split]) -> None:
        """Exclude all tilings that tile the axes of a tensor alike."""
        depth = self._depth(tensor)
        masks: dict[str, Array] = {}
        for axis, split in splits.items():
            if axis in self.options:
                alike = [s == split for s in self._splits(axis, depth)]
                masks[axis] = np.array(alike, bool)
            elif split != ((), ()):
                return
        self.excluded.append(masks)

    def _unaligned(self, axis: str) -> Array:
        """Return in which options of an axis some executions begin in another lane than the first.

        Loops inside of a buffer's have to move by whole rows along the dimensions in its lanes.
        """
        sizes, extent = self.options[axis].sizes, self.template.extents[axis]
        unaligned = np.zeros(len(sizes), bool)
        for spec, step in _first_lane_readers(self.template):
            depth = len(self.order.loops)
            if step.number != self.template.main:
                depth = self.order.output_depth
            levels = range(
                self._outside(axis, self._depth(spec.tensor)), self._outside(axis, depth)
            )
            for dimension, block in spec.lanes:
                coefficient = spec.index[dimension].coefficient(axis)
                if not coefficient or axis not in step.granules:
                    continue
                span: Any = sizes[:, levels.start - 1] if levels.start else extent
                for level in levels:
                    moved = coefficient * sizes[:, level] % block != 0
                    unaligned |= (sizes[:, level] < span) & moved
                    span = sizes[:, level]
                granule = step.granules[axis]
                if coefficient * granule % block:
                    unaligned |= span > granule
        return unaligned

    def _outside(self, axis: str, depth: int) -> int:
        """Return the number of loops of an axis outside of a depth."""
        return sum(slot.axis == axis for slot in self.order.loops[:depth])

    def _splits(self, axis: str, depth: int) -> Iterator[_Split]:
        outside = self._outside(axis, depth)
        for sizes in self.options[axis].sizes:
            spans = [self.template.extents[axis], *map(int, sizes)]
            moving = [n for n, (span, size) in enumerate(itertools.pairwise(spans)) if size < span]
            yield (
                tuple(spans[n + 1] for n in moving if n < outside),
                tuple(spans[n + 1] for n in moving if n >= outside),
            )

    def _depth(self, tensor: str) -> int:
        """Return the number of slots outside of the buffer of a tensor; 0 if it has none."""
        for spec in self.template.buffers:
            if spec.tensor == tensor and spec.role != "granule":
                if spec.role == "main":
                    return self.order.depths[spec.key]
                return self.order.output_depth
        return 0

    def splits(self, tensor: str, place: int) -> dict[str, _Split]:
        """Return how the tiling at a place tiles the axes of a tensor."""
        axes: set[str] = set()
        for step in self.template.steps:
            computation = step.statement.computation
            for access in (*computation.reads, computation.statement.store):
                if computation.operand(access.operand).tensor == tensor:
                    axes.update(n for e in shared_index(step, access) for n in e.iterators)
        choice, depth = self.choice(np.array([place])), self._depth(tensor)
        return {
            axis: list(self._splits(axis, depth))[int(choice[axis][0])]
            if axis in self.options
            else ((), ())
            for axis in axes
        }

    def tiling(self, place: int, option: int) -> Tiling:
        """Return the tiling at a place of the grid, without loops that have one iteration."""
        choice = self.choice(np.array([place]))
        loops: list[tuple[str, int]] = []
        positions: list[int] = []
        spans = dict(self.template.extents)
        for position, slot in enumerate(self.order.loops):
            size = int(self.options[slot.axis].sizes[choice[slot.axis][0]][slot.level])
            if size < spans[slot.axis]:
                loops.append((slot.axis, size))
                positions.append(position)
            spans[slot.axis] = size
        depths = {
            key: sum(position < depth for position in positions)
            for key, depth in self.order.depths.items()
        }
        output_depth = sum(position < self.order.output_depth for position in positions)
        copies = {
            key: count
            for key, count in self.copies[option].items()
            if count > 1 and self._has_rounds(key, depths, output_depth)
        }
        return Tiling(tuple(loops), depths, output_depth, copies)

    def _has_rounds(self, key: Key, depths: Mapping[Key, int], output_depth: int) -> bool:
        """True if a buffer gets new contents, so that a second copy of it is of use."""
        role = self.template.buffer(*key).role
        return role == "granule" or bool(depths.get(key, output_depth))


def _first_lane_readers(template: Template) -> Iterator[tuple[BufferSpec, Step]]:
    """Yield buffers with the statements whose instructions use them from the first lane on."""
    passed_on = {spec.tensor for spec in template.buffers if spec.role == "granule"}
    for spec in template.buffers:
        if spec.is_home or spec.role == "granule":
            continue
        if spec.tensor in passed_on:
            yield spec, template.main_step
        for number, operand in spec.uses:
            step = template.steps[number]
            if not step.instruction.places[operand].any_lane:
                yield spec, step


def _smallest(values: Array, count: int) -> Array:
    """Return the places of the smallest values, ascending."""
    if values.size > count:
        places = np.argpartition(values, count)[:count]
        return places[np.argsort(values[places], kind="stable")]
    return np.argsort(values, kind="stable")


class TilingSearch:
    """Tilings of an operator, the best first.

    Parameters
    ----------
    template : Template
    below : float, default infinity
        Cycles of the busiest unit from which on a tiling is of no use.
    has_smaller : bool, default False
        True to keep the best tilings of each class of capacities too.

    Raises
    ------
    CapacityError
        If no tiling fits in the memories.
    """

    def __init__(
        self, template: Template, below: float = math.inf, *, has_smaller: bool = False
    ) -> None:
        self.template = template
        copies = copy_options(template)
        self.models = [_Model(template, order, copies) for order in loop_orders(template)]
        self.compared = sum(model.count for model in self.models)
        self.limits = _Limits(below, has_smaller)
        self.visited: set[Any] = set()
        self.parts = [model.entries(self.limits) for model in self.models]
        kinds = len(self.models) * len(copies)
        self.counts = np.zeros(kinds, np.int64)
        self._collect()
        needed = self.limits.shortest.items()
        is_too_large = any(rows > template.machine.memories[name].rows for name, rows in needed)
        if not self.amounts.size and (is_too_large or math.isinf(below)):
            raise CapacityError(_too_large(template, self.limits.shortest))

    def _collect(self) -> None:
        """Put the entries of all orders into common arrays."""
        parts = [(n, part) for n, part in enumerate(self.parts) if part is not None]
        empty = np.zeros(0)
        self.number = np.concatenate([np.full(p.place.size, n) for n, p in parts] or [empty])
        self.entries = _Entries.joined([p for _, p in parts]) if parts else None
        self.amounts = empty if self.entries is None else self.models[0].ranked(self.entries)
        self.is_left = np.ones(self.amounts.size, bool)
        kinds = empty if self.entries is None else self.entries.option
        self.kind = (self.number * len(self.models[0].copies) + kinds).astype(np.int64)
        self.is_stale = False

    def next(self, below: float = math.inf, capacity: float = math.inf) -> Candidate | None:
        """Return the best tiling that is left; None if there is none.

        Parameters
        ----------
        below : float
            Cycles from which on a tiling is of no use.
        capacity : float
            Bytes of rows from which on a tiling is of no use.
        """
        if self.is_stale:
            self._collect()
        entries = self.entries
        if entries is None:
            return None
        usable = self.is_left & (entries.busy < below) & (entries.capacity < capacity)
        score = np.where(usable, self.amounts * (1 + _REPEATED * self.counts[self.kind]), np.inf)
        while np.isfinite(score).any():
            place = int(np.argmin(score))
            self.is_left[place], score[place] = False, np.inf
            candidate = self._candidate(entries, place)
            tiling = candidate.tiling
            key = tiling.loops, tuple(sorted(tiling.depths.items())), tiling.output_depth
            key = *key, tuple(sorted(tiling.copies.items()))
            if key not in self.visited:
                self.visited.add(key)
                self.counts[self.kind[place]] += 1
                return candidate
        return None

    def _candidate(self, entries: _Entries, place: int) -> Candidate:
        model = self.models[int(self.number[place])]
        return Candidate(
            model.tiling(int(entries.place[place]), int(entries.option[place])),
            float(entries.cycles[place]),
            float(entries.busy[place]),
            float(entries.moved[place]),
            float(entries.capacity[place]),
            place,
        )

    def exclude(self, candidate: Candidate, tensor: str) -> None:
        """Exclude all tilings that tile the axes of a tensor as a candidate does."""
        assert self.entries is not None
        place = candidate.place
        origin = self.models[int(self.number[place])]
        splits = origin.splits(tensor, int(self.entries.place[place]))
        for number, model in enumerate(self.models):
            model.exclude(tensor, splits)
            at = np.flatnonzero(self.number == number)
            choice = model.choice(self.entries.place[at].astype(np.int64))
            is_excluded = model.is_excluded(choice, at.size)
            self.is_left[at] &= ~is_excluded
            addressable = np.bincount(self.kind[at], ~is_excluded)
            # What was kept of a kind is gone: look for its best tilings among all others.
            if model.is_cut and (addressable[np.unique(self.kind[at])] == 0).any():
                self.parts[number] = model.entries(self.limits)
                self.is_stale = True


def _too_large(template: Template, shortest: Mapping[str, int]) -> str:
    for name, rows in shortest.items():
        memory = template.machine.memories[name]
        if rows > memory.rows:
            tensors = ", ".join(b.tensor for b in template.buffers if b.memory == name)
            return (
                f"rejected: the smallest tiles of {tensors} need {rows} rows of "
                f"{memory.row_bytes} bytes; {name} has {memory.rows}: use a machine with more "
                "rows, or fuse fewer statements"
            )
    return "rejected: no tiles fit in all memories at once: use a machine with more rows"
