"""Runs of a window's neighbours: what is copied of them, and what is outside the original."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from cpembed.codegen.script import Script
from cpembed.ir.index import IndexExpr

_WIDEST = 64
"""Elements at most that are copied at once for a run of fewer."""

Place = Callable[[IndexExpr], str]
"""An element of a buffer, by its index."""


@dataclass(frozen=True)
class Digit:
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
class Bound:
    """``index`` is no less, or else no more, than ``limit``; its values are between ``low`` and
    ``high``."""

    index: IndexExpr
    limit: int
    least: bool
    low: int
    high: int

    @staticmethod
    def of(index: IndexExpr, limit: int, extents: Mapping[str, int], *, least: bool) -> Bound:
        return Bound(index, limit, least, *index.bounds(extents))

    @property
    def always(self) -> bool:
        return self.low >= self.limit if self.least else self.high <= self.limit

    @property
    def never(self) -> bool:
        return self.high < self.limit if self.least else self.low > self.limit

    def over(self, inner: Collection[str], extents: Mapping[str, int]) -> Bound:
        """The bound for every value of some iterators."""
        own = [t for t in self.index.terms if set(inner) & set(t.iterators)]
        rest = [t for t in self.index.terms if not set(inner) & set(t.iterators)]
        low, high = IndexExpr.of(own).bounds(extents)
        index = IndexExpr.of(rest, self.index.constant + (low if self.least else high))
        return Bound.of(index, self.limit, extents, least=self.least)

    def __str__(self) -> str:
        return f"{self.index} {'>=' if self.least else '<='} {self.limit}"


@dataclass(frozen=True)
class Source:
    """Where a run begins in the original, whose ``shape`` it is; ``extents`` are the iterators'."""

    original: Place
    index: tuple[IndexExpr, ...]
    shape: tuple[int, ...]
    extents: Mapping[str, int]

    def within(self, place: int, low: int, high: int) -> list[Bound]:
        """Of a dimension's index, between two limits; what always holds is left out."""
        found = (
            Bound.of(self.index[place], limit, self.extents, least=least)
            for limit, least in ((low, True), (high, False))
        )
        return [bound for bound in found if not bound.always]

    @property
    def flat(self) -> IndexExpr:
        """Into the flat buffer."""
        total = IndexExpr()
        for part, size in zip(self.index, self.shape, strict=True):
            scaled = [term.times(size) for term in total.terms]
            total = IndexExpr.of(scaled, total.constant * size) + part
        return total


@dataclass(frozen=True)
class Run:
    """``length`` neighbours that begin ``skipped`` elements after ``source``, in the packed layout
    at ``base``; ``name`` is the loop's.

    ``along`` are the digits along a run, of which the first alone may lead out of the original.
    ``room`` elements of the packed layout, from ``base``, are of this window, which has its runs in
    their order.
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
        """Whether no window has it in the original."""
        return any(bound.never for bound in self._around)

    @property
    def needed(self) -> list[Bound]:
        """What has to hold for :meth:`write_whole`."""
        return [] if self.is_outside else [*self._around, *self._ends, *self._readable]

    def write_whole(self, script: Script) -> None:
        """Where all of the run is in the original, or never is."""
        self._fill(script, self.zero if self.is_outside else self._element, end=str(self._taken))

    def write(self, script: Script) -> None:
        """Whether it is or not."""
        if self.is_outside:
            self._fill(script, self.zero)
            return
        around = [str(bound) for bound in self._around]
        ends = [str(bound) for bound in self._ends]
        if not (around or ends):
            self._fill(script, self._element)
            return
        with script.nested(*condition([*around, *ends])):
            self._fill(script, self._element)
        with script.nested("else:"):
            self._fill(script, self.zero)
            if ends:
                with script.nested(*condition(around)):
                    self._fill(script, self._element, *self._clipped())

    @property
    def _around(self) -> list[Bound]:
        """Of dimensions that the run does not walk."""
        walked = {digit.dimension for digit in self.along}
        others = (n for n in range(len(self.source.shape)) if n not in walked)
        return [b for n in others for b in self.source.within(n, 0, self.source.shape[n] - 1)]

    @property
    def _ends(self) -> list[Bound]:
        """Of its first and last element."""
        top = self.along[0]
        near, far = top.at(self.skipped), top.at(self.skipped + self.length - 1)
        return self.source.within(top.dimension, -near, self.source.shape[top.dimension] - 1 - far)

    @property
    def _readable(self) -> list[Bound]:
        """Of the elements after the run that are copied with it."""
        source = self.source
        most = math.prod(source.shape) - self._taken
        bound = Bound.of(source.flat + self.skipped, most, source.extents, least=False)
        return [] if self._taken == self.length or bound.always else [bound]

    @property
    def _taken(self) -> int:
        """Elements that are copied at once: more than the run's, where what follows is written
        later, if that makes one vector of them."""
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
        """From where to where it is in the original."""
        top = self.along[0]
        index, size = self.source.index[top.dimension], self.source.shape[top.dimension]
        first = f"({index}) * {-top.divisor} - {self.skipped}"
        end = f"({size} - ({index})) * {top.divisor} - {self.skipped}"
        return self._inside(first), self._inside(end)

    def _inside(self, place: str) -> str:
        return f"T.max(0, T.min({self.length}, {place}))"


def condition(conditions: Iterable[str]) -> list[str]:
    """The header of what runs where all of them hold."""
    return [f"if {' and '.join(conditions) or 'True'}:"]
