"""TensorIR index expressions as affine index expressions of the package.

Indices are read with digits, then made affine: axes are split where a digit cuts them, and
dimensions where an index is a number of several digits. A grouped convolution reads channel ``k //
4 * 8 + c`` for its filter ``k``: with k split into a group and a filter within it the index is
affine, and with the channels split into groups and channels within them it is two plain indices.
Both splits change names, not the position of any element in memory.
"""
# pyright: basic

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, tirx

from cpembed.errors import WorkloadError
from cpembed.ir.index import IndexExpr, IndexTerm


def read_index(node: Any, iterators: Mapping[Any, str], extents: Mapping[str, int]) -> IndexExpr:
    """Return an expression as a sum of iterators and their digits (``i // 4 % 3``) with factors.

    Iterators of one value are left out if there are others.

    Parameters
    ----------
    node
        Index expression of TensorIR.
    iterators
        Name of each iteration variable.
    extents
        Extent of each iterator.

    Raises
    ------
    WorkloadError
        The expression has another form.
    """
    index = _read(node, iterators)
    # An iterator of one value is always 0.
    terms = [term for term in index.terms if extents[term.iterator] > 1]
    return IndexExpr(tuple(terms), index.constant) if terms else index


def _read(node: Any, iterators: Mapping[Any, str]) -> IndexExpr:
    if isinstance(node, tirx.IntImm):
        return IndexExpr((), int(node.value))
    if isinstance(node, tirx.Var) and node in iterators:
        return IndexExpr.iterator(iterators[node])
    if isinstance(node, tirx.Cast):
        return _read(node.value, iterators)
    if isinstance(node, tirx.Add):
        return _read(node.a, iterators) + _read(node.b, iterators)
    if isinstance(node, tirx.Sub):
        return _read(node.a, iterators) + _scaled(_read(node.b, iterators), -1)
    if isinstance(node, tirx.Mul):
        for factor, value in ((node.a, node.b), (node.b, node.a)):
            if isinstance(factor, tirx.IntImm):
                return _scaled(_read(value, iterators), int(factor.value))
    if isinstance(node, tirx.FloorDiv | tirx.FloorMod) and isinstance(node.b, tirx.IntImm):
        inner = _read(node.a, iterators)
        # A quotient of a sum is no sum of quotients: only a single digit can be cut.
        if len(inner.terms) == 1 and not inner.constant and inner.terms[0].coefficient == 1:
            return _digit(inner.terms[0], isinstance(node, tirx.FloorDiv), int(node.b.value))
    raise WorkloadError(f"index {node} is not affine in the loops")


def _scaled(index: IndexExpr, factor: int) -> IndexExpr:
    return IndexExpr.sum((term.times(factor) for term in index.terms), index.constant * factor)


def _digit(term: IndexTerm, is_quotient: bool, number: int) -> IndexExpr:
    """Return a quotient or remainder of a digit, which is a digit if the numbers nest."""
    modulus = term.modulus
    if modulus is not None and modulus % number:
        raise WorkloadError(f"index {term.text()} is cut at {number}, which does not divide it")
    if is_quotient:
        # (x // d % m) // n is x // (d * n) % (m // n) if n divides m.
        rest = None if modulus is None else modulus // number
        term = replace(term, divisor=term.divisor * number, modulus=rest)
    else:
        # (x // d % m) % n is x // d % n if n divides m.
        term = replace(term, modulus=number)
    return IndexExpr.sum([term])


def read_window(node: Any) -> tuple[list[Any], Any] | None:
    """Return the conditions of a padded read, and the read; None for any other expression.

    The conditions are expressions that are negative in the padding.
    """
    branches = _branches(node)
    if branches is None:
        return None
    condition, value, otherwise = branches
    is_zero = isinstance(otherwise, tirx.IntImm | tirx.FloatImm) and otherwise.value == 0
    if not is_zero or not isinstance(value, ir.TensorLoad):
        return None
    margins = _margins(condition)
    return None if margins is None else (margins, value)


def is_conditional(node: Any) -> bool:
    """Return whether an expression has a condition."""
    return _branches(node) is not None


def _branches(node: Any) -> tuple[Any, Any, Any] | None:
    """Return the condition, the value if it holds, and the value if not; None without condition."""
    if isinstance(node, tirx.Select):
        return node.condition, node.true_value, node.false_value
    if isinstance(node, ir.Call) and getattr(node.op, "name", None) == "prim.if_then_else":
        condition, value, otherwise = node.args
        return condition, value, otherwise
    return None


def _margins(condition: Any) -> list[Any] | None:
    """Return expressions that are all at least 0 exactly if a conjunction of comparisons holds."""
    if isinstance(condition, tirx.And):
        left, right = (_margins(getattr(condition, side)) for side in "ab")
        return None if left is None or right is None else left + right
    for kind, least, greatest, gap in (
        (tirx.LE, "a", "b", 0),
        (tirx.LT, "a", "b", 1),
        (tirx.GE, "b", "a", 0),
        (tirx.GT, "b", "a", 1),
    ):
        # a <= b is b - a >= 0; for integers a < b is b - a - 1 >= 0.
        if isinstance(condition, kind):
            return [getattr(condition, greatest) - getattr(condition, least) - gap]
    return None


# -- digits ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Digit of an axis that becomes an axis: ``(axis // weight) % extent``."""

    name: str
    weight: int
    extent: int


def split_axes(
    extents: Mapping[str, int], indices: Iterable[IndexExpr]
) -> dict[str, tuple[Part, ...]]:
    """Return the parts of each axis, outermost first, such that every digit consists of parts.

    Raises :class:`WorkloadError` if digits of an axis do not nest: ``i // 4`` and ``i // 6``.

    >>> third = IndexExpr.sum([IndexTerm("i", 5, divisor=3)])
    >>> [(part.name, part.weight, part.extent) for part in split_axes({"i": 12}, [third])["i"]]
    [('i0', 3, 4), ('i1', 1, 3)]
    """
    cuts: dict[str, set[int]] = {name: {1, extent} for name, extent in extents.items()}
    for term in (term for index in indices for term in index.terms):
        # A digit begins at the weight of its divisor and ends where the next one would begin.
        end = term.divisor * (term.modulus or 1)
        cuts[term.iterator] |= {cut for cut in (term.divisor, end) if cut < extents[term.iterator]}
    used = set(extents)
    parts: dict[str, tuple[Part, ...]] = {}
    for name, positions in cuts.items():
        edges = sorted(positions)
        pairs = list(itertools.pairwise(edges)) or [(1, 1)]
        for low, high in pairs:
            if high % low:
                raise WorkloadError(f"axis {name} is cut at {low} and at {high}: no multiple")
        names = [name] if len(pairs) == 1 else _part_names(name, len(pairs), used)
        parts[name] = tuple(
            Part(part, low, high // low)
            for part, (low, high) in zip(names, reversed(pairs), strict=True)
        )
    return parts


def _part_names(axis: str, count: int, used: set[str]) -> list[str]:
    """Return new names for the parts of an axis, and mark them as used."""
    while any(f"{axis}{number}" in used for number in range(count)):
        axis += "_"
    names = [f"{axis}{number}" for number in range(count)]
    used.update(names)
    return names


def in_parts(index: IndexExpr, parts: Mapping[str, tuple[Part, ...]]) -> IndexExpr:
    """Return an index over the parts of its axes, which is affine."""
    terms: list[IndexTerm] = []
    for term in index.terms:
        for part in parts[term.iterator]:
            is_inside = term.modulus is None or part.weight < term.divisor * term.modulus
            # Of the parts within a digit, each counts by its weight there.
            if part.weight >= term.divisor and is_inside:
                scale = term.coefficient * (part.weight // term.divisor)
                terms.append(IndexTerm(part.name, scale))
    return IndexExpr.sum(terms, index.constant)


def dimensions_of(
    index: IndexExpr, extents: Mapping[str, int], size: int
) -> tuple[tuple[IndexExpr, int], ...]:
    """Return the dimensions, with their sizes, into which an index splits a dimension.

    There is one for each digit if the index is a number of several digits that takes each value
    once; else the dimension stays as it is.

    Parameters
    ----------
    index
        Index expression.
    extents
        Extent of each iterator.
    size
        Size of the dimension.

    >>> group = IndexExpr.sum([IndexTerm("g", 8), IndexTerm("c")])
    >>> [(str(i), size) for i, size in dimensions_of(group, {"g": 2, "c": 8}, 16)]
    [('g', 2), ('c', 8)]
    """
    unsplit = ((index, size),)
    terms = sorted(index.terms, key=lambda term: -term.coefficient)
    if len(terms) < 2 or index.constant:
        return unsplit
    weight = 1
    # Each coefficient is the number of values further in: every value is then taken once.
    for term in reversed(terms):
        if term.coefficient != weight:
            return unsplit
        weight *= extents[term.iterator]
    if weight != size:
        return unsplit
    return tuple((IndexExpr.iterator(t.iterator), extents[t.iterator]) for t in terms)
