"""Sorting, running results and scattering in all layouts, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.graph.kinds import Scan, Scatter, Sort
from tests.unit.network.operators.running import Array, check, image_layouts, random_array
from tests.unit.network.operators.test_special_values import sprinkled

pytest.importorskip("tvm")

SHAPE = (2, 16, 9, 21)
LAYOUTS = image_layouts(SHAPE)
DTYPES = ["float32", "int8", "uint64", "bool", "bfloat16", "float64", "int64", "uint8", "float16"]
LINES = [((5, 37), 1, 37), ((4, 50, 3), 1, 7), ((3, 9), 0, 2), ((6,), 0, 1), ((2, 300), -1, 300)]


def values(generator: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    if dtype == "float32":
        # Equal elements, zeros of both signs, infinities and NaNs.
        return sprinkled(generator, shape, 0.3)
    if dtype == "uint64":
        return random_array(generator, dtype, shape) * np.uint64(2**58)
    return random_array(generator, dtype, shape)


@pytest.mark.quick(10)
@pytest.mark.parametrize("shape, axis, count", LINES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_lines_are_sorted(dtype: str, shape: tuple[int, ...], axis: int, count: int) -> None:
    generator = np.random.default_rng(len(shape))
    for descending in (False, True):
        array = values(generator, dtype, shape)
        check(Sort(axis, count, descending), [array], threads=2)


@pytest.mark.quick(2)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_lines_are_sorted_in_any_layout(layout: object) -> None:
    generator = np.random.default_rng(1)
    array = generator.integers(0, 5, SHAPE).astype(np.int32)
    for axis in (1, 2):
        check(Sort(axis, 5, True), [array], [layout], threads=2)  # type: ignore[list-item]


@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", range(80))
def test_running_results(seed: int) -> None:
    generator = np.random.default_rng(seed)
    operation = ("sum", "prod", "max", "min")[seed % 4]
    dtype = str(generator.choice(["int32", "int64", "uint8", "float32", "int16"]))
    exclusive, reverse = (bool(generator.integers(2)) for _ in range(2))
    layout = LAYOUTS[generator.integers(len(LAYOUTS))]
    array = random_array(generator, dtype, SHAPE)
    kind = Scan(operation, int(generator.integers(-4, 4)), exclusive, reverse)
    check(kind, [array], [layout], LAYOUTS[generator.integers(len(LAYOUTS))], threads=1 + seed % 2)


@pytest.mark.parametrize("operation", ["sum", "max", "min"])
def test_running_results_of_special_values(operation: str) -> None:
    array = sprinkled(np.random.default_rng(3), (3, 40, 33), 0.02)
    check(Scan(operation, 1), [array], tolerance=1e-6)
    check(Scan(operation, 2, exclusive=True, reverse=True), [array], tolerance=1e-6)


@pytest.mark.quick(6)
@pytest.mark.parametrize("operation", ["set", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "int64"])
@pytest.mark.parametrize("shape, count", [((50,), 30), ((7, 5), 12), ((9, 4, 6), 5)])
def test_rows_are_scattered(operation: str, dtype: str, shape: tuple[int, ...], count: int) -> None:
    generator = np.random.default_rng(count)
    # Several rows have one index, and some an index beyond the tensor at either end.
    indices = generator.integers(-shape[0] - 2, shape[0] + 2, count)
    arrays = [random_array(generator, dtype, (n, *shape[1:])) for n in (shape[0], count)]
    check(Scatter(operation), [arrays[0], indices, arrays[1]])


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(10))
def test_rows_are_scattered_in_any_layout_by_threads(seed: int) -> None:
    generator = np.random.default_rng(seed)
    data, rows = (random_array(generator, "int16", (n, *SHAPE[1:])) for n in (2, 3))
    layout = LAYOUTS[generator.integers(len(LAYOUTS))]
    check(Scatter("max"), [data, np.asarray([1, 0, -1]), rows], [layout], layout)
    data, rows = (random_array(generator, "int32", (n, 2000)) for n in (300, 50))
    indices = generator.integers(-310, 310, 50).astype(np.int32)
    check(Scatter(("set", "add")[seed % 2]), [data, indices, rows], threads=2)
