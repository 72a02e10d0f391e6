"""Relation of one model's graphs at two sizes: whether the larger one computes the smaller one's.

The graph at the larger sizes is run on inputs that are filled up with zeros. Its results hold those
of the smaller graph if every element has a place in the larger tensor whose value is the same. An
axis is a mixed-radix number of *factors*, so that reshapes keep apart what they join: an index of
the smaller tensor has the same digits in the larger one. What lies beyond, the *filling*, must not
reach an element of the smaller tensor. Where an operator combines elements along a factor (softmax,
sums, products), a :class:`Mask` replaces the filling by a value that changes nothing.

With ``shifts`` the larger graph is a stack of smaller ones: element i may have any place o + i, and
no mask is allowed. Then a run may be divided along the symbol, into pieces of any sizes.

Operators are compared in pairs by the rules of :mod:`cpembed.graph.size_rules`; whatever no rule
covers raises :class:`SizeObstacle`. The body of a loop is compared as a graph is, and places in it
are stated with the loops around them, from the outermost on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds.base import Array, Kind
from cpembed.ir.dtypes import is_integer


class SizeObstacle(WorkloadError):  # noqa: N818 - an obstacle is a result as often as an error
    """Reason why a graph at larger sizes does not compute the one at smaller sizes."""


@dataclass(frozen=True)
class Factor:
    """Digit of an axis's index, with its extents in both graphs.

    Reshapes and transpositions keep the ``number``, so that a factor is recognised after them.
    """

    small: int
    large: int
    number: int

    @property
    def varies(self) -> bool:
        """True if the extents differ."""
        return self.small != self.large


Axes = tuple[tuple[Factor, ...], ...]
"""Factors of each axis of a tensor, the outermost first; none for an axis of extent 1."""


K = TypeVar("K", bound=Kind)


def extents_of(factors: Iterable[Factor]) -> tuple[int, int]:
    """Return the extents in both graphs of factors that are joined."""
    factors = list(factors)
    return math.prod(f.small for f in factors), math.prod(f.large for f in factors)


def kinds_of(before: Operator, after: Operator, kind: type[K]) -> tuple[K, K]:
    """Return the kinds of an operator at both sizes.

    Parameters
    ----------
    before, after : Operator
        Operator at both sizes.
    kind : type
        Class of its kind.
    """
    assert isinstance(before.kind, kind)
    assert isinstance(after.kind, kind)
    return before.kind, after.kind


def same_kind(before: Operator, after: Operator, kind: type[K]) -> K:
    """Return the kind of an operator whose attributes do not depend on the sizes.

    Parameters
    ----------
    before, after, kind
        As for :func:`kinds_of`.

    Raises
    ------
    SizeObstacle
        For attributes that do.
    """
    small, large = kinds_of(before, after, kind)
    if small != large:
        raise SizeObstacle("has attributes that depend on the sizes")
    return large


@dataclass(frozen=True)
class Mask:
    """Replacement of the filling along an axis of an operator's input.

    Attributes
    ----------
    path : tuple of int
        Loops around the operator, each by its number in the graph that it is in.
    operator, slot : int
        Operator of the larger graph, and its input.
    axis : int
        Axis whose indices from ``small`` on are filling.
    small, large : int
        Extents of the axis.
    value : float or int
        Value that the filling gets.
    """

    path: tuple[int, ...]
    operator: int
    slot: int
    axis: int
    small: int
    large: int
    value: float | int


@dataclass(frozen=True)
class Rescaling:
    """Mean over ``large`` elements, of which ``small`` are no filling: rescaled by the quotient."""

    path: tuple[int, ...]
    operator: int
    small: int
    large: int


@dataclass(frozen=True)
class Counting:
    """Loop of ``large`` steps, of which only ``small`` are executed at the smaller sizes."""

    path: tuple[int, ...]
    operator: int
    small: int
    large: int


@dataclass(frozen=True)
class Relation:
    """Changes of the larger graph, and the factors of its inputs and outputs."""

    masks: tuple[Mask, ...]
    rescalings: tuple[Rescaling, ...]
    countings: tuple[Counting, ...]
    inputs: tuple[Axes, ...]
    outputs: tuple[Axes, ...]


@dataclass
class Comparison:
    """State of the comparison of two graphs, operator by operator.

    Attributes
    ----------
    small, large : Graph
        Graphs of one model.
    shifts : bool
        True if an element may have any place in the larger graph.
    axes : dict
        Factors of the tensors compared so far, by their names in the larger graph.
    fillings : dict
        Values of the filling along a factor, by tensor and number of the factor.
    finite : set of str
        Tensors whose elements are finite whatever the inputs are.
    limits : dict
        Number of an open dimension's indices at both sizes, by tensors of indices less than it.
    path : tuple of int
        Loops around the graphs.
    """

    small: Graph
    large: Graph
    shifts: bool
    axes: dict[str, Axes] = field(default_factory=dict[str, Axes])
    fillings: dict[tuple[str, int], float | int] = field(
        default_factory=dict[tuple[str, int], "float | int"]
    )
    finite: set[str] = field(default_factory=set[str])
    limits: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    path: tuple[int, ...] = ()
    masks: dict[tuple[tuple[int, ...], int, int, int], Mask] = field(
        default_factory=dict[tuple[tuple[int, ...], int, int, int], Mask]
    )
    rescalings: list[Rescaling] = field(default_factory=list[Rescaling])
    countings: list[Counting] = field(default_factory=list[Counting])
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _operator: int = 0

    def read(self, after: Operator, slot: int = 0) -> Axes:
        """Return the factors of an input of an operator of the larger graph."""
        return self.axes[after.inputs[slot]]

    # -- factors ----------------------------------------------------------------------------------

    def factor(self, small: int, large: int) -> Factor:
        """Return a new factor."""
        return Factor(small, large, next(self._numbers))

    def plain(self, small: Sequence[int], large: Sequence[int]) -> Axes:
        """Return one factor for each axis of a tensor."""
        if len(small) != len(large):
            raise SizeObstacle(f"has {len(small)} axes at one size and {len(large)} at another")
        return tuple(
            (self.factor(a, b),) if (a, b) != (1, 1) else ()
            for a, b in zip(small, large, strict=True)
        )

    def regrouped(self, axes: Axes, small: Sequence[int], large: Sequence[int]) -> Axes:
        """Return the factors of a tensor in another shape."""
        rest = self._joined(factor for axis in axes for factor in axis)
        groups: list[tuple[Factor, ...]] = []
        if len(small) != len(large):
            raise SizeObstacle("is reshaped to another number of axes at another size")
        for extents in zip(small, large, strict=True):
            a, b = extents
            group: list[Factor] = []
            while (a, b) != (1, 1):
                factor = rest.pop(0) if rest else self.factor(1, 1)
                if factor.varies and not a % factor.small and not b % factor.large:
                    group.append(factor)
                    a, b = a // factor.small, b // factor.large
                    continue
                # A fixed extent is divided between axes wherever they end.
                part = math.gcd(factor.small, a, b)
                if factor.varies or part == 1:
                    raise SizeObstacle("is reshaped across a dimension whose size is open")
                group.append(self.factor(part, part))
                a, b = a // part, b // part
                if part != factor.small:
                    rest.insert(0, self.factor(factor.small // part, factor.small // part))
            groups.append(tuple(group))
        if any((factor.small, factor.large) != (1, 1) for factor in rest):
            raise SizeObstacle("is reshaped across a dimension whose size is open")
        return tuple(groups)

    def _joined(self, factors: Iterable[Factor]) -> list[Factor]:
        """Return factors with fixed neighbours as one, without extents of 1."""
        joined: list[Factor] = []
        for factor in factors:
            if (factor.small, factor.large) == (1, 1):
                continue
            if joined and not factor.varies and not joined[-1].varies:
                size = joined.pop().small * factor.small
                joined.append(self.factor(size, size))
            else:
                joined.append(factor)
        return joined

    def unified(self, lists: Iterable[tuple[Factor, ...]]) -> tuple[Factor, ...]:
        """Return the factors of an axis that several tensors have.

        Fixed parts may be cut in other places, parts that vary may not.
        """
        lists = list(lists)
        merged = {_merged(factors) for factors in lists}
        if len(merged) > 1:
            raise SizeObstacle("combines axes whose sizes are open in different orders")
        return max(lists, key=len)

    # -- what is requested of an operator's inputs ------------------------------------------------

    def require_fixed(self, factors: Iterable[Factor], action: str) -> None:
        """Raise :class:`SizeObstacle` if one of some factors varies."""
        if any(factor.varies for factor in factors):
            raise SizeObstacle(f"{action} a dimension whose size is open")

    def forbid_shifts(self, factors: Iterable[Factor], action: str) -> None:
        """Raise :class:`SizeObstacle` if a factor varies and pieces may lie anywhere along it."""
        if self.shifts:
            self.require_fixed(factors, action)

    def mask(self, slot: int, factor: Factor, value: float | int) -> None:
        """Request that the filling along a factor of an input of the operator is a value."""
        self.forbid_shifts([factor], "combines elements along")
        operator = self._operator
        name = self.large.operators[operator].inputs[slot]
        if self.fillings.get((name, factor.number)) == value:
            return
        place = self._upstream(operator, slot, factor)
        if place is None:
            raise SizeObstacle("combines elements of a dimension that is joined with another one")
        operator, slot, axis = place
        key = self.path, operator, slot, axis
        mask = Mask(*key, factor.small, factor.large, value)
        previous = self.masks.setdefault(key, mask)
        if previous != mask:
            raise SizeObstacle("needs two values beyond the end of one dimension")

    def _upstream(self, operator: int, slot: int, factor: Factor) -> tuple[int, int, int] | None:
        """Return operator, input and axis where a factor is masked, before movements if possible.

        There it hides no transposition from the product that could read it as an index.
        """
        from cpembed.graph.kinds import Reshape, Transpose

        places: list[tuple[int, int, int]] = []
        numbers = {
            op.output: k for k, op in enumerate(self.large.operators) if len(op.outputs) == 1
        }
        while True:
            name = self.large.operators[operator].inputs[slot]
            for axis, factors in enumerate(self.axes[name]):
                if factors == (factor,):
                    places.append((operator, slot, axis))
            producer = numbers.get(name)
            is_only = len(self.large.readers[name]) == 1 and name not in self.large.outputs
            if producer is None or not is_only:
                break
            if not isinstance(self.large.operators[producer].kind, Reshape | Transpose):
                break
            operator, slot = producer, 0
        return places[-1] if places else None

    def rescale(self, small: int, large: int) -> None:
        """Request that the operator's mean is of ``small`` elements."""
        self.rescalings.append(Rescaling(self.path, self._operator, small, large))

    def count(self, small: int, large: int) -> None:
        """Request that the operator, a loop, executes ``small`` steps."""
        if self.shifts:
            raise SizeObstacle("runs along a dimension whose size is open")
        self.countings.append(Counting(self.path, self._operator, small, large))

    # -- comparison -------------------------------------------------------------------------------

    def relation(self) -> Relation:
        """Compare all operators."""
        small, large = self.small, self.large
        if tuple(small.inputs) != tuple(large.inputs) or len(small.outputs) != len(large.outputs):
            raise SizeObstacle("has other inputs or outputs at another size")
        for name, kind in large.inputs.items():
            if kind.dtype != small.inputs[name].dtype:
                raise SizeObstacle(f"input {name} has another type at another size")
            self.axes[name] = self.plain(small.inputs[name].shape, kind.shape)
            for factor in itertools.chain.from_iterable(self.axes[name]):
                self.fillings[name, factor.number] = 0
            if is_integer(kind.dtype):
                self.finite.add(name)
        outputs = self.outputs({name: name for name in large.inputs})
        return Relation(
            tuple(self.masks.values()),
            tuple(self.rescalings),
            tuple(self.countings),
            tuple(self.axes[name] for name in large.inputs),
            tuple(outputs),
        )

    def nested(self, small: Graph, large: Graph) -> Comparison:
        """Return the comparison of the bodies of the operator, a loop, without any axes yet."""
        return Comparison(
            small,
            large,
            self.shifts,
            path=(*self.path, self._operator),
            masks=self.masks,
            rescalings=self.rescalings,
            countings=self.countings,
            _numbers=self._numbers,
        )

    def outputs(self, inputs: Mapping[str, str]) -> list[Axes]:
        """Compare all operators, and return the axes of the outputs.

        ``inputs`` are names in the larger graph by those in the smaller one.
        """
        from cpembed.graph.size_rules import compare

        small, large = self.small, self.large
        if len(small.operators) != len(large.operators):
            raise SizeObstacle(
                f"has {len(small.operators)} operators at one size and {len(large.operators)} at "
                "another"
            )
        names = dict(inputs)
        for number, (before, after) in enumerate(
            zip(small.operators, large.operators, strict=True)
        ):
            self._operator = number
            try:
                self._inputs(before, after, names)
                compare(self, before, after)
            except SizeObstacle as error:
                raise SizeObstacle(f"{after.name} ({after.kind.label}) {error}") from None
            names |= zip(before.outputs, after.outputs, strict=True)
        outputs: list[Axes] = []
        for before, after in zip(small.outputs, large.outputs, strict=True):
            if before in small.constants:
                self._constant(before, after)
            elif names.get(before) != after:
                raise SizeObstacle(f"output {after} is another tensor at another size")
            outputs.append(self.axes[after])
        return outputs

    def _inputs(self, before: Operator, after: Operator, names: dict[str, str]) -> None:
        """Compare where two operators read."""
        if type(before.kind) is not type(after.kind) or len(before.inputs) != len(after.inputs):
            raise SizeObstacle("is another operator at another size")
        for a, b in zip(before.inputs, after.inputs, strict=True):
            if (a in self.small.constants) != (b in self.large.constants):
                raise SizeObstacle("reads a constant at one size, and none at another")
            if a in self.small.constants:
                self._constant(a, b)
            elif names[a] != b:
                raise SizeObstacle("reads another tensor at another size")

    def _constant(self, before: str, after: str) -> None:
        """Compare a constant at both sizes, and name its factors."""
        a, b = self.small.constants[before], self.large.constants[after]
        if after in self.axes:
            if tuple(extents_of(axis)[0] for axis in self.axes[after]) != a.shape:
                raise SizeObstacle(f"reads a constant of another shape, {before}")
            return
        axes = self.plain(a.shape, b.shape)
        if a is not b:
            varying = [k for k, axis in enumerate(axes) if any(f.varies for f in axis)]
            head = tuple(slice(0, size) for size in a.shape)
            if any(p > q for p, q in zip(a.shape, b.shape, strict=True)) or not _equal(a, b[head]):
                raise SizeObstacle(f"reads a constant that depends on the sizes, {before}")
            if self.shifts and varying:
                first = tuple(slice(0, 1) if k in varying else slice(None) for k in range(b.ndim))
                if not _equal(np.broadcast_to(b[first], b.shape), b):
                    raise SizeObstacle(f"reads a constant that varies with the place, {before}")
        self.axes[after] = axes
        if b.dtype.kind in "iub" or (b.dtype.kind == "f" and bool(np.isfinite(b).all())):
            self.finite.add(after)


def _equal(a: Array, b: Array) -> bool:
    """True if two arrays are equal bit for bit, where all NaNs are equal."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _merged(factors: Sequence[Factor]) -> tuple[tuple[int, int], ...]:
    """Return the extents of factors, with fixed neighbours as one."""
    merged: list[tuple[int, int]] = []
    for factor in factors:
        if merged and not factor.varies and merged[-1][0] == merged[-1][1]:
            merged[-1] = merged[-1][0] * factor.small, merged[-1][1] * factor.large
        elif (factor.small, factor.large) != (1, 1):
            merged.append((factor.small, factor.large))
    return tuple(merged)


def relate(small: Graph, large: Graph, *, shifts: bool = False) -> Relation:
    """Relate a model's graphs at two sizes.

    Parameters
    ----------
    small, large : Graph
        Graphs as a front end made them, no dimension of the first larger than in the second.
    shifts : bool, default False
        True if results must not depend on the place of an element along what varies.

    Raises
    ------
    SizeObstacle
        If it cannot be shown that the larger graph computes the smaller one.
    """
    return Comparison(small, large, shifts).relation()


Rule = Callable[[Comparison, Operator, Operator], Axes | list[Axes]]
"""Function that returns the factors of an operator's results from the operator at both sizes.

A list has those of each result; otherwise all results have the same.
"""
