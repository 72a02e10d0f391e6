"""Packing windows: elements whose place in the original is digits of one number.

An instruction that takes ``(r, s, c)`` as one axis of 147 steps has, packed, a row of 147 elements
for each window: 7 runs of 21 neighbours in the image. Walked by the number, each element costs
divisions and moves alone; run by run, neighbours move together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cpembed.backends.script import Script
from cpembed.ir.index import IndexExpr, IndexTerm

_MOST_RUNS = 64
"""Runs of a window at most, each of which is written down."""

Place = Callable[[IndexExpr], str]
"""An element of a buffer, by its index."""


@dataclass(frozen=True)
class _Digit:
    """``(number // divisor) % modulus``, of which a step is ``coefficient`` elements along original
    dimension ``dimension``."""

    dimension: int
    coefficient: int
    divisor: int
    modulus: int | None

    def at(self, number: int) -> int:
        value = number // self.divisor
        return value if self.modulus is None else value % self.modulus


@dataclass(frozen=True)
class Windows:
    """Packed dimensions ``walked``, outermost first, number the ``size`` elements of a window.

    ``run`` of them are neighbours in the original, whose ``shape`` it is: digits ``along`` the run,
    outermost first; ``digits`` are the others. ``rest`` is the original index without digits.
    """

    walked: tuple[str, ...]
    size: int
    run: int
    along: tuple[_Digit, ...]
    digits: tuple[_Digit, ...]
    rest: tuple[IndexExpr, ...]
    shape: tuple[int, ...]
    extents: Mapping[str, int]

    @staticmethod
    def of(
        extents: Mapping[str, int], source: Sequence[IndexExpr], shape: Sequence[int]
    ) -> Windows | None:
        """Of a packed operand's dimensions and its original index over them; None where elements
        are not digits of one number, no two are neighbours, or all are."""
        terms = [t for index in source for t in index.terms]
        numbers = {_number(t) for t in terms if not t.is_affine}
        walked = _numbering(numbers.pop(), extents) if len(numbers) == 1 else ()
        several = len(walked) > 1
        if not walked or any(t.is_affine and t.iterator in walked and several for t in terms):
            return None
        size = math.prod(extents[name] for name in walked)
        digits = [
            _Digit(n, t.coefficient, t.divisor, t.modulus)
            for n, index in enumerate(source)
            for t in index.terms
            if set(walked) & set(t.iterators)
        ]
        rest = [
            IndexExpr.of([t for t in i.terms if not set(walked) & set(t.iterators)], i.constant)
            for i in source
        ]
        run, along = _run(digits, shape, size)
        others = tuple(digit for digit in digits if digit not in along)
        found = Windows(
            walked, size, run, tuple(along), others, tuple(rest), tuple(shape), dict(extents)
        )
        return found if 1 < run < size and found._can_be_moved() else None

    def _can_be_moved(self) -> bool:
        """Whether runs begin where the other digits step, and only their first digit can lead out
        of the original."""
        if any(digit.divisor % self.run for digit in self.digits) or self.runs > _MOST_RUNS:
            return False
        moving = [digit.dimension for digit in self.digits]
        for digit in self.along:
            low, high = self.rest[digit.dimension].bounds(self.extents)
            reach = digit.coefficient * digit.at(self.run - 1)
            inside = low >= 0 and high + reach < self.shape[digit.dimension]
            if digit.dimension in moving or not (inside or digit is self.along[0]):
                return False
        return True

    @property
    def runs(self) -> int:
        return -(-self.size // self.run)

    def write(
        self,
        script: Script,
        original: Place,
        packed: Place,
        base: IndexExpr,
        strides: Mapping[str, int],
        zero: str,
    ) -> None:
        """Pack a window, which begins at ``base``; ``strides`` are the packed dimensions'."""
        block = self.extents[self.walked[-1]]
        for number, begin in enumerate(self._beginnings(block)):
            end = min(self.size, (begin // self.run + 1) * self.run, (begin // block + 1) * block)
            index = list(self.rest)
            for digit in self.digits:
                index[digit.dimension] += digit.coefficient * digit.at(begin)
            run = _Run(self, index, begin % self.run, end - begin, f"at_{number}")
            run.write(script, original, packed, base + self._offset(begin, strides), zero)

    def _beginnings(self, block: int) -> list[int]:
        """Of runs, and of blocks that are neighbours in the packed layout."""
        return sorted({*range(0, self.size, self.run), *range(0, self.size, block)})

    def _offset(self, number: int, strides: Mapping[str, int]) -> int:
        """Of an element in the packed layout."""
        offset = 0
        for name in reversed(self.walked):
            number, place = divmod(number, self.extents[name])
            offset += place * strides[name]
        return offset


@dataclass(frozen=True)
class _Run:
    """Neighbours: ``length`` elements of a run from its element ``skipped`` on, which begins at the
    original element ``index``; ``name`` is the loop's."""

    windows: Windows
    index: Sequence[IndexExpr]
    skipped: int
    length: int
    name: str

    def write(
        self, script: Script, original: Place, packed: Place, base: IndexExpr, zero: str
    ) -> None:
        at = IndexExpr.iterator(self.name)
        source = original(_flat(self.index, self.windows.shape) + at + self.skipped)

        def fill(value: str, first: str = "0", end: str = str(self.length)) -> None:
            with script.nested(f"for {self.name} in T.serial({first}, {end}):"):
                script.line(f"{packed(base + at)} = {value}")

        conditions = self._conditions()
        if conditions is None:
            fill(zero)
            return
        clipped = self._clipped()
        whole = [*conditions, *(() if clipped is None else clipped.whole)]
        if not whole:
            fill(source)
            return
        with script.nested(f"if {' and '.join(whole)}:"):
            fill(source)
        with script.nested("else:"):
            fill(zero)
            if clipped is not None:
                with script.nested(f"if {' and '.join(conditions) or 'True'}:"):
                    fill(source, clipped.first, clipped.end)

    def _conditions(self) -> list[str] | None:
        """What has to hold for the run to be in the original, its ends apart; None where it never
        is."""
        found: list[str] = []
        along = {digit.dimension for digit in self.windows.along}
        for place, (index, size) in enumerate(zip(self.index, self.windows.shape, strict=True)):
            low, high = index.bounds(self.windows.extents)
            if place in along:
                continue
            if low >= size or high < 0:
                return None
            found += [f"{index} >= 0"] if low < 0 else []
            found += [f"{index} < {size}"] if high >= size else []
        return found

    def _clipped(self) -> _Clipped | None:
        """Where the run is in the original; None where that is everywhere."""
        top = self.windows.along[0]
        index, size = self.index[top.dimension], self.windows.shape[top.dimension]
        near, far = top.at(self.skipped), top.at(self.skipped + self.length - 1)
        low, high = index.bounds(self.windows.extents)
        if low + near >= 0 and high + far < size:
            return None
        whole = [f"{index} >= {-near}"] if low + near < 0 else []
        whole += [f"{index} < {size - far}"] if high + far >= size else []
        first = f"({index}) * {-top.divisor} - {self.skipped}"
        end = f"({size} - ({index})) * {top.divisor} - {self.skipped}"
        return _Clipped(tuple(whole), self._within(first), self._within(end))

    def _within(self, place: str) -> str:
        return f"T.max(0, T.min({self.length}, {place}))"


@dataclass(frozen=True)
class _Clipped:
    """Conditions under which a run is ``whole``, and else its part from ``first`` to ``end``."""

    whole: tuple[str, ...]
    first: str
    end: str


def _number(term: IndexTerm) -> IndexExpr:
    """What a term is a digit of."""
    return IndexExpr.iterator(term.iterator) if term.inner is None else term.inner


def _numbering(number: IndexExpr, extents: Mapping[str, int]) -> tuple[str, ...]:
    """The dimensions that make a number, outermost first; none where it is no mixed-radix one, or
    its last one is not the last of all."""
    names = sorted(number.iterators, key=number.coefficient)
    weight = 1
    for name in names:
        if number.coefficient(name) != weight:
            return ()
        weight *= extents[name]
    last = list(extents)[-1] if extents else None
    return tuple(reversed(names)) if names and names[0] == last and not number.constant else ()


def _run(digits: Sequence[_Digit], shape: Sequence[int], size: int) -> tuple[int, list[_Digit]]:
    """How many elements are neighbours in the original, and the digits among them, outermost
    first."""
    run, along = 1, list[_Digit]()
    for digit in sorted(digits, key=lambda digit: digit.divisor):
        weight = digit.coefficient * math.prod(shape[digit.dimension + 1 :])
        if digit.divisor != run or weight != run or run >= size:
            break
        along.insert(0, digit)
        run = size if digit.modulus is None else min(size, run * digit.modulus)
    return run, along


def _flat(index: Sequence[IndexExpr], shape: Sequence[int]) -> IndexExpr:
    """An original index as one into the flat buffer."""
    total = IndexExpr()
    for part, size in zip(index, shape, strict=True):
        scaled = [term.times(size) for term in total.terms]
        total = IndexExpr.of(scaled, total.constant * size) + part
    return total
