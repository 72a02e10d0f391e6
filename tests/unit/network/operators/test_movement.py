"""Moves of elements in all layouts, and conversions between them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cpembed.errors import LoweringError
from cpembed.graph.kinds import (
    Concat,
    Expand,
    Gather,
    Kind,
    Pad,
    Reshape,
    Resize,
    Slice,
    TensorType,
    Transpose,
)
from cpembed.network.layout import Layout
from cpembed.network.operators import conversion_plan
from tests.unit.network.operators.running import (
    check,
    compare,
    image_layouts,
    placed,
    random_array,
)

pytest.importorskip("tvm")

SHAPE = (2, 16, 6, 9)
PAIRS = [
    pair
    for shape in ((1, 32, 20, 17), SHAPE, (3, 3, 8, 8))
    for pair in itertools.permutations(image_layouts(shape), 2)
]


@pytest.mark.quick(2)
@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_a_conversion_moves_every_element_and_nothing_else(number: int) -> None:
    source, target = PAIRS[number]
    dtype = ("uint8", "float32", "int32", "bfloat16", "bool", "int64")[number % 6]
    array = random_array(np.random.default_rng(number), dtype, source.shape)
    before, after = placed(array, source), placed(array, target)
    plan = conversion_plan(before, after, 1 + number % 2)
    compare(plan, [array], [before], [array], [after])


MOVES: list[Kind] = [
    Reshape((2, 16, 54)),
    Reshape((32, 54)),
    Reshape((4, 8, 9, 6)),
    Reshape((27, 64)),
    Transpose((0, 2, 3, 1)),
    Transpose((3, 1, 0, 2)),
    Slice((0, 3, 1, 8), (2, 16, 6, -1), (1, 2, 3, -1)),
    Slice((1, 8, 0, 2), (2, 16, 6, 9), (1, 1, 1, 1)),
    Pad((0, 3, 1, 6), (1, 5, 3, 0), 5),
    Pad((0, 0, 2, 1), (0, 0, 2, 1), 0),
    Pad((1, 3, 1, 6), (1, 5, 3, 0), 0, "reflect"),
    Pad((0, 8, 1, 6), (1, 8, 3, 0), 0, "edge"),
    Expand((3, 2, 16, 6, 9)),
    Resize((12, 18)),
    Resize((9, 5), "nearest", "asymmetric", "floor"),
    Resize((11, 5), "nearest", "align_corners"),
    Resize((12, 18), "linear"),
    Resize((9, 13), "linear", "align_corners"),
    Resize((3, 18), "linear", "asymmetric"),
]


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(2 * len(MOVES)))
def test_moves_in_random_layouts(seed: int) -> None:
    generator = np.random.default_rng(seed)
    kind = MOVES[seed % len(MOVES)]
    dtype = str(generator.choice(["uint8", "int8", "int32", "float32", "int16"]))
    array = random_array(generator, dtype, SHAPE)
    (result,) = kind.types([TensorType.of_array(array)])
    is_image = len(result.shape) == 4
    stored = image_layouts(result.shape) if is_image else [Layout.plain(result.shape)]
    source = image_layouts(SHAPE)
    tolerance = 1e-4 if dtype == "float32" and getattr(kind, "mode", "") == "linear" else 0
    check(
        kind,
        [array],
        [source[generator.integers(len(source))]],
        stored[generator.integers(len(stored))],
        threads=1 + seed % 2,
        tolerance=tolerance,
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(12))
def test_inputs_follow_each_other_on_any_axis(seed: int) -> None:
    generator = np.random.default_rng(seed)
    axis = seed % 4
    shapes = [[2, 16, 6, 9] for _ in range(3)]
    for shape, size in zip(shapes, generator.choice([8, 12, 16, 24], 3), strict=True):
        shape[axis] = int(size) if axis == 1 else int(size) // 4
    arrays = [random_array(generator, "uint8", shape) for shape in shapes]
    options = [image_layouts(shape) for shape in shapes]
    layouts = [some[generator.integers(len(some))] for some in options]
    whole = [2, 16, 6, 9]
    whole[axis] = sum(shape[axis] for shape in shapes)
    stored = image_layouts(whole)
    check(Concat(axis), arrays, layouts, stored[generator.integers(len(stored))], threads=2)


@pytest.mark.quick(1)
@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_gathers_along_any_axis(axis: int, dtype: str) -> None:
    generator = np.random.default_rng(axis)
    data = random_array(generator, "float32", SHAPE)
    indices = generator.integers(-SHAPE[axis], SHAPE[axis], (3, 4)).astype(dtype)
    layouts = image_layouts(SHAPE)
    check(Gather(axis), [data, indices], [layouts[2 * axis]], threads=2)
    check(Gather(axis), [data, indices[0, 0]], [layouts[2 * axis + 1]])


def test_tensors_without_elements_and_single_ones() -> None:
    generator = np.random.default_rng(0)
    one, none = random_array(generator, "int32", ()), np.zeros((2, 0, 3), np.int32)
    some = random_array(generator, "int32", (2, 4, 3))
    check(Reshape((1, 1)), [one])
    check(Expand((5,)), [one], threads=2)
    without_elements = (
        (Concat(1), [none, some]),
        (Slice((0, 2, 0), (2, 2, 3), (1, 1, 1)), [some]),
        (Pad((0, 1, 0), (0, 2, 0), 4), [none]),
    )
    for kind, inputs in without_elements:
        with pytest.raises(LoweringError, match="fold the graph before"):
            check(kind, inputs)
    before = placed(none)
    compare(conversion_plan(before, before, 2), [none], [before], [none], [before])
