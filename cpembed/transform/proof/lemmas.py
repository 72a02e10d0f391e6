"""Small statements about indices over boxes: isl decides each once, and the result is cached.

A statement is a lemma (a function), its *goals* and their sizes, all plain values. Every variable
ranges over the box given by its extent, which its terms carry along.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache

import islpy as isl

from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.ir.polyhedral import in_time, index_text

Term = tuple[Hashable, int, int, int, int | None]
"""Variable, its extent, coefficient, divisor, modulus: an index term with its variable's box."""
Plain = tuple[tuple[Term, ...], int]
"""An index expression as a plain value: its terms and its constant."""
Digit = tuple[Hashable, int, int | None]
"""Variable, divisor, modulus."""
Form = tuple[dict[Digit, int], int]
"""Coefficient of each digit, none of them 0, and the constant."""


# Two indices of one form are equal everywhere. This settles most statements of equality without a
# decision procedure: only indices without a form, or with different ones, go to isl.
def normal_form(index: Plain, bodies: Mapping[Hashable, Plain]) -> Form | None:
    """Return a composed index as a sum of digits of variables; None if it has a digit of a sum.

    The index is over names bound to ``bodies``, or over variables if there are none.
    """
    form: dict[Digit, int] = {}
    total = index[1]
    for term in index[0]:
        name, _, coefficient, divisor, modulus = term
        if not bodies:
            _add(form, term)
            continue
        terms, constant = bodies[name]
        if divisor == 1 and modulus is None:
            # A multiple of a sum is the sum of the multiples.
            total += coefficient * constant
            for inner in terms:
                _add(form, (*inner[:2], coefficient * inner[2], *inner[3:]))
        elif not terms:
            digit = constant // divisor
            total += coefficient * (digit if modulus is None else digit % modulus)
        elif len(terms) == 1 and not constant and (composed := _digit_of_digit(*terms, term)):
            _add(form, composed)
        else:
            # Carries between the terms of a sum decide its digits, so there is no such form.
            return None
    return form, total


def _digit_of_digit(inner: Term, outer: Term) -> Term | None:
    """Compose ``coefficient * ((inner // divisor) % modulus)`` to a digit of inner's variable.

    The result is None if it is not a single digit.
    """
    name, extent, factor, low, size = inner
    _, _, coefficient, divisor, modulus = outer
    if factor != 1:
        return None
    if size is not None:
        # (v % size) // divisor == (v // divisor) % (size // divisor) if divisor divides size.
        if size % divisor:
            return None
        size //= divisor
        # Of two moduli of which one divides the other, the smaller one decides.
        if modulus is None or modulus % size == 0:
            modulus = size
        elif size % modulus:
            return None
    return name, extent, coefficient, low * divisor, modulus


def _add(form: dict[Digit, int], term: Term) -> None:
    """Add a term to a form, without digits that are always 0 and moduli without effect."""
    # Both would make different forms of equal indices, which isl then had to compare.
    name, extent, coefficient, divisor, modulus = term
    top = (extent - 1) // divisor
    if modulus is not None and top < modulus:
        modulus = None
    if not top or modulus == 1:
        return
    digit = name, divisor, modulus
    total = form.get(digit, 0) + coefficient
    if total:
        form[digit] = total
    else:
        form.pop(digit, None)


Goal = tuple[Plain, tuple[tuple[Hashable, Plain], ...]]
"""An index over variables, or with bindings, over names that are each bound to such an index."""

_CACHE_SIZE = 1 << 16
"""Maximum number of statements that each cache holds."""


def plain(index: IndexExpr, extents: Mapping[str, int]) -> Plain:
    """Turn an index expression into a plain value."""
    # Tuples of numbers hash and compare far quicker than expressions, and caches do that often.
    terms = [
        (t.iterator, extents[t.iterator], t.coefficient, t.divisor, t.modulus) for t in index.terms
    ]
    return tuple(terms), index.constant


class Question:
    """The goals in isl's syntax, over the box of their variables."""

    def __init__(self, goals: Sequence[Goal]) -> None:
        extents: dict[str, int] = {}
        self.goals = [f"({_goal_text(goal, extents)})" for goal in goals]
        self.variables = ", ".join(extents)
        self.box = _conjunction([f"0 <= {name} < {size}" for name, size in extents.items()])

    def never(self, *conditions: str) -> bool:
        """True if no point of the box meets all conditions."""
        # Emptiness of a set with floors and moduli of constants is Presburger arithmetic, which isl
        # decides exactly: "for all" is shown as "no counterexample exists".
        condition = _conjunction([self.box, *conditions])
        return isl.Set(f"{{ [{self.variables}] : {condition} }}").is_empty()

    def relation(self) -> isl.Map:
        """Return the relation from variables to goals."""
        return isl.Map(f"{{ [{self.variables}] -> [{', '.join(self.goals)}] : {self.box} }}")


Lemma = Callable[[Question, tuple[int, ...]], bool]
"""Decision of a statement from its goals, in isl's syntax, and their sizes."""


def inside(question: Question, sizes: tuple[int, ...]) -> bool:
    """True if the first goal lies in [0, first size) at every point of the box."""
    return question.never(_outside(question.goals[0], sizes[0]))


def equal(question: Question, sizes: tuple[int, ...]) -> bool:
    """True if the first two goals are equal wherever each further goal lies in [0, its size)."""
    left, right, *guards = question.goals
    valid = [_inside(guard, size) for guard, size in zip(guards, sizes, strict=True)]
    return question.never(*valid, f"{left} != {right}")


def excluded(question: Question, sizes: tuple[int, ...]) -> bool:
    """True if the second goal is outside its range [0, size) wherever the first one is."""
    first, second = question.goals
    return question.never(_outside(first, sizes[0]), _inside(second, sizes[1]))


def injective(question: Question, sizes: tuple[int, ...]) -> bool:
    """True if no two points have the same goals."""
    del sizes  # every lemma has this parameter
    return question.relation().is_injective()


def onto(question: Question, sizes: tuple[int, ...]) -> bool:
    """True if the tuple of goals takes exactly the values of the box of sizes."""
    names = [f"b{n}" for n in range(len(sizes))]
    box = _conjunction([_inside(name, size) for name, size in zip(names, sizes, strict=True)])
    return question.relation().range().is_equal(isl.Set(f"{{ [{', '.join(names)}] : {box} }}"))


def bijective(question: Question, sizes: tuple[int, ...]) -> bool:
    """True if the tuple of goals maps the points one to one onto the box of sizes."""
    return onto(question, sizes) and injective(question, sizes)


@lru_cache(_CACHE_SIZE)
def holds(lemma: Lemma, goals: tuple[Goal, ...], sizes: tuple[int, ...] = ()) -> bool:
    """Decide a lemma.

    Parameters
    ----------
    lemma : callable
        One of the functions above.
    goals : tuple of Goal
        Indices; names of variables are local to the statement.
    sizes : tuple of int
        Sizes for the lemma, in the order of the goals that need one.
    """
    # Equal everywhere implies equal under guards, so the form suffices.
    if lemma is equal and _same_form(*goals[:2]):
        return True
    # Looked up as written by this function's cache, then with variables renamed in order of first
    # use: equal structures are decided once across programs and layers.
    names: dict[Hashable, str] = {}
    return _decide(lemma, tuple(_canonical(goal, names) for goal in goals), sizes)


def _same_form(left: Goal, right: Goal) -> bool:
    """True if two goals are equal everywhere by their normal form."""
    form = normal_form(left[0], dict(left[1]))
    return form is not None and form == normal_form(right[0], dict(right[1]))


@lru_cache(_CACHE_SIZE)
def _decide(lemma: Lemma, goals: tuple[Goal, ...], sizes: tuple[int, ...]) -> bool:
    return in_time(lemma, Question(goals), sizes)


@lru_cache(_CACHE_SIZE)
def independent(extent: int, digits: tuple[tuple[int, int | None], ...]) -> bool:
    """True if a variable corresponds one to one to the box of its digits (divisor, modulus)."""
    # The box without dimensions is a single point.
    if not digits:
        return extent == 1
    goals = tuple(((((0, extent, 1, d, m),), 0), ()) for d, m in digits)
    return holds(bijective, goals, tuple(values(extent, d, m) for d, m in digits))


def values(extent: int, divisor: int, modulus: int | None) -> int:
    """Return an upper bound on the number of values of ``(variable // divisor) % modulus``, from 0.

    Parameters
    ----------
    extent : int
        Extent of the variable.
    divisor, modulus : int, int or None
        Digit of the variable; None for no remainder.
    """
    quotients = (extent - 1) // divisor + 1
    return quotients if modulus is None else min(quotients, modulus)


def forget() -> None:
    """Clear the caches, for measurements."""
    independent.cache_clear()
    holds.cache_clear()
    _decide.cache_clear()


def decided() -> int:
    """Return the number of statements that isl has decided."""
    return _decide.cache_info().misses


def _canonical(goal: Goal, names: dict[Hashable, str]) -> Goal:
    """Rename a goal's variables by ``names``, which is extended, and its bound names in order."""
    index, bindings = goal
    if not bindings:
        return _renamed(index, names), ()
    local_names: dict[Hashable, str] = {}
    index = _renamed(index, local_names)
    bodies = dict(bindings)
    return index, tuple((new, _renamed(bodies[old], names)) for old, new in local_names.items())


def _renamed(index: Plain, names: dict[Hashable, str]) -> Plain:
    terms, constant = index
    # Terms can be in any order; one that ignores names makes equal structures equal.
    ordered = sorted(terms, key=_structure)
    return tuple((names.setdefault(t[0], f"v{len(names)}"), *t[1:]) for t in ordered), constant


def _structure(term: Term) -> tuple[int, int, int, int]:
    _, extent, coefficient, divisor, modulus = term
    return -coefficient, divisor, modulus or 0, extent


def _goal_text(goal: Goal, extents: dict[str, int]) -> str:
    """Write a goal over its variables, whose extents are added to ``extents``."""
    index, bindings = goal
    if not bindings:
        return _text(index, {}, extents)
    return _text(index, {name: f"({_text(bound, {}, extents)})" for name, bound in bindings})


def _text(
    index: Plain, bodies: Mapping[Hashable, str], extents: dict[str, int] | None = None
) -> str:
    terms: list[IndexTerm] = []
    dims: dict[str, str] = {}
    for name, extent, coefficient, divisor, modulus in index[0]:
        variable = str(name)
        dims[variable] = bodies.get(name, variable)
        if extents is not None:
            extents[variable] = extent
        terms.append(IndexTerm(variable, coefficient, divisor, modulus))
    return index_text(IndexExpr(tuple(terms), index[1]), dims)


def _inside(text: str, size: int) -> str:
    return f"0 <= {text} < {size}"


def _outside(text: str, size: int) -> str:
    return f"({text} < 0 or {text} >= {size})"


def _conjunction(conditions: Sequence[str]) -> str:
    return " and ".join(condition for condition in conditions if condition) or "true"


@lru_cache(_CACHE_SIZE)
def covers_once(extent: int, tile: int, granule: int, parts: int) -> bool:
    """True if a cut of an axis into tiles and parts reaches every point exactly once.

    A tile is cut into equal parts of whole granules, one for each row or column of a mesh. The last
    tile is a smaller one, filled up to whole granules, beyond which nothing is reached.

    >>> covers_once(100, 32, 8, 4), covers_once(100, 30, 8, 4)
    (True, False)

    Parameters
    ----------
    extent : int
        Points of the axis.
    tile : int
        Points of a tile.
    granule : int
        Points of a granule.
    parts : int
        Number of parts of a tile.
    """
    count = -(-extent // tile)
    last = extent - (count - 1) * tile
    pieces = [
        _piece(0, count - 1, tile, _part_points(tile, granule, parts), parts),
        _piece(count - 1, count, tile, _part_points(last, granule, parts), parts),
    ]
    # Injective on the union of both pieces: no point of the axis is reached by two (t, p, l). That
    # the image lies between the axis and the padded axis says the rest.
    reached = isl.UnionMap(pieces[0]).union(isl.UnionMap(pieces[1]))
    image = reached.range()
    axis = isl.UnionSet(f"{{ [x] : 0 <= x < {extent} }}")
    padded = isl.UnionSet(f"{{ [x] : 0 <= x < {-(-extent // granule) * granule} }}")
    return bool(reached.is_injective() and axis.is_subset(image) and image.is_subset(padded))


def _part_points(points: int, granule: int, parts: int) -> int:
    return -(-points // granule) * (granule // parts)


def _piece(first: int, end: int, tile: int, points: int, parts: int) -> str:
    """Write the relation from tile t, part p and position l to the point of the axis."""
    return (
        f"{{ [t, p, l] -> [{tile}t + {points}p + l] : {first} <= t < {end} and 0 <= p < {parts} "
        f"and 0 <= l < {points} }}"
    )
