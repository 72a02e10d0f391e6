"""Couplings of register maps: those of all small maps by brute force, and those of mma.sync."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from cpembed.embedding.coupling import Coupling, Mismatch, RegisterMap, couple, holds
from cpembed.targets.cuda.instructions import fragments

Places = tuple[tuple[tuple[int, int], ...], ...]


def digit_permutations(bits: int) -> list[tuple[int, ...]]:
    """Every order of 2^bits numbers that permutes their binary digits."""
    return [
        tuple(
            sum((number >> a & 1) << digits[a] for a in range(bits)) for number in range(1 << bits)
        )
        for digits in itertools.permutations(range(bits))
    ]


def brute_force(result: RegisterMap, factor: RegisterMap) -> bool:
    """Whether any order of the sum lets each lane hold what the factor expects, in registers that
    are the same ones in all lanes."""
    bits = (result.shape[1] - 1).bit_length()
    registers = range(result.registers)
    return any(
        all(
            held[sources[register]] == (row, order[column])
            for held, expected in zip(result.positions, factor.positions, strict=True)
            for register, (row, column) in enumerate(expected)
        )
        for order in digit_permutations(bits)
        for sources in itertools.permutations(registers)
    )


def random_map(random: np.random.Generator, lanes: int, shape: tuple[int, int]) -> RegisterMap:
    """Lanes that hold parts of a matrix by binary digits of its coordinates, in any assignment."""
    rows, columns = (size.bit_length() - 1 for size in shape)
    lane_bits = lanes.bit_length() - 1
    digits = [("row", n) for n in range(rows)] + [("column", n) for n in range(columns)]
    random.shuffle(digits)

    def place(number: int) -> tuple[int, int]:
        row = column = 0
        for bit, (kind, digit) in enumerate(digits):
            value = (number >> bit & 1) << digit
            row, column = (row + value, column) if kind == "row" else (row, column + value)
        return row, column

    registers = 1 << (rows + columns - lane_bits)
    positions = tuple(
        tuple(place(lane | register << lane_bits) for register in range(registers))
        for lane in range(lanes)
    )
    return RegisterMap("random", positions)


@pytest.mark.parametrize("seed", range(40))
def test_couplings_are_found_exactly_where_brute_force_finds_one(seed: int) -> None:
    random = np.random.default_rng(seed)
    result, factor = (random_map(random, 4, (2, 8)) for _ in range(2))
    found = couple(result, factor)
    assert isinstance(found, Coupling) == brute_force(result, factor)
    if isinstance(found, Coupling):
        assert holds(found, result, factor)


def test_both_outcomes_occur_among_the_random_maps() -> None:
    outcomes = set[bool]()
    for seed in range(40):
        random = np.random.default_rng(seed)
        outcomes.add(brute_force(*(random_map(random, 4, (2, 8)) for _ in range(2))))
    assert outcomes == {True, False}


def fragment(name: str, *, transposed: bool = False) -> RegisterMap:
    table = fragments()[name]
    positions = (
        tuple(table.position(lane, element) for element in range(table.elements))
        for lane in range(32)
    )
    if transposed:
        positions = (tuple((c, r) for r, c in lane) for lane in positions)
    return RegisterMap(name, tuple(positions))


def moved(coupling: Coupling, name: str, target: str, *, transposed: bool = False) -> None:
    """Follow numbers from the registers of the sums through those of the factor into a matrix."""
    sums, factor = fragment(name), fragment(target, transposed=transposed)
    rows, columns = (n * size for n, size in zip(coupling.results, sums.shape, strict=True))
    matrix = np.arange(rows * columns).reshape(rows, columns)
    wide, into = sums.tiled(coupling.results), factor.tiled(coupling.factors)
    gathered = np.full_like(matrix, -1)
    for lane in range(32):
        registers = [matrix[place] for place in wide.positions[lane]]
        for register, place in enumerate(into.positions[lane]):
            gathered[place] = registers[coupling.sources[register]]
    np.testing.assert_array_equal(gathered, matrix[:, coupling.order])


@pytest.mark.parametrize("shape", ["m16n8k16", "m16n8k32"])
@pytest.mark.parametrize("target, transposed", [("a", False), ("b", True)])
def test_sums_of_mma_are_factors_of_the_next(shape: str, target: str, *, transposed: bool) -> None:
    """Of 16-bit factors in order; of bytes, pairs of neighbours meet pairs of another tile."""
    found = couple(fragment(f"{shape}.c"), fragment(f"{shape}.{target}", transposed=transposed))
    assert isinstance(found, Coupling)
    assert found.is_ordered == (shape == "m16n8k16")
    moved(found, f"{shape}.c", f"{shape}.{target}", transposed=transposed)


@pytest.mark.parametrize("target, transposed", [("a", False), ("b", True)])
def test_transposed_sums_are_in_other_lanes(target: str, *, transposed: bool) -> None:
    sums = fragment("m16n8k16.c", transposed=True)
    found = couple(sums, fragment(f"m16n8k16.{target}", transposed=transposed))
    assert isinstance(found, Mismatch)
    assert "lane 0 holds rows 0, 1" in found.reason


def test_holds_rejects_what_is_changed() -> None:
    sums, factor = fragment("m16n8k32.c"), fragment("m16n8k32.a")
    found = couple(sums, factor)
    assert isinstance(found, Coupling)
    sources, order = list(found.sources), list(found.order)
    sources[0], sources[4] = sources[4], sources[0]
    assert not holds(replace(found, sources=tuple(sources)), sums, factor)
    order[1], order[2] = order[2], order[1]
    assert not holds(replace(found, order=tuple(order)), sums, factor)
    assert not holds(replace(found, sources=(0,) * len(sources)), sums, factor)


def test_the_order_of_bytes_is_one_of_binary_digits() -> None:
    found = couple(fragment("m16n8k32.c"), fragment("m16n8k32.a"))
    assert isinstance(found, Coupling)
    for number, coordinate in enumerate(found.order):
        digits = sum((number >> bit & 1) << digit for bit, digit in enumerate(found.digits))
        assert digits == coordinate
