"""Instances of a family: graphs at a few sizes, and the other sizes that each of them computes.

A *split* symbol's rows are independent of each other, so that a run of any size is one of several
instances after each other. Along a *padded* symbol an instance computes smaller sizes on inputs
that are filled up: :mod:`cpembed.graph.size_relation` says which masks this takes. Along an *exact*
one it computes its own size only. The relation is shown for pairs of graphs that were read, at the
ends of what an instance computes and within; a mask's extent has to be affine in a symbol at all of
them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from cpembed.errors import WorkloadError
from cpembed.graph.family import Extent, Family, Shape, Sizes
from cpembed.graph.graph import Graph
from cpembed.graph.size_masks import Filler, fitted_extent, masked
from cpembed.graph.size_relation import Axes, SizeObstacle, relate

MOST_EXACT = 64
"""Maximum number of sizes of a symbol of which each needs an instance of its own."""


class Mode(Enum):
    """Computation of sizes between those of instances."""

    SPLIT = "split"
    PADDED = "padded"
    EXACT = "exact"


@dataclass(frozen=True)
class Openness:
    """Modes of a family's symbols, and the shapes of its interface.

    Attributes
    ----------
    modes : mapping from str to Mode
        Mode of each symbol; at most one is split.
    regular : Sizes
        Least size of each symbol from which on graphs have one structure. A smaller one, such as 1,
        which broadcasts, needs an instance of its own.
    reasons : mapping from str to str
        Why a symbol is exact.
    inputs, outputs : tuple of Shape
        Shapes of the network's inputs and outputs in terms of the symbols.
    """

    modes: Mapping[str, Mode]
    regular: Sizes
    reasons: Mapping[str, str]
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]

    @property
    def split(self) -> str | None:
        """Symbol along which runs are divided, if there is one."""
        return next((name for name, mode in self.modes.items() if mode is Mode.SPLIT), None)


@dataclass(frozen=True)
class Instance:
    """Graph at some sizes, which also computes each symbol's sizes from ``least`` to ``most``.

    For a split symbol these are the sizes of runs of which the instance may be a part.
    """

    sizes: Sizes
    least: Sizes
    most: Sizes
    graph: Graph
    fillers: tuple[Filler, ...] = ()


# -- shapes ---------------------------------------------------------------------------------------


def _shapes(family: Family, relations: Mapping[Sizes, Sequence[Axes]]) -> tuple[Shape, ...]:
    """Return the shapes of tensors in terms of the symbols, from relations at several sizes."""
    shapes: list[Shape] = []
    for tensors in zip(*relations.values(), strict=True):
        structures = {tuple(len(axis) for axis in axes) for axes in tensors}
        if len(structures) != 1:
            raise SizeObstacle("has inputs or outputs whose axes are joined differently")
        shape: list[tuple[Extent, ...]] = []
        for axis in zip(*tensors, strict=True):
            extents = (
                {sizes: factor.small for sizes, factor in zip(relations, factors, strict=True)}
                # The ranges may have two sizes, of which only one is smaller.
                | {family.largest: factors[0].large}
                for factors in zip(*axis, strict=True)
            )
            shape.append(tuple(fitted_extent(family, values) for values in extents))
        shapes.append(tuple(shape))
    return tuple(shapes)


# -- modes ----------------------------------------------------------------------------------------


def openness(family: Family) -> Openness:
    """Find out how each symbol's sizes can be computed.

    Raises
    ------
    WorkloadError
        For a symbol that can be neither split nor padded and has more than :data:`MOST_EXACT`
        sizes, with the reason.
    """
    modes: dict[str, Mode] = {}
    reasons: dict[str, str] = {}
    regular = list(family.least)
    for place, symbol in enumerate(family.symbols):
        attempts = [Mode.PADDED] if Mode.SPLIT in modes.values() else [Mode.SPLIT, Mode.PADDED]
        modes[symbol] = Mode.EXACT
        for mode in attempts:
            try:
                regular[place] = _regular(family, place, shifts=mode is Mode.SPLIT)
            except SizeObstacle as error:
                reasons[symbol] = str(error)
            else:
                modes[symbol] = mode
                reasons.pop(symbol, None)
                break
    facts = Openness(modes, tuple(regular), reasons, (), ())
    try:
        inputs, outputs = _interface(family, modes, regular)
        make_instance(family, facts, family.largest, tuple(regular))
    except SizeObstacle as error:
        # What is no number of indices in one symbol cannot be masked at run time.
        for symbol, mode in modes.items():
            if mode is Mode.PADDED:
                modes[symbol], reasons[symbol] = Mode.EXACT, str(error)
        try:
            inputs, outputs = _interface(family, modes, regular)
        except SizeObstacle as obstacle:
            raise WorkloadError(f"{family.name}: an input or output {obstacle}") from None
    for symbol, mode in modes.items():
        count = len(family.ranges[symbol])
        if mode is Mode.EXACT and count > MOST_EXACT:
            raise WorkloadError(
                f"{family.name}: {symbol} cannot be a range of {count} sizes: {reasons[symbol]}; "
                f"each size needs kernels of its own: give at most {MOST_EXACT}, or one size"
            )
    return Openness(modes, tuple(regular), reasons, inputs, outputs)


def _regular(family: Family, place: int, *, shifts: bool) -> int:
    """Return the least size of a symbol from which on the largest graph computes every size.

    Raises :class:`SizeObstacle` if that holds for none.
    """
    sizes = family.ranges[family.symbols[place]]
    large = family.graph(family.largest)

    def check(size: int) -> None:
        at = tuple(size if k == place else n for k, n in enumerate(family.largest))
        relate(family.graph(at), large, shifts=shifts)

    if len(sizes) == 1:
        return sizes[0]
    for size in dict.fromkeys((sizes[-2], sizes[len(sizes) // 2], sizes[min(2, len(sizes) - 2)])):
        check(size)
    # The first sizes may have other graphs: an axis of 1 broadcasts.
    regular = sizes[min(2, len(sizes) - 2)]
    for size in reversed(sizes[: min(2, len(sizes) - 2)]):
        try:
            check(size)
        except SizeObstacle:
            break
        regular = size
    return regular


def _interface(
    family: Family, modes: Mapping[str, Mode], regular: Sequence[int]
) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """Return the shapes of inputs and outputs in terms of the symbols."""
    exact = [modes[symbol] is Mode.EXACT for symbol in family.symbols]
    if any(exact):
        # Graphs at sizes of an exact symbol are not compared, so that axes are those of shapes.
        return _interface_of_types(family)
    inputs: dict[Sizes, Sequence[Axes]] = {}
    outputs: dict[Sizes, Sequence[Axes]] = {}
    for sizes in _below(family.largest, regular):
        relation = relate(family.graph(sizes), family.graph(family.largest))
        inputs[sizes], outputs[sizes] = relation.inputs, relation.outputs
    return _shapes(family, inputs), _shapes(family, outputs)


def _interface_of_types(family: Family) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    corners = [*itertools.product(*({r[0], r[len(r) // 2], r[-1]} for r in family.ranges.values()))]
    shapes: list[tuple[Shape, ...]] = []
    for outputs in (False, True):
        first = family.graph(corners[0])
        names = first.outputs if outputs else tuple(first.inputs)
        of_tensors: list[Shape] = []
        for number, name in enumerate(names):
            rank = len(first.types[name].shape)
            axes: list[tuple[Extent, ...]] = []
            for axis in range(rank):
                values: dict[Sizes, int] = {}
                for sizes in corners:
                    graph = family.graph(sizes)
                    at = (graph.outputs if outputs else tuple(graph.inputs))[number]
                    values[sizes] = graph.types[at].shape[axis]
                axes.append((fitted_extent(family, values),))
            of_tensors.append(tuple(axes))
        shapes.append(tuple(of_tensors))
    return shapes[0], shapes[1]


def _below(sizes: Sizes, least: Sequence[int]) -> list[Sizes]:
    """Return sizes that are less in each symbol where ``least`` is: the ends, and in between."""
    candidates = [
        list(dict.fromkeys((low, min(low + 1, high - 1), (low + high) // 2, high - 1)))
        if low < high
        else [high]
        for low, high in zip(least, sizes, strict=True)
    ]
    longest = max(map(len, candidates))
    # Symbols vary at once, but not in step, so that each number shows which one it follows.
    rows = [
        tuple(values[(k * (1 + place)) % len(values)] for place, values in enumerate(candidates))
        for k in range(2 * longest)
    ]
    corners = [tuple(values[0] for values in candidates), tuple(v[-1] for v in candidates)]
    return list(dict.fromkeys((*corners, *rows)))


# -- instances ------------------------------------------------------------------------------------


def make_instance(family: Family, facts: Openness, sizes: Sizes, least: Sizes) -> Instance:
    """Return the graph at some sizes with the masks that smaller sizes need.

    Parameters
    ----------
    family : Family
    facts : Openness
    sizes : tuple of int
        Sizes of the graph.
    least : tuple of int
        Least size of each padded symbol that the instance has to compute.

    Raises
    ------
    SizeObstacle
        If it does not compute them.
    """
    places = range(len(sizes))
    modes = [facts.modes[symbol] for symbol in family.symbols]
    irregular = [sizes[k] < facts.regular[k] for k in places]
    low = tuple(
        least[k] if modes[k] is Mode.PADDED and not irregular[k] else sizes[k] for k in places
    )
    graph = family.graph(sizes)
    fillers: tuple[Filler, ...] = ()
    if low != sizes:
        relations = {at: relate(family.graph(at), graph) for at in _below(sizes, low)}
        graph, fillers = masked(family, graph, relations, sizes)
    # A run of any regular number of rows may have this instance as a part.
    is_part = [modes[k] is Mode.SPLIT and not irregular[k] for k in places]
    first = tuple(facts.regular[k] if is_part[k] else low[k] for k in places)
    most = tuple(family.largest[k] if is_part[k] else sizes[k] for k in places)
    return Instance(sizes, first, most, graph, fillers)
