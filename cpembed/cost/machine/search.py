"""Search for the mapping of a nest with the least cost on a machine, with a lower bound.

Levels are decided from main memory inwards, best first. At each level the cells of tile sizes
(:mod:`cpembed.cost.machine.bounds`) are tried in the order of their bounds; of a cell, its smallest
tiles, in every order in which operands are held, inside one another in slices as large as fit or of
single iterations, dealt to units in several ways. What costs more by its bound than the best
complete mapping is never looked at. Coarse grids of tile sizes come first, finer ones after them.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cpembed.cost.machine.bounds import (
    Bounds,
    Grid,
    HoldOrder,
    moving_loops,
    stage_operands,
)
from cpembed.cost.machine.divisions import balanced, dealt
from cpembed.cost.machine.incumbent import CALL, Incumbent, loop_order, staged
from cpembed.cost.machine.nest import ExecutionNest, Floats, TileOperand, check_one_execution
from cpembed.cost.machine.objective import Cost, cycles_cost, enclosing_cycles
from cpembed.cost.machine.passes import Integers
from cpembed.cost.machine.sampling import tilings_for
from cpembed.cost.machine.traffic import HeldTile, Tilings, cut, untiled
from cpembed.errors import TransformError
from cpembed.hw.machine import Hierarchy
from cpembed.ir.computation import AxisKind

ROWS = 4096
"""Maximum number of tilings that are counted tile by tile in the finest grid by default."""

_CELLS = 8
"""Maximum number of cells of tile sizes for each tiling that is counted."""

_HALVINGS = 8
"""Number of sizes of slices that are tried in each cell."""

_VARIANTS = 6
"""Number of other slices that are tried in each cell."""

_COARSER = 8
"""Ratio of the limits of work on the grids of tile sizes, of which coarse ones come first."""

_TILES = 8
"""Number of cells that are tried at a time."""

_LEAVES = 32
"""Number of cells that are tried at a time at the innermost level."""

_CLASS = 1.02
"""Ratio of bounds that are equally promising, so that deeper nodes come first."""

_STARTS = 2
"""Number of sampled tilings that are refined."""

_LEVEL = 12
"""Number of classes of bounds by which a node may be worse than one a level farther out."""

_SOFT = 0.25
"""Weight of the time of all transfers, one after the other, in the prospect of a tiling, whose
bound says nothing of those that are not the slowest."""

_CHILDREN = 48
"""Maximum number of tilings of a node that are remembered each time."""

_ENOUGH = 5e-3
"""Gap at which larger limits than :data:`_SMALL` are not tried."""

_SMALL = 512
"""Limit of the work of a search that takes some tenths of a second."""

_PROVEN = 1e-9
"""Maximum gap of a cost that is proven to be the least, for rounding errors."""


@dataclass(frozen=True)
class BestTilings:
    """Best tilings, in one row, with their cost and a lower bound on that of all tilings.

    ``nest`` is what they tile: its operands pass by memories where that is best.
    """

    tilings: Tilings
    nest: ExecutionNest
    cost: float
    bound: float

    @property
    def gap(self) -> float:
        """Fraction by which another tiling could cost less, at most."""
        return max(0.0, 1.0 - self.bound / self.cost) if self.cost > 0 else 0.0

    @property
    def exact(self) -> bool:
        """True if no tiling costs less, whatever its sizes, orders, places and division."""
        return self.gap <= _PROVEN


def best_tilings(
    nest: ExecutionNest, machine: Hierarchy, rows: int = ROWS, cost: Cost | None = None
) -> BestTilings:
    """Return the tiling of the least cost; of those with equal cycles, one that moves few bytes.

    Parameters
    ----------
    nest : ExecutionNest
        Nest to tile.
    machine : Hierarchy
        Machine with its memories.
    rows : int
        Limit of the work: the number of tilings that are counted tile by tile in the finest grid,
        rounded down to a power of 8. A larger one never costs more.
    cost : Cost, optional
        What to have the least of; cycles by default.

    Raises
    ------
    TransformError
        A memory is too small for one execution.
    """
    cost = cost or cycles_cost(machine)
    nests = _with_bypasses(nest, machine)
    best = _searched(Incumbent(nests[0], machine, cost), rows)
    bound = best.bound
    for passing_by in nests[1:]:
        # It has to be better than the best so far.
        start = Incumbent(passing_by, machine, cost, cost=best.cost, key=best.key)
        alternative = _searched(start, rows)
        bound = min(bound, alternative.bound)
        if alternative.tilings is not None:
            best = alternative
    assert best.tilings is not None
    return BestTilings(best.tilings, best.nest, best.cost, min(bound, best.cost))


def _with_bypasses(nest: ExecutionNest, machine: Hierarchy) -> list[ExecutionNest]:
    """Return the nest, and those whose operands pass by memories that allow it, if they fit.

    Raises :class:`TransformError` if nothing fits.
    """
    choices = list[list[TileOperand]]()
    for operand in nest.operands:
        links = operand.links(machine)
        free = [link.parent.name for link in links if link.parent.bypass]
        free = [name for name in free if name != operand.home]
        sets = itertools.chain.from_iterable(
            itertools.combinations(free, count) for count in range(len(free) + 1)
        )
        choices.append([replace(operand, bypassed=frozenset(names)) for names in sets])
    nests, problem = list[ExecutionNest](), None
    for operands in sorted(itertools.product(*choices), key=_bypasses):
        alternative = replace(nest, operands=operands)
        try:
            check_one_execution(alternative, machine)
        except TransformError as error:
            problem = problem or error
        else:
            nests.append(alternative)
    if not nests and problem is not None:
        raise problem
    return nests


def _bypasses(operands: Sequence[TileOperand]) -> int:
    """Return the number of memories that operands pass by."""
    return sum(len(operand.bypassed) for operand in operands)


def _searched(best: Incumbent, rows: int) -> Incumbent:
    """Return the best tilings of a nest that are found by a limit of the work."""
    if best.cost == math.inf:
        best.update(_single(best.nest, best.machine))
    # Each limit goes on with the best of those before it, so that a larger one is never worse.
    for limit in (_COARSER**n for n in range(1, 20) if _COARSER**n <= max(rows, _COARSER)):
        tolerance = _ENOUGH if limit > _SMALL else _PROVEN
        if best.cost > best.bound * (1 + tolerance):
            _improve(best, limit)
    return best


def _improve(best: Incumbent, limit: int) -> None:
    """Search for better tilings, with a limit of the work."""
    nest, machine, cost = best.nest, best.machine, best.pricing
    bounds = Bounds(nest, machine, Grid.for_nest(nest, limit * _CELLS), cost)
    best.bound = max(best.bound, bounds.least)
    _Search(bounds, best, limit).run()
    if best.cost <= best.bound * (1 + _PROVEN) or not nest.loops:
        return
    # A sample of tilings that hold all operands at one place: in deep hierarchies, of which the
    # limit leaves most tilings out, some of them are better than what the search reaches.
    sample = tilings_for(nest, [machine], limit)
    rows = _different(sample, cost.value(sample, nest, machine))
    starts = [staged(sample.select([row]), nest, machine) for row in rows]
    if best.tilings is not None:
        starts.insert(0, best.tilings)
    for start in starts:
        if best.cost > best.bound * (1 + _PROVEN):
            best.refine(start, limit // 4)


def _single(nest: ExecutionNest, machine: Hierarchy) -> Tilings:
    """Return the tiling with tiles of one execution, which fits every machine."""
    tilings, ones = untiled(nest), {loop.name: np.ones(1) for loop in nest.loops}
    for level in reversed(range(len(machine.levels) - 1)):
        tiles = [HeldTile(ones, operands) for operands in stage_operands(nest, machine, level)]
        loops = [[tuple(ones)] * len(tiles)]
        (tilings,) = cut(tilings, level, tiles, {}, loops, nest, machine)
    return tilings


def _different(tilings: Tilings, cost: Floats) -> list[int]:
    """Return some of the best rows, which differ in more than the innermost tiles."""
    columns = [
        column
        for stage in tilings.stages[:-1]
        for column in (*stage.sizes.values(), *stage.parts.values())
    ]
    order = np.argsort(cost, kind="stable")
    if not columns:
        return [int(order[0])]
    _, first = np.unique(np.stack(columns)[:, order], axis=1, return_index=True)
    return [int(order[n]) for n in np.sort(first)[:_STARTS]]


@dataclass(order=True)
class _Node:
    """A tiling down to ``level``, whose cells of the next level are tried from ``tried`` on."""

    rank: tuple[float, ...]
    bound: float = field(compare=False)
    level: int = field(compare=False)
    tilings: Tilings = field(compare=False)
    row: int = field(compare=False)
    cells: Integers | None = field(default=None, compare=False)
    position: int = field(default=0, compare=False)
    turns: int = field(default=0, compare=False)
    prospect: float = field(default=0.0, compare=False)


class _Search:
    """Best-first search on a grid of tile sizes."""

    def __init__(self, bounds: Bounds, best: Incumbent, limit: int) -> None:
        self.bounds, self.best, self.limit = bounds, best, limit
        self.nest, self.machine, self.cost = bounds.nest, bounds.machine, bounds.cost
        self.counted = 0
        self._heap = list[_Node]()
        self._number = itertools.count()
        self._loops = moving_loops(self.nest)
        windowed = (name for operand in self.nest.operands for name in self.nest.windowed(operand))
        self._windowed = tuple(dict.fromkeys(windowed))
        self._cuts = self._window_cuts()

    def _window_cuts(self) -> list[tuple[frozenset[str], frozenset[str]]]:
        """Return pairs of loops over windows: those that are cut for all slices, and the last."""
        kinds = {loop.name: loop.kind for loop in self.nest.loops}
        spatial = (name for name in self._windowed if kinds[name] is AxisKind.SPATIAL)
        every = frozenset(self._windowed)
        singles = (frozenset([name]) for name in self._windowed)
        sets = dict.fromkeys((frozenset[str](), *singles, frozenset(spatial), every))
        pairs = [(outer, inner) for outer in sets for inner in sets if outer <= inner]
        return sorted(pairs, key=lambda pair: (len(pair[0]), len(pair[1])))

    def run(self) -> None:
        """Search until nothing can be better or the limit is reached."""
        start = untiled(self.nest)
        self._push(_Node((), self.bounds.least, len(self.machine.levels) - 1, start, 0))
        while self._heap and self.counted < self.limit:
            node = heapq.heappop(self._heap)
            if node.bound >= self.best.cost:
                continue
            if node.cells is None:
                node.tilings = node.tilings.select([node.row])
                node.row, node.cells = 0, self._cells(node)
            count = _TILES if node.level > 1 else _LEAVES
            cells = node.cells[:, node.position : node.position + count]
            if not cells.shape[1]:
                continue
            promising = cells[:, self._cell_bounds(node, cells) < self.best.cost]
            node.position += count
            if promising.shape[1]:
                self._expand(node, promising)
                node.turns += 1
            self._push(node)

    def _push(self, node: _Node) -> None:
        # Each turn of a node makes room for others of its class.
        order = math.log(max(node.prospect, node.bound, 1e-30)) / math.log(_CLASS)
        node.rank = (
            math.floor(order) + node.turns + _LEVEL * node.level,
            node.level,
            node.prospect,
            next(self._number),
        )
        heapq.heappush(self._heap, node)

    # ------------------------------------------------------------------------------ cells

    def _cells(self, node: _Node) -> Integers:
        """Return the cells of the next level, a column for each, those of the least bound first."""
        level, grid = node.level - 1, self.bounds.grid
        last = grid.cells(node.tilings.room)
        part = tuple(slice(0, int(place[0]) + 1) for place in last)
        cycles, amounts = self.bounds.cycles[level][part], self.bounds.amounts[level][part]
        decided = float(self.cost.amount(node.tilings)[0])
        key = self.cost.combined(np.round(cycles, 3), amounts + decided).ravel()
        if not self.cost.counts_bytes:
            key = key + _SOFT * amounts.ravel()
        likely = self.bounds.likely_amounts[level][part].ravel()
        order = np.lexsort((-np.arange(key.size), likely, amounts.ravel(), key))
        order = order[np.isfinite(key[order])]
        return np.stack(np.unravel_index(order, cycles.shape))

    def _cell_bounds(self, node: _Node, cells: Integers) -> Floats:
        """Return the bounds of cells inside a node's tiling."""
        level, place = node.level - 1, tuple(cells)
        inside = np.broadcast_to(self.bounds.cycles[level][place], cells.shape[1:])
        count: int = cells.shape[1]
        outer = node.tilings.select(np.zeros(count, np.intp))
        time = enclosing_cycles(outer, self.nest, self.machine, inside)
        amount = self.cost.amount(outer) + self.bounds.amounts[level][place]
        return self.cost.combined(time, amount)

    def _expand(self, node: _Node, cells: Integers) -> None:
        """Count the tilings of cells, and remember those that can be the best."""
        level = node.level - 1
        for tilings in self._tilings(node.tilings, level, cells):
            self.counted += tilings.rows + CALL
            if not level:
                self.best.update(tilings)
                continue
            bounds, prospects = self._bounds(tilings, level)
            order = np.argsort(prospects, kind="stable")
            order = order[bounds[order] < self.best.cost]
            # Of tilings with equal prospects, one is enough.
            keys = np.stack([*tilings.sizes.values(), tilings.share, np.round(bounds, 3)])[:, order]
            _, firsts = np.unique(keys, axis=1, return_index=True)
            for row in order[np.sort(firsts)[:_CHILDREN]]:
                node = _Node((), float(bounds[row]), level, tilings, int(row))
                self._push(replace(node, prospect=float(prospects[row])))

    def _bounds(self, tilings: Tilings, level: int) -> tuple[Floats, Floats]:
        """Return the bounds of tilings down to a level, and what they are likely to cost."""
        place = self.bounds.grid.cells(tilings.room)
        decided = self.cost.amount(tilings)
        amount = decided + self.bounds.inside_amounts[level - 1][place]
        time = self.bounds.cycles_of(tilings, self.nest, self.machine)
        bound = self.cost.combined(time, amount)
        likely = np.maximum(amount, decided + self.bounds.likely_amount(tilings, level))
        if self.cost.counts_bytes:
            return bound, self.cost.combined(time, likely)
        return bound, bound + _SOFT * likely

    # ------------------------------------------------------------------------------ tilings

    def _tilings(self, outer: Tilings, level: int, cells: Integers) -> Iterator[Tilings]:
        """Yield tilings with one more level, for each order in which operands are held."""
        grid = self.bounds.grid
        # Of a tile that is larger than the one outside, only what leaves operands in place counts.
        tile = {
            name: np.minimum(grid.sizes[n][cells[n]], outer.sizes[name])
            for n, name in enumerate(grid.names)
        }
        for order in self.bounds.orders[level]:
            stages = self._stages(order, level, tile)
            if not stages:
                continue
            units = self.machine.fan_out(level)
            around = {name: float(outer.sizes[name][0]) for name in grid.names}
            divisions = balanced(self.nest, around, units)
            many = [dealt(outer.sizes, stages[0], parts, units) for parts in divisions]
            rows = len(next(iter(stages[0].values()))) if grid.names else 1
            blocks = {
                name: np.concatenate([np.broadcast_to(b[name], (rows,)) for b in many])
                for name in divisions[0]
            }
            repeated = [
                {name: np.tile(sizes, len(divisions)) for name, sizes in stage.items()}
                for stage in stages
            ]
            tiles = [
                HeldTile(sizes, frozenset(order[n : n + 1])) for n, sizes in enumerate(repeated)
            ]
            every = outer.select(np.zeros(int(rows) * len(divisions), np.intp))
            orders = [loop_order(order[n:], self.nest, self._loops) for n in range(len(stages))]
            yield from cut(every, level, tiles, blocks, [orders], self.nest, self.machine)

    def _stages(
        self, order: HoldOrder, level: int, tile: Mapping[str, Floats]
    ) -> list[dict[str, Floats]]:
        """Return the tile sizes of each operand's stage, with slices of two sizes in each cell."""
        if not tile:
            return [{} for _ in order or ("",)]
        stages = self._sliced(order, tile)
        fits = self._fits(order, level, stages)
        rows = np.flatnonzero(fits.any(axis=0))
        if not len(rows):
            return []
        # The largest equal slices that fit, the first others that do, and single iterations.
        selected = np.zeros_like(fits)
        selected[np.argmax(fits, axis=0)[rows], rows] = True
        single = fits[_HALVINGS:]
        selected[_HALVINGS:] |= single & (np.cumsum(single, axis=0) <= _VARIANTS)
        selected[-1] |= fits[-1]
        variants, cells = np.nonzero(selected)
        columns = [sizes[variants, cells] for stage in stages for sizes in stage.values()]
        table = iter(np.unique(np.stack(columns), axis=1))
        return [{name: next(table) for name in tile} for _ in stages]

    def _sliced(self, order: HoldOrder, tile: Mapping[str, Floats]) -> list[dict[str, Floats]]:
        """Return the sizes of each operand's stage as ``[slices, cell]``.

        The first slices are halved more and more often, all loops alike. Of the others, which are
        of single iterations, those of loops over windows are left out more and more rarely:
        windows that are cut overlap. The last ones are of single iterations of all loops.
        """
        # A level that all operands pass by has a stage too.
        stages: list[dict[str, Floats]] = [{} for _ in order or ("",)]
        for place, (name, sizes) in enumerate(tile.items()):
            grid_sizes = self.bounds.grid.sizes[place]
            staying = [n for n, resident in enumerate(order) if name not in self._loops[resident]]
            for n, stage in enumerate(stages):
                divisors = np.array(self._divisors(name, is_last=n == len(stages) - 1))[:, None]
                if staying and n <= staying[-1]:
                    divisors = np.ones_like(divisors)
                smaller = np.maximum(np.ceil(sizes / divisors), 1.0)
                slices = grid_sizes[np.searchsorted(grid_sizes, smaller, "right") - 1]
                # Tiles may be smaller than their cell.
                is_tile = divisors == 1
                stage[name] = np.where(is_tile, sizes, np.minimum(slices, sizes))
        return stages

    def _divisors(self, name: str, *, is_last: bool) -> list[float]:
        """Return the number of slices of a loop, in the operand's stage farthest in or before."""
        halved = [2.0**n for n in range(_HALVINGS)]
        if name not in self._windowed:
            return halved + [math.inf] * len(self._cuts)
        return halved + [math.inf if name in pair[is_last] else 1.0 for pair in self._cuts]

    def _fits(
        self, order: HoldOrder, level: int, stages: list[dict[str, Floats]]
    ) -> NDArray[np.bool_]:
        fits = np.ones(next(iter(stages[0].values())).shape, bool)
        for memory in self.machine.levels[level]:
            filled = np.zeros(1)
            for operand in self.nest.operands_in(memory, self.machine):
                sizes = stages[order.index(operand.name)]
                filled = filled + self.nest.occupied_bytes(memory, operand, sizes)
            fits = fits & (filled <= memory.tile_capacity)
        return fits
