"""A specification's computation on packed operands beside a model of the instruction."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np

from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import dtype_info, size_bytes
from tests.unit.hw.shipped.facts import Array, Model


def evaluate(computation: Computation, values: Mapping[str, Array]) -> Array:
    """The sum-of-products computation on exact (64-bit) values."""
    points = np.indices(tuple(computation.extents.values())).reshape(len(computation.axes), -1)
    iterators = dict(zip(computation.extents, points, strict=True))

    def at(operand: str) -> tuple[Array, ...]:
        return tuple(i.evaluate(iterators) for i in computation.access(operand).index)

    output = values[computation.output.name].copy()
    product = math.prod(values[o.name][at(o.name)] for o in computation.inputs)
    # A scalar output has no index: its element is number 0 for every point.
    element = np.zeros_like(product)
    for position, size in zip(at(computation.output.name), output.shape, strict=True):
        element = element * size + position
    np.add.at(output.reshape(-1), element, product)
    return output


def tile_positions(
    instruction: Instruction, operand: str, extents: Mapping[str, int]
) -> list[tuple[int, tuple[int, ...]]]:
    """(position in the dense tile, element of the operand) of all elements."""
    memory = instruction.memory[operand]
    shape = instruction.tile_shape(operand, extents)
    found = []
    for point in itertools.product(*(range(extents[axis]) for axis in memory.axes)):
        values = dict(zip(memory.axes, point, strict=True))
        position = 0
        for dimension, size in zip(memory.tile, shape, strict=True):
            digit = values[dimension.axis] // dimension.divisor
            position = position * size + digit % (dimension.modulus or size)
        index = instruction.computation.access(operand).index
        found.append((position, tuple(i.evaluate(values) for i in index)))
    return found


def random_values(operand_dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if size_bytes(operand_dtype) == 1 and dtype_info(operand_dtype).is_integer:
        low, high = dtype_info(operand_dtype).integer_range
        return rng.integers(low, high, shape, endpoint=True)
    return rng.integers(-1000, 1000, shape)


def check_against_model(
    instruction: Instruction, model: Model, extents: Mapping[str, int], dtypes: Mapping[str, str]
) -> None:
    computation = instruction.with_extents(extents).with_dtypes(dict(dtypes))
    sizes = computation.extents
    rng = np.random.default_rng(7)
    values = {o.name: random_values(o.dtype, o.shape, rng) for o in computation.operands}
    tiles = {}
    for operand in computation.operands:
        positions = tile_positions(instruction, operand.name, sizes)
        tile = np.zeros(operand.elements, dtype=np.int64)
        assert sorted(position for position, _ in positions) == list(range(operand.elements))
        for position, element in positions:
            tile[position] = values[operand.name][element]
        tiles[operand.name] = tile
    model(tiles["A"], tiles["B"], tiles["C"])
    expected = evaluate(computation, values)
    for position, element in tile_positions(instruction, "C", sizes):
        assert tiles["C"][position] == expected[element]


def tile_bytes(instruction: Instruction, operand: str) -> int:
    """Of its first element type."""
    dtype = instruction.dtypes[operand][0]
    return math.prod(instruction.tile_shape(operand)) * size_bytes(dtype)


def tiles_held(instruction: Instruction) -> dict[str, int]:
    """How many tiles of an operand its memory has room for."""
    found: dict[str, int] = {}
    for operand, memory in instruction.memory.items():
        assert memory.capacity_bytes is not None
        found[operand], rest = divmod(memory.capacity_bytes, tile_bytes(instruction, operand))
        assert rest == 0
    return found
