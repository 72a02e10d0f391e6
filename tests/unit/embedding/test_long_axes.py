"""Rules about strides, on axes too long to try each stride, against every stride of short ones."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from cpembed.embedding.constraints.digits import _divisors
from cpembed.embedding.constraints.domain import Padding
from cpembed.embedding.cpsat import SearchLimits, enumerate_solutions
from cpembed.embedding.model_builder import ModelBuilder
from cpembed.embedding.model_writer import CompiledModel, Ids
from cpembed.ir.computation import Axis, AxisKind
from tests.cli.calling import Caller


def members(parts: list[range]) -> set[int]:
    return {value for part in parts for value in part}


@pytest.mark.parametrize("seed", range(40))
def test_strides_that_cover_an_axis_are_those_that_cover_it_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    extent, count, largest = rng.randint(1, 400), rng.randint(2, 40), rng.randint(0, 400)
    for rule in (
        Padding(axes=()),
        Padding(axes="all"),
        Padding(axes="all", below=rng.randint(1, 400)),
        Padding(axes="all", growth=rng.choice([1, 1.1, 1.5, 3])),
    ):
        axis = Axis("i", extent, AxisKind.SPATIAL)
        every = {s for s in range(1, largest + 1) if rule._covers("i", extent, count, s)}
        assert members(rule._strides(axis, count, largest)) == every, rule


def test_divisors_are_all_of_them() -> None:
    for number in range(1, 400):
        assert _divisors(number) == {d for d in range(1, number + 1) if number % d == 0}


@pytest.mark.parametrize("seed", range(10))
def test_restrictions_by_values_and_ranges_intersect(seed: int) -> None:
    rng = random.Random(seed)
    builder = ModelBuilder()
    (first, second) = builder.variables((2,), rng.randint(-3, 0), rng.randint(5, 12)).tolist()
    low, high = builder.range_of(first)
    expected = set(range(low, high + 1))
    for variable in (first, second, first):
        values = [rng.randint(low - 2, high + 2) for _ in range(3)]
        part = range(rng.randint(low - 2, high), rng.randint(low, high + 2))
        builder.restrict(variable, [*values, part])
        expected &= {*values, *part}
    builder.equate(np.array([first]), np.array([second]))
    # A variable appears in the model where a constraint uses it.
    builder.linear([(1, np.array([first]))], low, high)
    assert _values(builder.build(), first) == expected


def _values(model: CompiledModel, variable: int) -> set[int]:
    """Values that an enumeration gives a variable."""
    values: set[int] = set()

    def receive(solution: Ids) -> bool:
        values.add(int(solution[variable]))
        return True

    enumerate_solutions(model, receive, SearchLimits())
    return values


@pytest.mark.parametrize(
    "words, target, constraints",
    [
        ("gemm m=12 n=100 k=2147483647", "avx512_vnni_uint8", "in_place"),
        ("ttm i=2 j=1099511627776 k=3 l=16", "avx2_bf16_fma", "flattened"),
    ],
)
def test_a_search_with_a_long_axis_keeps_its_time(
    words: str, target: str, constraints: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["solve", *words.split(), "--timeout", "1"]
    started = time.monotonic()
    called = Caller(capsys)(*command, "--target", target, "--constraints", constraints)
    assert time.monotonic() - started < 20
    assert called.code in (0, 3, 4), called
