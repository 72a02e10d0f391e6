"""Lemmas: both sides of each have the same results on random elements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpembed.accelerator.lemmas import (
    Rewriting,
    block_diagonal,
    by_phases,
    sum_with_delta,
    sum_with_ones,
)
from cpembed.accelerator.specification import Specification, Statement
from cpembed.ir.parser import parse_computation
from cpembed.ir.reference import random_inputs, reference


def same(
    statement: Statement, rewriting: Rewriting | None, constants: dict[str, np.ndarray]
) -> None:
    assert rewriting is not None
    computation = statement.computation
    inputs = {**random_inputs(computation, 3), **constants}
    read = {o.name for s in rewriting.statements for o in s.reads}
    specification = Specification(
        "both",
        rewriting.statements,
        tuple(n for n in inputs if n in read),
        (computation.output.name,),
        rewriting.constants,
    )
    values = specification.evaluate({n: a for n, a in inputs.items() if n in read})
    expected = reference(computation, inputs)
    np.testing.assert_array_equal(values[computation.output.name].reshape(expected.shape), expected)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_a_sum_is_a_product_with_ones(dtype: str) -> None:
    output = "int32" if dtype == "int8" else dtype
    c = parse_computation("O[m] += X[m,k]", {"m": 5, "k": 7}, dtypes={"X": dtype, "O": output})
    same(Statement(c), sum_with_ones(Statement(c), "ones"), {})


@pytest.mark.parametrize("channels, lanes", [(16, 16), (24, 8), (12, 16), (6, 4)])
def test_a_pooled_sum_is_a_product_with_a_unit_matrix(channels: int, lanes: int) -> None:
    c = parse_computation(
        "O[p,c] += X[2*p+r,c]", {"p": 4, "r": 3, "c": channels}, dtypes={"O": "int32"}
    )
    rewriting = sum_with_delta(Statement(c), "unit", "c", lanes)
    same(Statement(c), rewriting, {})


@pytest.mark.parametrize("channels, lanes", [(16, 16), (24, 8), (12, 16), (6, 4)])
def test_a_depthwise_product_is_one_with_diagonal_weights(channels: int, lanes: int) -> None:
    c = parse_computation(
        "O[p,c] += X[p+r-1,c] * W[c,r]",
        {"p": 5, "r": 3, "c": channels},
        dtypes={"O": "int32"},
        shapes={"X": (5, channels)},
        zero_outside=("X",),
    )
    weights = random_inputs(c, 9)["W"]
    rewriting = block_diagonal(Statement(c), {"W": weights}, "diagonal", lanes)
    same(Statement(c), rewriting, {"W": weights})
    # A dense product has no channel axis in all three tensors.
    dense = parse_computation("O[p,n] += X[p,c] * W[c,n]", {"p": 2, "n": 4, "c": 4})
    assert block_diagonal(Statement(dense), {"W": np.zeros((4, 4), np.int8)}, "d", 4) is None


@pytest.mark.parametrize("step, taps, before", [(2, 3, 1), (2, 2, 0), (3, 4, 2), (2, 4, 1)])
def test_a_spread_operand_is_read_by_phases(step: int, taps: int, before: int) -> None:
    size = step * 4 + 1
    c = parse_computation(
        f"O[p,k] += X[p+r-{before},c] * W[r,c,k]",
        {"p": size - taps + 1 + 2 * before, "k": 2, "r": taps, "c": 3},
        dtypes={"O": "int32"},
        shapes={"X": (size, 3)},
        zero_outside=("X",),
    )
    c = c.with_operands(lambda o: replace(o, spread=(step, 1)) if o.name == "X" else o)
    rewriting = by_phases(Statement(c))
    assert rewriting is not None
    inputs = random_inputs(c, 1)
    # The elements between those of the original tensor are zeros.
    inputs["X"][np.arange(size) % step != 0] = 0
    same(Statement(c), rewriting, inputs)
    macs = sum(s.computation.macs for s in rewriting.statements)
    assert macs * step <= c.macs + 3 * taps * 2 * step * step
