"""Offsets of 32 bits: the bound holds for every intermediate result, and plans beyond it are
refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.targets.cuda.lower import TiledProduct, lower
from cpembed.targets.cuda.multistage import offsets
from cpembed.targets.cuda.multistage.offsets import check_offsets, largest_magnitude
from cpembed.targets.cuda.multistage.schedule import KernelSchedule, Plan
from cpembed.targets.cuda.writer import index_script


class Recorded:
    """An integer that remembers the largest magnitude of all results computed from it."""

    largest = 0

    def __init__(self, value: int) -> None:
        self.value = value
        Recorded.largest = max(Recorded.largest, abs(value))

    @staticmethod
    def of(value: Recorded | int) -> int:
        return value.value if isinstance(value, Recorded) else value

    def __add__(self, other: Recorded | int) -> Recorded:
        return Recorded(self.value + Recorded.of(other))

    __radd__ = __add__

    def __mul__(self, other: Recorded | int) -> Recorded:
        return Recorded(self.value * Recorded.of(other))

    def __floordiv__(self, other: int) -> Recorded:
        return Recorded(self.value // other)

    def __mod__(self, other: int) -> Recorded:
        return Recorded(self.value % other)


class Script:
    """The functions of TVMScript that an index has."""

    @staticmethod
    def truncdiv(value: Recorded, divisor: int) -> Recorded:
        assert value.value >= 0
        return value // divisor

    @staticmethod
    def truncmod(value: Recorded, modulus: int) -> Recorded:
        assert value.value >= 0
        return value % modulus


def random_index(rng: random.Random, names: list[str], depth: int = 2) -> IndexExpr:
    terms = list[IndexTerm]()
    for name in rng.sample(names, rng.randint(1, len(names))):
        divisor = rng.choice((1, 1, 2, 3, 8))
        modulus = rng.choice((None, None, 2, 5, 16))
        coefficient = rng.choice((1, 1, 2, 7, 100, -3))
        if depth and rng.random() < 0.4:
            inner = random_index(rng, names, depth - 1)
            modulus = modulus or 16  # A digit of an expression is one of several, as in a split.
            terms.append(
                IndexTerm.digit(inner, coefficient=coefficient, divisor=divisor, modulus=modulus)
            )
        else:
            terms.append(IndexTerm(name, coefficient, divisor, modulus))
    return IndexExpr.sum(terms, rng.choice((0, 0, -1, -9, 4)))


@pytest.mark.parametrize("seed", range(200))
def test_no_intermediate_result_exceeds_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    names = ["a", "b", "c"]
    largest = {name: rng.choice((0, 1, 3, 12, 63)) for name in names}
    extents = {name: value + 1 for name, value in largest.items()}
    index = random_index(rng, names)
    script = index_script(index, {name: name for name in names}, extents)
    points = [[0, n] if n else [0] for n in largest.values()]
    cases = [
        dict(zip(names, (x, y, z), strict=True))
        for x in points[0]
        for y in points[1]
        for z in points[2]
    ]
    cases += [{name: rng.randint(0, n) for name, n in largest.items()} for _ in range(60)]
    for case in cases:
        values: dict[str, Any] = {name: Recorded(case[name]) for name in index.iterators}
        Recorded.largest = max((case[name] for name in index.iterators), default=0)
        eval(script, {"T": Script}, values)  # Written by the line above.
        assert Recorded.largest <= largest_magnitude(index, largest), (script, case)


def product_of(words: str, target: str = "mma_f16") -> TiledProduct:
    spec = hardware_spec(target)
    given = workload(words, target=spec)
    program = solve(given, spec, constraints="fused", top=1).embeddings[0].candidate.program
    return lower(program, spec, None)


@pytest.mark.parametrize(
    "words, block, accepted",
    [
        ("gemm m=46336 n=46336 k=16", 4, True),  # 2,147,024,896 results, in full blocks.
        # 46,224 x 46,448 results fit; those of the padded rows of the last blocks do not.
        ("gemm m=46224 n=46448 k=16", 4, False),
        ("gemm m=46224 n=46448 k=16", 1, True),
        # 2^30 elements of A, or 2^32 with the padded rows of a block.
        ("gemm m=32 n=16 k=33554432", 2, True),
        ("gemm m=32 n=16 k=33554432", 8, False),
    ],
)
def test_plans_at_the_limit(words: str, block: int, *, accepted: bool) -> None:
    plan = Plan(product_of(words), KernelSchedule((1, 1), (block, 2), 2, 3))
    if accepted:
        check_offsets(plan)
        return
    with pytest.raises(LoweringError, match=r"offsets in operand .* padded tiles included"):
        check_offsets(plan)


@pytest.mark.parametrize("splits, accepted", [(31, True), (32, False)])
def test_parts_of_a_split_are_indexed_together(splits: int, *, accepted: bool) -> None:
    product = product_of("gemm m=8192 n=8192 k=4096")  # 2^26 sums.
    plan = Plan(product, KernelSchedule((2, 2), (2, 4), 2, 3, splits=splits))
    if accepted:
        check_offsets(plan)
        return
    with pytest.raises(LoweringError, match="32 parts of 67,108,864 sums"):
        check_offsets(plan)


def test_small_operands_need_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short cut leaves out nothing: with the exact bound, the largest ones below it pass."""
    product = product_of("gemm m=4095 n=4096 k=4096")
    monkeypatch.setattr(offsets, "_SMALL", 0)
    for warps, tile in (((8, 1), (8, 1)), ((1, 8), (1, 8)), ((4, 2), (4, 8))):
        check_offsets(Plan(product, KernelSchedule(warps, tile, 4, 2)))
