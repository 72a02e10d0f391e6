"""The text of a generated kernel: its parameters, its share of the work for each thread, loops."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.script import HEADER, Script
from cpembed.ir.index import IndexExpr
from cpembed.network.operators.nest import Loop, Nest, Placed
from cpembed.network.operators.values import one_function, ones

SHARE_BYTES = 1 << 19
"""What a thread is to move at least where there are several: waking one takes some 3 microseconds
(measured on Zen 5), in which a core moves half of that."""
_LINE = 64
"""Elements: shares of a contiguous loop begin at a multiple."""
_ONES = "# ones"
"""Stands where factors of 1 are computed, for :func:`rounded_product`."""
UNROLLED = 8
"""An innermost loop of so few steps is unrolled, so that the loop around it is vectorised."""


class Kernel:
    """The text while it is written. Everything is inside a loop over ``chunk``, of which each part
    of the work does its share."""

    def __init__(self, inputs: Sequence[Placed], outputs: Sequence[Placed], chunks: int) -> None:
        self.script = Script()
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.chunks = chunks
        self._functions: dict[str, str] = {}
        self._names = 0

    @contextmanager
    def written(self) -> Generator[None]:
        """What is inside lies in the body of the kernel."""
        parameters = [t.parameter(f"in{k}") for k, t in enumerate(self.inputs)]
        parameters += [t.parameter(f"out{k}") for k, t in enumerate(self.outputs)]
        self.script.line(HEADER)
        with self.script.nested(f"def main({', '.join(parameters)}):"):
            self.script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
            loop = "parallel" if self.chunks > 1 else "serial"
            with self.script.nested(f"for chunk in T.{loop}({self.chunks}):"):
                self.script.line(_ONES)
                yield

    def plan(self, what: str) -> KernelPlan:
        source = self.script.text()
        used = [dtype for dtype in ("float32", "float64") if ones(dtype) in source]
        indent = source[: source.index(_ONES)].rpartition("\n")[2]
        lines = ""
        for dtype in used:
            name, text = one_function(dtype)
            self.include(name, text)
            lines += f'{indent}{ones(dtype)}: T.let = T.call_extern("{dtype}", "{name}")\n'
        source = source.replace(f"{indent}{_ONES}\n", lines)
        return KernelPlan(f"generated.{what}", source, functions="".join(self._functions.values()))

    def name(self, start: str) -> str:
        """A name that nothing else has."""
        self._names += 1
        return f"{start}{self._names}"

    def let(self, value: str) -> str:
        """The name of a value that is computed here."""
        name = self.name("v")
        self.script.line(f"{name}: T.let = {value}")
        return name

    def kept(self, value: str, dtype: str) -> str:
        """Likewise, and nothing looks through the name: TVM's analysis takes named values apart
        again and again, in a time that is exponential in how deep they lie in each other. In no
        vectorised loop. Buffers of another scope than the default one would be asked of the
        workspace, of which a library has few blocks, and not lie in registers."""
        name = self.name("kept")
        self.script.line(f'{name} = T.alloc_buffer((1,), "{dtype}")')
        self.script.line(f"{name}[0] = {value}")
        return f"{name}[0]"

    def include(self, name: str, text: str) -> None:
        """A function in LLVM's language that the kernel calls."""
        self._functions[name] = text

    def constant(self, values: NDArray[np.generic], place: str) -> str:
        """An element of an array that is part of the code."""
        name, text = constant_array(values)
        self.include(name, text)
        return f'T.call_pure_extern("{values.dtype}", "{name}", {place})'

    def share(self, total: int, unit: int = 1) -> str:
        """The bounds of a chunk's part of so many steps; all parts begin at multiples of
        ``unit``."""
        if self.chunks == 1:
            return f"0, {total}"
        units = -(-total // unit)
        first = f"chunk * {units} // {self.chunks}"
        end = f"(chunk + 1) * {units} // {self.chunks}"
        if unit == 1:
            return f"{first}, {end}"
        return f"{first} * {unit}, T.min({end} * {unit}, {total})"

    @contextmanager
    def rows(self, loops: Sequence[Loop]) -> Generator[None]:
        """A chunk's share of the points of some loops; as many of the outermost as give every chunk
        enough are walked as one."""
        if self.chunks == 1:
            with self.script.nested(*(f"for {x.name} in T.serial({x.extent}):" for x in loops)):
                yield
            return
        count, total = 0, 1
        while count < len(loops) and total < 8 * self.chunks:
            total *= loops[count].extent
            count += 1
        row = self.name("row")
        with self.script.nested(f"for {row} in T.serial({self.share(total)}):"):
            inside = total
            for number, loop in enumerate(loops[:count]):
                inside //= loop.extent
                value = row if inside == 1 else f"{row} // {inside}"
                value += f" % {loop.extent}" if number else ""
                self.script.line(f"{loop.name}: T.let = {value}")
            rest = (f"for {x.name} in T.serial({x.extent}):" for x in loops[count:])
            with self.script.nested(*rest):
                yield

    @contextmanager
    def points(self, nest: Nest) -> Generator[None]:
        """A chunk's share of all points of a nest, for a statement that the compiler vectorises
        along the innermost loop."""
        loops = nest.loops or (Loop("one", 1),)
        *outer, inner = loops
        rows = math.prod(loop.extent for loop in outer)
        if self.chunks > 1 and rows < 4 * self.chunks and inner.extent >= 4 * _LINE:
            headers = [f"for {x.name} in T.serial({x.extent}):" for x in outer]
            headers.append(f"for {inner.name} in T.serial({self.share(inner.extent, _LINE)}):")
            with self.script.nested(*headers):
                yield
            return
        if self.chunks > 1 and rows < 2:
            with self.rows(loops):
                yield
            return
        kind = "unroll" if inner.extent <= UNROLLED and outer else "serial"
        with (
            self.rows(outer),
            self.script.nested(f"for {inner.name} in T.{kind}({inner.extent}):"),
        ):
            yield


def chunks_for(
    inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int, effort: float = 1
) -> int:
    """Into how many parts the work is cut; ``effort``: how much longer a byte takes than one of a
    copy."""
    moved = sum(tensor.bytes for tensor in (*inputs, *outputs))
    return max(1, min(threads, int(moved * effort) // SHARE_BYTES))


_LLVM_TYPES = {
    "float32": "float",
    "float64": "double",
    **{f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


def constant_array(values: NDArray[np.generic]) -> tuple[str, str]:
    """The name and the text, in LLVM's language, of a function from a place to an element."""
    values = np.ascontiguousarray(values).reshape(-1)
    dtype, kind = str(values.dtype), _LLVM_TYPES[str(values.dtype)]
    digest = hashlib.sha256(values.tobytes() + dtype.encode()).hexdigest()[:16]
    name = f"cpembed_constant_{digest}"
    if values.dtype.kind == "f":
        wide = values.astype(np.float64).view(np.uint64)
        items = ", ".join(f"{kind} 0x{int(bits):016X}" for bits in wide)
    else:
        signed = values.view(f"int{8 * values.itemsize}")
        items = ", ".join(f"{kind} {int(value)}" for value in signed)
    array = f"[{values.size} x {kind}]"
    return name, (
        f"@{name}_values = private unnamed_addr constant {array} [{items}], align 64\n"
        f"define internal {kind} @{name}(i32 %place) alwaysinline {{\n"
        f"  %address = getelementptr inbounds {kind}, ptr @{name}_values, i32 %place\n"
        f"  %value = load {kind}, ptr %address\n"
        f"  ret {kind} %value\n"
        f"}}\n"
    )


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
