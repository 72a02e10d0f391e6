"""Lemmas: statements that compute the same as another one, in a form that products take.

Each function returns the statements with further constants, or None where its premise does not
hold. Its docstring has the proof; the tests compare both sides on random elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpembed.accelerator.specification import Array, Specification, Statement
from cpembed.ir.computation import (
    Assignment,
    Axis,
    AxisKind,
    Computation,
    Operand,
    changed_accesses,
)
from cpembed.ir.dtypes import is_integer, numpy_dtype
from cpembed.ir.expression import Access, Expression, Operation
from cpembed.ir.index import IndexExpr, IndexTerm


@dataclass(frozen=True)
class Rewriting:
    """Statements that stand for another one, the constants that they read besides, and a label."""

    label: str
    statements: tuple[Statement, ...]
    constants: Mapping[str, Array]


Lemma = Callable[[Statement, Mapping[str, Array]], Rewriting | None]
"""Rewriting of a statement over constants of these values; None where it does not apply."""


def rewritten(specification: Specification, lemma: Lemma) -> Specification | None:
    """Return a specification with a lemma applied to every statement that it takes.

    Returns
    -------
    Specification or None
        None where the lemma takes no statement.
    """
    statements: list[Statement] = []
    constants = dict(specification.constants)
    labels: dict[str, None] = {}
    for statement in specification.statements:
        rewriting = lemma(statement, specification.constants)
        if rewriting is None:
            statements.append(statement)
            continue
        statements += rewriting.statements
        constants |= rewriting.constants
        labels[rewriting.label] = None
    if not labels:
        return None
    read = {operand.tensor for s in statements for operand in s.reads}
    return replace(
        specification,
        name=", ".join((specification.name, *labels)),
        statements=tuple(statements),
        constants={n: a for n, a in constants.items() if n in read},
    )


def sum_with_ones(statement: Statement, name: str) -> Rewriting | None:
    """Return a sum of elements as a product with a vector of ones.

    ``O[i] += X[f(i,k)]`` is ``O[i] += X[f(i,k)] * 1[k]``: each addend is multiplied by 1, which
    leaves it as it is in every type. ``k`` is the longest axis of the sum.
    """
    computation = statement.computation
    value = computation.statement.value
    reduced = [axis for axis in computation.axes if axis.kind is AxisKind.REDUCTION]
    if computation.statement.reduction != "add" or not isinstance(value, Access) or not reduced:
        return None
    axis = max(reduced, key=lambda a: a.extent)
    dtype = computation.operand(value.operand).dtype
    ones = Operand(name, (axis.extent,), dtype)
    factor = Access(name, (IndexExpr.iterator(axis.name),))
    changed = _with_value(computation, Operation("mul", (value, factor)), (ones,))
    array = np.ones(axis.extent, numpy_dtype(dtype))
    return Rewriting(
        "a sum as a product with ones", (replace(statement, computation=changed),), {name: array}
    )


def sum_with_delta(statement: Statement, name: str, axis: str, lanes: int) -> Rewriting | None:
    """Return a sum of elements as products with a unit matrix, in groups of channels.

    ``O[.., c] += X[.., c]`` is ``O[.., L b + e] += X[.., L b + d] * D[d, e]`` with ``D`` the unit
    matrix: of the L addends for each e, that with ``d = e`` is the original one, and the others are
    products with 0. For integers and finite floats these add nothing.

    Parameters
    ----------
    statement : Statement
    name : str
        Name of the constant D.
    axis : str
        Axis c of the channels, which indexes one dimension of both tensors alone.
    lanes : int
        Largest number L of channels in a group.
    """
    computation = statement.computation
    value = computation.statement.value
    if computation.statement.reduction != "add" or not isinstance(value, Access):
        return None
    if not is_integer(computation.operand(value.operand).dtype):
        return None
    split = _Split.by_lanes(computation, axis, lanes, (value,))
    if split is None:
        return None
    dtype = computation.operand(value.operand).dtype
    unit = Operand(name, (split.lanes, split.lanes), dtype)
    factor = Access(name, (IndexExpr.iterator(split.inner), IndexExpr.iterator(split.outer)))
    product = Operation("mul", (split.reading(value), factor))
    changed = split.applied(computation, product, (unit,))
    array = np.eye(split.lanes, dtype=numpy_dtype(dtype))
    label = f"a sum as a product with a unit matrix of {split.lanes} channels"
    return Rewriting(label, (replace(statement, computation=changed),), {name: array})


def block_diagonal(
    statement: Statement, constants: Mapping[str, Array], name: str, lanes: int
) -> Rewriting | None:
    """Return a depthwise product as products of groups of channels with diagonal weights.

    ``O[.., c] += X[.., c] * W[.., c]`` is ``O[.., L b + e] += X[.., L b + d] * V[b, d, e, ..]``,
    where ``V[b, d, e, ..]`` is ``W[.., L b + d]`` for ``d = e`` and 0 otherwise: of the L addends
    for each e, that with ``d = e`` is the original one, and the others are products of integers
    with 0. Of the multiplications, one of L is real.

    Parameters
    ----------
    statement : Statement
        A sum of products with a factor that is constant, over a channel axis of all three tensors.
    constants : mapping of str to ndarray
        Constants of the specification, among them the factor.
    name : str
        Name of the new constant V.
    lanes : int
        Largest number L of channels in a group.
    """
    computation = statement.computation
    factors = _depthwise(computation, constants)
    if factors is None:
        return None
    data, weights, axis = factors
    split = _Split.by_lanes(computation, axis, lanes, (data,))
    if split is None:
        return None
    array = constants[weights.operand].reshape(computation.operand(weights.operand).shape)
    place = next(d for d, i in enumerate(weights.index) if i.single_iterator == axis)
    channels_first = np.moveaxis(array, place, 0)
    grouped = channels_first.reshape(split.groups, split.lanes, *channels_first.shape[1:])
    spread = np.zeros((split.groups, split.lanes, *grouped.shape[1:]), array.dtype)
    diagonal = np.arange(split.lanes)
    spread[:, diagonal, diagonal] = grouped
    rest = tuple(i for d, i in enumerate(weights.index) if d != place)
    index = tuple(map(IndexExpr.iterator, (split.group, split.inner, split.outer)))
    operand = Operand(name, spread.shape, str(array.dtype))
    product = Operation("mul", (split.reading(data), Access(name, (*index, *rest))))
    changed = split.applied(computation, product, (operand,))
    label = f"channels in groups of {split.lanes} with diagonal weights"
    return Rewriting(label, (replace(statement, computation=changed),), {name: spread})


def extremum_from_copy(statement: Statement) -> Rewriting | None:
    """Return a maximum or minimum of elements that begins with a copy of one of them.

    ``O[i] max= X[f(i,k)]`` is ``O[i] = X[f(i,0)]`` and then ``O[i] max= X[f(i,k)]``: the element at
    ``k = 0`` is one of those that are compared, and counts once or twice alike.
    """
    computation = statement.computation
    assignment = computation.statement
    is_extremum = assignment.reduction in ("max", "min") and not statement.accumulates
    if not is_extremum or not isinstance(assignment.value, Access):
        return None
    reduced = {a.name: IndexExpr() for a in computation.axes if a.kind is AxisKind.REDUCTION}
    read = assignment.value
    first = replace(read, index=tuple(i.substitute(reduced) for i in read.index))
    copy = replace(
        computation,
        axes=tuple(a for a in computation.axes if a.name not in reduced),
        statements=(Assignment(assignment.store, first, None),),
    )
    return Rewriting(
        f"a {assignment.reduction}imum from a copy",
        (Statement(copy), replace(statement, accumulates=True)),
        {},
    )


def _depthwise(
    computation: Computation, constants: Mapping[str, Array]
) -> tuple[Access, Access, str] | None:
    """Return data, constant weights and channel axis of a depthwise product of integers."""
    value = computation.statement.value
    if computation.statement.reduction != "add":
        return None
    match value:
        case Operation("mul", (Access() as left, Access() as right)):
            pairs = ((left, right), (right, left))
        case _:
            return None
    for data, weights in pairs:
        if weights.operand not in constants or data.operand == weights.operand:
            continue
        if not all(is_integer(computation.operand(a.operand).dtype) for a in (data, weights)):
            continue
        for axis in computation.axes:
            channel_indices = [
                [i for i in access.index if axis.name in i.iterators]
                for access in (data, weights, computation.statement.store)
            ]
            if all(len(i) == 1 and i[0].single_iterator == axis.name for i in channel_indices):
                return data, weights, axis.name
    return None


@dataclass(frozen=True)
class _Split:
    """A channel axis in groups of lanes: which axes replace it."""

    axis: str
    groups: int
    lanes: int

    @property
    def group(self) -> str:
        return f"{self.axis}_group"

    @property
    def inner(self) -> str:
        """Axis of the channels that are read and summed."""
        return f"{self.axis}_in"

    @property
    def outer(self) -> str:
        """Axis of the channels that are written."""
        return f"{self.axis}_out"

    @staticmethod
    def by_lanes(
        computation: Computation, axis: str, lanes: int, reads: Sequence[Access]
    ) -> _Split | None:
        """Return the split into the largest equal groups, None without any."""
        for access in (*reads, computation.statement.store):
            channel_indices = [i for i in access.index if axis in i.iterators]
            if len(channel_indices) != 1 or channel_indices[0].single_iterator != axis:
                return None
        extent = computation.extents[axis]
        size = max(n for n in range(1, min(lanes, extent) + 1) if extent % n == 0)
        return _Split(axis, extent // size, size) if size > 1 else None

    def reading(self, access: Access) -> Access:
        return self._changed(access, self.inner)

    def _changed(self, access: Access, lane: str) -> Access:
        channel = IndexExpr.sum([IndexTerm(self.group, self.lanes), IndexTerm(lane)])
        if self.groups == 1:
            channel = IndexExpr.iterator(lane)
        index = tuple(i.substitute({self.axis: channel}) for i in access.index)
        return replace(access, index=index)

    def applied(
        self, computation: Computation, value: Expression, more: Sequence[Operand]
    ) -> Computation:
        """Return the computation over the axes of the split."""
        axes: list[Axis] = []
        for axis in computation.axes:
            if axis.name != self.axis:
                axes.append(axis)
                continue
            axes.append(Axis(self.group, self.groups, AxisKind.SPATIAL))
            axes.append(Axis(self.outer, self.lanes, AxisKind.SPATIAL))
        axes.append(Axis(self.inner, self.lanes, AxisKind.REDUCTION))
        store = self._changed(computation.statement.store, self.outer)
        if self.groups == 1:
            # An axis of one point may be in no index.
            axes = [a for a in axes if a.name != self.group]
            value = _without_axis(value, self.group)
        return _with_value(computation, value, more, store, tuple(axes))


def _without_axis(value: Expression, axis: str) -> Expression:
    """Replace an axis of one point by 0."""
    statement = Assignment(Access("", ()), value)
    zero = {axis: IndexExpr()}
    (changed,) = changed_accesses(
        (statement,), lambda a: replace(a, index=tuple(i.substitute(zero) for i in a.index))
    )
    return changed.value


def _with_value(
    computation: Computation,
    value: Expression,
    more: Sequence[Operand],
    store: Access | None = None,
    axes: tuple[Axis, ...] = (),
) -> Computation:
    """Return a computation with another value, which reads further operands."""
    statement = computation.statement
    changed = Assignment(store or statement.store, value, statement.reduction)
    read = dict.fromkeys(access.operand for access in changed.reads)
    operands = {o.name: o for o in (*computation.inputs, *more)}
    return replace(
        computation,
        axes=axes or computation.axes,
        inputs=tuple(operands[name] for name in read),
        statements=(changed,),
    )


# -- transposed convolutions -----------------------------------------------------------------------


def by_phases(statement: Statement) -> Rewriting | None:
    """Return a sum of products over a spread operand as one sum for each phase of its output.

    An operand that is spread by s is 0 at every index that is no multiple of s. Its index
    ``p + t r + a`` in one dimension is a multiple only for the points with ``p = s p' + f`` and
    ``r = g + (s / gcd(s, t)) r'`` that agree modulo s: for each f the g is unique below
    ``s / gcd(s, t)``, if there is one. All other points add a product with 0. Integers only.
    """
    computation = statement.computation
    spread = [o for o in computation.inputs if any(step > 1 for step in o.spread)]
    value = computation.statement.value
    is_product = isinstance(value, Operation) and value.op == "mul"
    if len(spread) != 1 or computation.statement.reduction != "add" or not is_product:
        return None
    statements = [statement]
    for dimension, step in enumerate(spread[0].spread):
        if step > 1:
            phases = [_phases(s, spread[0].name, dimension, step) for s in statements]
            if any(p is None for p in phases):
                return None
            statements = [s for p in phases for s in p or ()]
    return Rewriting("each phase of the output by itself", tuple(map(_plain, statements)), {})


def _plain(statement: Statement) -> Statement:
    """Return a statement that reads no element between those of the original tensor."""
    return replace(
        statement, computation=statement.computation.with_operands(lambda o: replace(o, spread=()))
    )


def _phases(statement: Statement, name: str, dimension: int, step: int) -> list[Statement] | None:
    """Return the statements of the phases along one dimension."""
    computation = statement.computation
    index = computation.access(name).index[dimension]
    if len(index.terms) != 2:
        return None
    spatial = [t for t in index.terms if computation.axis(t.iterator).kind is AxisKind.SPATIAL]
    reduced = [t for t in index.terms if computation.axis(t.iterator).kind is AxisKind.REDUCTION]
    if len(spatial) != 1 or len(reduced) != 1 or spatial[0].coefficient != 1:
        return None
    pixel, tap = computation.axis(spatial[0].iterator), computation.axis(reduced[0].iterator)
    period = step // math.gcd(step, reduced[0].coefficient)
    statements: list[Statement] = []
    for phase in range(min(step, pixel.extent)):
        first = next(
            (
                g
                for g in range(min(period, tap.extent))
                if (phase + reduced[0].coefficient * g + index.constant) % step == 0
            ),
            None,
        )
        if first is None:
            # Nothing is added to these elements: their sums have to begin elsewhere.
            if not statement.accumulates:
                return None
            continue
        sizes = {
            pixel.name: -(-(pixel.extent - phase) // step),
            tap.name: -(-(tap.extent - first) // period),
        }
        terms = {
            pixel.name: IndexExpr.sum([IndexTerm(pixel.name, step)], phase),
            tap.name: IndexExpr.sum([IndexTerm(tap.name, period)], first),
        }
        axes = tuple(replace(a, extent=sizes.get(a.name, a.extent)) for a in computation.axes)
        changed = replace(
            computation,
            axes=axes,
            statements=changed_accesses(
                computation.statements,
                lambda a, terms=terms: replace(
                    a, index=tuple(i.substitute(terms) for i in a.index)
                ),
            ),
        )
        statements.append(replace(statement, computation=changed))
    return statements
