"""Random instructions with memories of their own, and the statements that they compute."""

from __future__ import annotations

import math
import random

from cpembed.hw.instruction import (
    HardwareSpec,
    Instruction,
    InstructionAxis,
    OperandMemory,
    StrideRule,
    TileDimension,
)
from cpembed.ir.parser import parse_computation

STATEMENTS: dict[str, tuple[str, ...]] = {
    # Form of the statement (tests.random_workloads) -> expressions; "product" is a sum of products.
    "product": (
        "C[x,y] += A[x,z] * B[z,y]",
        "C[x,y] += A[x,z] * B[y,z]",
        "C[y,x] += A[z,x] * B[z,y]",
        "C[y] += A[z] * B[y,z]",
        "C[x] += A[x,z] * B[z]",
        "C[x] += A[x,z] * B[x,z]",
        "C[x,y] += A[x] * B[y]",
        "C[x] += A[] * B[x]",
        "C[] += A[z] * B[z]",
        "C[x,y,w] += A[x,z,w] * B[w,z,y]",
        "C[x] += A[x,z,w] * B[w,z]",
    ),
    "sad": ("C[x] += abs(A[x,z] - B[x,z])", "C[] += abs(A[z] - B[z])"),
    "plain_sum": ("C[x] += A[x,z]", "C[] += A[z]"),
    "largest": ("C[x] max= A[x,z]", "C[x] max= A[z,x]"),
    "pre_added": ("C[x] += (A[z] + D[x,z]) * B[z]",),
    "complex": (
        "C[x,0] += A[x,z,0]*B[z,0] - A[x,z,1]*B[z,1]; C[x,1] += A[x,z,0]*B[z,1] + A[x,z,1]*B[z,0]",
        "C[y,0] += A[0]*B[y,0] - A[1]*B[y,1]; C[y,1] += A[0]*B[y,1] + A[1]*B[y,0]",
    ),
}
DTYPES = (("int8", "uint8"), ("int8",), ("uint8", "int8"), ("int16", "int8"))


def random_target(rng: random.Random, form: str, largest: int = 256) -> HardwareSpec:
    """A target whose instruction computes a form at random extents, of at most ``largest`` points.

    Tiles are in any order of their axes, some interleaved, some of rows at any distance; axes are
    fixed or configurable.
    """
    text = rng.choice(STATEMENTS[form])
    names = [name for name in "wxyz" if f"{name}" in text.replace("max=", "")]
    extents = {name: rng.choice([1, 2, 2, 3, 4, 4, 8, 16]) for name in names}
    while math.prod(extents.values()) > largest:
        extents[rng.choice(names)] = rng.choice([2, 4])
    computation = parse_computation(text, extents, name="random")
    axes = tuple(_axis(rng, name, extent) for name, extent in extents.items())
    dtypes: dict[str, tuple[str, ...]] = {}
    memory: dict[str, OperandMemory] = {}
    for operand in computation.operands:
        is_output = operand in computation.outputs
        dtypes[operand.name] = (operand.dtype,) if is_output else rng.choice(DTYPES)
        found = computation.access_maps[operand.name]
        own = sorted({n for access in found for i in access.index for n in i.iterators})
        memory[operand.name] = _memory(rng, [axis for axis in axes if axis.name in own])
    if form == "largest":  # a maximum is stored in the type of what it is taken from
        dtypes["C"] = dtypes["A"]
    computation = computation.with_dtypes({name: types[0] for name, types in dtypes.items()})
    instruction = Instruction("random", axes, computation, dtypes, memory)
    return HardwareSpec("random", "", "", instruction)


def _axis(rng: random.Random, name: str, extent: int) -> InstructionAxis:
    if rng.random() < 0.8 or extent == 1:
        return InstructionAxis(name, extent, extent)
    step = rng.choice([s for s in (1, 2, 4) if extent % s == 0])
    return InstructionAxis(name, step, extent, step)


def _memory(rng: random.Random, axes: list[InstructionAxis]) -> OperandMemory:
    """A tile over these axes in any order."""
    tile = [TileDimension(axis.name) for axis in axes]
    rng.shuffle(tile)
    even = {a.name for a in axes if all(extent % 2 == 0 for extent in a.allowed)}
    strides: dict[str, StrideRule] = {}
    if len(tile) > 1 and tile[0].axis in even and rng.random() < 0.2:
        # As AMX has it: two neighbours of the first axis inside the others.
        axis = tile[0].axis
        tile = [TileDimension(axis, 2), *tile[1:], TileDimension(axis, 1, 2)]
    elif tile and rng.random() < 0.5:
        strides = {tile[0].axis: StrideRule.ANY}
    alignment = rng.choice([1, 1, 1, 16])
    return OperandMemory("local", tuple(tile), strides, alignment)
