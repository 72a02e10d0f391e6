"""What is said beside a result: another order of the factors, padding that has no effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpembed.driver.advice import better_order, idle_padding
from cpembed.driver.named import workload
from cpembed.driver.result import SolveResult
from cpembed.driver.solve import solve
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.constraints.domain import Padding

TARGET = "vta_1x16x16"
WEIGHTS_FIRST = "O[n,k,p,q] += W[k,c,r,s] * I[n,c,p+r,q+s]"
SIZES = "n=1 k=64 c=64 p=14 q=14 r=3 s=3"


def solved(words: str, constraints: str = "in_place_padded") -> SolveResult:
    return solve(workload(words, TARGET), TARGET, constraints=constraints, top=1)


def test_a_better_order_of_the_factors_is_known() -> None:
    """One image in 16 columns uses a sixteenth; the 64 filters fill them."""
    assert better_order(solved(f"{WEIGHTS_FIRST} {SIZES}")) == (
        "the factors in the order I, W use 100.0% of vta_1x16x16 instead of 6.2%: "
        "exchange them or use --constraints complete"
    )


def test_types_that_keep_the_factors_in_their_roles_are_named() -> None:
    """One column fills one of 16 lanes, the 64 rows all of them, but these are unsigned."""
    words, target = "gemm m=64 n=1 k=64", "avx512_vnni"
    result = solve(workload(words, target), target, top=1)
    assert better_order(result) == (
        "with the roles of the factors A, B exchanged, 100.0% of avx512_vnni instead of 6.2% is "
        "used: dtype=int8,uint8,int32"
    )
    typed = solve(workload(f"{words} dtype=int8,uint8,int32", target), target, top=1)
    assert (typed.utilisation, typed.commuted) == (1.0, True)


@pytest.mark.parametrize(
    "words, constraints",
    [
        # I first: the filters fill the columns already
        (f"O[n,k,p,q] += I[n,c,p+r,q+s] * W[k,c,r,s] {SIZES}", "in_place_padded"),
        # 3 channels for 16 in either order
        (f"{WEIGHTS_FIRST} {SIZES}".replace("k=64 c=64", "k=1 c=3"), "in_place_padded"),
        # the set exchanges the factors itself
        (f"{WEIGHTS_FIRST} {SIZES}", "complete"),
    ],
)
def test_no_order_is_better(words: str, constraints: str) -> None:
    assert better_order(solved(words, constraints)) is None


def test_a_long_search_is_not_repeated() -> None:
    result = solved(f"{WEIGHTS_FIRST} {SIZES}")
    assert better_order(replace(result, total_seconds=60.0)) is None
    assert better_order(replace(result, complete=False)) is None


@pytest.mark.parametrize(
    "axes, named", [((), None), ("all", None), (("m", "k"), None), (("zz", "m"), "zz,")]
)
def test_padding_of_an_axis_that_is_not_there_is_noticed(
    axes: tuple[str, ...], named: str | None
) -> None:
    strict = load_constraint_set("strict").replacing(Padding(axes))
    note = idle_padding(solve(workload("gemm m=1 n=16 k=16", TARGET), TARGET, constraints=strict))
    assert note == (
        named
        and f"strict: padding.axes names {named} which gemm does not have (axes m n k): "
        "no effect here"
    )
