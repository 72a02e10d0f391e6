"""Questions about accesses: fused axes that memory has already, ports, and harmless padding.

A channels-last image ``[h, w, c]`` of C channels, read at ``[2*p + r, 2*q + s, c]``, has the fused
axis ``(s, c)`` in place: ``w`` and ``c`` together are one dimension, read at
``2*C*q + (s*C + c)``, where a step of the fused axis is a step in memory. Nothing is unrolled, and
neighbouring windows overlap (:func:`joined_dimensions`).

It also has ``(p, q)`` in place, with a gap: ``h`` and ``w`` jointly are one dimension of rows of W
columns, read at ``W*(p + r) + q + s`` if steps are 1, and a step of p is W points of the fused
axis, more than q has. Windows that begin in the gap run over the end of a row, and their results
are discarded. If windows begin two rows apart, even and odd rows make an image each (*phases*;
:class:`JoinedRows`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from cpembed.ir.computation import Assignment, Computation, Operand, changed_accesses
from cpembed.ir.expression import (
    Access,
    Cast,
    Constant,
    Expression,
    Operation,
    zero_arguments,
)
from cpembed.ir.index import IndexExpr, IndexTerm, flat_index, row_major_strides


def joined_dimensions(
    indices: Sequence[IndexExpr],
    shape: Sequence[int],
    extents: Mapping[str, int],
    members: Sequence[str],
) -> range | None:
    """Find the neighbouring dimensions that hold a fused axis as a window.

    >>> indices = [IndexExpr.iterator("q") + IndexExpr.iterator("s"), IndexExpr.iterator("c")]
    >>> joined_dimensions(indices, (10, 4), {"q": 8, "s": 3, "c": 4}, ("s", "c"))
    range(0, 2)

    Parameters
    ----------
    indices, shape : sequence of IndexExpr, sequence of int
        Index and size of the operand in each dimension.
    extents : mapping of str to int
        Extents of the axes.
    members : sequence of str
        Axes that are fused, outermost first.

    Returns
    -------
    range or None
        Positions of the dimensions; None if the operand does not hold the fused axis.
    """
    # Every member walks a single dimension.
    positions = [n for n, index in enumerate(indices) for m in members if m in index.iterators]
    if len(positions) != len(members):
        return None
    # The outermost member and further axes walk the first of these dimensions, the member in steps
    # of one element. Each inner member walks all of one of the next dimensions, and nothing else.
    first = min(positions)
    dimensions = range(first, first + len(members))
    window, *inner = (indices[n] for n in dimensions if n < len(indices))
    if len(inner) + 1 != len(members) or len(window.terms) < 2 or not window.is_affine:
        return None
    if window.coefficient(members[0]) != 1:
        return None
    complete = all(
        index.single_iterator == member and shape[position] == extents[member]
        for index, member, position in zip(inner, members[1:], dimensions[1:], strict=True)
    )
    return dimensions if complete else None


def joined_index(
    indices: Sequence[IndexExpr],
    shape: Sequence[int],
    members: Sequence[str],
    fused: str,
    step: int = 1,
) -> IndexExpr:
    """Index neighbouring dimensions as a single one that the fused axis walks.

    Parameters
    ----------
    indices, shape
        Indices and sizes of the neighbouring dimensions, outermost first.
    members : sequence of str
        Axes that are fused; terms of other axes are kept.
    fused : str
        Name of the fused axis.
    step : int
        Elements that a step of the fused axis moves by.
    """
    flat = flat_index(indices, row_major_strides(shape))
    terms = [term for term in flat.terms if term.iterator not in members]
    return IndexExpr.sum([*terms, IndexTerm(fused, step)], flat.constant)


@dataclass(frozen=True)
class JoinedRows:
    """Two neighbouring dimensions, rows and columns, that hold a fused axis with a gap.

    Attributes
    ----------
    first : int
        Position of the dimension of rows.
    phases : int
        Distance in rows of neighbouring windows: row ``phases * y + phase`` is row y of its phase.
    before, after : int
        Columns of zeros that the second dimension needs at its two ends.
    pitch : int
        Points of the fused axis per row.
    step : int
        Columns per point of the fused axis.
    """

    first: int
    phases: int
    before: int
    after: int
    pitch: int
    step: int

    @staticmethod
    def find(
        indices: Sequence[IndexExpr],
        shape: Sequence[int],
        extents: Mapping[str, int],
        members: Sequence[str],
    ) -> JoinedRows | None:
        """Find the rows that two fused axes walk; parameters as of :func:`joined_dimensions`."""
        # Each member has to walk one of two neighbouring dimensions, forwards.
        if len(members) != 2:
            return None
        positions = [
            [n for n, index in enumerate(indices) if member in index.iterators]
            for member in members
        ]
        if [len(p) for p in positions] != [1, 1] or positions[1][0] != positions[0][0] + 1:
            return None
        (first,), (second,) = positions
        row, column = indices[first], indices[second]
        phases, step = row.coefficient(members[0]), column.coefficient(members[1])
        if not (row.is_affine and column.is_affine) or phases <= 0 or step <= 0:
            return None
        # Rows are extended to all that windows read, and to whole steps of the fused axis, so that
        # a step at the end of a row leads to the beginning of the next one.
        low, high = column.bounds(extents)
        before = max(0, -low)
        width = before + max(shape[second], high + 1)
        width += -width % step
        return JoinedRows(
            first=first,
            phases=phases,
            before=before,
            after=width - before - shape[second],
            pitch=width // step,
            step=step,
        )


# ------------------------------------------------------------------------------------------ ports
#
# An irregular instruction reads an operand in several places at a point (the real and the imaginary
# part of interleaved numbers) or writes several results. Each access then becomes a *port*: a
# separate operand with the elements that the access reaches, so that everything after the matching
# of the graphs deals with operands of one access. Ports that overlap share elements.


View = tuple[IndexExpr, ...]
"""Index expressions of a port's elements in its tensor, one per dimension of the tensor, over the
port's dimensions ``d0``, ``d1`` ..."""


@dataclass(frozen=True)
class Ports:
    """A computation in port form, with the view of each port; other operands are unchanged."""

    computation: Computation
    views: Mapping[str, View]


def split_ports(computation: Computation) -> Ports:
    """Replace each operand that has several accesses by one port per access.

    >>> from cpembed.ir.parser import parse_computation
    >>> dot = parse_computation("C[x] += A[x,0] * B[0] + A[x,1] * B[1]", {"x": 4})
    >>> str(split_ports(dot).computation)
    'C[x] += ((A.0[x] * B.0[]) + (A.1[x] * B.1[]))'
    """
    split = {name for name, maps in computation.access_maps.items() if len(maps) > 1}
    if not split:
        return Ports(computation, {})
    accesses: dict[Access, Access] = {}
    operands: dict[str, list[Operand]] = {}
    views: dict[str, View] = {}
    for operand in computation.operands:
        operands[operand.name] = [operand]
        if operand.name not in split:
            continue
        operands[operand.name] = []
        for number, access in enumerate(computation.access_maps[operand.name]):
            port, port_access, view = _port(computation, operand, access, number)
            operands[operand.name].append(port)
            accesses[access], views[port.name] = port_access, view
    ported = replace(
        computation,
        inputs=tuple(port for operand in computation.inputs for port in operands[operand.name]),
        outputs=tuple(port for operand in computation.outputs for port in operands[operand.name]),
        statements=changed_accesses(computation.statements, lambda a: accesses.get(a, a)),
    )
    return Ports(ported, views)


def _port(
    computation: Computation, operand: Operand, access: Access, number: int
) -> tuple[Operand, Access, View]:
    """Make the operand of a port, its access, and its view of the tensor."""
    # Dimensions with a constant index are left out; the others run from 0 in steps of 1.
    shape: list[int] = []
    indices: list[IndexExpr] = []
    view: list[IndexExpr] = []
    for index in access.index:
        if not index.terms:
            view.append(index)
            continue
        step = math.gcd(*(term.coefficient for term in index.terms))
        low, high = index.bounds(computation.extents)
        terms = [replace(term, coefficient=term.coefficient // step) for term in index.terms]
        indices.append(IndexExpr.sum(terms, (index.constant - low) // step))
        view.append(IndexExpr.sum([IndexTerm(f"d{len(shape)}", step)], low))
        shape.append((high - low) // step + 1)
    name = f"{operand.name}.{number}"
    port = replace(operand, name=name, shape=tuple(shape), port_of=operand.tensor)
    return port, Access(name, tuple(indices)), tuple(view)


# -------------------------------------------------------------------------------- harmless padding
#
# A padded point writes outside the output, where it is dropped, or it adds zero: some of its
# operands are read outside their shape, hence zero, and make the value zero whatever the remaining
# ones hold.


def is_neutral(computation: Computation, axis: str) -> bool:
    """True if points beyond the extent of an axis change no result.

    >>> from cpembed.ir.parser import parse_computation
    >>> sizes = {"n": 4, "k": 3}
    >>> [is_neutral(parse_computation(text, sizes), "k") for text in
    ...  ("O[n] += A[n,k] * B[k]", "O[n] += abs(A[n,k] - B[k])", "O[n] max= A[n,k]")]
    [True, True, False]
    """
    return all(_preserves(computation, statement, axis) for statement in computation.statements)


def _preserves(computation: Computation, statement: Assignment, axis: str) -> bool:
    if _leaves(computation, statement.store, axis):
        return True
    if statement.reduction != "add":
        return False
    outside = {read for read in statement.reads if _leaves(computation, read, axis)}
    return _is_zero(statement.value, outside)


def _is_zero(value: Expression, zero: Collection[Access]) -> bool:
    """True if a value is certainly zero when all these reads are."""
    if isinstance(value, Access):
        return value in zero
    if isinstance(value, Constant):
        return value.value == 0
    if isinstance(value, Cast):
        return _is_zero(value.arg, zero)
    assert isinstance(value, Operation)
    parts = [_is_zero(arg, zero) for arg in value.args]
    return any(all(parts[i] for i in group) for group in zero_arguments(value))


def _leaves(computation: Computation, access: Access, axis: str) -> bool:
    """True if an access leaves its operand as soon as the axis exceeds its extent.

    Some dimension then is indexed by this axis alone, without a remainder, and ends with the axis.
    """
    shape = computation.operand(access.operand).shape
    for index, size in zip(access.index, shape, strict=True):
        if index.iterators != (axis,) or len(index.terms) != 1:
            continue
        term = index.terms[0]
        exact = computation.extents[axis] % term.divisor == 0
        if term.modulus is None and term.inner is None and exact:
            # Later points are even further out, so the first one beyond the axis decides.
            position = term.coefficient * (computation.extents[axis] // term.divisor)
            position += index.constant
            if position >= size if term.coefficient > 0 else position < 0:
                return True
    return False
