"""Kernels of pooling: a window's taps one after the other, for a vector of neighbours at a time.

Taps in the padding are left out by the bounds of their loops. Where neighbours of the result are
places of a window (rows of an image that is not channels last), those at the borders are computed
one by one, since each has bounds of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.codegen.plan import KernelPlan
from cpembed.errors import LoweringError
from cpembed.graph.kinds import Pool
from cpembed.ir.index import IndexExpr
from cpembed.network.operators.emission import (
    LANE,
    SERIAL,
    VECTORIZED,
    Kernel,
    accumulators,
    chunks_for,
    every_other,
    texts,
    vector_size,
    vectorized,
)
from cpembed.network.operators.nest import Loop, Nest, Placed, View, axes, nest_over
from cpembed.network.operators.reductions import accumulator_dtype, join_of, neutral
from cpembed.network.operators.values import Value, converted, limited, literal, loaded, nearest


@dataclass(frozen=True)
class _Axis:
    """One axis of the window."""

    size: int
    window: int
    stride: int
    before: int
    dilation: int
    step: int
    """Elements in memory between neighbours of the input."""

    def bounds(self, at: str) -> tuple[str, str]:
        """The taps inside the input, of the result at an index."""
        first = f"({self.before} - ({at}) * {self.stride} + {self.dilation - 1}) // {self.dilation}"
        end = (
            f"({self.size + self.before} - ({at}) * {self.stride} + {self.dilation - 1})"
            f" // {self.dilation}"
        )
        return f"T.max(0, {first})", f"T.min({self.window}, {end})"

    def inside(self, count: int) -> tuple[int, int]:
        """Of ``count`` results, those all of whose taps are inside: the first, and the end."""
        reach = (self.window - 1) * self.dilation
        first = -(-self.before // self.stride)
        end = (self.size - 1 - reach + self.before) // self.stride + 1
        return min(first, count), max(min(first, count), min(end, count))


def pool_plan(
    kind: Pool, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    """Raises :class:`LoweringError` where channels in blocks are an axis of the window."""
    (source,), (output,) = inputs, outputs
    rank, count = len(source.shape), len(kind.window)
    first = rank - count
    if first < 2 and max(source.layout.block, output.layout.block) > 1:
        raise LoweringError("a window over channels in blocks: give pooling another layout")
    given = axes(rank)
    moved = [
        e.times(stride) + -before
        for e, stride, before in zip(given[first:], kind.strides, kind.before, strict=True)
    ]
    views = [View(output.layout, given), View(source.layout, (*given[:first], *moved))]
    nest = nest_over(output.shape, views, points=range(first, rank))
    steps = source.layout.strides()
    window = [
        _Axis(source.shape[k], *of, steps[k])
        for k, of in enumerate(
            zip(kind.window, kind.strides, kind.before, kind.dilation, strict=True), first
        )
    ]
    effort = max(1.0, math.prod(kind.window) / math.prod(kind.strides))
    kernel = Kernel(inputs, outputs, chunks_for(inputs, outputs, threads, effort))
    writer = _Pooling(kernel, kind, nest, window, source, output)
    with kernel.written():
        writer.write()
    return kernel.plan(kind.label)


@dataclass(frozen=True)
class _Pooling:
    kernel: Kernel
    kind: Pool
    nest: Nest
    window: Sequence[_Axis]
    source: Placed
    output: Placed

    def write(self) -> None:
        if not self.nest.loops:
            self._vector(None, "0", 1, whole=False)
            return
        *outer, lane = self.nest.loops
        crossing = [
            axis
            for axis, point in zip(self.window, self.nest.points, strict=True)
            if lane.name in point.iterators
        ]
        with self.kernel.rows(outer) if len(outer) else self.kernel.rows([Loop("one", 1)]):
            for start, extent, size in self._ranges(lane, crossing):
                groups = self.kernel.name("group")
                first = f"{groups} * {size}"
                if extent % size:
                    first = f"T.min({first}, {extent - size})"
                headers = [f"for {groups} in T.serial({-(-extent // size)}):"]
                with self.kernel.script.nested(*headers):
                    self._vector(lane, f"{first} + {start}", size, whole=size > 1)

    def _ranges(self, lane: Loop, crossing: Sequence[_Axis]) -> Iterator[tuple[int, int, int]]:
        """Parts of the innermost loop: where they begin, their extent, and lanes at a time."""
        if not crossing:
            yield 0, lane.extent, vector_size(lane.extent)
            return
        low, high = crossing[0].inside(lane.extent)
        for start, end in ((0, low), (low, high), (high, lane.extent)):
            if start < end:
                inner = start == low and high > low
                yield start, end - start, vector_size(end - start) if inner else 1

    def _vector(self, lane: Loop | None, first: str, size: int, whole: bool) -> None:
        """Results of ``size`` neighbours; ``whole``: along the lanes nothing is outside."""
        kernel, kind = self.kernel, self.kind
        name = None if lane is None else lane.name
        start = kernel.let(first) if lane is not None else "0"
        taps = math.prod(kind.window)
        dtype = accumulator_dtype(kind.operation, self.source.dtype, taps)
        total = accumulators(kernel, size, dtype, literal(neutral(kind.operation, dtype), dtype))
        headers: list[str] = []
        place = self.nest.places[1]
        moves: list[str] = []
        inside: list[str] = []
        for number, (axis, point) in enumerate(zip(self.window, self.nest.points, strict=True)):
            low, high = self._bounds(axis, point, name, start, whole)
            headers.append(f"for tap{number} in T.serial({low}, {high}):")
            moves.append(f"tap{number} * {axis.dilation * axis.step}")
            inside.append(f"({high} - {low})")
        at = f"({start} + {LANE})"
        with kernel.script.nested(*headers):
            if self._every_other(name, size):
                there = " + ".join([*texts([place], name, start), *moves])
                lanes = f"{total}[T.Ramp(0, 1, {size})]"
                element = every_other("in0", there, size)
                if dtype != self.source.dtype:
                    element = f'T.cast({element}, "{dtype}x{size}")'
                kernel.script.line(
                    f"{lanes} = {join_of(kind.operation, dtype, size)(lanes, element)}"
                )
            else:
                with vectorized(kernel, size):
                    there = " + ".join([*texts([place], name, at), *moves])
                    element = loaded(f"in0[{there}]", self.source.dtype, dtype)
                    joined = join_of(kind.operation, dtype)(f"{total}[{LANE}]", element)
                    kernel.script.line(f"{total}[{LANE}] = {joined}")
        counted = "1.0"
        if kind.operation == "mean":
            counted = kernel.let(f'T.cast({" * ".join(inside)}, "int32")')
        converts = dtype.startswith("float") and dtype != self.output.stored
        with vectorized(kernel, size, SERIAL if converts else VECTORIZED):
            value = self._result(Value(f"{total}[{LANE}]", dtype), counted, taps)
            (there,) = texts([self.nest.places[0]], name, at)
            kernel.script.line(f"out0[{there}] = {value}")

    def _every_other(self, name: str | None, size: int) -> bool:
        """Whether lanes read every other element."""
        plain = self.source.dtype in ("int8", "uint8", "int16", "int32", "float32")
        return plain and size > 1 and name is not None and self.nest.step(1, name) == 2

    def _bounds(
        self, axis: _Axis, point: IndexExpr, name: str | None, start: str, whole: bool
    ) -> tuple[str, str]:
        """Names or numbers of an axis's first tap inside, and of the end."""
        extents = self.nest.extents
        low, high = point.bounds(extents)
        reach = (axis.window - 1) * axis.dilation
        crosses = name is not None and name in point.iterators
        at = texts([point], name, start)[0]
        first, end = axis.bounds(at)
        if low * axis.stride >= axis.before or (whole and crosses):
            first = "0"
        if high * axis.stride - axis.before + reach < axis.size or (whole and crosses):
            end = str(axis.window)
        return tuple(x if x.isdecimal() else self.kernel.let(x) for x in (first, end))  # type: ignore[return-value]

    def _result(self, total: Value, count: str, taps: int) -> str:
        dtype = self.output.dtype
        if self.kind.operation == "max":
            same = total.dtype == self.output.stored
            return total.text if same else converted(self.kernel.let, total, dtype)
        kind, text = total.dtype, total.text
        if self.kind.counts_padding:
            if self.kind.zero_point:
                outside = f'T.cast({taps} - {count}, "{kind}")'
                text = f"({text} + {outside} * {literal(self.kind.zero_point, kind)})"
            count = str(taps)
        if total.is_float:
            number = f'T.cast({count}, "{kind}")'
            return converted(self.kernel.let, Value(f"{text} / {number}", kind), dtype)
        if self.kind.ratio is not None:
            return self._stored_anew(Value(text, kind), count, self.kind.ratio)
        share = (
            literal(float(np.float32(1) / np.float32(int(count))), "float32")
            if count.isdecimal()
            else f'(T.float32(1) / T.cast({count}, "float32"))'
        )
        mean = nearest(f'T.cast({text}, "float32") * {share}')
        wide = "int64" if np.dtype(dtype).itemsize == 8 else "int32"
        whole = f'T.cast({mean}, "{wide}")'
        return whole if wide == dtype else f'T.cast({whole}, "{dtype}")'

    def _stored_anew(self, total: Value, count: str, ratio: float) -> str:
        """A mean with the scale and the zero point of the result."""
        zero, dtype = literal(self.kind.zero_point, total.dtype), total.dtype
        number = count if count.isdecimal() else f'T.cast({count}, "{dtype}")'
        centred = f'T.cast({total.text} - {number} * {zero}, "float32")'
        share = f'T.cast(T.float64({ratio!r}) / T.cast({count}, "float64"), "float32")'
        if count.isdecimal():
            share = literal(float(np.float32(ratio / int(count))), "float32")
        rounded = nearest(f"{centred} * {share}")
        moved = f"{rounded} + T.float32({self.kind.stored_zero_point})"
        limits = np.iinfo(self.output.dtype)
        kept = limited(moved, "float32", limits.min, limits.max)
        return f'T.cast(T.cast({kept}, "int32"), "{self.output.dtype}")'
