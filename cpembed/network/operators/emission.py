"""Write the text of generated kernels: shares of threads, loops, vectors, accumulators."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.plan import HEADER, KernelPlan, Script
from cpembed.codegen.scalar_text import Statements
from cpembed.codegen.values import one_function, one_name
from cpembed.graph import kinds
from cpembed.ir.index import IndexExpr
from cpembed.network.operators.nest import Loop, Nest, Tensors

SHARE_BYTES = 1 << 19
"""Minimum number of bytes per thread: waking a thread takes some 3 microseconds (measured on Zen
5), in which a core moves half of that."""

EFFORT: Mapping[type[kinds.Kind], float] = {
    kinds.Softmax: 16.0,
    kinds.Table: 8.0,
    kinds.LayerNorm: 4.0,
    kinds.Quantize: 2.0,
    kinds.DynamicQuantize: 4.0,
}
"""Time of a kind relative to copying the same bytes, by default 1 (measured on Zen 5, one thread:
``benchmarks/generated.py``)."""

FUNCTION_EFFORT = 4.0
"""Time of an exponential, an error function or a hyperbolic tangent relative to a copy."""

# Elements to which the shares of a contiguous loop are aligned, so that no two threads write to one
# cache line.
_LINE = 64
ONES = "# ones"
"""Line that is replaced by the definitions of 1 for
:func:`~cpembed.codegen.values.rounded_product`."""

# Maximum extent of an innermost loop that is unrolled, so that the loop around it is vectorized.
_UNROLLED = 8


@dataclass(frozen=True)
class Operands:
    """Tensors of a kernel, and the number of threads that may run it."""

    inputs: Tensors
    outputs: Tensors
    threads: int

    def chunks(self, effort: float = 1, tensors: Tensors | None = None) -> int:
        """Return the number of shares into which the work is divided.

        ``effort`` is the time of a byte relative to copying it. ``tensors`` are those whose bytes
        count, by default all of them.
        """
        counted = (*self.inputs, *self.outputs) if tensors is None else tensors
        moved = sum(tensor.bytes for tensor in counted)
        return max(1, min(self.threads, int(moved * effort) // SHARE_BYTES))


class Kernel(Statements):
    """Text of a kernel while it is written.

    Its body is inside a loop over ``chunk``, each iteration of which does its share of the work.
    It has ``numbers`` as its last parameters.
    """

    def __init__(self, operands: Operands, chunks: int, numbers: Sequence[str] = ()) -> None:
        super().__init__(Script())
        self.numbers = tuple(numbers)
        self.inputs = tuple(operands.inputs)
        self.outputs = tuple(operands.outputs)
        self.chunks = chunks

    @contextmanager
    def body(self) -> Generator[None]:
        """Write the statements inside this context into the body of the kernel."""
        parameters = [t.parameter(f"in{k}") for k, t in enumerate(self.inputs)]
        parameters += [t.parameter(f"out{k}") for k, t in enumerate(self.outputs)]
        parameters += [f"{name}: T.int32()" for name in self.numbers]
        self.script.line(HEADER)
        with self.script.nested(f"def main({', '.join(parameters)}):"):
            self.script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
            loop = "parallel" if self.chunks > 1 else "serial"
            with self.script.nested(f"for chunk in T.{loop}({self.chunks}):"):
                self.script.line(ONES)
                yield

    def plan(self, label: str) -> KernelPlan:
        """Return the finished kernel."""
        # Only now is it known which types were multiplied by a 1 that LLVM does not see.
        source = self.script.text()
        used = [dtype for dtype in ("float32", "float64") if one_name(dtype) in source]
        indent = source[: source.index(ONES)].rpartition("\n")[2]
        lines = ""
        for dtype in used:
            name, text = one_function(dtype)
            self.include(name, text)
            lines += f'{indent}{one_name(dtype)}: T.let = T.call_extern("{dtype}", "{name}")\n'
        source = source.replace(f"{indent}{ONES}\n", lines)
        return KernelPlan(f"generated.{label}", source, functions="".join(self.functions.values()))

    def local(self, size: int, dtype: str) -> str:
        """Allocate a buffer that stays in registers if possible, and return its name."""
        name = self.name("local")
        self.script.line(f'{name} = T.alloc_buffer(({size},), "{dtype}", scope="local")')
        return name

    def registers(self, size: int, dtype: str, value: str | None = None) -> str:
        """Allocate a short buffer on the stack, which LLVM keeps in registers, and return its name.

        Its places have to be constants. Its elements have an initial ``value``, if one is given.
        """
        # Of at most 1,024 bytes, a buffer of the default scope is on the stack; one of any other
        # scope is a block of the workspace, of which a library has 16.
        name = self.name("registers")
        self.script.line(f'{name} = T.alloc_buffer(({size},), "{dtype}")')
        if value is not None:
            with self.vectorized(size):
                self.script.line(f"{name}[{LANE}] = {value}")
        return name

    def accumulators(self, size: int, dtype: str, value: str) -> str:
        """Allocate a local buffer whose elements have an initial value, and return its name."""
        name = self.local(size, dtype)
        with self.vectorized(size):
            self.script.line(f"{name}[{LANE}] = {value}")
        return name

    @contextmanager
    def vectorized(self, size: int, kind: str = "vectorized") -> Generator[None]:
        """Write a loop over lanes of a kind, ``VECTORIZED`` or ``SERIAL``."""
        with self.script.nested(f"for {LANE} in T.{kind if size > 1 else SERIAL}({size}):"):
            yield

    def constant(self, values: NDArray[np.generic], place: str) -> str:
        """Return an element of an array that is part of the code."""
        name, text = _constant_array(values)
        self.include(name, text)
        return f'T.call_pure_extern("{values.dtype}", "{name}", {place})'

    def share(self, total: int, unit: int = 1) -> str:
        """Return the bounds of a chunk's share of ``total`` steps, multiples of ``unit``."""
        if self.chunks == 1:
            return f"0, {total}"
        first, end = chunk_bounds(-(-total // unit), self.chunks)
        if unit == 1:
            return f"{first}, {end}"
        return f"{first} * {unit}, T.min({end} * {unit}, {total})"

    @contextmanager
    def rows(self, loops: Sequence[Loop]) -> Generator[None]:
        """Write loops over a chunk's share of the points of some loops.

        The outermost loops are fused until every chunk has enough iterations.
        """
        if self.chunks == 1:
            with self.script.nested(*(f"for {x.name} in T.serial({x.extent}):" for x in loops)):
                yield
            return
        count, total = 0, 1
        # Eight iterations or more per chunk, so that shares are nearly equal.
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
        """Write loops over a chunk's share of a nest, the innermost one for LLVM to vectorize."""
        loops = nest.loops or (Loop("one", 1),)
        *outer, inner = loops
        rows = math.prod(loop.extent for loop in outer)
        # Too few rows for all chunks: they share the contiguous loop instead.
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
        # A short inner loop, unrolled, lets LLVM vectorize the loop around it.
        kind = "unroll" if inner.extent <= _UNROLLED and outer else "serial"
        with (
            self.rows(outer),
            self.script.nested(f"for {inner.name} in T.{kind}({inner.extent}):"),
        ):
            yield


_LLVM_TYPES = {
    "float32": "float",
    "float64": "double",
    **{f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


def _constant_array(values: NDArray[np.generic]) -> tuple[str, str]:
    """Return name and text, in LLVM's language, of a function from a position to an element."""
    values = np.ascontiguousarray(values).reshape(-1)
    dtype, kind = str(values.dtype), _LLVM_TYPES[str(values.dtype)]
    digest = hashlib.sha256(values.tobytes() + dtype.encode()).hexdigest()[:16]
    name = f"cpembed_constant_{digest}"
    if values.dtype.kind == "f":
        # LLVM writes constants of every float type as the bits of a double.
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
"""Maximum number of points of the innermost loop per vector: one register of bytes, four of
words."""

LANE = "lane"
"""Variable of a vectorized loop."""

VECTORIZED, SERIAL = "vectorized", "serial"
"""Kinds of loops over lanes: TVM's vectors, in which no integer may have a name since its analysis
of integers rejects vectors, or serial loops, which LLVM vectorizes if it can."""

Join = Callable[[str, str], str]
"""Function from the texts of two values to the text of their combination."""

Statement = Callable[[str, Sequence[str]], None]
"""Function that writes the statement of a point, from the lane and the operands' places."""


def vector_size(extent: int, most: int = LANES) -> int:
    """Return the largest power of two that is at most ``extent``, and at most ``most``.

    >>> vector_size(24), vector_size(1000), vector_size(1)
    (16, 64, 1)
    """
    return min(most, 1 << (extent.bit_length() - 1))


def vector_runs(extent: int, most: int) -> Iterator[tuple[int, int, int]]:
    """Yield start, size and number of equal vectors that cover a row, long ones first.

    >>> list(vector_runs(45, 16))
    [(0, 16, 2), (32, 8, 1), (40, 4, 1), (44, 1, 1)]
    """
    start = 0
    while start < extent:
        size = vector_size(extent - start, most)
        count = (extent - start) // size
        yield start, size, count
        start += count * size


def chunk_bounds(total: int, chunks: int) -> tuple[str, str]:
    """Return the texts of the first step of a chunk's equal share, and of the end."""
    return f"chunk * {total} // {chunks}", f"(chunk + 1) * {total} // {chunks}"


def combined_lanes(kernel: Kernel, name: str, size: int, dtype: str, join: Join) -> str:
    """Write the combination of the lanes of an accumulator, and return it.

    Parameters
    ----------
    kernel : Kernel
    name, dtype : str
        Buffer of the accumulator and its type.
    size : int
        Number of lanes, a power of two.
    join : callable
        Returns the text of two lanes' combination.
    """
    # A tree of vector operations, halving the vector each time.
    while size > 1:
        size //= 2
        half = kernel.local(size, dtype)
        with kernel.vectorized(size):
            joined = join(f"{name}[{LANE}]", f"{name}[{LANE} + {size}]")
            kernel.script.line(f"{half}[{LANE}] = {joined}")
        name = half
    return f"{name}[0]"


def place_texts(places: Sequence[IndexExpr], name: str | None, value: str) -> list[str]:
    """Return the texts of places, with a value substituted for an iterator.

    Parameters
    ----------
    places : sequence of IndexExpr
    name : str or None
        Iterator to replace, if any.
    value : str
        Text of the value.
    """
    return [str(place.rename(lambda i: value if i == name else i)) for place in places]


@dataclass(frozen=True)
class Reduction:
    """Points of a nest in vectors of the innermost loop, for reductions over some loops.

    If the innermost loop is not reduced, its points are lanes with an accumulator each. If it is,
    accumulators are partial, and :meth:`combined` adds them up.

    Attributes
    ----------
    lane : Loop or None
        Innermost loop; None for a nest of one point.
    outer, reduced : tuple of Loop
        The other loops, by whether they are reduced.
    is_along : bool
        True if the lane loop is reduced.
    most : int
        Maximum number of lanes.
    """

    nest: Nest
    lane: Loop | None
    outer: tuple[Loop, ...]
    reduced: tuple[Loop, ...]
    is_along: bool
    most: int = LANES

    @classmethod
    def split(cls, nest: Nest, is_reduced: Callable[[Loop], bool]) -> Reduction:
        """Divide the loops of a nest by whether they are reduced."""
        if not nest.loops:
            return cls(nest, None, (), (), is_along=False)
        *loops, lane = nest.loops
        outer = tuple(loop for loop in loops if not is_reduced(loop))
        reduced = tuple(loop for loop in loops if is_reduced(loop))
        return cls(nest, lane, outer, reduced, is_along=is_reduced(lane))

    def with_lanes(self, most: int) -> Reduction:
        """Return the reduction with a lower maximum of lanes."""
        return replace(self, most=most)

    @property
    def size(self) -> int:
        """Number of accumulators at a time."""
        return 1 if self.lane is None else vector_size(self.lane.extent, self.most)

    @contextmanager
    def rows(self, kernel: Kernel) -> Generator[None]:
        """Write loops over a chunk's share of the results.

        Results come in vectors. The last one ends with the loop, so it may recompute some results
        of the one before.
        """
        if self.lane is None or self.is_along:
            with kernel.rows(self.outer):
                yield
            return
        count, size = -(-self.lane.extent // self.size), self.size
        group = Loop("group", count)
        with kernel.rows((*self.outer, group)):
            first = f"group * {size}"
            if self.lane.extent % size:
                first = f"T.min({first}, {self.lane.extent - size})"
            kernel.script.line(f"first: T.let = {first}")
            yield

    def sweep(self, kernel: Kernel, statement: Statement, kind: str = VECTORIZED) -> None:
        """Write a statement at all points of the reduced loops, one vector at a time."""
        script = kernel.script
        with script.nested(*(f"for {x.name} in T.serial({x.extent}):" for x in self.reduced)):
            for first, size, count in self._vectors():
                step = kernel.name("step")
                loops = [f"for {step} in T.serial({count}):"] if count > 1 else []
                at = f"({step} * {size} + {first})" if count > 1 else first
                with script.nested(*loops), kernel.vectorized(size, kind):
                    statement(LANE, self._places(at))

    def once(self, kernel: Kernel, statement: Statement, kind: str = VECTORIZED) -> None:
        """Write a statement for each result: per accumulator, or for all that were combined."""
        with kernel.vectorized(1 if self.is_along else self.size, kind):
            statement(LANE, self._places("0" if self.is_along else "first"))

    def _places(self, first: str) -> list[str]:
        name = None if self.lane is None else self.lane.name
        return place_texts(self.nest.places, name, f"({first} + {LANE})")

    def _vectors(self) -> Iterator[tuple[str, int, int]]:
        """Yield start, length and count of the vectors of the lane loop."""
        if self.lane is None:
            yield "0", 1, 1
        elif not self.is_along:
            yield "first", self.size, 1
        else:
            for start, size, count in vector_runs(self.lane.extent, self.most):
                yield str(start), size, count

    def combined(self, kernel: Kernel, name: str, dtype: str, join: Join) -> Callable[[str], str]:
        """Write the combination of partial accumulators.

        Parameters
        ----------
        kernel : Kernel
        name, dtype : str
            Buffer of the accumulators and its type.
        join : callable
            Combination of two values.

        Returns
        -------
        callable
            Function from a lane to the text of its result.
        """
        if not self.is_along:
            return lambda lane: f"{name}[{lane}]"
        total = combined_lanes(kernel, name, self.size, dtype, join)
        return lambda lane: total


def every_other_element(buffer: str, first: str, size: int) -> str:
    """Return a vector of every other element, shuffled from two contiguous vectors.

    The second vector ends with the last selected element, so nothing behind it is read.

    Parameters
    ----------
    buffer, first : str
        Names of the buffer and of the position of the first element.
    size : int
        Number of lanes.
    """
    pair = ", ".join(
        f"{buffer}[T.Ramp({first}{distance}, 1, {size})]" for distance in ("", f" + {size - 1}")
    )
    selected = [2 * lane if 2 * lane < size else 2 * lane + 1 for lane in range(size)]
    return f"T.Shuffle([{pair}], {selected})"
