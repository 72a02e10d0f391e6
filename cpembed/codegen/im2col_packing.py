"""Packing windows: elements whose place in the original is digits of one number.

An instruction that takes ``(r, s, c)`` as one axis of 147 steps has, packed, a row of 147 elements
for each window: 7 runs of 21 neighbours in the image. Walked by the number, each element costs
divisions and moves alone; run by run, neighbours move together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cpembed.codegen.script import Script, grid
from cpembed.codegen.segments import Digit, Place, Run, Source, condition
from cpembed.ir.index import IndexExpr, IndexTerm

_MOST_RUNS = 64
"""Runs of a window at most, each of which is written down."""


@dataclass(frozen=True)
class Im2colPacking:
    """Packed dimensions ``walked``, outermost first, number the ``size`` elements of a window.

    ``run`` of them are neighbours in the original, whose ``shape`` it is: digits ``along`` the run,
    outermost first; ``digits`` are the others. ``rest`` is the original index without digits.
    """

    walked: tuple[str, ...]
    size: int
    run: int
    along: tuple[Digit, ...]
    digits: tuple[Digit, ...]
    rest: tuple[IndexExpr, ...]
    shape: tuple[int, ...]
    extents: Mapping[str, int]

    @staticmethod
    def of(
        extents: Mapping[str, int], source: Sequence[IndexExpr], shape: Sequence[int]
    ) -> Im2colPacking | None:
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
            Digit(n, t.coefficient, t.divisor, t.modulus)
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
        found = Im2colPacking(
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

    @property
    def copied(self) -> int:
        """Runs that are copied; the others are outside the original in every window."""
        nowhere: Place = str
        strides = dict.fromkeys(self.walked, 0)
        runs = self._runs(nowhere, nowhere, IndexExpr(), strides, "")
        return sum(not run.is_outside for run in runs)

    def write(
        self,
        script: Script,
        original: Place,
        packed: Place,
        base: IndexExpr,
        strides: Mapping[str, int],
        zero: str,
        loops: Sequence[str],
    ) -> None:
        """Pack the windows of ``loops``, outermost first, each of which begins at ``base``;
        ``strides`` are the packed dimensions'.

        Most windows are inside the original: that is decided for all those of the innermost loop
        at once, then for each one, and only then for each of its runs.
        """
        runs = self._runs(original, packed, base, strides, zero)
        bounds = list(dict.fromkeys(bound for run in runs for bound in run.needed))
        cut = next((n for n in reversed(range(len(loops))) if self.extents[loops[n]] > 1), 0)
        outer, inner = list(loops[:cut]), list(loops[cut:])
        together = {bound.over(inner, self.extents) for bound in bounds}
        together = {bound for bound in together if not bound.always}
        with script.nested(*self._grid(outer)):
            if not bounds:
                with script.nested(*self._grid(inner)):
                    _write_whole(script, runs)
                return
            decides = not any(bound.never for bound in together)
            if decides:
                decided = condition(sorted(map(str, together)))
                with script.nested(*decided, *self._grid(inner)):
                    _write_whole(script, runs)
            with script.nested(*(["else:"] if decides else []), *self._grid(inner)):
                with script.nested(*condition(map(str, bounds))):
                    _write_whole(script, runs)
                with script.nested("else:"):
                    for run in runs:
                        run.write(script)

    def _grid(self, names: Sequence[str]) -> list[str]:
        return grid(names, [self.extents[name] for name in names])

    def _runs(
        self,
        original: Place,
        packed: Place,
        base: IndexExpr,
        strides: Mapping[str, int],
        zero: str,
    ) -> list[Run]:
        """Of a window, in its order; what is in no original is one run as far as it is one block
        of neighbours in the packed layout."""
        block = self.extents[self.walked[-1]]
        found: list[Run] = []
        for begin in self._beginnings(block):
            end = min(self.size, (begin // self.run + 1) * self.run, (begin // block + 1) * block)
            index = list(self.rest)
            for digit in self.digits:
                index[digit.dimension] += digit.coefficient * digit.at(begin)
            place = base + self._offset(begin, strides)
            run = Run(
                f"at_{len(found)}",
                end - begin,
                block - begin % block,
                Source(original, tuple(index), self.shape, self.extents),
                self.along,
                begin % self.run,
                packed,
                place,
                zero,
            )
            if found and run.is_outside and found[-1].is_outside and begin % block:
                last = found.pop()
                run = replace(last, length=last.length + run.length)
            found.append(run)
        return found

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


def _number(term: IndexTerm) -> IndexExpr:
    """What a term is a digit of."""
    return IndexExpr.iterator(term.iterator) if term.inner is None else term.inner


def _numbering(number: IndexExpr, extents: Mapping[str, int]) -> tuple[str, ...]:
    """The dimensions that make a number, outermost first; none where it is no mixed-radix one, or
    its last one is not the last of all."""
    if not number.is_affine:
        return ()
    names = sorted(number.iterators, key=number.coefficient)
    weight = 1
    for name in names:
        if number.coefficient(name) != weight:
            return ()
        weight *= extents[name]
    last = list(extents)[-1] if extents else None
    return tuple(reversed(names)) if names and names[0] == last and not number.constant else ()


def _run(digits: Sequence[Digit], shape: Sequence[int], size: int) -> tuple[int, list[Digit]]:
    """How many elements are neighbours in the original, and the digits among them, outermost
    first."""
    run, along = 1, list[Digit]()
    for digit in sorted(digits, key=lambda digit: digit.divisor):
        weight = digit.coefficient * math.prod(shape[digit.dimension + 1 :])
        if digit.divisor != run or weight != run or run >= size:
            break
        along.insert(0, digit)
        run = size if digit.modulus is None else min(size, run * digit.modulus)
    return run, along


def _write_whole(script: Script, runs: Sequence[Run]) -> None:
    for run in runs:
        run.write_whole(script)
