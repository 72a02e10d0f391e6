"""Small machines for tests of the planner, and an interpreter of their programs in numpy."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from cpembed.accelerator.lowering import OperatorPlan, operator_plans
from cpembed.accelerator.matching import match_statement
from cpembed.accelerator.problem import OperatorProblem, PlanningError
from cpembed.accelerator.program import Address, Issue, Loop, Program
from cpembed.accelerator.specification import Specification, Statement
from cpembed.hw.instruction import InstructionAxis, TileDimension
from cpembed.hw.isa import (
    IMMEDIATE,
    Channel,
    InstructionSet,
    IsaInstruction,
    IsaMemory,
    MemoryKind,
    OperandPlace,
    StrideSource,
    Synchronization,
)
from cpembed.hw.machine import Evidence
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import numpy_dtype
from cpembed.ir.interpreter import interpret_all
from cpembed.ir.parser import parse_computation


def memory(name: str, rows: int, row_bytes: int, banks: int = 1) -> IsaMemory:
    return IsaMemory(name=name, kind=MemoryKind.ROWS, rows=rows, row_bytes=row_bytes, banks=banks)


def main(bytes_per_cycle: float = 16.0, latency: float = 20.0) -> IsaMemory:
    return IsaMemory(
        name="dram",
        kind=MemoryKind.MAIN,
        bytes_per_cycle=bytes_per_cycle,
        latency_cycles=latency,
    )


def register(name: str, dtype: str = "int32") -> IsaMemory:
    return IsaMemory(name=name, kind=MemoryKind.REGISTER, dtype=dtype, row_bytes=4)


def dimension(text: str) -> TileDimension:
    name, _, rest = text.partition("/")
    if rest:
        divisor, _, modulus = rest.partition("%")
        return TileDimension(name, int(divisor), int(modulus) if modulus else None)
    name, _, modulus = text.partition("%")
    return TileDimension(name, 1, int(modulus) if modulus else None)


def place(
    memory: str,
    dtype: str,
    dimensions: str = "",
    rows: str = "",
    lanes: str = "",
    **strides: int | str,
) -> OperandPlace:
    return OperandPlace(
        memory=memory,
        dtype=dtype,
        dimensions=tuple(dimensions.split()),
        rows=tuple(map(dimension, rows.split())),
        lanes=tuple(map(dimension, lanes.split())),
        strides={k: StrideSource(v) if v in ("any", "dense") else v for k, v in strides.items()},
    )


def instruction(
    name: str,
    unit: str,
    text: str,
    axes: Mapping[str, tuple[int, int]],
    places: Mapping[str, OperandPlace],
    *,
    accumulates: bool = True,
    cycles: Mapping[str, float] | None = None,
    latency: float = 0.0,
) -> IsaInstruction:
    extents = {a: high for a, (_, high) in axes.items()}
    dtypes = {o: p.dtype for o, p in places.items()}
    computation = parse_computation(text, extents, name=name, dtypes=dtypes, takes_constants=True)
    polynomial = tuple(
        (tuple(k.split("*")) if k != "1" else (), v) for k, v in (cycles or {"1": 1.0}).items()
    )
    return IsaInstruction(
        name=name,
        unit=unit,
        axes=tuple(InstructionAxis(a, low, high) for a, (low, high) in axes.items()),
        computation=computation,
        places=places,
        accumulates=accumulates,
        cycles=polynomial,
        latency_cycles=latency,
    )


def machine(
    name: str,
    memories: Sequence[IsaMemory],
    instructions: Sequence[IsaInstruction],
    synchronization: Synchronization = Synchronization.INTERLOCKED,
    channels: Sequence[tuple[str, str]] = (),
) -> InstructionSet:
    units = tuple(dict.fromkeys(i.unit for i in instructions))
    return InstructionSet(
        name=name,
        description="",
        source="",
        evidence=next(iter(Evidence)),
        clock_mhz=1000,
        memories={m.name: m for m in memories},
        units=units,
        instructions={i.name: i for i in instructions},
        synchronization=synchronization,
        channels=tuple(Channel(name=f"{a}_{b}", sender=a, receiver=b) for a, b in channels),
    )


def systolic(
    rows: int = 64,
    sums: int = 32,
    lanes: int = 4,
    *,
    fixed: bool = False,
    registers: bool = False,
    variant: bool = True,
    bytes_per_cycle: float = 16.0,
) -> InstructionSet:
    """A machine with a scratchpad, accumulators and a store that shifts, like Gemmini."""
    low = lanes if fixed else 1
    tile = {"r": (low, lanes), "e": (low, lanes)}
    load = "load_stride" if registers else "any"
    store = "store_stride" if registers else "any"
    products = {"i": (low, lanes), "j": (low, lanes), "k": (low, lanes)}
    operands = {
        "A": place("scratchpad", "int8", "i k", "i", "k", i=1),
        "B": place("scratchpad", "int8", "k j", "k", "j", k=1),
        "C": place("accumulator", "int32", "i j", "i", "j", i=1),
    }
    memories = [
        main(bytes_per_cycle),
        memory("scratchpad", rows, lanes),
        memory("accumulator", sums, 4 * lanes),
    ]
    instructions = [
        instruction(
            "mvin",
            "load",
            "D[r,e] = S[r,e]",
            tile,
            {
                "D": place("scratchpad", "int8", "r e", "r", "e", r=1),
                "S": place("dram", "int8", "r e", r=load, e=1),
            },
            cycles={"1": 4, "r": 1},
        ),
        instruction(
            "mvin_sums",
            "load",
            "D[r,e] = S[r,e]",
            tile,
            {
                "D": place("accumulator", "int32", "r e", "r", "e", r=1),
                "S": place("dram", "int32", "r e", r=load, e=1),
            },
            cycles={"1": 4, "r": 1},
        ),
        instruction(
            "matmul",
            "execute",
            "C[i,j] += A[i,k] * B[k,j]",
            products,
            operands,
            cycles={"1": 2, "i": 1},
        ),
        instruction(
            "mvout",
            "store",
            "D[r,e] = S[r,e] >> 3",
            tile,
            {
                "D": place("dram", "int8", "r e", r=store, e=1),
                "S": place("accumulator", "int32", "r e", "r", "e", r=1),
            },
            cycles={"1": 4, "r": 1},
        ),
        instruction(
            "mvout_sums",
            "store",
            "D[r,e] = S[r,e]",
            tile,
            {
                "D": place("dram", "int32", "r e", r=store, e=1),
                "S": place("accumulator", "int32", "r e", "r", "e", r=1),
            },
            cycles={"1": 4, "r": 1},
        ),
    ]
    if variant:
        begin = next(i for i in instructions if i.name == "matmul")
        instructions.append(replace(begin, name="matmul_begin", accumulates=False))
    else:
        instructions.append(
            instruction(
                "clear",
                "execute",
                "C[i,j] = 0",
                {"i": (low, lanes), "j": (low, lanes)},
                {"C": place("accumulator", "int32", "i j", "i", "j", i=1)},
            )
        )
    if registers:
        memories += [register("load_stride"), register("store_stride")]
        instructions += [
            IsaInstruction(
                name=f"config_{name}",
                unit="load" if name == "load_stride" else "store",
                axes=(),
                computation=parse_computation(
                    "R[] = v[]", {}, name=name, dtypes={"R": "int32", "v": "int32"}
                ),
                places={"R": place(name, "int32"), "v": place(IMMEDIATE, "int32")},
            )
            for name in ("load_stride", "store_stride")
        ]
    return machine("systolic", memories, instructions)


class Fault(Exception):
    """A program that reads what nothing wrote, or leaves a memory."""


@dataclass
class Interpreter:
    """Executes a program in the order of its text."""

    program: Program
    buffers: dict[str, Any]
    rows: dict[str, Any] = field(default_factory=dict[str, Any])
    valid: dict[str, Any] = field(default_factory=dict[str, Any])
    registers: dict[str, float] = field(default_factory=dict[str, float])
    executions: dict[str, int] = field(default_factory=dict[str, int])
    moved: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def run(self) -> dict[str, Any]:
        for m in self.program.machine.row_memories():
            self.rows[m.name] = np.zeros((m.rows, m.row_bytes), np.uint8)
            self.valid[m.name] = np.zeros((m.rows, m.row_bytes), bool)
        for node in self.program.body:
            self._node(node, {})
        return self.buffers

    def _node(self, node: Loop | Issue, values: dict[str, int]) -> None:
        if isinstance(node, Loop):
            for value in range(node.extent):
                for inner in node.body:
                    self._node(inner, {**values, node.name: value})
        elif all(g.evaluate(values) >= 0 for g in node.guards):
            self._issue(node, values)

    def _issue(self, issue: Issue, values: dict[str, int]) -> None:
        isa = self.program.machine.instructions[issue.instruction]
        sizes = dict(isa.extents)
        for axis in isa.size_arguments:
            size = min(e.evaluate(values) for e in issue.sizes[axis.name])
            if not axis.minimum <= size <= axis.maximum:
                raise Fault(f"{issue.instruction}: {axis.name} = {size}")
            sizes[axis.name] = size
        computation = resized(isa.computation, tuple(sizes.items()))
        self.executions[issue.instruction] = self.executions.get(issue.instruction, 0) + 1
        arrays: dict[str, Any] = {}
        for operand in computation.inputs:
            arrays[operand.name] = self._read(isa, operand, issue.operands[operand.name], values)
        old: dict[str, Any] = {}
        if isa.reads_outputs:
            for operand in computation.outputs:
                old[operand.name] = self._read(isa, operand, issue.operands[operand.name], values)
        results = interpret_all(computation, arrays)
        for operand in computation.outputs:
            result = results[operand.name]
            if operand.name in old:
                reduction = next(
                    s.reduction for s in computation.statements if s.store.operand == operand.name
                )
                combine = {"add": np.add, "max": np.maximum, "min": np.minimum}[reduction or "add"]
                result = combine(old[operand.name], result).astype(result.dtype)
            self._write(isa, operand, issue.operands[operand.name], values, result)

    def _where(self, isa: Any, operand: Any, address: Address, values: Any) -> Any:
        place = isa.places[operand.name]
        grids: list[Any] = list(np.indices(tuple(map(int, operand.shape))))
        index: dict[str, Any] = dict(zip(place.dimensions, grids, strict=True))
        sizes = dict(zip(place.dimensions, operand.shape, strict=True))
        in_main = self.program.machine.memories[place.memory].kind is MemoryKind.MAIN
        keys = place.dimensions if in_main else tuple(map(str, place.rows))
        digits = place.dimensions if in_main else place.rows
        at: Any = np.full(operand.shape, address.base.evaluate(values))
        for number, (key, d) in enumerate(zip(keys, digits, strict=True)):
            source = place.strides.get(key)
            if source is None:
                source = 1 if number == len(keys) - 1 else ("any" if in_main else "dense")
            if source == "any":
                stride = address.strides[key]
            elif source == "dense":
                inner = digits[number + 1 :]
                stride = math.prod(sizes[x] if in_main else x.size(sizes[x.axis]) for x in inner)
            elif isinstance(source, int):
                stride = source
            else:
                if source not in self.registers:
                    raise Fault(f"{isa.name}: register {source} was never set")
                stride = self.registers[source]
            at = at + stride * (index[d] if in_main else value(d, index))
        lane = np.full(operand.shape, address.lane.evaluate(values))
        total = np.zeros(operand.shape, int)
        for d in place.lanes:
            total = total * d.size(sizes[d.axis]) + value(d, index)
        return at, lane + total

    def _read(self, isa: Any, operand: Any, address: Address, values: Any) -> Any:
        place = isa.places[operand.name]
        dtype = numpy_dtype(place.dtype)
        if place.memory == IMMEDIATE:
            number = address.value if address.value is not None else address.base.evaluate(values)
            return np.asarray(number, dtype)
        kind = self.program.machine.memories[place.memory].kind
        if kind is MemoryKind.REGISTER:
            return np.asarray(self.registers[place.memory], dtype)
        at, lane = self._where(isa, operand, address, values)
        self._count(place.memory, "read", at.size * dtype.itemsize)
        if kind is MemoryKind.MAIN:
            buffer = self.buffers[address.tensor]
            if at.size and (at.min() < 0 or at.max() >= len(buffer)):
                raise Fault(f"{isa.name}: reads outside of {address.tensor}")
            return buffer[at]
        if at.min() < 0 or at.max() >= len(self.rows[place.memory]):
            raise Fault(f"{isa.name}: row {at.max()} of {place.memory}")
        valid = self.valid[place.memory].reshape(len(self.rows[place.memory]), -1, dtype.itemsize)
        if not valid[at, lane].all():
            raise Fault(f"{isa.name}: {operand.name} reads what nothing wrote: {address}, {values}")
        return self.rows[place.memory].view(dtype)[at, lane]

    def _write(self, isa: Any, operand: Any, address: Address, values: Any, result: Any) -> None:
        place = isa.places[operand.name]
        dtype = numpy_dtype(place.dtype)
        kind = self.program.machine.memories[place.memory].kind
        if kind is MemoryKind.REGISTER:
            self.registers[place.memory] = result.reshape(-1)[0].item()
            return
        at, lane = self._where(isa, operand, address, values)
        self._count(place.memory, "written", at.size * dtype.itemsize)
        if kind is MemoryKind.MAIN:
            self.buffers[address.tensor][at] = result
            return
        if at.min() < 0 or at.max() >= len(self.rows[place.memory]):
            raise Fault(f"{isa.name}: row {at.max()} of {place.memory}")
        self.rows[place.memory].view(dtype)[at, lane] = result
        valid = self.valid[place.memory].reshape(len(self.rows[place.memory]), -1, dtype.itemsize)
        valid[at, lane] = True

    def _count(self, memory: str, direction: str, size: int) -> None:
        key = memory, direction
        self.moved[key] = self.moved.get(key, 0) + size


def value(d: TileDimension, index: Mapping[str, Any]) -> Any:
    quotient = index[d.axis] // d.divisor
    return quotient if d.modulus is None else quotient % d.modulus


@lru_cache(maxsize=1000)
def resized(computation: Computation, sizes: tuple[tuple[str, int], ...]) -> Computation:
    extents = dict(sizes)
    axes = tuple(replace(a, extent=extents[a.name]) for a in computation.axes)

    def change(operand: Any) -> Any:
        accesses = computation.access_maps[operand.name]
        bounds = [
            1 + max(a.index[d].bounds(extents)[1] for a in accesses)
            for d in range(len(operand.shape))
        ]
        return replace(operand, shape=tuple(bounds))

    return replace(
        computation,
        axes=axes,
        inputs=tuple(map(change, computation.inputs)),
        outputs=tuple(map(change, computation.outputs)),
    )


def execute(program: Program, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Execute a program on arrays, and return its tensors in main memory as arrays."""
    specification = program.specification
    assert specification is not None
    arrays = {**specification.constants, **inputs}
    buffers = {n: t.buffer(arrays.get(n)) for n, t in program.tensors.items()}
    interpreter = Interpreter(program, buffers)
    interpreter.run()
    return {n: t.array(interpreter.buffers[n]) for n, t in program.tensors.items()}


def statement(
    text: str,
    dtypes: Mapping[str, str],
    extents: Mapping[str, int],
    *,
    accumulates: bool = False,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Statement:
    names = set(re.findall(r"([A-Za-z_]\w*)\[", text))
    shapes = shapes or {}
    computation = parse_computation(
        text,
        extents,
        dtypes={n: t for n, t in dtypes.items() if n in names},
        shapes=shapes,
        zero_outside=tuple(shapes),
    )
    return Statement(computation, accumulates)


def plans(specification: Specification, machine: InstructionSet) -> tuple[OperatorPlan, ...]:
    """Return the plans of the first combination of matches that has some."""
    matchings = [match_statement(s, machine).matches for s in specification.statements]
    refusal: PlanningError | None = None
    for matches in itertools.product(*matchings):
        try:
            return operator_plans(OperatorProblem(specification, matches), machine)
        except PlanningError as error:
            refusal = refusal or error
    raise refusal or PlanningError("a statement has no match")


def random_arrays(specification: Specification, seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    operands = specification.operands
    return {
        name: generator.integers(-100, 100, operands[name].shape).astype(
            numpy_dtype(operands[name].dtype)
        )
        for name in specification.inputs
    }


def product(m: int, n: int, k: int, *, bias: bool = True, seed: int = 0) -> Specification:
    """A product of matrices, shifted to bytes."""
    dtypes = {"acc": "int32", "bias": "int32", "A": "int8", "B": "int8", "out": "int8"}
    generator = np.random.default_rng(seed)
    constants: dict[str, Any] = {"B": generator.integers(-100, 100, (k, n)).astype(np.int8)}
    statements = [
        statement(
            "acc[i,j] += A[i,k] * B[k,j]", dtypes, {"i": m, "j": n, "k": k}, accumulates=bias
        ),
        statement("out[i,j] = acc[i,j] >> 3", dtypes, {"i": m, "j": n}),
    ]
    if bias:
        statements.insert(0, statement("acc[i,j] = bias[j]", dtypes, {"i": m, "j": n}))
        constants["bias"] = generator.integers(-1000, 1000, n).astype(np.int32)
    return Specification("product", tuple(statements), ("A",), ("out",), constants)


def convolution(
    p: int, q: int, c: int, k: int, r: int, s: int, stride: int, pad: int, seed: int = 0
) -> Specification:
    """A convolution with padding, channels last, shifted to bytes."""
    dtypes = {"acc": "int32", "bias": "int32", "X": "int8", "W": "int8", "out": "int8"}
    h, w = (p - 1) * stride + r - 2 * pad, (q - 1) * stride + s - 2 * pad
    generator = np.random.default_rng(seed)
    outer = {"p": p, "q": q, "k": k}
    statements = (
        statement("acc[p,q,k] = bias[k]", dtypes, outer),
        statement(
            f"acc[p,q,k] += X[{stride}*p+r-{pad}, {stride}*q+s-{pad}, c] * W[r,s,c,k]",
            dtypes,
            outer | {"r": r, "s": s, "c": c},
            accumulates=True,
            shapes={"X": (h, w, c)},
        ),
        statement("out[p,q,k] = acc[p,q,k] >> 3", dtypes, outer),
    )
    constants = {
        "W": generator.integers(-100, 100, (r, s, c, k)).astype(np.int8),
        "bias": generator.integers(-1000, 1000, k).astype(np.int32),
    }
    return Specification("convolution", statements, ("X",), ("out",), constants)
