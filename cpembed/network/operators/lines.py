"""Kernels along lines of a tensor: sorting, running results, scattering of rows.

A line is sorted in the memory of the result, as a heap, so that no kernel needs memory of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.values import (
    Value,
    converted,
    extremum,
    literal,
    load_as,
)
from cpembed.graph.kinds import Scan, Scatter, Sort
from cpembed.graph.kinds.base import axis_of
from cpembed.graph.kinds.lines import CacheUpdate
from cpembed.ir.dtypes import is_integer, neutral_element
from cpembed.network.operators.emission import LANES, SERIAL, Kernel, Operands
from cpembed.network.operators.movement import distance
from cpembed.network.operators.nest import PlacedTensor, View, axes, constant, nest_over
from cpembed.network.operators.reductions import (
    accumulator_dtype,
    join_of,
    reduction_of,
)

_COMPARISON_EFFORT = 4.0
"""Time of a byte of a sorted line, for each level of its heap, relative to copying it."""


def sort_plan(kind: Sort, operands: Operands) -> KernelPlan:
    """Return the kernel that sorts lines, or finds their first elements in order.

    The result is a heap of the best elements so far, whose root is the last of them. Of ``count``
    results of ``n`` elements, that takes at most ``n * log(count)`` steps.
    """
    (source,), (values, indices) = operands.inputs, operands.outputs
    rank = len(source.shape)
    axis = axis_of(kind.axis, rank)
    lines = tuple(1 if k == axis else size for k, size in enumerate(source.shape))
    first = tuple(constant(0) if k == axis else e for k, e in enumerate(axes(rank)))
    nest = nest_over(lines, [View(x.layout, first) for x in (values, indices, source)])
    effort = _COMPARISON_EFFORT * math.log2(kind.count + 1)
    kernel = Kernel(operands, operands.chunks(effort, [source]))
    with kernel.body(), kernel.rows(nest.loops):
        starts = [kernel.bind(str(place)) for place in nest.places]
        _Heap(kernel, kind, axis, starts).write(source.shape[axis])
    return kernel.plan(kind.label)


@dataclass(frozen=True)
class _Heap:
    """Heap of the first elements of a line, in the memory of the results.

    Attributes
    ----------
    starts : sequence of str
        Positions of the line's first element: of the values, of the indices, and of the input.
    """

    kernel: Kernel
    kind: Sort
    axis: int
    starts: Sequence[str]

    def write(self, size: int) -> None:
        """Write the sorting of a line of ``size`` elements."""
        script, count = self.kernel.script, self.kind.count
        # One loop, so that its text has the way down the heap only once: it first orders the heap,
        # then offers it each element that is left, then takes its roots off from the end.
        parents, offered = count // 2, size - count
        with script.nested(f"for place in T.serial({count}):"):
            script.line(f"{self._value('place')} = {self._input('place')}")
            script.line(f'{self._index("place")} = T.cast(place, "int64")')
        hole, length = self._variable("hole"), self._variable("length")
        sinks = self._variable("sinks")
        steps = parents + offered + max(0, count - 1)
        with script.nested(f"for step in T.serial({steps}):"):
            script.line(f"{length} = {count}")
            script.line(f"{hole} = 0")
            script.line(f"{sinks} = 1")
            with script.nested(f"if step < {parents}:"):
                script.line(f"{hole} = {parents - 1} - step")
            if offered:
                with script.nested(f"if step >= {parents} and step < {parents + offered}:"):
                    self._offer(f"(step + {count - parents})", sinks)
            if count > 1:
                with script.nested(f"if step >= {parents + offered}:"):
                    script.line(f"{length} = {parents + offered + count - 1} - step")
                    self._exchange("0", length)
            self._sink(hole, length, sinks)

    def _offer(self, place: str, sinks: str) -> None:
        """Replace the root by an element of the input that comes before it."""
        script = self.kernel.script
        # Its index is larger than all in the heap: of equal elements it comes last.
        key, root = self._key(self._input(place)), self._key(self._value("0"))
        with script.nested(f"if {key} < {root}:"):
            script.line(f"{self._value('0')} = {self._input(place)}")
            script.line(f'{self._index("0")} = T.cast({place}, "int64")')
        with script.nested("else:"):
            script.line(f"{sinks} = 0")

    def _sink(self, hole: str, length: str, sinks: str) -> None:
        """Move the element at ``hole`` down until none of its children comes after it."""
        script, child = self.kernel.script, self._variable("child")
        with script.nested(f"while {sinks} == 1:"):
            script.line(f"{sinks} = 0")
            script.line(f"{child} = {hole} * 2 + 1")
            with script.nested(f"if {child} < {length}:"):
                with script.nested(f"if {child} + 1 < {length}:"):
                    is_before = self._is_before(child, f"({child} + 1)")
                    script.line(f"{child} = {child} + T.Select({is_before}, 1, 0)")
                with script.nested(f"if {self._is_before(hole, child)}:"):
                    self._exchange(hole, child)
                    script.line(f"{hole} = {child}")
                    script.line(f"{sinks} = 1")

    def _exchange(self, a: str, b: str) -> None:
        """Exchange two elements of the heap."""
        script = self.kernel.script
        for element, dtype in (
            (self._value, self.kernel.outputs[0].storage_dtype),
            (self._index, "int64"),
        ):
            # A name would be the expression to the compiler, computed anew after the first store.
            stored = self.kernel.opaque(element(a), dtype)
            script.line(f"{element(a)} = {element(b)}")
            script.line(f"{element(b)} = {stored}")

    def _is_before(self, a: str, b: str) -> str:
        first, second = self._key(self._value(a)), self._key(self._value(b))
        earlier = f"{self._index(a)} < {self._index(b)}"
        return f"{first} < {second} or ({first} == {second} and {earlier})"

    def _variable(self, name: str) -> str:
        return self.kernel.opaque("0", "int32")

    def _element(self, buffer: str, tensor: PlacedTensor, start: str, place: str) -> str:
        return f"{buffer}[{start} + {distance(tensor.layout, self.axis, place)}]"

    def _value(self, place: str) -> str:
        return self._element("out0", self.kernel.outputs[0], self.starts[0], place)

    def _index(self, place: str) -> str:
        return self._element("out1", self.kernel.outputs[1], self.starts[1], place)

    def _input(self, place: str) -> str:
        return self._element("in0", self.kernel.inputs[0], self.starts[2], place)

    def _key(self, element: str) -> str:
        """Write an integer that is ordered as the elements are, and return its name."""
        bind, dtype = self.kernel.bind, self.kernel.inputs[0].dtype
        key = "int64" if dtype in ("int64", "uint32", "uint64", "float64") else "int32"
        if dtype == "float64" or is_integer(dtype):
            value = bind(load_as(element, dtype, "float64" if dtype == "float64" else key))
        else:
            value = bind(load_as(element, dtype, "float32"))
        if dtype == "uint64":
            # Numbers from 2^63 on became negative.
            value = f"T.bitwise_xor({value}, {literal(np.iinfo('int64').min, key)})"
        elif not is_integer(dtype):
            value = self._key_of_float(value, key)
        return bind(f"T.bitwise_not({value})" if self.kind.descending else value)

    def _key_of_float(self, value: str, key: str) -> str:
        """Write the bits of a float such that they are ordered as integers; NaN is the largest."""
        bind, largest = self.kernel.bind, literal(np.iinfo(key).max, key)
        infinity = {"int32": 0x7F800000, "int64": 0x7FF0000000000000}[key]
        bits = bind(f'T.reinterpret({value}, dtype="{key}")')
        size = bind(f"T.bitwise_and({bits}, {largest})")
        # A negative number is the smaller the larger its magnitude; -0 becomes 0.
        signed = f"T.Select({bits} < {literal(0, key)}, {literal(0, key)} - {size}, {size})"
        return bind(f"T.Select({size} > {literal(infinity, key)}, {largest}, {signed})")


def scan_plan(kind: Scan, operands: Operands) -> KernelPlan:
    """Return the kernel of a running sum, product, maximum or minimum.

    Floats are summed and multiplied in float64.
    """
    (source,), (output,) = operands.inputs, operands.outputs
    rank = len(source.shape)
    axis, size = axis_of(kind.axis, rank), source.shape[kind.axis]
    index = list(axes(rank))
    if kind.reverse:
        index[axis] = index[axis].times(-1) + (size - 1)
    views = [View(tensor.layout, tuple(index)) for tensor in (output, source)]
    nest = nest_over(source.shape, views, separate=[axis])
    reduction = reduction_of(nest, {axis})
    # Along contiguous elements each result needs the one before it.
    reduction = reduction.with_lanes(1 if reduction.is_along else LANES)
    is_ordering = kind.operation in ("max", "min")
    dtype = accumulator_dtype(kind.operation, source.dtype, size)
    if dtype == "float32" and not is_ordering:
        dtype = "float64"
    join = join_of(kind.operation, dtype)
    kernel = Kernel(operands, operands.chunks(4.0))
    with kernel.body(), reduction.rows(kernel):
        start = literal(neutral_element(kind.operation, dtype), dtype)
        total = kernel.accumulators(reduction.size, dtype, start)

        def store(lane: str, place: str) -> None:
            # As a buffer's element, the total is no expression that the compiler could repeat.
            value = Value(f"{total}[{lane}]", dtype)
            kernel.script.line(f"out0[{place}] = {converted(kernel.bind, value, output.dtype)}")

        def step(lane: str, places: Sequence[str]) -> None:
            element = kernel.bind(load_as(f"in0[{places[1]}]", source.dtype, dtype))
            if kind.exclusive:
                store(lane, places[0])
            kernel.script.line(f"{total}[{lane}] = {join(f'{total}[{lane}]', element)}")
            if not kind.exclusive:
                store(lane, places[0])

        reduction.sweep(kernel, step, SERIAL)
    return kernel.plan(kind.label)


def scatter_plan(kind: Scatter, operands: Operands) -> KernelPlan:
    """Return the kernel that scatters rows; a thread writes a range of the tensor's rows."""
    (data, indices, rows), (output,) = operands.inputs, operands.outputs
    rank, count = len(output.shape), output.shape[0]
    first = (constant(0), *axes(rank)[1:])
    views = [View(tensor.layout, first) for tensor in (output, data, rows)]
    nest = nest_over((1, *output.shape[1:]), views)
    places = [str(place) for place in nest.places]
    loops = [f"for {loop.name} in T.serial({loop.extent}):" for loop in nest.loops]
    (index_place,) = nest_over(indices.shape, [View(indices.layout, axes(1))]).places
    kernel = Kernel(operands, operands.chunks(2.0, [output, output]))
    script = kernel.script

    def at(place: str, tensor: PlacedTensor, row: str) -> str:
        return f"{place} + {distance(tensor.layout, 0, row)}"

    with kernel.body():
        with script.nested(f"for row in T.serial({kernel.share(count)}):", *loops):
            copied = f"in0[{at(places[1], data, 'row')}]"
            script.line(f"out0[{at(places[0], output, 'row')}] = {copied}")
        with script.nested(f"for number in T.serial({indices.shape[0]}):"):
            place = str(index_place.rename(lambda _: "number"))
            index = kernel.opaque(f'T.cast(in1[{place}], "int64")', "int64")
            script.line(f"{index} = {index} + T.Select({index} < T.int64(0), {count}, 0)")
            low, high = kernel.share(count).split(", ")
            with script.nested(f"if {index} >= {low} and {index} < {high}:"):
                row = kernel.opaque(f'T.cast({index}, "int32")', "int32")
                with script.nested(*loops):
                    target = f"out0[{at(places[0], output, row)}]"
                    update = f"in2[{at(places[2], rows, 'number')}]"
                    value = _combined(kernel, kind.operation, target, update, output)
                    script.line(f"{target} = {value}")
    return kernel.plan(kind.label)


def _combined(
    kernel: Kernel, operation: str, target: str, update: str, output: PlacedTensor
) -> str:
    """Return the text of a new row's element combined with that in its place."""
    if operation == "set":
        return update
    dtype = output.storage_dtype
    if output.dtype == "bool":
        return f"T.{'max' if operation in ('add', 'max') else 'min'}({target}, {update})"
    if operation in ("max", "min"):
        return extremum(operation, kernel.bind(target), kernel.bind(update), dtype)
    return f"{target} {'+' if operation == 'add' else '*'} {update}"


_SAME = "cpembed_is_same_memory"
# The compiler may assume that no two parameters are one memory, so it must not see that these are
# compared.
_SAME_FUNCTION = f"""
define internal i32 @{_SAME}(ptr %a, ptr %b) alwaysinline {{
  %place = alloca ptr
  store volatile ptr %a, ptr %place
  %hidden = load volatile ptr, ptr %place
  %same = icmp eq ptr %hidden, %b
  %result = zext i1 %same to i32
  ret i32 %result
}}
"""


def cache_update_plan(kind: CacheUpdate, operands: Operands) -> KernelPlan:
    """Return the kernel of a cache update."""
    cache, update, _ = operands.inputs
    rows, width = kind.rows(cache.type)
    size, count = cache.shape[kind.axis], update.shape[kind.axis]
    per_cache = rows // cache.shape[0]
    # In place, as it should be, the work is that of the new elements.
    kernel = Kernel(operands, min(rows, operands.chunks(tensors=[update, update])))
    kernel.include(_SAME, _SAME_FUNCTION)
    script = kernel.script
    with kernel.body():
        addresses = "T.address_of(in0[0]), T.address_of(out0[0])"
        script.line(f'same: T.let = T.call_extern("int32", "{_SAME}", {addresses})')
        with script.nested(f"for row in T.serial({kernel.share(rows)}):"):
            with script.nested("if same == 0:", f"for element in T.serial({size * width}):"):
                place = f"row * {size * width} + element"
                script.line(f"out0[{place}] = in0[{place}]")
            first = f'T.cast(in2[row // {per_cache}], "int32")'
            limit = size - 1 if kind.is_circular else size - count
            wrapped = f"T.floormod({first}, {size})" if kind.is_circular else first
            script.line(f"first: T.let = T.max(0, T.min({limit}, {wrapped}))")
            with script.nested(
                f"for position in T.serial({count}):", f"for element in T.serial({width}):"
            ):
                target = "(first + position)"
                if kind.is_circular:
                    target = f"(({target}) % {size})"
                source = f"(row * {count} + position) * {width} + element"
                place = f"(row * {size} + {target}) * {width} + element"
                script.line(f"out0[{place}] = in1[{source}]")
    return kernel.plan("cache_update")
