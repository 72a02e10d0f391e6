"""Approximations that are used by themselves, beside numpy's functions in float64."""

from __future__ import annotations

import numpy as np

from cpembed.codegen.approximations import exp2_below
from cpembed.codegen.runtime import compile_plan, empty, from_array
from cpembed.graph.kinds import TensorType
from cpembed.network.operators import PlacedTensor
from cpembed.network.operators.emission import LANE, Kernel, Operands


def test_powers_of_two_of_numbers_below_zero() -> None:
    """Within a unit in the last place down to the normal numbers, then towards 0; NaN stays."""
    special = [0.0, -0.0, -1.0, -126.0, -127.0, -150.0, -1e30, -np.inf, np.nan]
    odd_nan = np.array([0x7FC00001], np.uint32).view(np.float32)
    values = np.concatenate([np.linspace(-126, 0, 1 << 14), special]).astype(np.float32)
    values = np.concatenate([values, odd_nan, np.zeros(-(len(values) + 1) % 8, np.float32)])
    placed = PlacedTensor.plain(TensorType.of_array(values))
    kernel = Kernel(Operands([placed], [placed], 1), 1)
    with (
        kernel.body(),
        kernel.script.nested(f"for step in T.serial({len(values) // 8}):"),
        kernel.vectorized(8),
    ):
        x = kernel.bind(f"in0[step * 8 + {LANE}]")
        kernel.script.line(f"out0[step * 8 + {LANE}] = {exp2_below(kernel.bind, x)}")
    output = empty(len(values), "float32")
    compile_plan(kernel.plan("power"))(from_array(values), output)
    result = output.numpy()
    exact = np.exp2(values.astype(np.float64))
    normal = values >= -126
    ulps = np.abs(result[normal] - exact[normal]) / np.spacing(exact[normal].astype(np.float32))
    assert ulps.max() <= 1
    np.testing.assert_array_equal(result[values < -126], 0.0)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(values))
    assert set(result[values == 0]) == {1.0}
