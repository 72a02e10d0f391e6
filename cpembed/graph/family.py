"""Family of graphs: one model at every size of some open dimensions.

A dimension that a model leaves open is a *symbol*, with a range of sizes. A front end reads the
model at any of them, so a family is the ranges and a function from sizes to graphs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from cpembed.errors import CpembedError, WorkloadError
from cpembed.graph.graph import Graph

Sizes = tuple[int, ...]
"""One size for each symbol, in the order of :attr:`Family.ranges`."""

# Maximum number of graphs that a family remembers: each may hold folded constants of its size.
_REMEMBERED = 64


@dataclass(frozen=True)
class Extent:
    """Number of indices ``(factor * size + offset) // divisor`` of a symbol's size.

    Without a symbol it is the ``offset``.

    >>> str(Extent("length", 1, 1, 2)), Extent("length", 1, 1, 2).at({"length": 4})
    ('(length+1)//2', 2)
    """

    symbol: str | None
    factor: int
    offset: int
    divisor: int = 1

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the number at some sizes."""
        times = 0 if self.symbol is None else self.factor * sizes[self.symbol]
        return (times + self.offset) // self.divisor

    def __str__(self) -> str:
        if self.symbol is None:
            return str(self.offset)
        times = self.symbol if self.factor == 1 else f"{self.factor}*{self.symbol}"
        text = times if not self.offset else f"{times}{self.offset:+d}"
        if self.divisor == 1:
            return text
        return f"{f'({text})' if self.offset else text}//{self.divisor}"


class Filling(Enum):
    """Meaning of an input that depends on the sizes of a run alone, for an extent of ``size``.

    A quotient is ``size / extent`` (float32), a mask is true for the first ``extent`` of ``size``
    indices, and a count is the ``extent`` itself (int64).
    """

    QUOTIENT = 0
    MASK = 1
    COUNT = 2


Shape = tuple[tuple[Extent, ...], ...]
"""Axes of a tensor at any sizes: each has the product of its extents, the outermost first."""


def shape_at(shape: Shape, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of a tensor at some sizes."""
    return tuple(math.prod(extent.at(sizes) for extent in axis) for axis in shape)


def shape_text(shape: Shape) -> str:
    """Return a shape in words.

    >>> shape_text(((Extent("batch", 1, 0),), (Extent(None, 0, 3),)))
    '[batch, 3]'
    """
    return f"[{', '.join('*'.join(map(str, axis)) or '1' for axis in shape)}]"


@dataclass(frozen=True)
class Family:
    """Model at every size in some ranges.

    Attributes
    ----------
    name : str
        Name of the model.
    ranges : mapping from str to range
        Sizes of each symbol, without gaps.
    read : callable
        Function that reads the graph at the sizes of the symbols.
    """

    name: str
    ranges: Mapping[str, range]
    read: Callable[[Mapping[str, int]], Graph] = field(repr=False)
    _graphs: dict[Sizes, Graph] = field(
        default_factory=dict["Sizes", Graph], repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for symbol, sizes in self.ranges.items():
            if sizes.step != 1 or not sizes or sizes[0] < 1:
                raise WorkloadError(
                    f"{self.name}: the sizes of {symbol} are {sizes}: write a range of sizes from "
                    "1 on, such as range(1, 17)"
                )

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the symbols."""
        return tuple(self.ranges)

    @property
    def least(self) -> Sizes:
        """Least size of each symbol."""
        return tuple(sizes[0] for sizes in self.ranges.values())

    @property
    def largest(self) -> Sizes:
        """Largest size of each symbol."""
        return tuple(sizes[-1] for sizes in self.ranges.values())

    def named(self, sizes: Sequence[int]) -> dict[str, int]:
        """Return sizes by symbol."""
        return dict(zip(self.ranges, sizes, strict=True))

    def graph(self, sizes: Sizes) -> Graph:
        """Return the graph at some sizes.

        Raises :class:`WorkloadError`, which names them, if a front end rejects the model there.
        """
        if sizes not in self._graphs:
            if len(self._graphs) >= _REMEMBERED:
                self._graphs.pop(next(iter(self._graphs)))
            try:
                self._graphs[sizes] = self.read(self.named(sizes))
            except CpembedError as error:
                raise WorkloadError(f"at {self.text(sizes)}: {error}") from error
        return self._graphs[sizes]

    def text(self, sizes: Sequence[int]) -> str:
        """Return sizes in words, as in ``batch=4, sequence=128``."""
        return ", ".join(f"{symbol}={size}" for symbol, size in self.named(sizes).items())

    @property
    def ranges_text(self) -> str:
        """Ranges in words, as in ``batch=1..16, sequence=1..512``."""
        return ", ".join(f"{name}={r[0]}..{r[-1]}" for name, r in self.ranges.items())

    def random_sizes(self, count: int, seed: int) -> Iterator[Sizes]:
        """Yield both ends of the ranges, then random sizes: ``count`` in all, each once."""
        random = np.random.default_rng(seed)
        count = min(count, math.prod(map(len, self.ranges.values())))
        drawn = (
            tuple(int(random.integers(r[0], r[-1] + 1)) for r in self.ranges.values())
            for _ in itertools.count()
        )
        sizes: set[Sizes] = set()
        for at in itertools.chain((self.largest, self.least), drawn):
            if len(sizes) == count:
                return
            if at not in sizes:
                sizes.add(at)
                yield at
