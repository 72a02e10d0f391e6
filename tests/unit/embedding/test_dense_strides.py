"""Sets that read windows in place, with strides that a user allows: both models agree.

The set of this test does not ship. The model of scalars once took strides above 1 for excluded
under every `dense`, and called what it found complete.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.driver.named import workload
from cpembed.driver.solve import solve

ADDER = """
name = "adder"
description = "sums of rows"
source = "this test"
[instruction]
expression = "C[x] += A[x,z]"
[instruction.axes]
x = 4
z = 2
[operands.A]
dtype = "int8"
scope = "a"
tile = ["x", "z"]
stride = { x = "any", z = "any" }
[operands.C]
dtype = "int32"
scope = "c"
tile = ["x"]
[memories.a]
[memories.c]
"""

SET = """
description = "in place, parts of axes"
extends = "in_place_padded"
[strides]
allowed = ["one", "spread", "step"]
"""


@pytest.mark.parametrize(
    "words, strided",
    [
        ("C[m,p]+=A[m+n,p+r] m=8 n=6 p=3 r=4", True),
        ("C[m,p]+=A[m+n,p+r] m=4 n=4 p=4 r=4", True),
        ("C[m,p]+=A[2*m+n,p+r] m=4 n=4 p=4 r=2", True),
        ("C[m]+=A[m,n] m=8 n=4", False),
    ],
)
def test_both_models_find_the_same(tmp_path: Path, words: str, *, strided: bool) -> None:
    target, constraints = tmp_path / "adder.toml", tmp_path / "parts.toml"
    target.write_text(ADDER)
    constraints.write_text(SET)
    layer = workload(f"{words} dtype=int8,int32", str(target))
    found = {}
    for search in ("digits", "scalar"):
        result = solve(layer, str(target), constraints=str(constraints), search=search, top=None)
        assert result.complete
        found[search] = {item.identifier: item.embedding for item in result.embeddings}
    assert set(found["digits"]) == set(found["scalar"])
    steps = {
        digit.stride
        for embedding in found["scalar"].values()
        for digits in embedding.digits.values()
        for digit in digits
    }
    assert (max(steps) > 1) is strided
