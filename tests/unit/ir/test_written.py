from __future__ import annotations

import itertools
import random

import pytest

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.ir.polyhedral import require_written


def _is_written(computation: Computation) -> bool:
    try:
        require_written(computation)
    except WorkloadError:
        return False
    return True


def _written_by_counting(computation: Computation) -> bool:
    """Every point of the axes writes what its stores name."""
    found: set[tuple[str, tuple[int, ...]]] = set()
    for point in itertools.product(*(range(axis.extent) for axis in computation.axes)):
        at = dict(zip(computation.extents, point, strict=True))
        for store in computation.stores:
            found.add((store.operand, tuple(index.evaluate(at) for index in store.index)))
    return len(found) == sum(output.elements for output in computation.outputs)


@pytest.mark.parametrize(
    "text, extents",
    [
        ("O[2*i] += A[i]", {"i": 4}),
        ("O[i+1] += A[i]", {"i": 4}),
        ("O[i,i] += A[i]", {"i": 4}),
        ("O[i,0] += A[i]; O[i,2] += A[i]", {"i": 4}),
        ("O[4*i+j] += A[i,j]", {"i": 3, "j": 3}),
    ],
)
def test_an_output_with_gaps_is_the_workloads_fault(text: str, extents: dict[str, int]) -> None:
    with pytest.raises(WorkloadError, match="unwritten: index an output without gaps"):
        require_written(parse_computation(text, extents))


def test_what_is_written_is_what_counting_finds() -> None:
    rng = random.Random(5)
    seen: set[bool] = set()
    for _ in range(150):
        axes = {name: rng.randint(1, 4) for name in "ijk"}
        first, second = (
            "+".join(f"{rng.randint(1, 4)}*{axis}" for axis in rng.sample("ijk", rng.randint(1, 2)))
            for _ in range(2)
        )
        store = rng.choice((f"O[{first}]", f"O[{first},{second}]"))
        computation = parse_computation(f"{store} += A[i,j,k]", axes)
        assert _is_written(computation) == _written_by_counting(computation), computation
        seen.add(_is_written(computation))
    assert seen == {True, False}


def test_results_that_interleave_are_whole() -> None:
    require_written(parse_computation("R[2*m] += A[m,k]; R[2*m+1] += B[m,k]", {"m": 4, "k": 4}))
