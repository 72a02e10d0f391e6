"""Kernels of pooling: loops over the taps of a window, for a vector of neighbours at a time.

Loop bounds leave out taps in the padding. If neighbouring results belong to different windows (rows
of an image without channels last), those at the borders have bounds of their own and are computed
one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.values import (
    Value,
    clamped,
    converted,
    literal,
    load_as,
    round_to_even,
    whole_cast,
)
from cpembed.errors import LoweringError
from cpembed.graph.kinds import Pool
from cpembed.ir.dtypes import neutral_element
from cpembed.ir.index import IndexExpr
from cpembed.network.operators.emission import (
    LANE,
    SERIAL,
    VECTORIZED,
    Kernel,
    Operands,
    every_other_element,
    place_texts,
    vector_size,
)
from cpembed.network.operators.nest import Loop, Nest, PlacedTensor, View, axes, nest_over
from cpembed.network.operators.reductions import accumulator_dtype, join_of


@dataclass(frozen=True)
class _Axis:
    """One axis of the window.

    Attributes
    ----------
    size : int
        Elements of the input.
    window, stride, before, dilation : int
        As in :class:`~cpembed.graph.kinds.reductions.Pool`.
    step : int
        Distance in memory between neighbours of the input, in elements.
    start : str or None
        Name of the number that is the place of the first window, instead of ``-before``.
    """

    size: int
    window: int
    stride: int
    before: int
    dilation: int
    step: int
    start: str | None = None

    def bounds(self, at: str) -> tuple[str, str]:
        """Return the range of taps inside the input, for the result at an index."""
        # Tap t reads element at * stride - before + t * dilation; both bounds are rounded up.
        round_up = f"- ({at}) * {self.stride} + {self.dilation - 1}) // {self.dilation}"
        first, end = f"{self.before}", f"{self.size + self.before}"
        if self.start is not None:
            first, end = f"0 - {self.start}", f"{self.size} - {self.start}"
        return f"T.max(0, ({first} {round_up})", f"T.min({self.window}, ({end} {round_up})"

    def inside(self, count: int) -> tuple[int, int]:
        """Return the range of results, out of ``count``, whose taps are all inside the input."""
        if self.start is not None:
            return 0, 0
        reach = (self.window - 1) * self.dilation
        first = -(-self.before // self.stride)
        end = (self.size - 1 - reach + self.before) // self.stride + 1
        return min(first, count), max(min(first, count), min(end, count))


def pool_nest(
    kind: Pool, source: PlacedTensor, output: PlacedTensor, shape: Sequence[int] | None = None
) -> Nest:
    """Return loops over the results of a pooling, with the places of windows' first elements.

    Parameters
    ----------
    kind : Pool
    source, output : PlacedTensor
    shape : sequence of int, optional
        Extents of the results that are computed, by default all.
    """
    rank = len(source.shape)
    first = rank - len(kind.window)
    indices = axes(rank)
    # Windows may start in the padding, at negative places; the bounds of taps keep to the input.
    window_starts = [
        e.times(stride) + -before
        for e, stride, before in zip(indices[first:], kind.strides, kind.before, strict=True)
    ]
    views = [View(output.layout, indices), View(source.layout, (*indices[:first], *window_starts))]
    return nest_over(output.shape if shape is None else shape, views, points=range(first, rank))


START = "start"
"""Number that a kernel of a band of a pooling has as its last parameter: the row of the input at
which the window of the first row begins."""


def pool_plan(kind: Pool, operands: Operands) -> KernelPlan:
    """Return the kernel of a pooling; raise :class:`LoweringError` for a window over blocks."""
    effort = max(1.0, math.prod(kind.window) / math.prod(kind.strides))
    return _written(kind, Kernel(operands, operands.chunks(effort)), operands.outputs[0].shape)


def pool_band_plan(
    kind: Pool, source: PlacedTensor, output: PlacedTensor, rows: int, *, has_start: bool
) -> KernelPlan:
    """Return the kernel of some rows of a pooling's result for one sample, on one thread.

    Parameters
    ----------
    kind : Pool
        Pooling of images.
    source : PlacedTensor
        Rows of the input that these rows are computed from.
    output : PlacedTensor
        The whole result, in which the kernel writes from an address on.
    rows : int
        Number of rows of the result.
    has_start : bool
        The kernel has the parameter :data:`START`; without it, the first window begins at row 0.
    """
    shape = (1, output.shape[1], rows, *output.shape[3:])
    numbers = (START,) if has_start else ()
    return _written(kind, Kernel(Operands([source], [output], 1), 1, numbers), shape)


def _written(kind: Pool, kernel: Kernel, shape: Sequence[int]) -> KernelPlan:
    """Return the plan of a kernel, for results of a shape."""
    (source,), (output,) = kernel.inputs, kernel.outputs
    rank, count = len(source.shape), len(kind.window)
    first = rank - count
    if first < 2 and max(source.layout.block, output.layout.block) > 1:
        raise LoweringError("a window over channels in blocks: give pooling another layout")
    nest = pool_nest(kind, source, output, shape)
    steps = source.layout.strides()
    window = [
        _Axis(source.shape[k], *sizes, steps[k])
        for k, sizes in enumerate(
            zip(kind.window, kind.strides, kind.before, kind.dilation, strict=True), first
        )
    ]
    if kernel.numbers:
        window[0] = replace(window[0], before=0, start=START)
        nest = pool_nest(replace(kind, before=(0, *kind.before[1:])), source, output, shape)
    writer = _Pooling(
        kernel=kernel, kind=kind, nest=nest, window=window, source=source, output=output
    )
    with kernel.body():
        writer.write()
    return kernel.plan(kind.label)


@dataclass(frozen=True)
class _Pooling:
    """Writer of one pooling's kernel."""

    kernel: Kernel
    kind: Pool
    nest: Nest
    window: Sequence[_Axis]
    source: PlacedTensor
    output: PlacedTensor

    def write(self) -> None:
        if not self.nest.loops:
            self._vector(None, "0", 1, inside=False)
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
                # The last vector overlaps the one before it, so that all are of one size.
                first = f"{groups} * {size}"
                if extent % size:
                    first = f"T.min({first}, {extent - size})"
                headers = [f"for {groups} in T.serial({-(-extent // size)}):"]
                with self.kernel.script.nested(*headers):
                    self._vector(lane, f"{first} + {start}", size, inside=size > 1)

    def _ranges(self, lane: Loop, crossing: Sequence[_Axis]) -> Iterator[tuple[int, int, int]]:
        """Yield parts of the innermost loop: start, extent, and number of lanes.

        Windows of the lanes move along the axes in ``crossing``.
        """
        if not crossing:
            yield 0, lane.extent, vector_size(lane.extent)
            return
        # Borders are computed one result at a time, since each has bounds of its own.
        low, high = crossing[0].inside(lane.extent)
        for start, end in ((0, low), (low, high), (high, lane.extent)):
            if start < end:
                inner = start == low and high > low
                yield start, end - start, vector_size(end - start) if inner else 1

    def _vector(self, lane: Loop | None, first: str, size: int, inside: bool) -> None:
        """Write ``size`` neighbouring results, none with padding along the lanes if ``inside``."""
        kernel, kind = self.kernel, self.kind
        name = None if lane is None else lane.name
        start = kernel.bind(first) if lane is not None else "0"
        taps = math.prod(kind.window)
        dtype = accumulator_dtype(kind.operation, self.source.dtype, taps)
        total = kernel.accumulators(
            size, dtype, literal(neutral_element(kind.operation, dtype), dtype)
        )
        place = self.nest.places[1]
        headers, offsets, lengths = list[str](), list[str](), list[str]()
        for number, (axis, point) in enumerate(zip(self.window, self.nest.points, strict=True)):
            low, high = self._bounds(axis, point, name, start, inside)
            headers.append(f"for tap{number} in T.serial({low}, {high}):")
            offsets.append(f"tap{number} * {axis.dilation * axis.step}")
            if axis.start is not None:
                offsets.append(f"{axis.start} * {axis.step}")
            lengths.append(f"({high} - {low})")
        at = f"({start} + {LANE})"
        with kernel.script.nested(*headers):
            # With stride 2, LLVM would gather the lanes; a shuffle of contiguous loads is faster.
            if self._reads_every_other(name, size):
                address = " + ".join([*place_texts([place], name, start), *offsets])
                lanes = f"{total}[T.Ramp(0, 1, {size})]"
                element = every_other_element("in0", address, size)
                if dtype != self.source.dtype:
                    element = f'T.cast({element}, "{dtype}x{size}")'
                kernel.script.line(
                    f"{lanes} = {join_of(kind.operation, dtype, size)(lanes, element)}"
                )
            else:
                with kernel.vectorized(size):
                    address = " + ".join([*place_texts([place], name, at), *offsets])
                    element = load_as(f"in0[{address}]", self.source.dtype, dtype)
                    joined = join_of(kind.operation, dtype)(f"{total}[{LANE}]", element)
                    kernel.script.line(f"{total}[{LANE}] = {joined}")
        count = "1.0"
        if kind.operation == "mean":
            count = kernel.bind(f'T.cast({" * ".join(lengths)}, "int32")')
        converts = dtype.startswith("float") and dtype != self.output.storage_dtype
        with kernel.vectorized(size, SERIAL if converts else VECTORIZED):
            value = self._result(Value(f"{total}[{LANE}]", dtype), count, taps)
            (address,) = place_texts([self.nest.places[0]], name, at)
            kernel.script.line(f"out0[{address}] = {value}")

    def _reads_every_other(self, name: str | None, size: int) -> bool:
        """True if lanes read every other element, of a type that is no conversion of another."""
        plain = self.source.dtype in ("int8", "uint8", "int16", "int32", "float32")
        return plain and size > 1 and name is not None and self.nest.step(1, name) == 2

    def _bounds(
        self, axis: _Axis, point: IndexExpr, name: str | None, start: str, inside: bool
    ) -> tuple[str, str]:
        """Return names or numbers of an axis's first tap inside the input, and of the end."""
        extents = self.nest.extents
        low, high = point.bounds(extents)
        reach = (axis.window - 1) * axis.dilation
        crosses = name is not None and name in point.iterators
        at = place_texts([point], name, start)[0]
        first, end = axis.bounds(at)
        # Constant bounds where no result of the loop, or none of this vector, has padding.
        is_known = axis.start is None
        if (is_known and low * axis.stride >= axis.before) or (inside and crosses):
            first = "0"
        is_inside = is_known and high * axis.stride - axis.before + reach < axis.size
        if is_inside or (inside and crosses):
            end = str(axis.window)
        return tuple(x if x.isdecimal() else self.kernel.bind(x) for x in (first, end))  # type: ignore[return-value]

    def _result(self, total: Value, count: str, taps: int) -> str:
        dtype = self.output.dtype
        if self.kind.operation == "max":
            same = total.dtype == self.output.storage_dtype
            return total.text if same else converted(self.kernel.bind, total, dtype)
        kind, text = total.dtype, total.text
        if self.kind.counts_padding:
            if self.kind.zero_point:
                outside = f'T.cast({taps} - {count}, "{kind}")'
                text = f"({text} + {outside} * {literal(self.kind.zero_point, kind)})"
            count = str(taps)
        if total.is_float:
            number = f'T.cast({count}, "{kind}")'
            return converted(self.kernel.bind, Value(f"{text} / {number}", kind), dtype)
        if self.kind.ratio is not None:
            return self._requantized(Value(text, kind), count, self.kind.ratio)
        # Multiplied by a rounded reciprocal, as the definition does.
        share = (
            literal(float(np.float32(1) / np.float32(int(count))), "float32")
            if count.isdecimal()
            else f'(T.float32(1) / T.cast({count}, "float32"))'
        )
        return whole_cast(round_to_even(f'T.cast({text}, "float32") * {share}'), dtype)

    def _requantized(self, total: Value, count: str, ratio: float) -> str:
        """Return the mean of integers in the scale and with the zero point of the result."""
        zero, dtype = literal(self.kind.zero_point, total.dtype), total.dtype
        number = count if count.isdecimal() else f'T.cast({count}, "{dtype}")'
        centred = f'T.cast({total.text} - {number} * {zero}, "float32")'
        share = f'T.cast(T.float64({ratio!r}) / T.cast({count}, "float64"), "float32")'
        if count.isdecimal():
            share = literal(float(np.float32(ratio / int(count))), "float32")
        rounded = round_to_even(f"{centred} * {share}")
        offset = f"{rounded} + T.float32({self.kind.stored_zero_point})"
        limits = np.iinfo(self.output.dtype)
        return whole_cast(clamped(offset, "float32", limits.min, limits.max), self.output.dtype)
