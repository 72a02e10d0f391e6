"""Masks and numbers of steps by which a graph computes smaller sizes, as inputs of the graph.

What changes (:class:`~cpembed.graph.size_relation.Relation`) is known for pairs of sizes. Its
extent has to be affine in one size, or a quotient, at all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cpembed.graph.family import Extent, Family, Filling, Sizes
from cpembed.graph.graph import Graph, Operator, unused_name
from cpembed.graph.kinds import Apply, Elementwise, Input, Number, TensorType
from cpembed.graph.loop import COUNT, Loop
from cpembed.graph.size_relation import Counting, Mask, Relation, Rescaling, SizeObstacle

_MOST_DIVISOR = 16


@dataclass(frozen=True)
class Filler:
    """Input of an instance that depends on the sizes of a run alone."""

    name: str
    extent: Extent
    size: int
    kind: Filling


def fitted_extent(family: Family, values: Mapping[Sizes, int]) -> Extent:
    """Return the form of a number that is known at several sizes.

    Raises :class:`SizeObstacle` if there is none, or several that differ at other sizes.
    """
    numbers = {*values.values()}
    if len(numbers) == 1:
        return Extent(None, 0, numbers.pop())
    fitting: list[Extent] = []
    for place, symbol in enumerate(family.symbols):
        by_size = {sizes[place]: value for sizes, value in values.items()}
        if len(by_size) < 2 or any(by_size[at[place]] != value for at, value in values.items()):
            continue
        forms = list(_forms(symbol, by_size))
        # Quotients are told apart by neighbouring sizes only.
        same = {tuple(f.at({symbol: n}) for n in family.ranges[symbol]) for f in forms}
        if len(same) == 1:
            fitting.append(forms[0])
    # A quotient of one size may look like another size where that has two values.
    plain = [extent for extent in fitting if extent.divisor == 1] or fitting
    if len(plain) == 1:
        return plain[0]
    if fitting:
        raise SizeObstacle("has an extent that may follow either of two sizes")
    raise SizeObstacle("has an extent that is no multiple of one size plus a constant")


def _forms(symbol: str, values: Mapping[int, int]) -> Iterable[Extent]:
    """Yield the affine form of a number at several sizes, or the quotients that it may be."""
    (a, x), (b, y) = min(values.items()), max(values.items())
    if y > x and not (y - x) % (b - a):
        factor = (y - x) // (b - a)
        affine = Extent(symbol, factor, x - factor * a)
        if all(affine.at({symbol: size}) == value for size, value in values.items()):
            yield affine
            return
    for divisor in range(2, _MOST_DIVISOR + 1):
        for offset in range(x * divisor - a, (x + 1) * divisor - a):
            quotient = Extent(symbol, 1, offset, divisor)
            if all(quotient.at({symbol: size}) == value for size, value in values.items()):
                yield quotient


# -- graphs with masks ----------------------------------------------------------------------------


def masked(
    family: Family, graph: Graph, relations: Mapping[Sizes, Relation], sizes: Sizes
) -> tuple[Graph, tuple[Filler, ...]]:
    """Return a graph at some sizes with the masks of relations to smaller ones, and its fillers.

    Parameters
    ----------
    family : Family
    graph : Graph
        Graph at the sizes.
    relations : mapping
        Relation to the graph at each of some smaller sizes.
    sizes : tuple of int

    Raises
    ------
    SizeObstacle
        If the relations differ in other things than extents that follow the sizes.
    """
    builder = _MaskBuilder(graph, _Extents(family, sizes))
    masks = [{(m.path, m.operator, m.slot, m.axis): m for m in r.masks} for r in relations.values()]
    for key in dict.fromkeys(key for by_key in masks for key in by_key):
        if any(key not in by_key for by_key in masks):
            raise SizeObstacle("needs a mask at some sizes only")
        at = dict(zip(relations, (by_key[key] for by_key in masks), strict=True))
        builder.inside(key[0]).mask(at)
    for changes, problem in (
        ([r.rescalings for r in relations.values()], "divides by another number of sizes"),
        ([r.countings for r in relations.values()], "has another number of loops"),
    ):
        if len({len(each) for each in changes}) != 1:
            raise SizeObstacle(f"{problem} at another size")
        for each in zip(*changes, strict=True):
            builder.inside(each[0].path).change(dict(zip(relations, each, strict=True)))
    return builder.result(), tuple(builder.fillers.values())


@dataclass(frozen=True)
class _Extents:
    """Extents of changes in terms of a family's symbols, for the graph at some sizes."""

    family: Family
    sizes: Sizes

    def extent(self, changes: Mapping[Sizes, Mask | Rescaling | Counting]) -> Extent:
        """Return the number of elements that are no filling, at sizes up to those of the graph."""
        numbers = {at: change.small for at, change in changes.items()}
        full = next(iter(changes.values())).large
        return fitted_extent(self.family, {**numbers, self.sizes: full})


_FILLER_TYPES = {Filling.QUOTIENT: "float32", Filling.MASK: "bool", Filling.COUNT: COUNT.dtype}


class _MaskBuilder:
    """A graph to which masks are added, as inputs and elementwise operators.

    That of a loop's body reads the inputs of the graph around it as invariant tensors.
    """

    def __init__(self, graph: Graph, extents: _Extents, around: _MaskBuilder | None = None) -> None:
        self.extents = extents
        self.graph = graph
        self.around = around
        self.types = dict(graph.types)
        self.names = {*graph.types}
        self.operators = list(graph.operators)
        self.before: dict[int, list[Operator]] = {}
        self.after: dict[int, list[Operator]] = {}
        self.inputs: dict[str, TensorType] = {}
        self.fillers: dict[tuple[Extent, int, Filling, int], Filler] = {}
        self.masked: dict[tuple[str, int, Extent, float | int], str] = {}
        self.bodies: dict[int, _MaskBuilder] = {}

    def inside(self, path: Sequence[int]) -> _MaskBuilder:
        """Return the builder of the body at the end of a path of loops; itself at its start."""
        if not path:
            return self
        first, *rest = path
        if first not in self.bodies:
            kind = self.operators[first].kind
            assert isinstance(kind, Loop)
            self.bodies[first] = _MaskBuilder(kind.body, self.extents, self)
        return self.bodies[first].inside(rest)

    def _named(self, stem: str) -> str:
        name = unused_name(stem, self.names)
        self.names.add(name)
        return name

    def _filler(self, extent: Extent, size: int, kind: Filling, rank: int = 0) -> str:
        """Return the input with a filler; that of a mask has an axis followed by ``rank`` others.

        The same one is an input of all graphs around.
        """
        key = extent, size, kind, rank
        if key not in self.fillers:
            if self.around is not None:
                self.around._filler(*key)
            name = self._named(f"{kind.name.lower()} of {extent}")
            self.fillers[key] = Filler(name, extent, size, kind)
            shape = (size, *(1,) * rank) if kind is Filling.MASK else ()
            self.inputs[name] = TensorType(shape, _FILLER_TYPES[kind])
        return self.fillers[key].name

    def mask(self, masks: Mapping[Sizes, Mask]) -> None:
        """Mask an input of an operator."""
        first = next(iter(masks.values()))
        if len({(m.value, m.large) for m in masks.values()}) != 1:
            raise SizeObstacle("needs other values beyond the end at other sizes")
        extent = self.extents.extent(masks)
        operator = self.operators[first.operator]
        source = operator.inputs[first.slot]
        kind = self.types[source]
        key = source, first.axis, extent, first.value
        if key not in self.masked:
            rank = len(kind.shape) - first.axis - 1
            mask = self._filler(extent, first.large, Filling.MASK, rank)
            self.masked[key] = self._named(f"{source} within {extent}")
            self.types[self.masked[key]] = kind
            replaced = Apply("where", (Input(0), Input(1), Number(first.value)))
            self.before.setdefault(first.operator, []).append(
                Operator(
                    self.masked[key],
                    Elementwise(replaced, kind.dtype, _computing(kind.dtype)),
                    (mask, source),
                    (self.masked[key],),
                )
            )
        inputs = list(operator.inputs)
        inputs[first.slot] = self.masked[key]
        self.operators[first.operator] = replace(operator, inputs=tuple(inputs))

    def change(self, changes: Mapping[Sizes, Rescaling] | Mapping[Sizes, Counting]) -> None:
        """Multiply a mean by a quotient of extents, or let a loop count its steps."""
        first = next(iter(changes.values()))
        if isinstance(first, Counting):
            self._count(first, self.extents.extent(changes))
        else:
            self._rescale(first, self.extents.extent(changes))

    def _rescale(self, rescaling: Rescaling, extent: Extent) -> None:
        """Multiply a mean by a quotient of extents."""
        quotient = self._filler(extent, rescaling.large, Filling.QUOTIENT)
        operator = self.operators[rescaling.operator]
        raw = self._named(f"{operator.output} over {rescaling.large}")
        dtype = self.graph.types[self.graph.operators[rescaling.operator].output].dtype
        scaled = Elementwise(Apply("mul", (Input(0), Input(1))), dtype)
        # The mean gets a new name, and the scaled one that of the mean.
        self.operators[rescaling.operator] = replace(operator, outputs=(raw,))
        self.after.setdefault(rescaling.operator, []).insert(
            0, Operator(f"{operator.name} of {extent}", scaled, (raw, quotient), operator.outputs)
        )

    def _count(self, counting: Counting, extent: Extent) -> None:
        """Let a loop execute as many steps as an input says."""
        count = self._filler(extent, counting.large, Filling.COUNT)
        operator = self.operators[counting.operator]
        assert isinstance(operator.kind, Loop)
        kind = replace(operator.kind, limited=True, padded=True)
        self.operators[counting.operator] = replace(
            operator, kind=kind, inputs=(count, *operator.inputs)
        )

    def result(self) -> Graph:
        """Return the graph with all masks."""
        for number, body in self.bodies.items():
            operator = self.operators[number]
            assert isinstance(operator.kind, Loop)
            read = tuple(self.fillers[key].name for key in body.fillers)
            kind = operator.kind.with_body(body.result())
            self.operators[number] = replace(operator, kind=kind, inputs=(*operator.inputs, *read))
        operators: list[Operator] = []
        for number, operator in enumerate(self.operators):
            operators += [*self.before.get(number, ()), operator, *self.after.get(number, ())]
        inputs = {**self.graph.inputs, **self.inputs}
        return replace(self.graph, inputs=inputs, operators=tuple(operators))


def _computing(dtype: str) -> str | None:
    """Return the type in which a mask selects, which has to hold every element exactly."""
    return dtype if dtype in ("int64", "float64") else None
