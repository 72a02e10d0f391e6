"""Search for the best tiling of an operator: exhaustive over its template, in numpy.

A tiling is a sequence of tile loops and, for each buffer of the main statement, its depth in them.
Let the buffers be ordered from the outermost to the innermost. Between two of them, only loops are
useful that move the inner one and not the outer one: any other loop can change places with the
buffer inside of it without more rows or more bytes. So an order of the buffers determines the
loops, and what remains are the sizes of the tiles, which are enumerated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.bounds import bounds
from cpembed.accelerator.problem import CapacityError
from cpembed.accelerator.template import Template
from cpembed.accelerator.tiling_cost import Costs
from cpembed.accelerator.tiling_grid import (
    Grid,
    Key,
    LoopOrder,
    LoopSlot,
    axis_options,
    tile_counts,
)
from cpembed.hw.isa import Synchronization

Array = NDArray[Any]

__all__ = ["Candidate", "Key", "SearchResult", "Tiling", "search", "smallest_tiling", "tile_counts"]

_CHUNK = 1 << 17
"""Maximum number of tilings that are compared at once."""
_CLASSES = 2
"""Number of classes of capacities in each octave; of each class the best tiling is kept."""


@dataclass(frozen=True)
class Tiling:
    """Loops over tiles, and how deep in them each buffer lives.

    Attributes
    ----------
    loops : tuple of (str, int)
        Axis and size of the tile of each loop, outermost first.
    depths : mapping of Key to int
        Number of the loops outside of each buffer of the main statement.
    output_depth : int
        Number of the loops outside of the sums of the main statement, and of all other statements.
    copies : mapping of Key to int
        2 for a buffer that is filled while the one before it is in use.
    """

    loops: tuple[tuple[str, int], ...]
    depths: Mapping[Key, int]
    output_depth: int
    copies: Mapping[Key, int]


@dataclass(frozen=True)
class Candidate:
    """A tiling with its cost in the search's model.

    Attributes
    ----------
    cycles : float
        Cycles of the operator.
    bytes_moved : float
        Bytes to and from main memory.
    capacity_bytes : float
        Bytes of the rows that its buffers occupy.
    """

    tiling: Tiling
    cycles: float
    bytes_moved: float
    capacity_bytes: float


@dataclass(frozen=True)
class SearchResult:
    """The front of an exhaustive search, best first, and what bounds it from below.

    Attributes
    ----------
    candidates : tuple of Candidate
        Tilings with fewer cycles than all that need fewer rows.
    compared : int
        Number of tilings that were compared.
    cycles_bound, bytes_bound : float
        Bounds that hold for every program with these matches, in or out of the template.
    """

    candidates: tuple[Candidate, ...]
    compared: int
    cycles_bound: float
    bytes_bound: float


def search(template: Template) -> SearchResult:
    """Return the best tilings of an operator, for each number of rows.

    Raises
    ------
    PlanningError
        If no tiling fits in the memories.
    """
    best: list[Candidate] = []
    compared = 0
    shortest: dict[str, int] = {}
    for order in _orders(template):
        model = _Model(template, order)
        for candidates, count in model.evaluate(shortest):
            compared += count
            best = _front([*best, *candidates])
    if not best:
        raise CapacityError(_too_large(template, shortest))
    best.sort(key=lambda c: (c.cycles, c.bytes_moved, c.capacity_bytes))
    cycles, moved = bounds(template)
    return SearchResult(tuple(best), compared, cycles, moved)


def smallest_tiling(template: Template) -> Tiling:
    """Return the tiling with the smallest tiles, whose sums are outermost of all buffers."""
    order = next(
        o for o in _orders(template) if o.output_depth == min(o.depths.values(), default=0)
    )
    loops = [
        (slot.axis, template.granules[slot.axis])
        for slot in order.loops
        if not slot.level and template.granules[slot.axis] < template.extents[slot.axis]
    ]
    positions = [
        n
        for n, slot in enumerate(order.loops)
        if not slot.level and template.granules[slot.axis] < template.extents[slot.axis]
    ]
    depths = {key: sum(n < depth for n in positions) for key, depth in order.depths.items()}
    return Tiling(tuple(loops), depths, sum(n < order.output_depth for n in positions), {})


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


def _front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates with fewer cycles, or as many and fewer bytes, than smaller ones."""
    ordered = sorted(candidates, key=lambda c: (c.capacity_bytes, c.cycles, c.bytes_moved))
    front: list[Candidate] = []
    for candidate in ordered:
        if not front or (candidate.cycles, candidate.bytes_moved) < (
            front[-1].cycles,
            front[-1].bytes_moved,
        ):
            front.append(candidate)
    return front


def _orders(template: Template) -> Iterator[LoopOrder]:
    """Yield the different loop structures of all orders of the main statement's buffers."""
    inputs = [b for b in template.buffers if b.role == "main" and not b.is_home]
    output = next((b for b in template.buffers if b.role == "output"), None)
    output_axes = frozenset(template.main_step.axes.values()) - template.main_step.reductions
    chain_uses = {
        a: sum(a in b.axes for b in template.buffers if b.role == "chain") for a in output_axes
    }
    distinct_orders = set[tuple[Any, ...]]()
    for permutation in itertools.permutations([*inputs, None]):
        loops: list[LoopSlot] = []
        depths: dict[Key, int] = {}
        levels: dict[str, int] = {}
        output_depth, previous = -1, frozenset[str]()
        for node in permutation:
            axes = output_axes if node is None else node.axes
            allowed = template.spatial
            if output_depth >= 0:
                allowed = template.spatial | template.reductions
            segment = sorted((axes & allowed) - previous, key=lambda a: (-chain_uses.get(a, 0), a))
            for axis in segment:
                levels[axis] = levels.get(axis, -1) + 1
                loops.append(LoopSlot(axis, levels[axis]))
            previous = axes
            if node is None:
                output_depth = len(loops)
                if output is not None:
                    depths[output.key] = len(loops)
            else:
                depths[node.key] = len(loops)
        key = (tuple(loops), tuple(sorted(depths.items())), output_depth)
        if key not in distinct_orders:
            distinct_orders.add(key)
            yield LoopOrder(tuple(loops), depths, output_depth)


class _Model:
    """Costs of all tilings of one order of the buffers."""

    def __init__(self, template: Template, order: LoopOrder) -> None:
        self.template = template
        self.order = order
        self.machine = template.machine
        levels: dict[str, int] = {}
        for slot in order.loops:
            levels[slot.axis] = slot.level + 1
        self.levels = levels
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
        self.copies = _copy_options(template)

    def evaluate(self, shortest: dict[str, int]) -> Iterator[tuple[list[Candidate], int]]:
        """Yield candidates and the number of tilings that were compared for them."""
        axes = sorted(self.options, key=lambda a: len(self.options[a].sizes))
        counts = [len(self.options[a].sizes) for a in axes]
        total = math.prod(counts)
        for first in range(0, total, _CHUNK):
            flat = np.arange(first, min(total, first + _CHUNK))
            index = np.unravel_index(flat, counts) if counts else ()
            choice = dict(zip(axes, index, strict=True))
            grid = Grid(
                self.template,
                {a: list(self.options[a].sizes[choice[a]].T) for a in axes},
                {a: list(self.options[a].tiles[choice[a]].T) for a in axes},
                self.options,
                choice,
            )
            yield self._best(grid, len(flat), shortest), len(flat)

    def _best(self, grid: Grid, count: int, shortest: dict[str, int]) -> list[Candidate]:
        costs = Costs(self.template, self.order, grid, count)
        parts: list[tuple[Array, Array, Array, Array]] = []
        for number, copies in enumerate(self.copies):
            rows = costs.rows(copies)
            fits = np.ones(count, bool)
            capacity: Any = np.zeros(count)
            for name, needed in rows.items():
                memory = self.machine.memories[name]
                fits &= needed <= memory.rows
                capacity = capacity + needed * memory.row_bytes
                least = int(np.min(needed))
                shortest[name] = min(shortest.get(name, least), least)
            at = np.flatnonzero(fits)
            if at.size:
                option = np.full(at.size, number)
                parts.append((at, option, costs.cycles(copies)[at], capacity[at]))
        if not parts:
            return []
        at = np.concatenate([p[0] for p in parts])
        option = np.concatenate([p[1] for p in parts])
        cycles = np.concatenate([p[2] for p in parts])
        capacity = np.concatenate([p[3] for p in parts])
        moved = costs.bytes_moved[at]
        # Bytes only decide between equal cycles.
        ranked = cycles * (1 + 1e-9 * moved / max(1.0, float(np.max(moved))))
        classes = np.floor(_CLASSES * np.log2(np.maximum(1.0, capacity))).astype(np.int64)
        best = np.full(int(classes.max()) + 1, np.inf)
        np.minimum.at(best, classes, ranked)
        survivors = np.flatnonzero(ranked <= best[classes])
        return [
            Candidate(
                self._tiling(grid, int(at[n]), self.copies[int(option[n])]),
                float(cycles[n]),
                float(moved[n]),
                float(capacity[n]),
            )
            for n in _distinct(survivors, classes)
        ]

    def _tiling(self, grid: Grid, place: int, copies: Mapping[Key, int]) -> Tiling:
        """Return the tiling at a place of the grid, without loops that have one iteration."""
        loops: list[tuple[str, int]] = []
        positions: list[int] = []
        spans = dict(self.template.extents)
        for position, slot in enumerate(self.order.loops):
            size = int(grid.sizes[slot.axis][slot.level][place])
            if size < spans[slot.axis]:
                loops.append((slot.axis, size))
                positions.append(position)
            spans[slot.axis] = size
        depths = {
            key: sum(position < depth for position in positions)
            for key, depth in self.order.depths.items()
        }
        output_depth = sum(position < self.order.output_depth for position in positions)
        return Tiling(tuple(loops), depths, output_depth, copies)


def _distinct(places: Array, classes: Array) -> list[int]:
    """Return the first place of each class."""
    _, first = np.unique(classes[places], return_index=True)
    return [int(places[n]) for n in first]


def _copy_options(template: Template) -> list[dict[Key, int]]:
    """List the numbers of copies of the buffers that are compared."""
    if template.machine.synchronization is Synchronization.IN_ORDER:
        return [{}]
    moved = [b for b in template.buffers if not b.is_home]
    main = [
        b.key
        for b in moved
        if b.role == "main" or (b.role == "granule" and b.first_use == template.main)
    ]
    # A unit waits in each round for room in all of its buffers, so that one with a single copy
    # makes it wait as if no buffer had two.
    is_joint = template.machine.synchronization is Synchronization.CHANNELS
    groups: list[tuple[Key, ...]] = [tuple(main)] if is_joint and main else [(k,) for k in main]
    outputs = tuple(b.key for b in moved if b.key not in main)
    if outputs:
        groups.append(outputs)
    options: list[dict[Key, int]] = []
    for choice in itertools.product((1, 2), repeat=len(groups)):
        copies: dict[Key, int] = {}
        for keys, number in zip(groups, choice, strict=True):
            copies |= dict.fromkeys(keys, number)
        options.append(copies)
    return options
