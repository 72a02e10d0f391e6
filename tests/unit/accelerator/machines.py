"""Instruction sets of tests, written without a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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
from cpembed.ir.parser import parse_computation


def digit(text: str) -> TileDimension:
    """Read ``x``, ``x/4``, ``x%4`` or ``x/4%16``."""
    name, _, rest = text.partition("/")
    modulus = None
    if rest:
        divisor, _, mod = rest.partition("%")
        return TileDimension(name, int(divisor), int(mod) if mod else None)
    name, _, mod = text.partition("%")
    modulus = int(mod) if mod else None
    return TileDimension(name, 1, modulus)


def place(memory: str, dtype: str, dimensions: str = "", **attributes: Any) -> OperandPlace:
    """Return a place; ``rows`` and ``lanes`` are texts of digits, ``strides`` a mapping."""
    for key in ("rows", "lanes"):
        if key in attributes:
            attributes[key] = tuple(map(digit, attributes[key].split()))
    return OperandPlace(
        memory=memory, dtype=dtype, dimensions=tuple(dimensions.split()), **attributes
    )


def instruction(
    name: str,
    unit: str,
    expression: str,
    axes: Mapping[str, int | tuple[int, ...]],
    places: Mapping[str, OperandPlace],
    **attributes: Any,
) -> IsaInstruction:
    """Return an instruction; an axis is a size, or (minimum, maximum[, step])."""
    described = tuple(
        InstructionAxis(axis, *((size, size) if isinstance(size, int) else size))
        for axis, size in axes.items()
    )
    computation = parse_computation(
        expression,
        {axis.name: axis.maximum for axis in described},
        name=name,
        dtypes={operand: p.dtype for operand, p in places.items()},
        takes_constants=True,
    )
    return IsaInstruction(
        name=name, unit=unit, axes=described, computation=computation, places=places, **attributes
    )


ANY = StrideSource.ANY


def rows_memory(name: str, rows: int, row_bytes: int, **attributes: Any) -> IsaMemory:
    return IsaMemory(name=name, kind=MemoryKind.ROWS, rows=rows, row_bytes=row_bytes, **attributes)


def machine(
    name: str,
    memories: list[IsaMemory],
    units: tuple[str, ...],
    instructions: list[IsaInstruction],
    **attributes: Any,
) -> InstructionSet:
    attributes.setdefault("synchronization", Synchronization.INTERLOCKED)
    return InstructionSet(
        name=name,
        description="a machine of tests",
        source="tests",
        evidence=next(iter(Evidence)),
        clock_mhz=1000,
        memories={memory.name: memory for memory in memories},
        units=units,
        instructions={i.name: i for i in instructions},
        **attributes,
    )


def main(**attributes: Any) -> IsaMemory:
    return IsaMemory(name="dram", kind=MemoryKind.MAIN, **attributes)


def register(name: str, dtype: str) -> IsaMemory:
    return IsaMemory(name=name, kind=MemoryKind.REGISTER, dtype=dtype, row_bytes=8)


def channel(name: str, sender: str, receiver: str, depth: int = 1 << 30) -> Channel:
    return Channel(name=name, sender=sender, receiver=receiver, depth=depth)


def systolic(
    synchronization: Synchronization = Synchronization.INTERLOCKED,
    *,
    bytes_per_cycle: float = 16.0,
    latency: float = 40.0,
    channels: tuple[Channel, ...] = (),
    distinct_banks: bool = True,
) -> InstructionSet:
    """Return a machine like Gemmini: 16x16 products, a scratchpad and an accumulator."""
    sizes = {"x": (1, 16), "y": (1, 16), "z": (1, 16)}
    tile = {"r": (1, 16), "e": (1, 16)}
    instructions = [
        instruction(
            "set_stride", "load", "D[] = V[]", {},
            {"D": place("stride", "int32"), "V": place(IMMEDIATE, "int32")},
        ),
        instruction(
            "set_scale", "store", "D[] = V[]", {},
            {"D": place("scale", "float32"), "V": place(IMMEDIATE, "float32")},
        ),
        instruction(
            "mvin", "load", "D[r,e] = S[r,e]", tile,
            {
                "D": place("scratchpad", "int8", "r e", rows="r", lanes="e"),
                "S": place("dram", "int8", "r e", strides={"r": "stride", "e": 1}),
            },
            cycles=(((), 4.0), (("r",), 1.0)), energy_pj=2.0,
        ),
        instruction(
            "mvin_bias", "load", "D[r,e] = S[e]", tile,
            {
                "D": place("accumulator", "int32", "r e", rows="r", lanes="e"),
                "S": place("dram", "int32", "e", strides={"e": 1}),
            },
        ),
        instruction(
            "zero", "execute", "D[r,e] = S[] * 0", {"r": (1, 16), "e": 16},
            {
                "D": place("accumulator", "int32", "r e", rows="r", lanes="e"),
                "S": place(IMMEDIATE, "int8"),
            },
        ),
        instruction(
            "matmul", "execute", "C[x,y] += A[x,z] * B[z,y]", sizes,
            {
                "A": place("scratchpad", "int8", "x z", rows="x", lanes="z"),
                "B": place("scratchpad", "int8", "z y", rows="z", lanes="y"),
                "C": place("accumulator", "int32", "x y", rows="x", lanes="y"),
            },
            cycles=(((), 16.0),), latency_cycles=3.0, energy_pj=100.0,
            banks_differ=(("A", "B"),) if distinct_banks else (),
        ),
        instruction(
            "mvout", "store", "D[r,e] = int8(S[r,e] * s[])", tile,
            {
                "D": place("dram", "int8", "r e", strides={"r": ANY, "e": 1}),
                "S": place("accumulator", "int32", "r e", rows="r", lanes="e"),
                "s": place("scale", "float32"),
            },
            cycles=(((), 4.0), (("r",), 1.0)),
        ),
        instruction(
            "mvout_full", "store", "D[r,e] = S[r,e]", tile,
            {
                "D": place("dram", "int32", "r e", strides={"r": ANY, "e": 1}),
                "S": place("accumulator", "int32", "r e", rows="r", lanes="e"),
            },
        ),
    ]  # fmt: skip
    return machine(
        "systolic",
        [
            main(bytes_per_cycle=bytes_per_cycle, latency_cycles=latency, energy_pj_per_byte=10.0),
            rows_memory("scratchpad", 256, 16, banks=4, energy_pj_per_byte=1.0),
            rows_memory("accumulator", 64, 64, banks=2, energy_pj_per_byte=2.0),
            register("stride", "int32"),
            register("scale", "float32"),
        ],
        ("load", "execute", "store"),
        instructions,
        synchronization=synchronization,
        channels=channels,
    )


def elements(shape: tuple[int, ...]) -> int:
    return math.prod(shape)
