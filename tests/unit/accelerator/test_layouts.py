"""Rows, lanes and strides of layouts, compared with their evaluation element by element."""

from __future__ import annotations

import itertools
import random

import numpy as np

from cpembed.accelerator.layouts import digit, fit_strides, main_element, row_layouts
from cpembed.accelerator.program import MainTensor
from cpembed.ir.index import IndexExpr, IndexTerm
from tests.unit.accelerator.toys import place


def test_digits_are_simplified_without_changing_their_value() -> None:
    generator = random.Random(1)
    for _ in range(300):
        extents = {name: generator.randrange(1, 9) for name in "abc"}
        terms = [IndexTerm(n, generator.choice([1, 2, 3, 4, 8, 12, 16])) for n in "abc"]
        index = IndexExpr.sum(terms, generator.randrange(0, 20))
        divisor, modulus = generator.choice([1, 2, 4, 8]), generator.choice([None, 2, 4, 16])
        result = digit(index, divisor, modulus, extents)
        for values in itertools.product(*map(range, extents.values())):
            point = dict(zip(extents, values, strict=True))
            expected = index.evaluate(point) // divisor
            expected = expected if modulus is None else expected % modulus
            assert result.evaluate(point) == expected


def test_elements_of_a_row_layout_have_places_of_their_own() -> None:
    for layout in row_layouts("rows", (3, 5, 10), [(2, 4)], {1: 2}):
        seen = set[tuple[int, int]]()
        for index in itertools.product(range(3), range(5), range(10)):
            at = [IndexExpr((), i) for i in index]
            seen.add((layout.row(at, {}).constant, layout.lane(at, {}).constant))
        assert len(seen) == 150
        assert all(0 <= row < layout.count and 0 <= lane < 4 for row, lane in seen)


def test_elements_of_main_memory_are_where_the_buffer_has_them() -> None:
    tensor = MainTensor("t", (3, 10), "int32", (1, 0, 1), (1, 0), (0, 3), {1: 4})
    array = np.arange(30).reshape(3, 10)
    buffer = tensor.buffer(array)
    for i, j in itertools.product(range(3), range(10)):
        element = main_element(tensor, [IndexExpr((), i), IndexExpr((), j)], {})
        assert buffer[element.constant] == array[i, j]


def test_strides_are_found_or_refused() -> None:
    i, j = (np.asarray(g).reshape(-1) for g in np.meshgrid(range(3), range(4), indexing="ij"))
    index, sizes = {"i": i, "j": j}, {"i": 3, "j": 4}
    free = place("dram", "int8", "i j", i="any", j=1)
    fit = fit_strides(free, index, sizes, 7 * i + j, None)
    assert fit is not None
    assert fit.arguments == {"i": 7}
    assert fit_strides(free, index, sizes, 7 * i + 2 * j, None) is None
    held = place("dram", "int8", "i j", i="stride", j=1)
    fit = fit_strides(held, index, sizes, 9 * i + j, None)
    assert fit is not None
    assert fit.registers == (("stride", 9),)
    dense = place("rows", "int8", "i j", "i j", "", i="dense", j=1)
    lanes = np.zeros_like(i)
    assert fit_strides(dense, index, sizes, 4 * i + j, lanes) is not None
    assert fit_strides(dense, index, sizes, 5 * i + j, lanes) is None
    # A dense stride changes where executions are smaller.
    assert fit_strides(dense, index, sizes, 4 * i + j, lanes, frozenset({"j"})) is None
