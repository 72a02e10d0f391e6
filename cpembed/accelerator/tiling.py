"""Search for the best tiling of an operator: exhaustive over its template, in numpy.

A tiling is a sequence of tile loops and, for each buffer of the main statement, its depth in them.
Let the buffers be ordered from the outermost to the innermost. Between two of them, only loops are
useful that move the inner one and not the outer one: any other loop can change places with the
buffer inside of it without more rows or more bytes. So an order of the buffers determines the loops,
and what remains are the sizes of the tiles, which are enumerated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.problem import PlanningError, Step
from cpembed.accelerator.template import BufferSpec, Template, element_bits
from cpembed.accelerator.transfers import copy_instructions
from cpembed.hw.isa import IsaInstruction, MemoryKind, Synchronization

Array = NDArray[Any]

_CHUNK = 1 << 17
"""Maximum number of tilings that are compared at once."""
_CLASSES = 2
"""Number of classes of capacities, a factor of two apart, of each of which the best is kept."""
_PARTS = (2, 4, 8, 16)
"""Parts of the largest execution in which axes are tiled that need not be executed whole."""


Key = tuple[str, str]
"""Tensor and memory of a buffer."""


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
        Bounds that hold for every program with these instructions, in or out of the template.
    """

    candidates: tuple[Candidate, ...]
    compared: int
    cycles_bound: float
    bytes_bound: float


@dataclass(frozen=True)
class _LoopSlot:
    """A loop of an order of buffers, and the option's column that has its tile's size."""

    axis: str
    level: int


@dataclass(frozen=True)
class _Order:
    """Loops and depths that an order of the buffers determines."""

    loops: tuple[_LoopSlot, ...]
    depths: Mapping[Key, int]
    output_depth: int


def tile_counts(count: int) -> list[int]:
    """Return the sizes of tiles that are least for their number of tiles, ascending.

    >>> tile_counts(7)
    [1, 2, 3, 4, 7]
    """
    return sorted({-(-count // n) for n in range(1, count + 1)})


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
        raise PlanningError(_too_large(template, shortest))
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
    kept = [
        n
        for n, slot in enumerate(order.loops)
        if not slot.level and template.granules[slot.axis] < template.extents[slot.axis]
    ]
    depths = {key: sum(n < depth for n in kept) for key, depth in order.depths.items()}
    return Tiling(tuple(loops), depths, sum(n < order.output_depth for n in kept), {})


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


def _orders(template: Template) -> Iterator[_Order]:
    """Yield the different loop structures of all orders of the main statement's buffers."""
    inputs = [b for b in template.buffers if b.role == "main"]
    output = next((b for b in template.buffers if b.role == "output"), None)
    output_axes = frozenset(template.main_step.axes.values()) - template.main_step.reductions
    chain_uses = {
        a: sum(a in b.axes for b in template.buffers if b.role == "chain") for a in output_axes
    }
    seen = set[tuple[Any, ...]]()
    for permutation in itertools.permutations([*inputs, None]):
        loops: list[_LoopSlot] = []
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
                loops.append(_LoopSlot(axis, levels[axis]))
            previous = axes
            if node is None:
                output_depth = len(loops)
                if output is not None:
                    depths[output.key] = len(loops)
            else:
                depths[node.key] = len(loops)
        key = (tuple(loops), tuple(sorted(depths.items())), output_depth)
        if key not in seen:
            seen.add(key)
            yield _Order(tuple(loops), depths, output_depth)


@dataclass(frozen=True)
class _AxisOptions:
    """Sizes of the tiles of one axis, one row per option and one column per level."""

    extent: int
    sizes: Array
    tiles: Array

    @cached_property
    def _counts(self) -> dict[tuple[int, int], Array]:
        return {}

    def executions(self, levels: int, granule: int) -> Array:
        """Return the number of executions along the axis, inside of a number of its loops."""
        key = levels, granule
        if key not in self._counts:
            chains = [tuple(map(int, chain[:levels])) for chain in self.sizes]
            counts = [
                _tiles(self.extent, (*chain, min(granule, *chain, self.extent))) for chain in chains
            ]
            self._counts[key] = np.array(counts, np.int64)
        return self._counts[key]


def _axis_options(
    extent: int, granule: int, levels: int, *, is_fine: bool, is_even: bool
) -> _AxisOptions:
    chains: list[tuple[int, ...]] = [()]
    for _ in range(levels):
        longer: list[tuple[int, ...]] = []
        for chain in chains:
            span = chain[-1] if chain else extent
            options = {min(span, granule * c) for c in tile_counts(-(-span // granule))}
            if is_fine:
                # Executions of fewer points than the largest need fewer rows at once.
                options |= {-(-min(span, granule) // n) for n in _PARTS}
            longer += [(*chain, size) for size in sorted(options)]
        chains = longer
    if is_even:
        chains = [c for c in chains if _is_even(extent, (*c, granule))] or [(extent,) * levels]
    sizes = np.array(chains, np.int64).reshape(len(chains), levels)
    tiles = np.empty_like(sizes)
    for row, chain in enumerate(chains):
        for level in range(levels):
            tiles[row, level] = _tiles(extent, chain[: level + 1])
    return _AxisOptions(extent, sizes, tiles)


def _is_even(extent: int, chain: tuple[int, ...]) -> bool:
    """True if all tiles of a level have the same number of tiles of the next one."""
    product, span = 1, extent
    for size in chain:
        product *= -(-span // size)
        span = min(span, size)
    return _tiles(extent, chain) == product


def _tiles(extent: int, chain: Sequence[int]) -> int:
    """Return the number of tiles that are not empty, on the innermost level of a chain."""
    if not chain:
        return 1
    whole, rest = divmod(extent, chain[0])
    count = whole * _tiles(chain[0], chain[1:])
    return count + (_tiles(rest, chain[1:]) if rest else 0)


@dataclass
class _Grid:
    """Options of all axes, combined: size and number of tiles of each axis on each level."""

    template: Template
    sizes: dict[str, list[Array]]
    tiles: dict[str, list[Array]]
    options: Mapping[str, _AxisOptions]
    choice: Mapping[str, Array]

    def size(self, axis: str, levels: int) -> Any:
        """Return the size of an axis's tile inside of a number of its loops."""
        return self.sizes[axis][levels - 1] if levels else self.template.extents[axis]

    def count(self, axis: str, levels: int) -> Any:
        """Return the number of an axis's tiles inside of a number of its loops."""
        return self.tiles[axis][levels - 1] if levels else 1

    def executions(self, axis: str, levels: int, granule: int) -> Any:
        """Return the number of executions along an axis, inside of a number of its loops."""
        if axis not in self.options:
            return -(-self.template.extents[axis] // granule)
        return self.options[axis].executions(levels, granule)[self.choice[axis]]


@dataclass(frozen=True)
class _CopyCost:
    """Cycles of copying a buffer's boxes: which dimension each axis of the copy walks."""

    instruction: IsaInstruction
    walks: Mapping[str, tuple[int, int]]


class _Model:
    """Costs of all tilings of one order of the buffers."""

    def __init__(self, template: Template, order: _Order) -> None:
        self.template = template
        self.order = order
        self.machine = template.machine
        levels: dict[str, int] = {}
        for slot in order.loops:
            levels[slot.axis] = slot.level + 1
        self.levels = levels
        self.options = {
            a: _axis_options(
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
            grid = _Grid(
                self.template,
                {a: list(self.options[a].sizes[choice[a]].T) for a in axes},
                {a: list(self.options[a].tiles[choice[a]].T) for a in axes},
                self.options,
                choice,
            )
            yield self._best(grid, len(flat), shortest), len(flat)

    def _best(self, grid: _Grid, count: int, shortest: dict[str, int]) -> list[Candidate]:
        costs = _Costs(self.template, self.order, grid, count)
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
        at, option, cycles, capacity = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        moved = costs.bytes_moved[at]
        # Bytes only decide between equal cycles.
        ranked = cycles * (1 + 1e-9 * moved / max(1.0, float(np.max(moved))))
        classes = np.floor(_CLASSES * np.log2(np.maximum(1.0, capacity))).astype(np.int64)
        best = np.full(int(classes.max()) + 1, np.inf)
        np.minimum.at(best, classes, ranked)
        survivors = np.flatnonzero(ranked <= best[classes])
        return [
            Candidate(
                self._tiling(grid, int(at[n]), self.copies[option[n]]),
                float(cycles[n]),
                float(moved[n]),
                float(capacity[n]),
            )
            for n in _distinct(survivors, classes)
        ]

    def _tiling(self, grid: _Grid, place: int, copies: Mapping[Key, int]) -> Tiling:
        """Return the tiling at a place of the grid, without loops that have one iteration."""
        loops: list[tuple[str, int]] = []
        kept: list[int] = []
        spans = dict(self.template.extents)
        for position, slot in enumerate(self.order.loops):
            size = int(grid.sizes[slot.axis][slot.level][place])
            if size < spans[slot.axis]:
                loops.append((slot.axis, size))
                kept.append(position)
            spans[slot.axis] = size
        depths = {
            key: sum(position < depth for position in kept)
            for key, depth in self.order.depths.items()
        }
        output_depth = sum(position < self.order.output_depth for position in kept)
        return Tiling(tuple(loops), depths, output_depth, copies)


def _distinct(places: Array, classes: Array) -> list[int]:
    """Return the first place of each class."""
    _, first = np.unique(classes[places], return_index=True)
    return [int(places[n]) for n in first]


def _copy_options(template: Template) -> list[dict[Key, int]]:
    """List the numbers of copies of the buffers that are compared."""
    if template.machine.synchronization is Synchronization.IN_ORDER:
        return [{}]
    groups: list[tuple[Key, ...]] = [
        (b.key,) for b in template.buffers if b.role in ("main", "granule")
    ]
    outputs = tuple(b.key for b in template.buffers if b.role in ("chain", "output"))
    if outputs:
        groups.append(outputs)
    options: list[dict[Key, int]] = []
    for choice in itertools.product((1, 2), repeat=len(groups)):
        copies: dict[Key, int] = {}
        for keys, number in zip(groups, choice, strict=True):
            copies |= dict.fromkeys(keys, number)
        options.append(copies)
    return options


@dataclass
class _Costs:
    """Rows, bytes and cycles of every tiling of a grid."""

    template: Template
    order: _Order
    grid: _Grid
    count: int
    unit_cycles: dict[str, Any] = field(default_factory=dict[str, Any])
    transfer_cycles: dict[Key, Any] = field(default_factory=dict[Key, Any])
    bytes_moved: Any = 0.0
    chain_cycles: Any = 0.0
    chain_latency: float = 0.0
    latency: dict[Key, float] = field(default_factory=dict[Key, float])
    fill: Any = 0.0
    rounding: dict[Key, dict[int, int]] = field(default_factory=dict[Key, dict[int, int]])
    waits: dict[Key, Any] = field(default_factory=dict[Key, Any])
    _needed: dict[Key, tuple[Any, Any]] = field(default_factory=dict[Key, tuple[Any, Any]])

    def __post_init__(self) -> None:
        self.bytes_moved = np.zeros(self.count)
        for spec in self.template.buffers:
            if spec.is_home:
                continue
            for path, is_store in ((spec.load, False), (spec.store, True)):
                if path:
                    self._add_transfer(spec, (path[-2], path[-1]), is_store)
        for step in self.template.steps:
            self._add_statement(step)

    def _levels(self, depth: int, axis: str) -> int:
        """Return the number of loops of an axis outside of a depth."""
        return sum(slot.axis == axis for slot in self.order.loops[:depth])

    def _depth(self, spec: BufferSpec) -> int:
        if spec.role == "main":
            return self.order.depths[spec.key]
        return self.order.output_depth

    def _box(self, spec: BufferSpec, depth: int) -> list[Any]:
        """Return the largest size of a buffer's box along each dimension."""
        if spec.role == "granule":
            granules = self.template.main_step.granules
            return [
                1 + sum(t.coefficient * (granules[t.iterator] - 1) for t in e.terms)
                for e in spec.index
            ]
        return [
            1
            + sum(
                t.coefficient * (self.grid.size(t.iterator, self._levels(depth, t.iterator)) - 1)
                for t in e.terms
            )
            for e in spec.index
        ]

    def _rows(self, spec: BufferSpec) -> Any:
        lanes = dict(spec.lanes)
        rounding = self.rounding.get(spec.key, {})
        rows: Any = 1
        for dimension, size in enumerate(self._box(spec, self._depth(spec))):
            unit = lanes.get(dimension, 1)
            step = spec.steps.get(dimension, 1)
            chunk = rounding.get(dimension, 1)
            size = -(-size // chunk) * chunk
            rows = rows * (-(-size // unit)) if step == 1 else rows * (-(-size // step) * step)
        return rows

    def rows(self, copies: Mapping[Key, int]) -> dict[str, Any]:
        """Return the rows that all buffers need of each memory."""
        needed: dict[str, Any] = {}
        for spec in self.template.buffers:
            if spec.is_home:
                continue
            rows, has_second = self._needs(spec)
            if copies.get(spec.key, 1) > 1:
                # A buffer that is filled once has no second copy.
                rows = rows * has_second
            needed[spec.memory] = needed.get(spec.memory, 0) + rows
        return needed

    def _needs(self, spec: BufferSpec) -> tuple[Any, Any]:
        """Return the rows of a buffer, and by how many copies it is multiplied if it has two."""
        if spec.key not in self._needed:
            rows = self._rows(spec) + np.zeros(self.count, np.int64)
            self._needed[spec.key] = rows, np.where(self._visits(spec) > 1, 2, 1)
        return self._needed[spec.key]

    def _visits(self, spec: BufferSpec) -> Any:
        """Return how often a buffer gets new contents."""
        if spec.role == "granule":
            axes = self.template.main_step.axes.values()
            granules = self.template.main_step.granules
            return math.prod(-(-self.template.extents[a] // granules[a]) for a in axes)
        depth = self._depth(spec)
        is_read = spec.role == "main" or bool(spec.load)
        counts = self._counts(spec, depth, is_read)
        return math.prod(counts.values()) + np.zeros(self.count)

    def _counts(self, spec: BufferSpec, depth: int, hoists: bool) -> dict[str, Any]:
        """Return for each axis by how many of its tiles the number of visits is multiplied."""
        counts: dict[str, Any] = {}
        inside = np.zeros(self.count, bool)
        for slot in reversed(self.order.loops[:depth]):
            levels = slot.level + 1
            tiles = self.grid.count(slot.axis, levels) + np.zeros(self.count, np.int64)
            outer = self.grid.count(slot.axis, levels - 1)
            if slot.axis in spec.axes or not hoists:
                inside |= tiles > outer
                counts.setdefault(slot.axis, tiles)
            else:
                # The innermost of an axis's loops that repeat the visit has all of its tiles.
                repeated = np.where(inside, tiles, 1)
                before = counts.get(slot.axis)
                counts[slot.axis] = (
                    repeated if before is None else np.where(before > 1, before, repeated)
                )
        return counts

    def _add_transfer(self, spec: BufferSpec, memories: tuple[str, str], is_store: bool) -> None:
        depth = self._depth(spec)
        if spec.role == "granule":
            lengths, repeats = self._granule_lengths(spec)
        else:
            lengths, repeats = self._lengths(spec, depth, not is_store)
        cost = _copy_cost(self.template, spec, memories)
        bytes_each = element_bits(spec.dtype) / 8
        elements = repeats * math.prod(total for total, _ in lengths)
        moved = elements * bytes_each
        bandwidth = math.inf
        main = self.template.machine.main
        if main.name in memories:
            self.bytes_moved = self.bytes_moved + moved
            bandwidth = main.bytes_per_cycle
        if cost is None:
            return
        fixed = {a.name: a.maximum for a in cost.instruction.axes if a.is_fixed}
        self.rounding[spec.key] = {
            dimension: fixed[a] for a, (dimension, _) in cost.walks.items() if a in fixed
        }
        cycles = repeats * _cycles(cost, lengths)
        unit = cost.instruction.unit
        self.unit_cycles[unit] = self.unit_cycles.get(unit, 0.0) + np.maximum(
            cycles, moved / bandwidth
        )
        slow = np.maximum(cycles, moved / bandwidth)
        self.transfer_cycles[spec.key] = self.transfer_cycles.get(spec.key, 0.0) + slow
        self.latency[spec.key] = cost.instruction.latency_cycles
        if memories[0] == main.name:
            self.latency[spec.key] += main.latency_cycles
        visits = np.maximum(1, self._visits(spec))
        self.waits[spec.key] = visits * self.latency[spec.key]
        first = slow / visits
        self.fill = self.fill + first + (main.latency_cycles if main.name in memories else 0.0)

    def _lengths(
        self, spec: BufferSpec, depth: int, hoists: bool
    ) -> tuple[list[tuple[Any, Any]], Any]:
        """Return sums over all visits of each dimension's length, and of its parts of a chunk.

        The second result is the number of visits for each box: the tiles of other axes.
        """
        counts = self._counts(spec, depth, hoists)
        lengths: list[tuple[Any, Any]] = []
        box = self._box(spec, depth)
        for e, size in zip(spec.index, box, strict=True):
            tiles = {t.iterator: counts.get(t.iterator, 1) for t in e.terms}
            everything = math.prod(tiles.values())
            total: Any = everything * (1 - sum(t.coefficient for t in e.terms))
            for t in e.terms:
                others = math.prod(v for a, v in tiles.items() if a != t.iterator)
                total = total + t.coefficient * self.template.extents[t.iterator] * others
            lengths.append((total, (everything, size)))
        repeats = math.prod(v for a, v in counts.items() if a not in spec.axes)
        return lengths, repeats

    def _granule_lengths(self, spec: BufferSpec) -> tuple[list[tuple[Any, Any]], Any]:
        step = self.template.main_step
        extents = self.template.extents
        lengths: list[tuple[Any, Any]] = []
        for e in spec.index:
            tiles = {
                a: self.grid.executions(a, self.levels_of(a), step.granules[a]) for a in e.iterators
            }
            everything = math.prod(tiles.values())
            total: Any = everything * (1 - sum(t.coefficient for t in e.terms))
            for t in e.terms:
                others = math.prod(v for a, v in tiles.items() if a != t.iterator)
                total = total + t.coefficient * extents[t.iterator] * others
            size = 1 + sum(t.coefficient * (step.granules[t.iterator] - 1) for t in e.terms)
            lengths.append((total, (everything, size)))
        repeats: Any = 1
        for axis in step.axes.values():
            if axis not in spec.axes:
                levels = self.levels_of(axis)
                repeats = repeats * self.grid.count(axis, levels)
        return lengths, repeats

    def levels_of(self, axis: str) -> int:
        """Return the number of tile loops of an axis."""
        return self._levels(len(self.order.loops), axis)

    def _add_statement(self, step: Step) -> None:
        depth = self.order.output_depth
        factors: dict[str, tuple[Any, Any]] = {}
        repeats: Any = 1
        is_main = step.number == self.template.main
        own = set(step.axes.values())
        for axis in {slot.axis for slot in self.order.loops} - own:
            if not is_main and self._levels(depth, axis):
                repeats = repeats * self.grid.count(axis, self._levels(depth, axis))
        for axis in own:
            extent = self.template.extents[axis]
            granule = step.granules[axis]
            levels = self.levels_of(axis) if is_main else self._levels(depth, axis)
            factors[axis] = self.grid.executions(axis, levels, granule), extent
        cycles = repeats * _statement_cycles(step, factors)
        moved: Any = 0.0
        main = self.template.machine.main
        for operand, place in step.instruction.places.items():
            memory = self.template.machine.memories.get(place.memory)
            if memory is not None and memory.kind is MemoryKind.MAIN and place.dimensions:
                moved = moved + repeats * _direct_bytes(step, operand, factors)
        self.bytes_moved = self.bytes_moved + moved
        cycles = np.maximum(cycles, moved / main.bytes_per_cycle) + np.zeros(self.count)
        unit = step.instruction.unit
        self.unit_cycles[unit] = self.unit_cycles.get(unit, 0.0) + cycles
        if is_main:
            self.main_cycles = cycles
        else:
            self.chain_cycles = self.chain_cycles + cycles
            self.chain_latency += step.instruction.latency_cycles
            if _reads_main(self.template, step):
                self.chain_latency += main.latency_cycles
            self.fill = self.fill + cycles / self._output_tiles()

    def cycles(self, copies: Mapping[Key, int]) -> Any:
        """Return the cycles of every tiling with these numbers of copies."""
        machine = self.template.machine
        path = self.bytes_moved / machine.main.bytes_per_cycle
        if machine.synchronization is Synchronization.IN_ORDER:
            return sum(self.unit_cycles.values()) + np.zeros(self.count)
        # A buffer without a second copy is filled while nothing uses it. With two, a fill has to
        # wait for the use of the fill before the last one: two rounds take at least a fill, its
        # latency and a use.
        serial, both, latency = self.main_cycles, self.main_cycles, np.zeros(self.count)
        outputs_alternate = False
        for spec in self.template.buffers:
            is_single = copies.get(spec.key, 1) == 1
            if spec.role in ("output", "chain"):
                outputs_alternate |= not is_single
            if spec.key not in self.transfer_cycles:
                continue
            waits = self.waits[spec.key]
            if is_single:
                serial = serial + self.transfer_cycles[spec.key] + waits
            both = both + self.transfer_cycles[spec.key]
            latency = np.maximum(latency, waits)
        tiles = self._output_tiles()
        chain = self.chain_cycles + tiles * self.chain_latency
        if not outputs_alternate:
            serial = serial + chain
        both = both + self.chain_cycles
        latency = np.maximum(latency, tiles * self.chain_latency)
        busiest = np.maximum.reduce(
            [path, serial, (both + latency) / 2, *self.unit_cycles.values()]
        )
        return busiest + self.fill

    def _output_tiles(self) -> Any:
        """Return the number of tiles of the main statement's output."""
        depth = self.order.output_depth
        axes = {slot.axis for slot in self.order.loops}
        return math.prod(self.grid.count(a, self._levels(depth, a)) for a in axes)


def _statement_cycles(step: Step, factors: Mapping[str, tuple[Any, Any]]) -> Any:
    """Return the cycles of all executions of a statement: a sum over the unit's polynomial."""
    total: Any = 0.0
    for axes, coefficient in step.instruction.cycles:
        product: Any = coefficient
        walked = set[str]()
        for name in axes:
            digits = step.digits(name)
            axis = next(a for a in step.instruction.axes if a.name == name)
            shared = [step.axes[d.axis] for d in digits]
            if axis.is_fixed or len(digits) != 1:
                size = axis.maximum if axis.is_fixed else math.prod(d.count for d in digits)
                product = product * max(1, size)
            elif shared[0] not in walked:
                product = product * factors[shared[0]][1]
                walked.add(shared[0])
        for shared, (count, _) in factors.items():
            if shared not in walked:
                product = product * count
        total = total + product
    return total


def _reads_main(template: Template, step: Step) -> bool:
    """True if a statement's instruction reads main memory."""
    main = template.machine.main.name
    return any(step.instruction.places[o].memory == main for o in step.instruction.inputs)


def _direct_bytes(step: Step, operand: str, factors: Mapping[str, tuple[Any, Any]]) -> Any:
    """Return the bytes that all executions move of an operand in main memory."""
    place = step.instruction.places[operand]
    own = step.instruction.computation.access(operand).index
    elements: Any = element_bits(place.dtype) / 8
    walked = set[str]()
    extents = step.instruction.extents
    for e in own:
        name = e.single_iterator
        digits = step.digits(name or "")
        axis = next((a for a in step.instruction.axes if a.name == name), None)
        if axis is None or axis.is_fixed or len(digits) != 1:
            size = 1 + e.bounds(extents)[1]
            elements = elements * (
                1 if axis is not None and not axis.is_fixed and not digits else size
            )
        else:
            shared = step.axes[digits[0].axis]
            elements = elements * factors[shared][1]
            walked.add(shared)
    for shared, (count, _) in factors.items():
        if shared not in walked:
            elements = elements * count
    return elements


def _copy_cost(template: Template, spec: BufferSpec, memories: tuple[str, str]) -> _CopyCost | None:
    """Return the copy that moves a buffer, with the dimensions that its axes walk."""
    lanes = dict(spec.lanes)
    box = [1 + e.bounds(template.extents)[1] - e.bounds(template.extents)[0] for e in spec.index]
    best: tuple[float, _CopyCost] | None = None
    for copy in copy_instructions(template.machine):
        if copy.memories != memories or copy.dtype != spec.dtype:
            continue
        place = copy.instruction.places[copy.destination]
        lane_axes = {d.axis for d in place.lanes}
        rows = sorted((d for d in range(len(box)) if d not in lanes), key=lambda d: -box[d])
        lane_dimensions = [d for d, _ in reversed(spec.lanes)]
        walks: dict[str, tuple[int, int]] = {}
        for axis in reversed(copy.instruction.axes):
            pool = lane_dimensions if axis.name in lane_axes else rows
            if pool:
                dimension = pool.pop(0)
                walks[axis.name] = dimension, axis.maximum
        cost = _CopyCost(copy.instruction, walks)
        cycles = float(_cycles(cost, [(size, (1, size)) for size in box]))
        if best is None or cycles < best[0]:
            best = cycles, cost
    return best[1] if best else None


def _cycles(cost: _CopyCost, lengths: Sequence[tuple[Any, Any]]) -> Any:
    """Return the cycles of all copies of boxes, from the sums of their lengths."""
    total: Any = 0.0
    by_dimension = {dimension: (a, chunk) for a, (dimension, chunk) in cost.walks.items()}
    fixed = {a.name for a in cost.instruction.axes if a.is_fixed}
    for axes, coefficient in cost.instruction.cycles:
        product: Any = coefficient
        for dimension, (length, (boxes, size)) in enumerate(lengths):
            axis, chunk = by_dimension.get(dimension, ("", 1))
            if axis in axes and axis not in fixed:
                product = product * length
            else:
                parts = length if chunk == 1 else boxes * -(-size // chunk)
                product = product * parts * (chunk if axis in axes else 1)
        total = total + product
    return total


def bounds(template: Template) -> tuple[float, float]:
    """Return bounds of the cycles and of the bytes of main memory, of any program.

    The bytes are those of every input and output once. The cycles are those of the busiest unit's
    executions, and of the bytes.
    """
    specification = template.problem.specification
    homes = template.problem.homes
    moved = 0.0
    for name, operand in specification.operands.items():
        outside = name in specification.inputs or name in specification.constants
        if (outside or name in specification.outputs) and name not in homes and operand.shape:
            moved += _touched(template, name) * element_bits(operand.dtype) / 8
    units: dict[str, float] = {}
    for step in template.steps:
        factors: dict[str, tuple[Any, Any]] = {
            a: (-(-template.extents[a] // step.granules[a]), template.extents[a])
            for a in step.axes.values()
        }
        unit = step.instruction.unit
        units[unit] = units.get(unit, 0.0) + float(_statement_cycles(step, factors))
    moved = max(moved, _product_bytes(template))
    busiest = max(units.values())
    if template.machine.synchronization is Synchronization.IN_ORDER:
        busiest = sum(units.values())
    return max(busiest, moved / template.machine.main.bytes_per_cycle), moved


def _touched(template: Template, tensor: str) -> int:
    """Return a lower bound of the elements of a tensor that the statements read or write."""
    most = 0
    for step in template.steps:
        computation = step.statement.computation
        for access in (*computation.reads, computation.statement.store):
            if computation.operand(access.operand).tensor == tensor:
                lengths: list[int] = []
                shape = computation.operand(access.operand).shape
                for e, size in zip(access.index, shape, strict=True):
                    low, high = e.bounds(computation.extents)
                    reached = min(high, size - 1) - max(low, 0) + 1
                    terms = [t for t in e.terms if computation.extents[t.iterator] > 1]
                    if len(terms) == 1:
                        reached = -(-reached // abs(terms[0].coefficient))
                    elif any(abs(t.coefficient) > 1 for t in terms):
                        largest = max(computation.extents[t.iterator] for t in terms)
                        reached = min(reached, largest)
                    lengths.append(reached)
                most = max(most, math.prod(lengths))
    return most


def _product_bytes(template: Template) -> float:
    """Return the bound 2mnk/sqrt(S) - 2S of a matrix product in S elements of memory."""
    step = template.main_step
    computation = step.statement.computation
    indices = [a.index for a in (*computation.reads, computation.statement.store)]
    single = all(e.single_iterator for index in indices for e in index)
    groups = [{e.single_iterator for e in index} for index in indices]
    if (
        not single
        or len(groups) != 3
        or any(len(a & b) != 1 for a, b in itertools.combinations(groups, 2))
    ):
        return 0.0
    widths = [element_bits(o.dtype) / 8 for o in computation.operands]
    capacity = sum(m.capacity_bytes or 0 for m in template.machine.row_memories()) / min(widths)
    if any(b.is_home for b in template.buffers):
        return 0.0
    points = computation.macs
    return min(widths) * max(0.0, 2 * points / math.sqrt(capacity) - 2 * capacity)
