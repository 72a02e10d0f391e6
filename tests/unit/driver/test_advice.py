"""What is said beside a result: another order of the factors, padding that has no effect."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from cpembed.driver.advice import better_order, empty_places, idle_padding, overflow
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


@pytest.mark.parametrize(
    "words, note",
    [
        (
            "gemm m=64 n=64 k=140000",
            (
                "C can overflow: 140,000 values of -16,256 to 16,384 make -2,275,840,000 to "
                "2,293,760,000, and int32 wraps around beyond 2,147,483,647: keep the inputs' "
                "values small, or give C int64 where the target has it"
            ),
        ),
        ("gemm m=64 n=64 k=131071", None),
    ],
)
def test_sums_that_can_overflow_are_named(words: str, note: str | None) -> None:
    assert overflow(workload(words, "gemmini_16x16")) == note


@pytest.mark.parametrize(
    "words, target, note",
    [
        (
            "gemm m=1 n=64 k=64",
            "gemmini_16x16",
            (
                "6.2% of gemmini_16x16 is used: m of 1 takes 16 places of x; extents in multiples "
                "of the places fill them"
            ),
        ),
        ("gemm m=64 n=64 k=64", "gemmini_16x16", None),
        ("gemm m=15 n=15 k=15", "gemmini_16x16", None),
        (
            "gemm m=17 n=64 k=4",
            "gemmini_16x16",
            (
                "13.3% of gemmini_16x16 is used: k of 4 takes 16 places of z, m of 17 takes 2 x 16 "
                "places of x; extents in multiples of the places fill them"
            ),
        ),
    ],
)
def test_places_that_stay_empty_have_a_reason(words: str, target: str, note: str | None) -> None:
    result = solve(workload(words, target), target, top=1)
    (best,) = result.embeddings
    assert empty_places(result, best) == note
    if note is not None:
        # The places that are named are all that is lost.
        shares = [1 / 16] if "m=1 " in words else [4 / 16, 17 / 32]
        assert best.overheads.utilisation == pytest.approx(math.prod(shares))


def test_a_wasteful_candidate_is_shown_beside_a_better_one() -> None:
    words, target = "conv2d n=1 c=8 h=8 w=8 k=16 r=3 s=3", "gemmini_16x16"
    result = solve(workload(words, target), target, top=None)
    worst = min(result.embeddings, key=lambda each: each.overheads.utilisation)
    best = max(result.embeddings, key=lambda each: each.overheads.utilisation)
    assert worst.overheads.utilisation < best.overheads.utilisation
    note = empty_places(result, worst)
    assert note is not None
    assert f"rank {best.rank} uses {best.overheads.utilisation:.1%}" in note
    assert "--constraints fused might use up to" in (empty_places(result, best) or "")
