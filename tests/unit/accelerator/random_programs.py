"""Random machines, and random programs on them that read mostly what was written."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpembed.accelerator.program import Address, Issue, Loop, MainTensor, Node, Program
from cpembed.hw.isa import (
    IMMEDIATE,
    InstructionSet,
    IsaInstruction,
    IsaMemory,
    MemoryKind,
    StrideSource,
    Synchronization,
)
from cpembed.ir.dtypes import dtype_info, numpy_dtype
from cpembed.ir.index import IndexExpr, IndexTerm
from tests.unit.accelerator.machines import instruction, machine, main, place, register, rows_memory

Array = np.ndarray[Any, Any]

INTEGERS = ("int8", "uint8", "int16", "int4", "uint4")
FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")

# Name, expression, axes and the dimensions of each operand, output first; {N} is a number.
_SHAPES = (
    ("product", "C[x,y] += A[x,z] * B[z,y]", "xyz", {"C": "x y", "A": "x z", "B": "z y"}),
    ("dot", "C[x,y] += A[x,z] * B[y,z]", "xyz", {"C": "x y", "A": "x z", "B": "y z"}),
    ("window", "C[p,k] += A[2*p+r,c] * B[r,c,k]", "pkrc", {"C": "p k", "A": "h c", "B": "r c k"}),
    ("depthwise", "C[p,c] += A[p+r,c] * B[r,c]", "prc", {"C": "p c", "A": "h c", "B": "r c"}),
    ("pool", "C[p,c] max= A[2*p+r,c]", "prc", {"C": "p c", "A": "h c"}),
    ("sum", "C[x] += A[x,y]", "xy", {"C": "x", "A": "x y"}),
    ("add", "C[x,y] = A[x,y] + B[x,y]", "xy", {"C": "x y", "A": "x y", "B": "x y"}),
    ("scale", "C[x,y] = {T}(max(A[x,y], 0) * V[])", "xy", {"C": "x y", "A": "x y", "V": ""}),
    ("shift", "C[x,y] = {T}((A[x,y] * 3 - 5) >> 2)", "xy", {"C": "x y", "A": "x y"}),
    ("wrap", "C[x,y] = cast(abs(A[x,y]) * 7, {T})", "xy", {"C": "x y", "A": "x y"}),
    ("transpose", "C[y,x] = A[x,y]", "xy", {"C": "y x", "A": "x y"}),
    ("reverse", "C[x,y] = A[3-x,y]", "xy", {"C": "x y", "A": "x y"}),
    ("diagonal", "C[x] = A[x,x]", "x", {"C": "x", "A": "x y"}),
    ("broadcast", "C[x,y] = A[y]", "xy", {"C": "x y", "A": "y"}),
    ("divide", "C[x,y] = A[x,y] / (B[x,y] * B[x,y] + 1.0)", "xy",
     {"C": "x y", "A": "x y", "B": "x y"}),
    ("halves", "C[x] += A[x,0] * B[x,1] - A[x,1] * B[x,0]", "x",
     {"C": "x", "A": "x h", "B": "x h"}),
)  # fmt: skip
_ONLY_FLOATS, _ONLY_INTEGERS = ("divide",), ("shift", "wrap")


@dataclass
class Case:
    program: Program
    buffers: dict[str, Array]


def random_machine(draw: random.Random, name: str = "random") -> InstructionSet:
    """Return a machine with a few random instructions."""
    row_bytes = draw.choice([8, 16])
    memories = [
        main(bytes_per_cycle=draw.choice([2.0, 16.0]), latency_cycles=draw.choice([0.0, 13.0])),
        rows_memory("m0", draw.choice([16, 24]), row_bytes, banks=draw.choice([1, 2])),
        rows_memory("m1", 16, draw.choice([16, 32]), banks=2),
        register("stride", "int32"),
    ]
    units = ("u0", "u1")
    instructions = [
        instruction(
            "set_stride", "u0", "D[] = V[]", {},
            {"D": place("stride", "int32"), "V": place(IMMEDIATE, "int32")},
        )
    ]  # fmt: skip
    for memory in memories[1:3]:
        instructions += _transfers(memory)
    for number in range(draw.randint(10, 14)):
        instructions.append(_random_instruction(draw, f"op{number}", memories))
    return machine(
        name,
        memories,
        units,
        instructions,
        synchronization=draw.choice([Synchronization.INTERLOCKED, Synchronization.IN_ORDER]),
    )


def _transfers(memory: IsaMemory) -> list[IsaInstruction]:
    """Return a load and a store of one row as bytes, so that all rows are known and compared."""
    lanes = place(memory.name, "int8", "e", lanes="e", strides={})
    tensor = place("dram", "int8", "e", strides={"e": 1})
    axes = {"e": memory.row_bytes}
    return [
        instruction(f"load_{memory.name}", "u0", "D[e] = S[e]", axes, {"D": lanes, "S": tensor}),
        instruction(f"store_{memory.name}", "u0", "D[e] = S[e]", axes, {"D": tensor, "S": lanes}),
    ]


def _random_instruction(
    draw: random.Random, name: str, memories: list[IsaMemory]
) -> IsaInstruction:
    while True:
        kind, expression, axes, dimensions = draw.choice(_SHAPES)
        is_float = draw.random() < 0.4
        if (kind in _ONLY_FLOATS and not is_float) or (kind in _ONLY_INTEGERS and is_float):
            continue
        try:
            return _instruction(draw, name, kind, expression, axes, dimensions, memories, is_float)
        except _NoPlaceError:
            continue


class _NoPlaceError(Exception):
    pass


def _instruction(
    draw: random.Random,
    name: str,
    kind: str,
    expression: str,
    axes: str,
    dimensions: dict[str, str],
    memories: list[IsaMemory],
    is_float: bool,
) -> IsaInstruction:
    if is_float:
        output = draw.choice(["float32", *FLOATS])
        types = {o: draw.choice(FLOATS) for o in dimensions} | {"C": output}
    else:
        output = draw.choice(["int32", "int16", "int8", "int4"])
        types = {o: draw.choice(INTEGERS) for o in dimensions} | {"C": output}
    if "V" in dimensions:
        types["V"] = "float32"
    described: dict[str, Any] = {}
    for axis in axes:
        most = 4 if kind == "reverse" and axis == "x" else draw.choice([2, 3, 4])
        fixed = draw.random() < 0.5 or (kind == "reverse" and axis == "x")
        described[axis] = most if fixed else (1, most)
    sizes = {axis: size if isinstance(size, int) else size[1] for axis, size in described.items()}
    places: dict[str, Any] = {}
    for operand, names in dimensions.items():
        extents = {d: sizes.get(d, 2 if kind == "halves" else 9) for d in names.split()}
        if kind == "diagonal" and operand == "A":
            extents = {"x": sizes["x"], "y": sizes["x"]}
        places[operand] = _random_place(draw, types[operand], extents, memories, operand, described)
    # Sums that go on from a tensor in main memory mostly find nothing there.
    goes_on = draw.random() < (0.05 if places["C"].memory == "dram" else 0.6)
    saturates = output != "int32" and "+=" in expression and draw.random() < 0.6
    return instruction(
        name,
        draw.choice(["u0", "u1"]),
        expression.replace("{T}", output),
        described,
        places,
        accumulates=goes_on,
        saturates=saturates,
        cycles=(((), 3.0), ((axes[0],), 1.0)),
        latency_cycles=draw.choice([0.0, 5.0]),
        in_place=frozenset({"A"}) if draw.random() < 0.5 else frozenset(),
        banks_differ=(("A", "B"),)
        if "B" in dimensions
        and places["A"].memory == places["B"].memory != "dram"
        and draw.random() < 0.3
        else (),
    )


def _random_place(
    draw: random.Random,
    dtype: str,
    extents: dict[str, int],
    memories: list[IsaMemory],
    operand: str,
    axes: dict[str, Any],
) -> Any:
    names = " ".join(extents)
    if operand == "V":
        return place(IMMEDIATE, dtype)
    where = draw.choice(["m0", "m1", "m0", "m1", "dram"])
    order = list(extents)
    if where == "dram":
        strides: dict[str, Any] = {}
        for number, d in enumerate(order):
            last = number == len(order) - 1
            strides[d] = draw.choice(
                [1, 1, 2] if last else [StrideSource.ANY, StrideSource.DENSE, "stride", 5]
            )
        return place(where, dtype, names, strides=strides)
    memory = next(m for m in memories if m.name == where)
    lanes = memory.lanes(dtype)
    if not order:
        return place(where, dtype, "", any_lane=draw.random() < 0.5)
    inner = order[-1]
    if extents[inner] > lanes:
        raise _NoPlaceError
    if extents[inner] == 4 and isinstance(axes.get(inner), int) and draw.random() < 0.4:
        digits = ([*order[:-1], f"{inner}/2"], [f"{inner}%2"])
    elif len(order) > 1 and extents[order[-2]] * extents[inner] <= lanes and draw.random() < 0.3:
        digits = (order[:-2], order[-2:])
    else:
        digits = (order[:-1], [inner])
    rows = digits[0]
    strides = {
        key: draw.choice([StrideSource.DENSE, StrideSource.DENSE, StrideSource.ANY, 1, 2, "stride"])
        for key in rows
    }
    return place(
        where, dtype, names, rows=" ".join(rows), lanes=" ".join(digits[1]), strides=strides,
        any_lane=draw.random() < 0.4,
    )  # fmt: skip


def bytes_of_any_type(draw: np.random.Generator, count: int) -> Array:
    """Return bytes that are moderate numbers in every type."""
    return draw.choice(np.array([*range(0x3A, 0x43), *range(0xBA, 0xC3)], np.uint8), count).view(
        np.int8
    )


def random_case(seed: int, isa: InstructionSet | None = None) -> Case:
    """Return a random program on a machine, with its inputs."""
    draw = random.Random(seed)
    numbers = np.random.default_rng(seed)
    isa = isa or random_machine(draw)
    tensors: dict[str, MainTensor] = {}
    body: list[Node] = [_set_stride(draw)] if draw.random() < 0.97 else []
    for memory in isa.row_memories():
        size = memory.rows * memory.row_bytes
        boot, dump = f"boot_{memory.name}", f"dump_{memory.name}"
        tensors[boot] = MainTensor.dense(boot, (size,), "int8", "input")
        tensors[dump] = MainTensor.dense(dump, (size,), "int8", "output")
        rows = memory.rows - (1 if draw.random() < 0.1 else 0)
        body.append(
            _all_rows(f"load_{memory.name}", "b" + memory.name, rows, memory, "D", "S", boot)
        )
    body += _random_body(draw, isa, tensors, [], 2)
    for memory in isa.row_memories():
        body.append(
            _all_rows(
                f"store_{memory.name}", "d" + memory.name, memory.rows, memory, "S", "D",
                f"dump_{memory.name}",
            )
        )  # fmt: skip
    program = Program("random", isa, tensors, tuple(body))
    buffers: dict[str, Array] = {}
    for name, tensor in tensors.items():
        if tensor.role == "input":
            info = dtype_info(tensor.dtype)
            raw = bytes_of_any_type(numbers, tensor.elements * info.size_bytes)
            array = raw.view(numpy_dtype(tensor.dtype))
            if info.bits < 8:
                low, high = info.integer_range
                array = numbers.integers(low, high + 1, tensor.elements).astype(info.numpy)
            buffers[name] = array
    return Case(program, buffers)


def _set_stride(draw: random.Random) -> Issue:
    value = IndexExpr((), draw.choice([1, 2, 3]))
    return Issue("set_stride", {"D": Address(), "V": Address(value)})


def _all_rows(
    name: str, loop: str, rows: int, memory: IsaMemory, inside: str, outside: str, tensor: str
) -> Loop:
    row = IndexExpr.iterator(loop)
    operands = {
        inside: Address(row),
        outside: Address(row.times(memory.row_bytes), tensor=tensor),
    }
    return Loop(loop, rows, (Issue(name, operands),))


def _random_body(
    draw: random.Random,
    isa: InstructionSet,
    tensors: dict[str, MainTensor],
    loops: list[Loop],
    depth: int,
) -> list[Node]:
    nodes: list[Node] = []
    for _ in range(draw.randint(1, 4)):
        if depth and draw.random() < 0.4:
            loop = Loop(f"l{len(loops)}", draw.randint(1, 3), ())
            body = _random_body(draw, isa, tensors, [*loops, loop], depth - 1)
            nodes.append(Loop(loop.name, loop.extent, tuple(body)))
        elif draw.random() < 0.1:
            nodes.append(_set_stride(draw))
        else:
            names = [n for n in isa.instructions if n.startswith("op")]
            nodes.append(
                _random_issue(draw, isa, isa.instructions[draw.choice(names)], tensors, loops)
            )
    return nodes


def _random_issue(
    draw: random.Random,
    isa: InstructionSet,
    instruction: IsaInstruction,
    tensors: dict[str, MainTensor],
    loops: list[Loop],
) -> Issue:
    operands: dict[str, Address] = {}
    for operand in instruction.computation.operands:
        place = instruction.places[operand.name]
        strides = {key: draw.choice([1, 2, 3]) for key in place.stride_arguments}
        if place.memory == IMMEDIATE:
            operands[operand.name] = Address(value=draw.choice([0.5, -1.25, 3.0]))
            continue
        memory = isa.memories[place.memory]
        if memory.kind is MemoryKind.MAIN:
            is_output = operand.name in instruction.outputs
            name = f"t{len(tensors)}"
            role = "temporary" if is_output else "input"
            if is_output and not instruction.reads_outputs and draw.random() < 0.05:
                role = "input"
            tensors[name] = MainTensor(
                name, (draw.choice([90, 120]),), place.dtype, (0,), (4,), (4,), role=role
            )
            address = Address(_expression(draw, loops, 5), name, strides=strides)
        else:
            lane = draw.choice([0, 0, 1, 2]) if place.any_lane else int(draw.random() < 0.02)
            reach = _reach(instruction, operand.name, strides) + sum(
                2 * (o.extent - 1) for o in loops
            )
            # Mostly in one half for outputs, in the other for inputs, so that few overlap.
            half = memory.rows // 2 if operand.name in instruction.outputs else 0
            least = half if draw.random() < 0.95 else 0
            room = (
                (memory.rows if least or draw.random() < 0.1 else memory.rows // 2) - reach - least
            )
            address = Address(
                _expression(draw, loops, room - 1) + least,
                lane=IndexExpr((), lane),
                strides=strides,
            )
        operands[operand.name] = address
    sizes: dict[str, tuple[IndexExpr, ...]] = {}
    for axis in instruction.size_arguments:
        most = axis.maximum if draw.random() < 0.97 else axis.maximum + 1
        sizes[axis.name] = (IndexExpr((), draw.randint(1, most)), IndexExpr((), axis.maximum + 1))
    guards = (_expression(draw, loops, 3) + -1,) if draw.random() < 0.2 else ()
    return Issue(instruction.name, operands, sizes, guards)


def _reach(instruction: IsaInstruction, name: str, arguments: dict[str, int]) -> int:
    """Return a bound of the last row of an operand, if its first is 0."""
    place = instruction.places[name]
    shape = dict(zip(place.dimensions, instruction.computation.operand(name).shape, strict=True))
    sizes = [digit.size(shape[digit.axis]) for digit in place.rows]
    reach = 0
    for number, digit in enumerate(place.rows):
        source = place.strides[str(digit)]
        dense = int(np.prod(sizes[number + 1 :]))
        stride = arguments.get(str(digit), source if isinstance(source, int) else 3)
        reach += (dense if source is StrideSource.DENSE else stride) * (sizes[number] - 1)
    return reach


def _expression(draw: random.Random, loops: list[Loop], most: int) -> IndexExpr:
    terms = [IndexTerm(loop.name, draw.choice([0, 1, 2])) for loop in loops]
    return IndexExpr.sum(terms, draw.randint(0, max(0, most)))
