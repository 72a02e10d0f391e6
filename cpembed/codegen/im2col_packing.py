"""Packing windows: elements whose position in the original is given by digits of one number.

An instruction that takes ``(r, s, c)`` as one axis of 147 steps has, packed, a row of 147 elements
for each window: 7 runs of 21 neighbours in the image. Walked by the number, each element costs
divisions and is copied alone; run by run, neighbours are copied as vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cpembed.codegen.plan import Script, grid
from cpembed.ir.index import IndexExpr, IndexTerm, flat_index, row_major_strides

# Each run is written as code of its own.
_MAX_RUNS = 64
"""Maximum number of runs in a window."""

_WIDEST = 64
"""Maximum number of elements that are copied at once for a shorter run."""

Place = Callable[[IndexExpr], str]
"""Element of a buffer in the text, by its index."""


@dataclass(frozen=True)
class Digit:
    """``(number // divisor) % modulus``; a step is ``coefficient`` elements along a dimension."""

    dimension: int
    coefficient: int
    divisor: int
    modulus: int | None

    def at(self, number: int) -> int:
        """Return the digit of a number."""
        value = number // self.divisor
        return value if self.modulus is None else value % self.modulus


@dataclass(frozen=True)
class Bound:
    """Condition ``index >= limit`` if ``least``, else ``index <= limit``.

    The index takes values from ``low`` to ``high``.
    """

    index: IndexExpr
    limit: int
    least: bool
    low: int
    high: int

    @staticmethod
    def within(index: IndexExpr, limit: int, extents: Mapping[str, int], *, least: bool) -> Bound:
        """Return the bound of an index over iterators of these extents."""
        return Bound(index, limit, least, *index.bounds(extents))

    @property
    def always(self) -> bool:
        """True if the condition holds for all values."""
        return self.low >= self.limit if self.least else self.high <= self.limit

    @property
    def never(self) -> bool:
        """True if the condition holds for no value."""
        return self.high < self.limit if self.least else self.low > self.limit

    def over(self, inner: Collection[str], extents: Mapping[str, int]) -> Bound:
        """Return the condition that the bound holds for every value of some iterators."""
        moved = [t for t in self.index.terms if set(inner) & set(t.iterators)]
        fixed = [t for t in self.index.terms if not set(inner) & set(t.iterators)]
        low, high = IndexExpr.sum(moved).bounds(extents)
        index = IndexExpr.sum(fixed, self.index.constant + (low if self.least else high))
        return Bound.within(index, self.limit, extents, least=self.least)

    def __str__(self) -> str:
        return f"{self.index} {'>=' if self.least else '<='} {self.limit}"


@dataclass(frozen=True)
class Source:
    """Beginning of a run in the original, by the index of each dimension of its ``shape``."""

    original: Place
    index: tuple[IndexExpr, ...]
    shape: tuple[int, ...]
    extents: Mapping[str, int]

    def bounds(self, dimension: int, low: int, high: int) -> list[Bound]:
        """Return the conditions for a dimension's index to lie between two limits.

        Conditions that always hold are left out.
        """
        limits = ((low, True), (high, False))
        bounds = (
            Bound.within(self.index[dimension], limit, self.extents, least=least)
            for limit, least in limits
        )
        return [bound for bound in bounds if not bound.always]

    @property
    def flat(self) -> IndexExpr:
        """Index into the flat buffer."""
        return flat_index(self.index, row_major_strides(self.shape))


@dataclass(frozen=True)
class Run:
    """Neighbours in the original, ``length`` of them, that are copied by a loop over ``name``.

    They begin ``skipped`` elements after a full run at ``source``, and in the packed layout at
    ``base``. ``along`` are the digits along a full run, outermost first, of which only the first
    may lead out of the original. From ``base`` on, ``room`` packed elements belong to the same
    window, which holds its runs in their order.
    """

    name: str
    length: int
    room: int
    source: Source
    along: tuple[Digit, ...]
    skipped: int
    packed: Place
    base: IndexExpr
    zero: str

    @property
    def is_outside(self) -> bool:
        """True if the run lies outside the original in every window."""
        return any(bound.never for bound in self._around)

    @property
    def needed(self) -> list[Bound]:
        """Conditions of :meth:`write_inside`."""
        return [] if self.is_outside else [*self._around, *self._ends, *self._readable]

    def write_inside(self, script: Script) -> None:
        """Write the copy of a run that lies in the original entirely, or never does."""
        self._fill(script, self.zero if self.is_outside else self._element, end=str(self._width))

    def write(self, script: Script) -> None:
        """Write the copy of a run that may lie in the original in part."""
        if self.is_outside:
            self._fill(script, self.zero)
            return
        around = [str(bound) for bound in self._around]
        ends = [str(bound) for bound in self._ends]
        if not (around or ends):
            self._fill(script, self._element)
            return
        with script.nested(*_condition([*around, *ends])):
            self._fill(script, self._element)
        with script.nested("else:"):
            # Zeros all over first: the ends that lie outside have no constant length.
            self._fill(script, self.zero)
            if ends:
                with script.nested(*_condition(around)):
                    self._fill(script, self._element, *self._clipped())

    @property
    def _around(self) -> list[Bound]:
        """Conditions on the dimensions that the run does not walk."""
        along = {digit.dimension for digit in self.along}
        fixed = (n for n in range(len(self.source.shape)) if n not in along)
        return [b for n in fixed for b in self.source.bounds(n, 0, self.source.shape[n] - 1)]

    @property
    def _ends(self) -> list[Bound]:
        """Conditions on the first and the last element."""
        top = self.along[0]
        near, far = top.at(self.skipped), top.at(self.skipped + self.length - 1)
        return self.source.bounds(top.dimension, -near, self.source.shape[top.dimension] - 1 - far)

    @property
    def _readable(self) -> list[Bound]:
        """Conditions on the elements after the run that are copied with it."""
        source = self.source
        most = math.prod(source.shape) - self._width
        bound = Bound.within(source.flat + self.skipped, most, source.extents, least=False)
        return [] if self._width == self.length or bound.always else [bound]

    @property
    def _width(self) -> int:
        """Number of elements that are copied at once."""
        # Rounded up to a full vector where the elements after the run are written later: 21 bytes
        # take several copies, 32 a single one.
        wide = 1 << (self.length - 1).bit_length()
        fits = wide <= min(self.room, _WIDEST)
        return wide if fits and not self.is_outside else self.length

    @property
    def _element(self) -> str:
        at = IndexExpr.iterator(self.name)
        return self.source.original(self.source.flat + at + self.skipped)

    def _fill(self, script: Script, value: str, first: str = "0", end: str = "") -> None:
        with script.nested(f"for {self.name} in T.serial({first}, {end or self.length}):"):
            script.line(f"{self.packed(self.base + IndexExpr.iterator(self.name))} = {value}")

    def _clipped(self) -> tuple[str, str]:
        """Return the first element inside the original and the end."""
        # The outermost digit steps along its dimension once every `divisor` elements.
        top = self.along[0]
        index, size = self.source.index[top.dimension], self.source.shape[top.dimension]
        first = f"({index}) * {-top.divisor} - {self.skipped}"
        end = f"({size} - ({index})) * {top.divisor} - {self.skipped}"
        return self._inside(first), self._inside(end)

    def _inside(self, place: str) -> str:
        return f"T.max(0, T.min({self.length}, {place}))"


@dataclass(frozen=True)
class Im2colPacking:
    """Packed dimensions that number the elements of a window, and the runs of neighbours in it.

    ``numbering`` are the dimensions, outermost first, whose points are numbered 0 to ``size - 1``;
    ``run`` elements are neighbours in the original. ``along`` are the digits of the number along a
    run, outermost first, ``digits`` the others, and ``rest`` is the original index without digits.
    """

    numbering: tuple[str, ...]
    size: int
    run: int
    along: tuple[Digit, ...]
    digits: tuple[Digit, ...]
    rest: tuple[IndexExpr, ...]
    shape: tuple[int, ...]
    extents: Mapping[str, int]

    @staticmethod
    def detect(
        extents: Mapping[str, int], source: Sequence[IndexExpr], shape: Sequence[int]
    ) -> Im2colPacking | None:
        """Return the runs of a packed operand, from its original index over its dimensions.

        None if elements are not digits of one number, no two are neighbours, or all are.
        """
        terms = [t for index in source for t in index.terms]
        numbers = {_number(t) for t in terms if not t.is_affine}
        numbering = _numbering(numbers.pop(), extents) if len(numbers) == 1 else ()
        several = len(numbering) > 1
        if not numbering or any(t.is_affine and t.iterator in numbering and several for t in terms):
            return None
        size = math.prod(extents[name] for name in numbering)
        digits = [
            Digit(n, t.coefficient, t.divisor, t.modulus)
            for n, index in enumerate(source)
            for t in index.terms
            if set(numbering) & set(t.iterators)
        ]
        rest = [
            IndexExpr.sum([t for t in i.terms if not set(numbering) & set(t.iterators)], i.constant)
            for i in source
        ]
        run, along = _run(digits, shape, size)
        packing = Im2colPacking(
            numbering=numbering,
            size=size,
            run=run,
            along=tuple(along),
            digits=tuple(digit for digit in digits if digit not in along),
            rest=tuple(rest),
            shape=tuple(shape),
            extents=dict(extents),
        )
        return packing if 1 < run < size and packing._can_be_moved() else None

    def _can_be_moved(self) -> bool:
        """Return True if runs can be copied as blocks."""
        # A run has to begin where the other digits step, or it would jump in the original.
        if any(digit.divisor % self.run for digit in self.digits) or self.runs > _MAX_RUNS:
            return False
        stepped = [digit.dimension for digit in self.digits]
        for digit in self.along:
            low, high = self.rest[digit.dimension].bounds(self.extents)
            reach = digit.coefficient * digit.at(self.run - 1)
            inside = low >= 0 and high + reach < self.shape[digit.dimension]
            # Padding in the middle of a run would cut it in several pieces.
            if digit.dimension in stepped or not (inside or digit is self.along[0]):
                return False
        return True

    @property
    def runs(self) -> int:
        """Number of runs of a window."""
        return -(-self.size // self.run)

    @property
    def copied(self) -> int:
        """Number of runs that are copied; the others lie outside the original in every window."""
        strides = dict.fromkeys(self.numbering, 0)
        runs = self._runs(str, str, IndexExpr(), strides, "")
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
        """Write the packing of the windows of some loops.

        Most windows lie inside the original. That is tested for all those of the innermost loop at
        once, then for each one, and only then for each of its runs.

        Parameters
        ----------
        script, zero : Script, str
            Text to write to, and value of padding.
        original, packed : Place
            Elements of the buffers.
        base : IndexExpr
            Index in the packed buffer at which a window begins.
        strides : mapping of str to int
            Strides of the packed dimensions.
        loops : sequence of str
            Packed dimensions over windows, outermost first.
        """
        runs = self._runs(original, packed, base, strides, zero)
        bounds = list(dict.fromkeys(bound for run in runs for bound in run.needed))
        # The last loop of several iterations is the one over which a test is worth sharing.
        cut = next((n for n in reversed(range(len(loops))) if self.extents[loops[n]] > 1), 0)
        outer, inner = list(loops[:cut]), list(loops[cut:])
        joint = {bound.over(inner, self.extents) for bound in bounds}
        joint = {bound for bound in joint if not bound.always}

        def write_inside() -> None:
            for run in runs:
                run.write_inside(script)

        with script.nested(*self._grid(outer)):
            if not bounds:
                with script.nested(*self._grid(inner)):
                    write_inside()
                return
            decides = not any(bound.never for bound in joint)
            if decides:
                with script.nested(*_condition(sorted(map(str, joint))), *self._grid(inner)):
                    write_inside()
            with script.nested(*(["else:"] if decides else []), *self._grid(inner)):
                with script.nested(*_condition(map(str, bounds))):
                    write_inside()
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
        """Return the runs of a window, in its order."""
        block = self.extents[self.numbering[-1]]
        runs: list[Run] = []
        # A run is cut where a block that is contiguous in the packed layout ends.
        for begin in sorted({*range(0, self.size, self.run), *range(0, self.size, block)}):
            end = min(self.size, (begin // self.run + 1) * self.run, (begin // block + 1) * block)
            index = list(self.rest)
            for digit in self.digits:
                index[digit.dimension] += digit.coefficient * digit.at(begin)
            run = Run(
                name=f"at_{len(runs)}",
                length=end - begin,
                room=block - begin % block,
                source=Source(original, tuple(index), self.shape, self.extents),
                along=self.along,
                skipped=begin % self.run,
                packed=packed,
                base=base + self._offset(begin, strides),
                zero=zero,
            )
            # Zeros in a row are one run as far as they are contiguous when packed.
            if runs and run.is_outside and runs[-1].is_outside and begin % block:
                last = runs.pop()
                run = replace(last, length=last.length + run.length)
            runs.append(run)
        return runs

    def _offset(self, number: int, strides: Mapping[str, int]) -> int:
        """Return the offset of an element of a window in the packed layout."""
        offset = 0
        for name in reversed(self.numbering):
            number, digit = divmod(number, self.extents[name])
            offset += digit * strides[name]
        return offset


def _number(term: IndexTerm) -> IndexExpr:
    """Return the number that a term is a digit of."""
    return IndexExpr.iterator(term.iterator) if term.inner is None else term.inner


def _numbering(number: IndexExpr, extents: Mapping[str, int]) -> tuple[str, ...]:
    """Return the dimensions that make up a number, outermost first.

    None do if it is not mixed-radix, or its last one is not the last of all.
    """
    if not number.is_affine:
        return ()
    # Mixed-radix: each dimension counts as much as all smaller ones together have values.
    names = sorted(number.iterators, key=number.coefficient)
    weight = 1
    for name in names:
        if number.coefficient(name) != weight:
            return ()
        weight *= extents[name]
    last = list(extents)[-1] if extents else None
    return tuple(reversed(names)) if names and names[0] == last and not number.constant else ()


def _run(digits: Sequence[Digit], shape: Sequence[int], size: int) -> tuple[int, list[Digit]]:
    """Return the number of neighbours in the original, and the digits among them."""
    run, along = 1, list[Digit]()
    # From the lowest digit on, as long as a step in the number is a step in the original's memory.
    for digit in sorted(digits, key=lambda digit: digit.divisor):
        weight = digit.coefficient * math.prod(shape[digit.dimension + 1 :])
        if digit.divisor != run or weight != run or run >= size:
            break
        along.insert(0, digit)
        run = size if digit.modulus is None else min(size, run * digit.modulus)
    return run, along


def _condition(conditions: Iterable[str]) -> list[str]:
    """Return the header of code that runs if all conditions hold."""
    return [f"if {' and '.join(conditions) or 'True'}:"]
