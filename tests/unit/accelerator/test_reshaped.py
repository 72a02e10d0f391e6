"""Elements of tensors in several shapes against numpy's indices of a reshaped array."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from cpembed.accelerator.layouts import row_layouts
from cpembed.accelerator.reshaped import coarse_shape, fine_shape, index_in, layout_in
from cpembed.ir.index import IndexExpr

Shape = tuple[int, ...]


def random_shapes(rng: random.Random) -> list[Shape]:
    """Shapes whose dimensions are products of neighbouring factors, some of size 1."""
    factors = [rng.choice([1, 2, 3, 4]) for _ in range(rng.randint(1, 5))]
    shapes: list[Shape] = []
    for _ in range(rng.randint(2, 3)):
        sizes = [1]
        for factor in factors:
            if rng.random() < 0.5:
                sizes[-1] *= factor
            else:
                sizes.append(factor)
        shapes.append(tuple(sizes))
    return shapes


def places(shape: Shape) -> list[Shape]:
    return list(itertools.product(*map(range, shape)))


@pytest.mark.parametrize("seed", range(60))
def test_a_coarse_index_is_that_of_the_reshaped_array(seed: int) -> None:
    shapes = random_shapes(random.Random(seed))
    coarse = coarse_shape(shapes)
    assert math.prod(coarse) == math.prod(shapes[0])
    for shape in filter(lambda s: s != coarse, shapes):
        names = [f"i{d}" for d in range(len(shape))]
        index = index_in([IndexExpr.iterator(name) for name in names], shape, coarse)
        assert all(e.is_affine for e in index)
        for place in places(shape):
            values = dict(zip(names, place, strict=True))
            flat = np.ravel_multi_index(place, shape)
            assert tuple(e.evaluate(values) for e in index) == np.unravel_index(flat, coarse)


@pytest.mark.parametrize("seed", range(60))
def test_an_element_has_one_row_and_lane_in_all_shapes(seed: int) -> None:
    rng = random.Random(seed)
    shapes = random_shapes(rng)
    fine = fine_shape(shapes)
    if fine is None:
        pytest.skip("the shapes have no common parts")
    layout = rng.choice(row_layouts("memory", fine, [(len(fine) - 1, rng.choice([1, 2, 4]))], {}))
    for shape in shapes:
        converted = layout_in(layout, shape, fine)
        if converted is None:
            continue
        assert converted.count == layout.count
        for place in places(fine):
            flat = np.ravel_multi_index(place, fine)
            index = [IndexExpr((), int(i)) for i in np.unravel_index(flat, shape)]
            in_fine = [IndexExpr((), i) for i in place]
            assert converted.row(index, {}).evaluate({}) == layout.row(in_fine, {}).evaluate({})
            assert converted.lane(index, {}).evaluate({}) == layout.lane(in_fine, {}).evaluate({})


def test_blocks_that_divide_their_dimension_have_a_layout_in_every_shape() -> None:
    fine = (4, 32, 8)
    for layout in row_layouts("memory", fine, [(2, 8)], {}):
        converted = layout_in(layout, (128, 8), fine)
        assert converted is not None
    # Rows that go on from dimension to dimension are those of one dimension.
    straight = row_layouts("memory", fine, [(2, 8)], {})[0]
    converted = layout_in(straight, (128, 8), fine)
    assert converted is not None
    assert len(converted.rows) == 1
