"""Products that keep their own rounding before a sum, in loops of all lengths: the compiler's
vectorisers take those of a few steps apart in other ways than long ones."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.graph.kinds import Apply, Elementwise, Input, Number
from tests.unit.network.operators.running import check

pytest.importorskip("tvm")

ROUNDED_TWICE = Apply("sub", (Input(0), Apply("mul", (Input(1), Number(0.1)))))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "shape", [(1,), (2,), (3,), (30, 2), (30, 3), (30, 6), (30, 7), (243, 12), (243, 16), (81, 17)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounded_twice(shape: tuple[int, ...], dtype: str) -> None:
    random = np.random.default_rng(0)
    a, b, c = (random.normal(size=shape).astype(dtype) for _ in range(3))
    check(Elementwise(ROUNDED_TWICE, dtype), [a, b])
    scaled = Apply("add", (Apply("mul", (Input(1), Input(2))), Input(0)))
    limited = Apply("max", (scaled, Number(0.0)))
    check(Elementwise(limited, dtype), [a[..., :1] if a.ndim > 1 else a, b, c])
