"""Positions of a graph's nodes in layers from top to bottom, branches side by side.

Sugiyama's method: assign a layer to each node, add bends where an edge passes a layer, order each
layer so that few edges cross, then find coordinates that keep edges straight.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]

# Number of passes over the layers, down and up in turn, in ordering and in placement.
_SWEEPS = 12

# Weights relative to a node's: of a bend, so that long edges are straight, and of a vertex on the
# trunk, a longest path through the graph, which is drawn as a straight line.
_BEND_WEIGHT, _TRUNK_WEIGHT = 4.0, 1e4


@dataclass(frozen=True)
class Sizes:
    """Size of all nodes and the distances between them in pixels; ``bend_gap`` between edges."""

    width: float
    height: float
    gap: float
    layer_gap: float
    bend_gap: float = 18.0


@dataclass(frozen=True)
class Placed:
    """Positions in pixels.

    Parameters
    ----------
    centres
        Centre of each node.
    paths
        Points of each edge from the source's centre to the target's, one in each layer.
    width, height
        Size of the drawing.
    """

    centres: tuple[Point, ...]
    paths: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def place(count: int, edges: Sequence[tuple[int, int]], sizes: Sizes) -> Placed:
    """Return the positions of a graph's nodes and edges.

    Parameters
    ----------
    count
        Number of nodes.
    edges
        Source and target of each edge; the target has the larger number.
    sizes
        Sizes and distances.

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
    half = [(sizes.width if v < count else sizes.bend_gap) / 2 for v in range(len(xs))]
    left = min(x - margin for x, margin in zip(xs, half, strict=True))
    right = max(x + margin for x, margin in zip(xs, half, strict=True))

    def point(vertex: int) -> Point:
        return xs[vertex] - left, graph.layer[vertex] * step + sizes.height / 2

    paths = tuple(tuple(point(v) for v in chain) for chain in graph.chains)
    height = (max(layers) + 1) * step - sizes.layer_gap
    return Placed(tuple(point(v) for v in range(count)), paths, right - left, height)


def layers_of(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of each node: below all nodes that it reads.

    A node that reads nothing is directly above its first reader.

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
            # Weights and constants would all be in the first layer, far from their readers.
            layers[node] = min(readers) - 1
    return layers


class _Layered:
    """Graph of nodes and bends with edges between neighbouring layers only, each layer in order.

    Vertices below ``count`` are nodes, the others bends.
    """

    def __init__(self, count: int, edges: Sequence[tuple[int, int]], layers: list[int]) -> None:
        self.count = count
        self.layer = list(layers)
        self.chains: list[list[int]] = []
        self.chain_of: dict[int, int] = {}
        for source, target in edges:
            between = range(layers[source] + 1, layers[target])
            first = len(self.layer)
            self.layer.extend(between)
            bends = range(first, len(self.layer))
            self.chain_of |= dict.fromkeys(bends, len(self.chains))
            self.chains.append([source, *bends, target])
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
        """Return the vertices of a path from the lowest layer up to the first."""
        vertex = max(range(self.count), key=lambda v: (self.layer[v], -v))
        path = [vertex]
        while self.above[vertex]:
            # Nodes have smaller numbers than bends.
            vertex = min(self.above[vertex])
            path.append(vertex)
        return frozenset(path)

    def order(self) -> None:
        """Sort each layer by the mean place of its neighbours, and keep the fewest crossings."""
        best, fewest = [list(row) for row in self.rows], self.crossings()
        for sweep in range(_SWEEPS):
            # Downwards and upwards in turn: one direction alone orders each layer by one neighbour.
            down = sweep % 2 == 0
            rows = self.rows[1:] if down else self.rows[-2::-1]
            for row in rows:
                self._sort(row, self.above if down else self.below)
            # Sorting by means may also add crossings, so the last sweep need not be the best.
            if (crossings := self.crossings()) < fewest:
                best, fewest = [list(row) for row in self.rows], crossings
            if not fewest:
                break
        self.rows = best

    def _sort(self, row: list[int], neighbours: list[list[int]]) -> None:
        place = {v: k for layer in self.rows for k, v in enumerate(layer)}

        def mean(vertex: int) -> float:
            near = neighbours[vertex]
            return sum(place[v] for v in near) / len(near) if near else place[vertex]

        row.sort(key=mean)

    def crossings(self) -> int:
        """Return the number of pairs of edges between neighbouring layers that cross."""
        total = 0
        for row, following in itertools.pairwise(self.rows):
            # Edges sorted by their upper end cross exactly where their lower ends are inverted.
            place = {v: k for k, v in enumerate(following)}
            ends = [place[w] for v in row for w in sorted(self.below[v], key=place.__getitem__)]
            total += _inversions(ends)
        return total

    def coordinates(self, sizes: Sizes) -> list[float]:
        """Return each vertex's coordinate along its layer: near its neighbours, but apart."""
        xs = [0.0] * len(self.layer)
        for row in self.rows:
            distances = [self._distance(a, b, sizes) for a, b in itertools.pairwise(row)]
            starts = list(itertools.accumulate(distances, initial=0.0))
            for vertex, start in zip(row, starts, strict=False):
                xs[vertex] = start - starts[-1] / 2
        for sweep in range(_SWEEPS):
            rows = self.rows if sweep % 2 == 0 else self.rows[::-1]
            for row in rows:
                self._align(row, xs, sizes, sweep)
        return xs

    def _align(self, row: list[int], xs: list[float], sizes: Sizes, sweep: int) -> None:
        """Move a layer towards its neighbours."""
        # Those above and those below in turn; in the last two sweeps both count.
        is_last = sweep >= _SWEEPS - 2
        ideal: list[float] = []
        for vertex in row:
            near = self.above[vertex] if sweep % 2 == 0 else self.below[vertex]
            near = self.above[vertex] + self.below[vertex] if is_last else near
            mean = sum(xs[v] for v in near) / len(near) if near else xs[vertex]
            if vertex in self.trunk:
                mean = 0.0
            elif vertex >= self.count:
                mean = self._bend(vertex, xs, outside=sweep >= _SWEEPS // 2)
            ideal.append(mean)
        weights = [self._weight(v) for v in row]
        distances = [self._distance(a, b, sizes) for a, b in itertools.pairwise(row)]
        for vertex, x in zip(row, spread(ideal, weights, distances), strict=True):
            xs[vertex] = x

    def _bend(self, vertex: int, xs: list[float], *, outside: bool) -> float:
        """Return where a long edge passes a layer: halfway between its ends, or ``outside``."""
        source, *bends, target = self.chains[self.chain_of[vertex]]
        if outside:
            # In line with its outermost bend, an edge goes straight past all that it must avoid.
            return max((xs[bend] for bend in bends), key=abs)
        return (xs[source] + xs[target]) / 2

    def _weight(self, vertex: int) -> float:
        if vertex in self.trunk:
            return _TRUNK_WEIGHT
        return 1.0 if vertex < self.count else _BEND_WEIGHT

    def _distance(self, first: int, second: int, sizes: Sizes) -> float:
        nodes = (first < self.count) + (second < self.count)
        if nodes == 2:
            return sizes.width + sizes.gap
        return sizes.bend_gap if not nodes else (sizes.width + sizes.bend_gap + sizes.gap) / 2


def spread(
    ideal: Sequence[float], weights: Sequence[float], distances: Sequence[float]
) -> list[float]:
    """Return positions in a given order that are as close as possible to ideal ones.

    The weighted sum of squared differences is least: isotonic regression, by pooling neighbours.

    Parameters
    ----------
    ideal
        Position that each vertex would have alone.
    weights
        Weight of each vertex.
    distances
        Minimum distance between each vertex and the next.

    >>> spread([0, 0], [1, 1], [10])
    [-5.0, 5.0]
    >>> spread([0, 30], [1, 1], [10])
    [0.0, 30.0]
    """
    offsets = [0.0, *itertools.accumulate(distances)]
    blocks: list[tuple[float, float, int]] = []
    for value, weight, offset in zip(ideal, weights, offsets, strict=True):
        # Without the distances the order is that positions do not decrease: isotonic regression.
        mean, total, size = value - offset, weight, 1
        # Two blocks out of order share their weighted mean, which is the least-squares value.
        while blocks and blocks[-1][0] > mean:
            before, added, count = blocks.pop()
            mean = (mean * total + before * added) / (total + added)
            total, size = total + added, size + count
        blocks.append((mean, total, size))
    means = [mean for mean, _, size in blocks for _ in range(size)]
    return [float(mean + offset) for mean, offset in zip(means, offsets, strict=True)]


def _inversions(values: Sequence[int]) -> int:
    """Return the number of pairs that are out of order."""
    total = 0
    before: list[int] = []
    for value in values:
        place = bisect_right(before, value)
        total += len(before) - place
        before.insert(place, value)
    return total
