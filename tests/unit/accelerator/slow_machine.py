"""The meaning of programs of accelerators, element by element: what the executor is compared with.

It follows the documentation of :mod:`cpembed.hw.isa` and shares nothing with the executor but the
arithmetic of scalars (:mod:`cpembed.ir.arithmetic`). Memories are arrays of bits.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from cpembed.accelerator.program import Address, Issue, Loop, Node, Program
from cpembed.hw.isa import IMMEDIATE, IsaInstruction, MemoryKind, OperandPlace, StrideSource
from cpembed.ir.arithmetic import computing_dtype, evaluate, stored
from cpembed.ir.computation import AxisKind
from cpembed.ir.dtypes import dtype_info, is_integer, numpy_dtype
from cpembed.ir.expression import Access

Array = np.ndarray[Any, Any]
Element = tuple[int, ...]


class Undefined(Exception):
    """What the machine leaves undefined: its kind, and the number of the execution."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind, self.number = kind, -1


class SlowMachine:
    """A machine with the tensors of a program."""

    def __init__(self, program: Program, buffers: Mapping[str, Array]) -> None:
        self.program, self.machine = program, program.machine
        self.bits = {
            m.name: np.zeros((m.rows, 8 * m.row_bytes), np.uint8)
            for m in self.machine.row_memories()
        }
        self.defined = {name: np.zeros(bits.shape, bool) for name, bits in self.bits.items()}
        self.registers: dict[str, Any] = {}
        self.buffers: dict[str, Array] = {}
        self.written: dict[str, Array] = {}
        for name, tensor in program.tensors.items():
            if tensor.role in ("input", "constant"):
                self.buffers[name] = np.array(buffers[name])
                self.written[name] = np.ones(tensor.elements, bool)
            else:
                self.buffers[name] = tensor.buffer()
                marks = np.zeros(tensor.shape, bool)
                margins = type(tensor)(**{**vars_of(tensor), "dtype": "bool", "fill": True})
                self.written[name] = margins.buffer(marks).astype(bool)
        self.moved = Counter[tuple[str, str]]()
        self.executions = Counter[str]()
        self.saturations = self.wraps = 0

    def run(self) -> None:
        number = 0
        try:
            for issue, values in iterations(self.program.body, {}):
                self.execute(issue, values)
                number += 1
        except Undefined as error:
            error.number = number
            raise

    # -- one execution ----------------------------------------------------------------------------

    def execute(self, issue: Issue, values: Mapping[str, int]) -> None:
        instruction = self.machine.instructions[issue.instruction]
        sizes = dict(instruction.extents)
        for axis in instruction.size_arguments:
            sizes[axis.name] = min(e.evaluate(values) for e in issue.sizes[axis.name])
            if sizes[axis.name] not in axis.allowed:
                raise Undefined("size")
        places = {
            name: self._elements(
                instruction, name, issue.operands.get(name, Address()), sizes, values
            )
            for name in (o.name for o in instruction.computation.operands)
        }
        self._check_banks(instruction, places)
        self._check_overlaps(instruction, places)
        read: dict[str, dict[Element, Any]] = {}
        for operand in instruction.computation.operands:
            if operand.name in instruction.inputs or instruction.reads_outputs:
                read[operand.name] = self._read(instruction, operand.name, issue, places, values)
        results = self._compute(instruction, sizes, read, places)
        for name, elements in results.items():
            self._write(instruction, name, elements, places[name])
        self.executions[issue.instruction] += 1

    def _elements(
        self,
        instruction: IsaInstruction,
        name: str,
        address: Address,
        sizes: Mapping[str, int],
        values: Mapping[str, int],
    ) -> dict[Element, Any]:
        """Place of each element that the operand's accesses name: (row, lane) or an element."""
        place = instruction.places[name]
        if place.memory == IMMEDIATE:
            return {(): None}
        kind = self.machine.memories[place.memory].kind
        if kind is MemoryKind.REGISTER:
            return {(): None}
        accesses = instruction.computation.access_maps[name]
        indices: dict[Element, None] = {}
        for access in accesses:
            names = list(access.iterators)
            for point in itertools.product(*(range(sizes[n]) for n in names)):
                at = dict(zip(names, point, strict=True))
                indices[tuple(index.evaluate(at) for index in access.index)] = None
        shape = {d: 1 + max(i[n] for i in indices) for n, d in enumerate(place.dimensions)}
        base = address.base.evaluate(values)
        if kind is MemoryKind.MAIN:
            strides = self._strides(place, address, list(place.dimensions), list(shape.values()))
            return {
                i: (address.tensor, base + sum(s * x for s, x in zip(strides, i, strict=True)))
                for i in indices
            }
        lane = address.lane.evaluate(values)
        if lane != 0 and not place.any_lane:
            raise Undefined("lane")
        largest = dict(
            zip(place.dimensions, instruction.computation.operand(name).shape, strict=True)
        )
        keys = [str(d) for d in place.rows]
        strides = self._strides(place, address, keys, [d.size(shape[d.axis]) for d in place.rows])
        result: dict[Element, Any] = {}
        for i in indices:
            at = dict(zip(place.dimensions, i, strict=True))
            row = base + sum(
                s * digit(d, at[d.axis]) for s, d in zip(strides, place.rows, strict=True)
            )
            position = 0
            for d in place.lanes:
                position = position * d.size(largest[d.axis]) + digit(d, at[d.axis])
            result[i] = (row, lane + position)
        return result

    def _strides(
        self, place: OperandPlace, address: Address, keys: list[str], sizes: list[int]
    ) -> list[int]:
        strides: list[int] = []
        for number, key in enumerate(keys):
            source = place.strides.get(key, StrideSource.DENSE)
            if isinstance(source, int):
                strides.append(source)
            elif source == StrideSource.ANY:
                strides.append(address.strides[key])
            elif source == StrideSource.DENSE:
                strides.append(math.prod(sizes[number + 1 :]))
            else:
                if source not in self.registers:
                    raise Undefined("register")
                strides.append(int(self.registers[source]))
        return strides

    def _check_banks(self, instruction: IsaInstruction, places: Mapping[str, Any]) -> None:
        for first, second in instruction.banks_differ:
            a, b = instruction.places[first], instruction.places[second]
            if a.memory != b.memory:
                continue
            size = self.machine.memories[a.memory].bank_rows
            banks = [{row // size for row, _ in places[n].values()} for n in (first, second)]
            if banks[0] & banks[1]:
                raise Undefined("bank")

    def _check_overlaps(self, instruction: IsaInstruction, places: Mapping[str, Any]) -> None:
        def cells(name: str) -> dict[Any, list[Any]]:
            place = instruction.places[name]
            if place.memory == IMMEDIATE:
                return {}
            kind = self.machine.memories[place.memory].kind
            if kind is MemoryKind.REGISTER:
                return {}
            if kind is MemoryKind.MAIN:
                return {i: [at] for i, at in places[name].items()}
            width = dtype_info(place.dtype).storage_bits
            return {
                i: [(place.memory, row, lane * width + b) for b in range(width)]
                for i, (row, lane) in places[name].items()
            }

        for output in instruction.outputs:
            written = cells(output)
            if len({c for v in written.values() for c in v}) < sum(map(len, written.values())):
                raise Undefined("twice")
            for name in instruction.inputs:
                read = cells(name)
                if {c for v in read.values() for c in v}.isdisjoint(
                    c for v in written.values() for c in v
                ):
                    continue
                if name in instruction.in_place and list(read.values()) == list(written.values()):
                    continue
                raise Undefined("overlap")

    # -- memory -----------------------------------------------------------------------------------

    def _read(
        self,
        instruction: IsaInstruction,
        name: str,
        issue: Issue,
        places: Mapping[str, dict[Element, Any]],
        values: Mapping[str, int],
    ) -> dict[Element, Any]:
        place = instruction.places[name]
        dtype = numpy_dtype(place.dtype)
        if place.memory == IMMEDIATE:
            address = issue.operands[name]
            value = address.base.evaluate(values) if address.value is None else address.value
            return {(): np.asarray(value).astype(dtype)}
        width = dtype_info(place.dtype).storage_bits
        self.moved[place.memory, "read"] += width * len(places[name])
        kind = self.machine.memories[place.memory].kind
        if kind is MemoryKind.REGISTER:
            if place.memory not in self.registers:
                raise Undefined("register")
            return {(): np.asarray(self.registers[place.memory]).astype(dtype)}
        if kind is MemoryKind.MAIN:
            return {i: self._main(tensor, at) for i, (tensor, at) in places[name].items()}
        result: dict[Element, Any] = {}
        for i, (row, lane) in places[name].items():
            cells = self._cells(place, row, lane)
            if not self.defined[place.memory][row, cells].all():
                raise Undefined("unwritten")
            result[i] = from_bits(self.bits[place.memory][row, cells], place.dtype)
        return result

    def _main(self, tensor: str, at: int) -> Any:
        if not 0 <= at < len(self.buffers[tensor]):
            raise Undefined("outside")
        if not self.written[tensor][at]:
            raise Undefined("unwritten")
        return self.buffers[tensor][at]

    def _cells(self, place: OperandPlace, row: int, lane: int) -> slice:
        memory = self.machine.memories[place.memory]
        width = dtype_info(place.dtype).storage_bits
        if not 0 <= row < memory.rows:
            raise Undefined("row")
        if not 0 <= lane < 8 * memory.row_bytes // width:
            raise Undefined("lane")
        return slice(lane * width, (lane + 1) * width)

    def _write(
        self,
        instruction: IsaInstruction,
        name: str,
        elements: Mapping[Element, Any],
        places: Mapping[Element, Any],
    ) -> None:
        place = instruction.places[name]
        width = dtype_info(place.dtype).storage_bits
        self.moved[place.memory, "write"] += width * len(elements)
        kind = self.machine.memories[place.memory].kind
        for i, value in elements.items():
            if kind is MemoryKind.REGISTER:
                self.registers[place.memory] = value
            elif kind is MemoryKind.MAIN:
                tensor, at = places[i]
                if self.program.tensors[tensor].role in ("input", "constant"):
                    raise Undefined("role")
                if not 0 <= at < len(self.buffers[tensor]):
                    raise Undefined("outside")
                self.buffers[tensor][at] = value
                self.written[tensor][at] = True
            else:
                row, lane = places[i]
                cells = self._cells(place, row, lane)
                self.bits[place.memory][row, cells] = to_bits(value, place.dtype)
                self.defined[place.memory][row, cells] = True

    # -- arithmetic -------------------------------------------------------------------------------

    def _compute(
        self,
        instruction: IsaInstruction,
        sizes: Mapping[str, int],
        read: Mapping[str, Mapping[Element, Any]],
        places: Mapping[str, Mapping[Element, Any]],
    ) -> dict[str, dict[Element, Any]]:
        axes = instruction.computation.axes
        reductions = [a.name for a in axes if a.kind is AxisKind.REDUCTION]
        spatial = [a.name for a in axes if a.kind is AxisKind.SPATIAL]
        results: dict[str, dict[Element, Any]] = {}
        for statement in instruction.computation.statements:
            output = statement.store.operand
            dtype = instruction.places[output].dtype
            exact = computing_dtype(dtype)
            wide = statement.reduction in ("add", "mul") and not is_integer(dtype)
            elements = results.setdefault(output, {})
            for point in itertools.product(*(range(sizes[n]) for n in spatial)):
                at = dict(zip(spatial, point, strict=True))
                target = tuple(index.evaluate(at) for index in statement.store.index)
                total = None
                if statement.reduction is not None and instruction.accumulates:
                    total = np.asarray(read[output][target]).astype(exact)
                for inner in itertools.product(*(range(sizes[n]) for n in reductions)):
                    full = {**at, **dict(zip(reductions, inner, strict=True))}

                    def element(access: Access, full: Mapping[str, int] = full) -> Array:
                        index = tuple(e.evaluate(full) for e in access.index)
                        return np.asarray(read[access.operand][index])

                    with np.errstate(all="ignore"):
                        value = evaluate(statement.value, element, wide=wide).astype(exact)
                        total = self._combined(
                            instruction, statement.reduction, dtype, total, value
                        )
                sums = statement.reduction == "add" and is_integer(dtype)
                if sums and not instruction.saturates and dtype != "int64":
                    low, high = dtype_info(dtype).integer_range
                    self.wraps += not low <= int(total) <= high
                with np.errstate(all="ignore"):
                    elements[target] = stored(np.asarray(total), dtype)[()]
        return results

    def _combined(
        self, instruction: IsaInstruction, reduction: str | None, dtype: str, total: Any, value: Any
    ) -> Any:
        if reduction is None:
            return value
        if total is None and reduction in ("max", "min"):
            return value
        if total is None:
            total = np.zeros((), value.dtype)
        function = {"add": np.add, "max": np.maximum, "min": np.minimum}[reduction]
        result = function(total, value)
        if reduction == "add" and is_integer(dtype) and instruction.saturates:
            limited = np.clip(result, *dtype_info(dtype).integer_range)
            self.saturations += int(limited != result)
            return limited
        return result


def vars_of(tensor: Any) -> dict[str, Any]:
    names = ("name", "shape", "dtype", "order", "before", "after", "blocks", "fill", "role")
    return {name: getattr(tensor, name) for name in names}


def iterations(nodes: tuple[Node, ...], values: dict[str, int]) -> Iterator[tuple[Issue, Any]]:
    for node in nodes:
        if isinstance(node, Loop):
            for value in range(node.extent):
                yield from iterations(node.body, {**values, node.name: value})
        elif all(guard.evaluate(values) >= 0 for guard in node.guards):
            yield node, values


def digit(dimension: Any, value: int) -> int:
    value //= dimension.divisor
    return value if dimension.modulus is None else value % dimension.modulus


def to_bits(value: Any, dtype: str) -> Array:
    width = dtype_info(dtype).storage_bits
    data = np.asarray(value).astype(numpy_dtype(dtype)).reshape(1).tobytes()
    return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[:width]


def from_bits(bits: Array, dtype: str) -> Any:
    info = dtype_info(dtype)
    data = np.packbits(bits, bitorder="little")
    if info.storage_bits % 8:
        value = int(data[0])
        if info.integer_range[0] < 0 and value >> (info.bits - 1):
            value -= 1 << info.bits
        return np.asarray(value).astype(info.numpy)[()]
    return np.frombuffer(data.tobytes(), info.numpy)[0]
