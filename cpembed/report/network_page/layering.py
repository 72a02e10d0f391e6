"""Where the nodes of a graph are drawn: in layers from top to bottom, branches side by side.

The steps are Sugiyama's: a layer for each node, places of passage for edges over several layers,
an order within each layer that crosses few edges, and then coordinates that keep edges straight.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]

_SWEEPS = 12
_STRAIGHT, _TRUNK = 4.0, 1e4
"""How much more a place of passage counts than a node, so that long edges are straight, and what
lies on the trunk, a longest way through the graph, which is drawn as a straight line."""


@dataclass(frozen=True)
class Sizes:
    """Of all nodes, in pixels, and the distances between them; ``passage``: between long edges."""

    width: float
    height: float
    gap: float
    layer_gap: float
    passage: float = 18.0


@dataclass(frozen=True)
class Placed:
    """Centres of the nodes; for each edge its points from the source's centre to the target's, each
    in a layer; the size of all."""

    centres: tuple[Point, ...]
    paths: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def place(count: int, edges: Sequence[tuple[int, int]], sizes: Sizes) -> Placed:
    """Positions of ``count`` nodes, of which each edge leads to a later one.

    >>> sizes = Sizes(100, 40, 20, 30)
    >>> chain = place(2, [(0, 1)], sizes)
    >>> chain.centres, chain.width, chain.height
    (((50.0, 20.0), (50.0, 90.0)), 100.0, 110)
    """
    if not count:
        return Placed((), (), 0.0, 0.0)
    layers = layers_of(count, edges)
    graph = _Layered(count, edges, layers)
    graph.order()
    xs = graph.coordinates(sizes)
    step = sizes.height + sizes.layer_gap
    left = min(
        xs[v] - (sizes.width / 2 if v < count else sizes.passage / 2) for v in range(len(xs))
    )
    right = max(
        xs[v] + (sizes.width / 2 if v < count else sizes.passage / 2) for v in range(len(xs))
    )

    def point(vertex: int) -> Point:
        return xs[vertex] - left, graph.layer[vertex] * step + sizes.height / 2

    paths = tuple(tuple(point(v) for v in chain) for chain in graph.chains)
    height = (max(layers) + 1) * step - sizes.layer_gap
    return Placed(tuple(point(v) for v in range(count)), paths, right - left, height)


def layers_of(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The layer of each node: below all that it reads; of what reads nothing, above the first
    reader.

    >>> layers_of(4, [(0, 1), (1, 2), (3, 2)])
    [0, 1, 2, 1]
    """
    layers = [0] * count
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        layers[target] = max(layers[target], layers[source] + 1)
    reads = {target for _, target in edges}
    for node in range(count):
        readers = [layers[target] for source, target in edges if source == node]
        if node not in reads and readers:
            layers[node] = min(readers) - 1
    return layers


class _Layered:
    """Nodes and places of passage, by layer in their order; edges between neighbouring layers."""

    def __init__(self, count: int, edges: Sequence[tuple[int, int]], layers: list[int]) -> None:
        self.count = count
        self.layer = list(layers)
        self.chains: list[list[int]] = []
        self.chain_of: dict[int, int] = {}
        for source, target in edges:
            between = range(layers[source] + 1, layers[target])
            first = len(self.layer)
            self.layer.extend(between)
            places = range(first, len(self.layer))
            self.chain_of |= dict.fromkeys(places, len(self.chains))
            self.chains.append([source, *places, target])
        self.above: list[list[int]] = [[] for _ in self.layer]
        self.below: list[list[int]] = [[] for _ in self.layer]
        for chain in self.chains:
            for upper, lower in itertools.pairwise(chain):
                self.below[upper].append(lower)
                self.above[lower].append(upper)
        self.trunk = self._trunk()
        self.rows: list[list[int]] = [[] for _ in range(max(layers) + 1)]
        for vertex, layer in enumerate(self.layer):
            self.rows[layer].append(vertex)

    def _trunk(self) -> frozenset[int]:
        """The vertices of a way from a node in the lowest layer up to the first, without places of
        passage where that is possible."""
        at = max(range(self.count), key=lambda v: (self.layer[v], -v))
        found = [at]
        while self.above[at]:
            at = min(self.above[at])
            found.append(at)
        return frozenset(found)

    def order(self) -> None:
        """Sort each layer by the mean place of its neighbours, downwards and upwards in turn; the
        order with the fewest crossings stays."""
        best, fewest = [list(row) for row in self.rows], self.crossings()
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            rows = self.rows[1:] if down else self.rows[-2::-1]
            for row in rows:
                self._sort(row, self.above if down else self.below)
            found = self.crossings()
            if found < fewest:
                best, fewest = [list(row) for row in self.rows], found
            if not fewest:
                break
        self.rows = best

    def _sort(self, row: list[int], neighbours: list[list[int]]) -> None:
        place = {v: k for other in self.rows for k, v in enumerate(other)}

        def mean(vertex: int) -> float:
            near = neighbours[vertex]
            return sum(place[v] for v in near) / len(near) if near else place[vertex]

        row.sort(key=mean)

    def crossings(self) -> int:
        """Pairs of edges between neighbouring layers that cross."""
        total = 0
        for row, following in itertools.pairwise(self.rows):
            place = {v: k for k, v in enumerate(following)}
            ends = [place[w] for v in row for w in sorted(self.below[v], key=place.__getitem__)]
            total += _inversions(ends)
        return total

    def coordinates(self, sizes: Sizes) -> list[float]:
        """Of each vertex along its layer: near its neighbours, as far apart as sizes ask."""
        xs = [0.0] * len(self.layer)
        for row in self.rows:
            at = 0.0
            for before, vertex in zip([None, *row], row, strict=False):
                at += 0.0 if before is None else self._distance(before, vertex, sizes)
                xs[vertex] = at
            for vertex in row:
                xs[vertex] -= at / 2
        for sweep in range(_SWEEPS):
            rows = self.rows if sweep % 2 == 0 else self.rows[::-1]
            for row in rows:
                self._align(row, xs, sizes, sweep)
        return xs

    def _align(self, row: list[int], xs: list[float], sizes: Sizes, sweep: int) -> None:
        last = sweep >= _SWEEPS - 2
        wanted: list[float] = []
        for vertex in row:
            near = self.above[vertex] if sweep % 2 == 0 else self.below[vertex]
            near = self.above[vertex] + self.below[vertex] if last else near
            mean = sum(xs[v] for v in near) / len(near) if near else xs[vertex]
            if vertex in self.trunk:
                mean = 0.0
            elif vertex >= self.count:
                mean = self._passing(vertex, xs, outside=sweep >= _SWEEPS // 2)
            wanted.append(mean)
        weights = [self._weight(v) for v in row]
        apart = [self._distance(a, b, sizes) for a, b in itertools.pairwise(row)]
        for vertex, x in zip(row, spread(wanted, weights, apart), strict=True):
            xs[vertex] = x

    def _passing(self, vertex: int, xs: list[float], *, outside: bool) -> float:
        """Where a long edge passes a layer: between its ends, or, ``outside``, straight beside the
        widest of what it has to go around."""
        source, *passed, target = self.chains[self.chain_of[vertex]]
        if outside:
            return max((xs[v] for v in passed), key=abs)
        return (xs[source] + xs[target]) / 2

    def _weight(self, vertex: int) -> float:
        if vertex in self.trunk:
            return _TRUNK
        return 1.0 if vertex < self.count else _STRAIGHT

    def _distance(self, first: int, second: int, sizes: Sizes) -> float:
        nodes = (first < self.count) + (second < self.count)
        if nodes == 2:
            return sizes.width + sizes.gap
        return sizes.passage if not nodes else (sizes.width + sizes.passage + sizes.gap) / 2


def spread(
    wanted: Sequence[float], weights: Sequence[float], apart: Sequence[float]
) -> list[float]:
    """Places in order, at least ``apart`` from each other, with the least weighted squares of the
    distances to those that are ``wanted``: isotonic regression, by pooling neighbours.

    >>> spread([0, 0], [1, 1], [10])
    [-5.0, 5.0]
    >>> spread([0, 30], [1, 1], [10])
    [0.0, 30.0]
    """
    offsets = [0.0, *itertools.accumulate(apart)]
    blocks: list[tuple[float, float, int]] = []
    for value, weight, offset in zip(wanted, weights, offsets, strict=True):
        mean, total, size = value - offset, weight, 1
        while blocks and blocks[-1][0] > mean:
            other, more, items = blocks.pop()
            mean = (mean * total + other * more) / (total + more)
            total, size = total + more, size + items
        blocks.append((mean, total, size))
    means = [mean for mean, _, size in blocks for _ in range(size)]
    return [float(mean + offset) for mean, offset in zip(means, offsets, strict=True)]


def _inversions(values: Sequence[int]) -> int:
    """Pairs that are out of order, by merging."""
    if len(values) < 2:
        return 0
    middle = len(values) // 2
    left, right = list(values[:middle]), list(values[middle:])
    total = _inversions(left) + _inversions(right)
    left.sort()
    right.sort()
    passed = 0
    for value in right:
        while passed < len(left) and left[passed] <= value:
            passed += 1
        total += len(left) - passed
    return total
