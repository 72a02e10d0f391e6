"""Small statements about indices over boxes: isl decides each once and the answer is kept.

A statement is a lemma's function, the *goals* it speaks about and their sizes, all plain values.
Every variable ranges over the box given by its extent, which its terms carry along. A statement
is looked up as written first, then with its variables renamed in order of first use, so equal
structure is decided once across programs and layers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache

import islpy as isl

from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.ir.polyhedral import in_time, index_text
from cpembed.transform.proof.normal_form import Plain, Term, normal_form

Goal = tuple[Plain, tuple[tuple[Hashable, Plain], ...]]
"""An index over variables, or, where there are bindings, over names each bound to such an index."""

CACHE_SIZE = 1 << 16


def plain(index: IndexExpr, extents: Mapping[str, int]) -> Plain:
    return (
        tuple(
            [
                (t.iterator, extents[t.iterator], t.coefficient, t.divisor, t.modulus)
                for t in index.terms
            ]
        ),
        index.constant,
    )


class Question:
    """The goals in isl's syntax, over the box of their variables."""

    def __init__(self, goals: Sequence[Goal]) -> None:
        extents: dict[str, int] = {}
        self.goals = [f"({_goal_text(goal, extents)})" for goal in goals]
        self.variables = ", ".join(extents)
        self.box = _conjunction([f"0 <= {name} < {size}" for name, size in extents.items()])

    def never(self, *conditions: str) -> bool:
        """Whether no point of the box meets all conditions."""
        condition = _conjunction([self.box, *conditions])
        return isl.Set(f"{{ [{self.variables}] : {condition} }}").is_empty()

    def relation(self) -> isl.Map:
        return isl.Map(f"{{ [{self.variables}] -> [{', '.join(self.goals)}] : {self.box} }}")


Lemma = Callable[[Question, tuple[int, ...]], bool]


def inside(question: Question, sizes: tuple[int, ...]) -> bool:
    """The goal always lies in [0, size)."""
    return question.never(_outside(question.goals[0], sizes[0]))


def equal(question: Question, sizes: tuple[int, ...]) -> bool:
    """The first two goals are equal wherever each further goal lies in [0, its size)."""
    left, right, *guards = question.goals
    valid = [_inside(guard, size) for guard, size in zip(guards, sizes, strict=True)]
    return question.never(*valid, f"{left} != {right}")


def excluded(question: Question, sizes: tuple[int, ...]) -> bool:
    """Wherever the first goal lies outside [0, its size), so does the second."""
    first, second = question.goals
    return question.never(_outside(first, sizes[0]), _inside(second, sizes[1]))


def injective(question: Question, sizes: tuple[int, ...]) -> bool:
    """No two points have the same goals."""
    del sizes
    return question.relation().is_injective()


def onto(question: Question, sizes: tuple[int, ...]) -> bool:
    """The goals together take exactly the values of the box of sizes."""
    names = [f"b{n}" for n in range(len(sizes))]
    box = _conjunction([_inside(name, size) for name, size in zip(names, sizes, strict=True)])
    return question.relation().range().is_equal(isl.Set(f"{{ [{', '.join(names)}] : {box} }}"))


def bijective(question: Question, sizes: tuple[int, ...]) -> bool:
    """The goals together number the points by the box of sizes, each point once."""
    return onto(question, sizes) and injective(question, sizes)


@lru_cache(CACHE_SIZE)
def holds(lemma: Lemma, goals: tuple[Goal, ...], sizes: tuple[int, ...] = ()) -> bool:
    """Whether the lemma is true of the goals; names are local to the statement."""
    if lemma is equal and _same_form(*goals[:2]):
        return True
    names: dict[Hashable, str] = {}
    return _decide(lemma, tuple(_canonical(goal, names) for goal in goals), sizes)


def _same_form(left: Goal, right: Goal) -> bool:
    """Whether two goals are equal, wherever that is, by their form alone."""
    form = normal_form(left[0], dict(left[1]))
    return form is not None and form == normal_form(right[0], dict(right[1]))


@lru_cache(CACHE_SIZE)
def _decide(lemma: Lemma, goals: tuple[Goal, ...], sizes: tuple[int, ...]) -> bool:
    return in_time(lemma, Question(goals), sizes)


@lru_cache(CACHE_SIZE)
def independent(extent: int, digits: tuple[tuple[int, int | None], ...]) -> bool:
    """Whether a variable corresponds one to one to the box of its digits (divisor, modulus)."""
    if not digits:
        return extent == 1
    goals = tuple(((((0, extent, 1, d, m),), 0), ()) for d, m in digits)
    return holds(bijective, goals, tuple(values(extent, d, m) for d, m in digits))


def values(extent: int, divisor: int, modulus: int | None) -> int:
    """Upper bound on the number of values, from 0, of a digit of a variable."""
    whole = (extent - 1) // divisor + 1
    return whole if modulus is None else min(whole, modulus)


def forget() -> None:
    """Empty the caches, for measurements."""
    independent.cache_clear()
    holds.cache_clear()
    _decide.cache_clear()


def decided() -> int:
    """Statements that isl has decided so far."""
    return _decide.cache_info().misses


def _canonical(goal: Goal, names: dict[Hashable, str]) -> Goal:
    """The goal with its variables renamed by ``names``, which grows, and its own names renamed."""
    index, bindings = goal
    if not bindings:
        return _renamed(index, names), ()
    own: dict[Hashable, str] = {}
    index = _renamed(index, own)
    bound = dict(bindings)
    return index, tuple((new, _renamed(bound[old], names)) for old, new in own.items())


def _renamed(index: Plain, names: dict[Hashable, str]) -> Plain:
    terms, constant = index
    # The order of a sum does not matter: one that ignores names makes equal structures equal.
    ordered = sorted(terms, key=_structure)
    return tuple((names.setdefault(t[0], f"v{len(names)}"), *t[1:]) for t in ordered), constant


def _structure(term: Term) -> tuple[int, int, int, int]:
    _, extent, coefficient, divisor, modulus = term
    return -coefficient, divisor, modulus or 0, extent


def _goal_text(goal: Goal, extents: dict[str, int]) -> str:
    """The goal over its variables, whose extents are added to ``extents``."""
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


@lru_cache(maxsize=65536)
def covers_once(extent: int, tile: int, granule: int, parts: int) -> bool:
    """Whether tiles of so many points, of which each of ``parts`` holds an equal number in whole
    granules, one part after the other, reach every point of ``[0, extent)`` exactly once, and
    none beyond the last granule.

    >>> covers_once(100, 32, 8, 4), covers_once(100, 30, 8, 4)
    (True, False)
    """
    count = -(-extent // tile)
    last = extent - (count - 1) * tile
    pieces = [
        _piece(0, count - 1, tile, _held(tile, granule, parts), parts),
        _piece(count - 1, count, tile, _held(last, granule, parts), parts),
    ]
    reached = isl.UnionMap(pieces[0]).union(isl.UnionMap(pieces[1]))
    image = reached.range()
    whole = isl.UnionSet(f"{{ [x] : 0 <= x < {extent} }}")
    room = -(-extent // granule) * granule
    inside = isl.UnionSet(f"{{ [x] : 0 <= x < {room} }}")
    return bool(reached.is_injective() and whole.is_subset(image) and image.is_subset(inside))


def _held(points: int, granule: int, parts: int) -> int:
    return -(-points // granule) * (granule // parts)


def _piece(first: int, end: int, tile: int, held: int, parts: int) -> str:
    """Point of tile t, part p, place l."""
    return (
        f"{{ [t, p, l] -> [{tile}t + {held}p + l] : {first} <= t < {end} and 0 <= p < {parts} "
        f"and 0 <= l < {held} }}"
    )
