"""Pooling, reductions, softmax, layer normalisation in all layouts, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.errors import LoweringError
from cpembed.graph.kinds import DynamicQuantize, LayerNorm, Pool, Reduce, Softmax, TensorType
from cpembed.network.layout import Layout
from cpembed.network.operators import generated_plan
from tests.unit.network.operators.running import check, image_layouts, placed, random_array

pytest.importorskip("tvm")

SHAPE = (2, 16, 9, 21)
LAYOUTS = image_layouts(SHAPE)

POOLS = [
    Pool("max", (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    Pool("max", (2, 3), (1, 2), (0, 2), (1, 0), (3, 2)),
    Pool("mean", (3, 2), (1, 2), (1, 0), (2, 1), (2, 1)),
    Pool("mean", (3, 3), (1, 2), (1, 1), (1, 1), (1, 1), True, 7),
    Pool("mean", (9, 21), (1, 1), (0, 0), (0, 0), (1, 1)),
    Pool("mean", (2, 2), (2, 2), (1, 1), (1, 1), (1, 1), False, 3, 0.6, 11),
]


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(len(POOLS) * 5))
def test_pooling(seed: int) -> None:
    generator = np.random.default_rng(seed)
    kind = POOLS[seed % len(POOLS)]
    dtypes = ["uint8", "int8"] if kind.ratio else ["uint8", "int8", "int32", "float32", "bfloat16"]
    dtype = str(generator.choice(dtypes if kind.operation == "max" else dtypes[:4]))
    array = random_array(generator, dtype, SHAPE)
    (result,) = kind.types([TensorType.of_array(array)])
    stored = image_layouts(result.shape)
    check(
        kind,
        [array],
        [LAYOUTS[generator.integers(len(LAYOUTS))]],
        stored[generator.integers(len(stored))],
        threads=1 + seed % 2,
        tolerance=1e-5 if dtype == "float32" and kind.operation == "mean" else 0,
    )


def test_windows_of_other_numbers_of_axes() -> None:
    generator = np.random.default_rng(0)
    line = random_array(generator, "int8", (3, 8, 30))
    check(Pool("max", (3,), (2,), (1,), (1,), (1,)), [line], threads=2)
    volume = random_array(generator, "uint8", (1, 8, 5, 6, 7))
    kind = Pool("mean", (2, 3, 2), (1, 2, 1), (1, 1, 1), (0, 1, 1), (1, 1, 1))
    check(kind, [volume], [Layout.plain(volume.shape).channels_last()])


def test_a_window_over_channels_in_blocks_is_refused() -> None:
    array = np.zeros((4, 8, 6), np.uint8)
    given = placed(array, Layout.plain(array.shape).blocked(4))
    kind = Pool("max", (2, 2), (1, 1), (0, 0), (0, 0), (1, 1))
    with pytest.raises(LoweringError, match="give pooling another layout"):
        generated_plan(kind, [given], [placed(array[:, 1:, 1:])], 1)


AXES = [((2, 3), True), ((-1,), False), ((1,), True), ((0, 1, 2, 3), False), ((0, 2), False)]


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(60))
def test_reductions(seed: int) -> None:
    generator = np.random.default_rng(seed)
    what = ("sum", "mean", "max", "min", "prod")[seed % 5]
    axes, keeps = AXES[int(generator.integers(len(AXES)))]
    dtype = str(generator.choice(["uint8", "int8", "int32", "float32", "int64", "bool"]))
    array = random_array(generator, dtype, SHAPE)
    if dtype == "float32" and what == "prod":
        array = (1 + array / 1e5).astype(np.float32)
    exact = dtype != "float32" or what in ("max", "min")
    layout = LAYOUTS[generator.integers(len(LAYOUTS))]
    kind = Reduce(what, axes, keeps)
    # The relative error of a sum is that of its terms' sizes.
    tolerance = 0.0 if exact else 1e-6 * float(np.abs(array).sum()) / 20
    check(kind, [array], [layout], threads=1 + seed % 2, tolerance=min(tolerance, 0.02))


@pytest.mark.quick(3)
@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("what", ["argmax", "argmin"])
def test_where_the_first_extremum_is(axis: int, what: str) -> None:
    generator = np.random.default_rng(axis)
    array = generator.integers(0, 6, SHAPE).astype(np.uint8 if axis % 2 else np.float32)
    check(Reduce(what, (axis,), axis < 2), [array], [LAYOUTS[2 * axis]], threads=2)


@pytest.mark.parametrize("what", ["argmax", pytest.param("argmin", marks=pytest.mark.slow)])
def test_the_first_of_equal_extrema_in_any_lane_counts(what: str) -> None:
    """Rows of ties and of NaNs that fall into different lanes of a vector, with a remainder."""
    generator = np.random.default_rng(0)
    rows = generator.integers(-2, 3, (12, 77)).astype(np.float32)
    rows[1, [9, 40]] = rows[2, [70, 41]] = rows[3, [33, 1]] = np.nan
    rows[4:6], rows[6, 64:] = [[-np.inf], [np.inf]], np.nan
    check(Reduce(what, (1,), False), [rows])
    check(Reduce(what, (1,), False), [(rows[7:] + 3).astype(np.uint8)])


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(16))
def test_softmax(seed: int) -> None:
    generator = np.random.default_rng(seed)
    array = random_array(generator, "float32", SHAPE)
    source, stored = (LAYOUTS[k] for k in generator.integers(len(LAYOUTS), size=2))
    kind = Softmax(1 + seed % 3, log=seed % 4 == 3)
    check(kind, [array], [source], stored, threads=1 + seed % 2, tolerance=2e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(9))
def test_layer_normalisation(seed: int) -> None:
    generator = np.random.default_rng(seed)
    axis = 1 + seed % 3
    arrays = [
        random_array(generator, "float32", shape) for shape in (SHAPE, SHAPE[axis:], SHAPE[axis:])
    ]
    source, stored = (LAYOUTS[k] for k in generator.integers(len(LAYOUTS), size=2))
    kind = LayerNorm(axis, 1e-5, centres=bool(seed % 2))
    check(kind, arrays, [source], stored, threads=1 + seed % 2, tolerance=2e-5)


@pytest.mark.quick(1)
@pytest.mark.parametrize("shift", [0.0, 100.0, -100.0, None])
def test_a_tensor_quantized_by_its_own_range(shift: float | None) -> None:
    generator = np.random.default_rng(0)
    array = random_array(generator, "float32", SHAPE)
    array = np.zeros_like(array) if shift is None else array + np.float32(shift)
    check(DynamicQuantize(), [array], [LAYOUTS[3]], LAYOUTS[-1], threads=2)


@pytest.mark.slow
def test_reductions_of_and_to_single_elements() -> None:
    generator = np.random.default_rng(0)
    line = random_array(generator, "float32", (37,))
    check(Reduce("max", (0,), False), [line])
    check(Reduce("argmin", (0,), False), [line])
    check(Reduce("sum", (1,), False), [line.reshape(37, 1)])
    check(Softmax(0), [line[:1]], tolerance=1e-6)
    check(Pool("max", (1,), (1,), (0,), (0,), (1,)), [line[:1]])


def test_a_reduction_of_nothing_is_refused() -> None:
    array = np.zeros((2, 0), np.float32)
    with pytest.raises(LoweringError, match="which has no elements"):
        generated_plan(
            Reduce("sum", (1,), False), [placed(array)], [placed(array[:, 0:0].sum(1))], 1
        )
