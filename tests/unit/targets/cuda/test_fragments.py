"""Lane maps: each element is in one place, as CuTe's tables say, and ``ldmatrix`` fills them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.errors import InvariantError, SpecError
from cpembed.ir.dtypes import DTYPES
from cpembed.targets.cuda.instructions import (
    FRAGMENTS_PATH,
    INSTRUCTIONS,
    Fragment,
    TensorCoreInstruction,
    fragments,
    read_fragments,
)

LANES = 32

PRODUCTS = tuple(i for i in INSTRUCTIONS if i.kind == "mma")


def places(fragment: Fragment) -> Iterator[tuple[int, int]]:
    return ((lane, i) for lane in range(LANES) for i in range(fragment.elements))


@pytest.mark.parametrize("name", fragments())
def test_every_element_of_a_matrix_is_in_one_place(name: str) -> None:
    fragment = fragments()[name]
    rows, columns = fragment.shape
    found = sorted(fragments()[name].position(*place) for place in places(fragment))
    assert found == [(row, column) for row in range(rows) for column in range(columns)]


@pytest.mark.parametrize("instruction", PRODUCTS, ids=lambda i: i.name)
def test_fragments_fit_their_instruction(instruction: TensorCoreInstruction) -> None:
    m, n, k = instruction.m, instruction.n, instruction.k
    types = (instruction.a, instruction.b, instruction.c)
    for name, shape, dtype, registers in zip(
        instruction.fragments, ((m, k), (k, n), (m, n)), types, instruction.registers, strict=True
    ):
        fragment = fragments()[name]
        assert fragment.shape == shape
        assert fragment.elements * DTYPES[dtype].bits == 32 * registers


# Another transcription: the layouts of CuTe (CUTLASS 3, cute/atom/mma_traits_sm80.hpp), shapes and
# strides of (lane, element) into the matrices in column-major order, B as its transpose.
CUTE = {
    "m16n8k16.a": (((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)), 16),
    "m16n8k16.b": (((4, 8), (2, 2)), ((16, 1), (8, 64)), 8),
    "m16n8k16.c": (((4, 8), (2, 2)), ((32, 1), (16, 8)), 16),
    "m16n8k32.a": (((4, 8), (4, 2, 2)), ((64, 1), (16, 8, 256)), 16),
    "m16n8k32.b": (((4, 8), (4, 2)), ((32, 1), (8, 128)), 8),
    "m16n8k32.c": (((4, 8), (2, 2)), ((32, 1), (16, 8)), 16),
}


def offset(number: int, shape: Sequence[int], strides: Sequence[int]) -> int:
    """Of CuTe's coordinate: its first mode is the innermost."""
    total = 0
    for size, stride in zip(shape, strides, strict=True):
        total += number % size * stride
        number //= size
    return total


@pytest.mark.parametrize("name", CUTE)
def test_positions_are_those_of_cute(name: str) -> None:
    shapes, strides, rows = CUTE[name]
    for lane, i in places(fragments()[name]):
        linear = offset(lane, shapes[0], strides[0]) + offset(i, shapes[1], strides[1])
        found = (linear % rows, linear // rows)[:: -1 if name.endswith(".b") else 1]
        assert fragments()[name].position(lane, i) == found


# The ISA's text, case by case.
def isa_a16(lane: int, i: int) -> tuple[int, int]:
    group, thread = lane >> 2, lane % 4
    row = group if 0 <= i < 2 or 4 <= i < 6 else group + 8
    column = thread * 2 + (i & 1) if i < 4 else thread * 2 + (i & 1) + 8
    return row, column


def isa_a8(lane: int, i: int) -> tuple[int, int]:
    group, thread = lane >> 2, lane % 4
    row = group if 0 <= i < 4 or 8 <= i < 12 else group + 8
    column = thread * 4 + (i & 3) if i < 8 else thread * 4 + (i & 3) + 16
    return row, column


@pytest.mark.parametrize("name, formula", [("m16n8k16.a", isa_a16), ("m16n8k32.a", isa_a8)])
def test_digits_say_what_the_cases_of_the_isa_say(
    name: str, formula: Callable[[int, int], tuple[int, int]]
) -> None:
    for place in places(fragments()[name]):
        assert fragments()[name].position(*place) == formula(*place)


def ldmatrix(
    memory: NDArray[np.uint8], addresses: Sequence[int], count: int, *, transposed: bool = False
) -> NDArray[np.uint8]:
    """Four bytes for each lane and register, as the ISA defines the instruction: a thread receives
    two neighbours of a row, or with ``.trans`` of a column."""
    registers = np.zeros((LANES, count, 4), np.uint8)
    for number in range(count):
        rows = [memory[a : a + 16].view(np.uint16) for a in addresses[8 * number : 8 * number + 8]]
        matrix = np.stack(rows)
        matrix = matrix.T if transposed else matrix
        for lane in range(LANES):
            pair = matrix[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2]
            registers[lane, number] = np.ascontiguousarray(pair).view(np.uint8)
    return registers


@pytest.mark.parametrize("name, transposed", [("ldmatrix", False), ("ldmatrix.trans", True)])
def test_ldmatrix_distributes_a_matrix_as_its_entry_says(name: str, *, transposed: bool) -> None:
    matrix = np.arange(64, dtype=np.uint16)
    addresses = [16 * (lane % 8) for lane in range(LANES)]
    loaded = ldmatrix(matrix.view(np.uint8), addresses, 1, transposed=transposed)
    for lane, i in places(fragments()[name]):
        row, column = fragments()[name].position(lane, i)
        assert loaded[lane, 0].view(np.uint16)[i] == matrix[8 * row + column]


@pytest.mark.parametrize("instruction", PRODUCTS, ids=lambda i: i.name)
def test_factors_that_ldmatrix_loads_multiply_to_the_product(
    instruction: TensorCoreInstruction,
) -> None:
    """A row of a matrix is 16 bytes of a row of A, or of a column of B; the lanes then hold what
    the fragments say, and the product of these, element by element, is numpy's."""
    m, n, k = instruction.m, instruction.n, instruction.k
    random = np.random.default_rng(7)
    first, second = (
        random.integers(0 if dtype == "uint8" else -8, 8, shape).astype(DTYPES[dtype].numpy)
        for dtype, shape in ((instruction.a, (m, k)), (instruction.b, (n, k)))
    )
    matrices = instruction.registers[:2]
    held = [
        ldmatrix(first.view(np.uint8).ravel(), addresses(matrices[0], across=m // 8), matrices[0]),
        ldmatrix(second.view(np.uint8).ravel(), addresses(matrices[1], across=1), matrices[1]),
    ]
    a, b = (
        gathered(fragments()[name], registers, DTYPES[dtype].numpy)
        for name, registers, dtype in zip(
            instruction.fragments[:2], held, (instruction.a, instruction.b), strict=True
        )
    )
    product = a.astype(np.float64) @ b.astype(np.float64)
    expected = first.astype(np.float64) @ second.astype(np.float64).T
    assert product.shape == (m, n)
    np.testing.assert_array_equal(product, expected)


def addresses(matrices: int, across: int) -> list[int]:
    """Of rows of 32 bytes: ``across`` matrices one below the other, then 16 bytes further."""
    found: list[int] = []
    for lane in range(LANES):
        number, row = divmod(lane, 8)
        number %= matrices
        found.append((8 * (number % across) + row) * 32 + 16 * (number // across))
    return found


def gathered(
    fragment: Fragment, registers: NDArray[np.uint8], dtype: np.dtype[np.generic]
) -> NDArray[np.generic]:
    matrix = np.zeros(fragment.shape, dtype)
    for lane, i in places(fragment):
        matrix[fragment.position(lane, i)] = registers[lane].ravel().view(dtype)[i]
    return matrix


def test_an_element_that_there_is_not_is_a_bug_of_ours() -> None:
    with pytest.raises(InvariantError, match=r"m16n8k16\.a: no element 8 in lane 0"):
        fragments()["m16n8k16.a"].position(0, 8)
    with pytest.raises(InvariantError, match="no element 0 in lane 32"):
        fragments()["m16n8k16.c"].position(32, 0)


@pytest.mark.parametrize(
    "digit, wrong, problem",
    [
        ('["i/4"', '["i/2"', "holds axis i more than once"),
        ('"threadID_in_group", "i%2"', '"i%2"', "lacks axis threadID_in_group"),
        ('"groupID"', '"group"', "group is not an axis of the operand"),
    ],
)
def test_a_map_that_is_none_is_refused(
    tmp_path: Path, digit: str, wrong: str, problem: str
) -> None:
    path = tmp_path / "fragments.toml"
    comment, tables = FRAGMENTS_PATH.read_text().split("[fragments", 1)
    path.write_text(f"{comment}[fragments{tables.replace(digit, wrong, 1)}")
    with pytest.raises(SpecError, match=problem):
        read_fragments(path)
