"""Vectors of neighbours inside generated kernels: their size, and sums, maxima and the like over
parts of a nest.

Where the innermost loop is kept, its points are lanes and each has its own accumulator; where it is
reduced, accumulators are partial ones, put together at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cpembed.ir.index import IndexExpr
from cpembed.network.operators.emission import Kernel
from cpembed.network.operators.nest import Loop, Nest

LANES = 64
"""Points of the innermost loop that are taken together at most: a vector of bytes, four of
words."""

LANE = "lane"
"""The variable of a vectorised loop."""

VECTORIZED, SERIAL = "vectorized", "serial"
"""Kinds of loops over lanes: vectors for certain, in which no integer may have a name (TVM's
analysis of integers takes no vectors), or what the compiler makes of it."""

Join = Callable[[str, str], str]
"""From the texts of two values to that of what they are together."""

Places = Sequence[str]
Statement = Callable[[str, Places], None]
"""Writes what happens at a point, from the place of its accumulator and those of the operands."""


def vector_size(extent: int, most: int = LANES) -> int:
    """The largest power of two that is not above an extent.

    >>> vector_size(24), vector_size(1000), vector_size(1)
    (16, 64, 1)
    """
    return min(most, 1 << (extent.bit_length() - 1))


def texts(places: Sequence[IndexExpr], name: str | None, value: str) -> list[str]:
    """Places with an iterator replaced by the text of its value."""
    return [str(place.rename(lambda it: value if it == name else it)) for place in places]


@dataclass(frozen=True)
class Reduction:
    """The points of a nest by lanes: ``lane`` is its innermost loop, None where the nest is one
    point; ``kept`` and ``reduced`` are the others; ``is_along``: the lane loop is reduced;
    ``most``: lanes at a time."""

    nest: Nest
    lane: Loop | None
    kept: tuple[Loop, ...]
    reduced: tuple[Loop, ...]
    is_along: bool
    most: int = LANES

    @classmethod
    def of(cls, nest: Nest, is_reduced: Callable[[Loop], bool]) -> Reduction:
        if not nest.loops:
            return cls(nest, None, (), (), False)
        *others, lane = nest.loops
        kept = tuple(loop for loop in others if not is_reduced(loop))
        reduced = tuple(loop for loop in others if is_reduced(loop))
        return cls(nest, lane, kept, reduced, is_reduced(lane))

    def by(self, most: int) -> Reduction:
        """With no more than so many lanes."""
        return replace(self, most=most)

    @property
    def size(self) -> int:
        """Accumulators at a time."""
        return 1 if self.lane is None else vector_size(self.lane.extent, self.most)

    @contextmanager
    def rows(self, kernel: Kernel) -> Generator[None]:
        """A chunk's share of what is kept; kept lanes come by vectors, the last of which ends with
        the loop, so that it may compute some lanes again."""
        if self.lane is None or self.is_along:
            with kernel.rows(self.kept):
                yield
            return
        count, size = -(-self.lane.extent // self.size), self.size
        group = Loop("group", count)
        with kernel.rows((*self.kept, group)):
            first = f"group * {size}"
            if self.lane.extent % size:
                first = f"T.min({first}, {self.lane.extent - size})"
            kernel.script.line(f"first: T.let = {first}")
            yield

    def sweep(self, kernel: Kernel, statement: Statement, kind: str = VECTORIZED) -> None:
        """All points of what is reduced, a vector at a time; ``kind`` of its loop."""
        script = kernel.script
        with script.nested(*(f"for {x.name} in T.serial({x.extent}):" for x in self.reduced)):
            for first, size, count in self._vectors():
                step = kernel.name("step")
                loops = [f"for {step} in T.serial({count}):"] if count > 1 else []
                at = f"({step} * {size} + {first})" if count > 1 else first
                with script.nested(*loops), vectorized(kernel, size, kind):
                    statement(LANE, self._places(at))

    def once(self, kernel: Kernel, statement: Statement, kind: str = VECTORIZED) -> None:
        """Each accumulator, or the one that is left of them."""
        with vectorized(kernel, 1 if self.is_along else self.size, kind):
            statement(LANE, self._places("0" if self.is_along else "first"))

    def _places(self, first: str) -> list[str]:
        name = None if self.lane is None else self.lane.name
        return texts(self.nest.places, name, f"({first} + {LANE})")

    def _vectors(self) -> Iterator[tuple[str, int, int]]:
        """Where the vectors of the lane loop begin, how long they are, and how many follow."""
        if self.lane is None:
            yield "0", 1, 1
        elif not self.is_along:
            yield "first", self.size, 1
        else:
            yield "0", self.size, self.lane.extent // self.size
            done, rest = self.lane.extent - self.lane.extent % self.size, self.lane.extent
            while done < rest:
                size = vector_size(rest - done, self.most)
                yield str(done), size, 1
                done += size

    def combined(self, kernel: Kernel, name: str, dtype: str, join: Join) -> Callable[[str], str]:
        """From a lane to the text of its result, of accumulators that are partial put together by
        ``join``."""
        if not self.is_along:
            return lambda lane: f"{name}[{lane}]"
        size = self.size
        while size > 1:
            size //= 2
            half = local(kernel, size, dtype)
            with vectorized(kernel, size):
                joined = join(f"{name}[{LANE}]", f"{name}[{LANE} + {size}]")
                kernel.script.line(f"{half}[{LANE}] = {joined}")
            name = half
        return lambda lane: f"{name}[0]"


@contextmanager
def vectorized(kernel: Kernel, size: int, kind: str = VECTORIZED) -> Generator[None]:
    """A loop over lanes."""
    with kernel.script.nested(f"for {LANE} in T.{kind if size > 1 else SERIAL}({size}):"):
        yield


def every_other(buffer: str, first: str, size: int) -> str:
    """A vector of every other element, from two that are contiguous: the second begins so that it
    ends with the last element that is taken."""
    pair = ", ".join(
        f"{buffer}[T.Ramp({first}{moved}, 1, {size})]" for moved in ("", f" + {size - 1}")
    )
    taken = [2 * lane if 2 * lane < size else 2 * lane + 1 for lane in range(size)]
    return f"T.Shuffle([{pair}], {taken})"


def local(kernel: Kernel, size: int, dtype: str) -> str:
    """A buffer that stays in registers where it can."""
    name = kernel.name("local")
    kernel.script.line(f'{name} = T.alloc_buffer(({size},), "{dtype}", scope="local")')
    return name


def accumulators(kernel: Kernel, size: int, dtype: str, value: str) -> str:
    """A buffer whose elements have a value."""
    name = local(kernel, size, dtype)
    with vectorized(kernel, size):
        kernel.script.line(f"{name}[{LANE}] = {value}")
    return name
