"""Estimates of operators between products: what makes them larger, and their parts."""

from __future__ import annotations

from typing import Any

import pytest

from cpembed.graph.kinds import (
    Apply,
    Concat,
    Elementwise,
    Gather,
    Input,
    LayerNorm,
    Number,
    Pool,
    Reduce,
    Scalar,
    Softmax,
    Table,
    TensorType,
    Transpose,
)
from cpembed.graph.kinds.base import Kind
from cpembed.hw.loader import load_hardware_spec
from cpembed.network.layout import Layout
from cpembed.network.operator_costs import estimate_copy_us, estimate_operator_us
from cpembed.network.operators import PlacedTensor
from cpembed.network.operators.operation_counts import expression_operations, function_operations
from cpembed.network.operators.work import conversion_work, vector_steps, work_of
from cpembed.targets.capabilities import HostTimes, host_times
from cpembed.targets.portable import PortableTarget
from cpembed.targets.registry import open_target

SHAPE = (1, 64, 56, 56)
PLAIN = Layout.plain(SHAPE)
LAST = PLAIN.channels_last()
X = Input(0)
SILU = Apply("mul", (X, Apply("sigmoid", (X,))))


def image(layout: Layout = PLAIN, dtype: str = "float32") -> PlacedTensor:
    return PlacedTensor(TensorType(layout.shape, dtype), layout)


def rows(*shape: int, dtype: str = "float32") -> PlacedTensor:
    return PlacedTensor.plain(TensorType(shape, dtype))


def target() -> Any:
    return open_target(load_hardware_spec("avx2_f32"))


def estimated(kind: Kind, *tensors: PlacedTensor, threads: int = 1) -> float:
    *inputs, output = tensors
    return estimate_operator_us(target(), kind, inputs, [output], threads)


def elementwise(expression: Scalar) -> Elementwise:
    return Elementwise(expression, "float32")


def test_functions_cost_more_than_arithmetic() -> None:
    plain = estimated(elementwise(Apply("max", (X, Number(0.0)))), image(), image())
    one = estimated(elementwise(SILU), image(), image())
    two = estimated(elementwise(Apply("tanh", (SILU,))), image(), image())
    assert plain < one < two
    assert expression_operations(SILU) == function_operations("sigmoid") + 1
    # An equal part is computed once.
    assert expression_operations(Apply("add", (SILU, SILU))) == expression_operations(SILU) + 1


@pytest.mark.parametrize("name", ["exp", "log", "erf", "tanh", "sigmoid", "sin"])
def test_a_function_takes_as_many_operations_as_its_polynomial(name: str) -> None:
    assert 10 <= function_operations(name) <= 90


def test_neighbours_that_lie_apart_are_moved_one_by_one() -> None:
    add = elementwise(Apply("add", (Input(0), Input(1))))
    small = Layout.plain((1, 32, 14, 14))
    together = estimated(add, image(small), image(small), image(small))
    apart = estimated(add, image(small), image(small.channels_last()), image(small))
    assert apart > 2 * together


def test_conversions_transpose_or_copy() -> None:
    copy = conversion_work(image(LAST), image(LAST.with_halo((1, 1))))
    transposition = conversion_work(image(), image(LAST))
    assert copy.scattered == transposition.scattered == 0
    # 196 by 4 blocks of 16 by 16 elements, of 32 vectors each.
    assert transposition.operations == 196 * 4 * 32 * (4 + 2) * 4.0
    assert transposition.operations > 4 * copy.operations
    both = [estimate_copy_us(target(), image(), image(x), 1) for x in (LAST, PLAIN)]
    assert both[0] > both[1]


@pytest.mark.parametrize("layout", [PLAIN, LAST, PLAIN.blocked(16)])
def test_every_layout_of_an_image_is_pooled_in_vectors(layout: Layout) -> None:
    pooled = Layout.plain((1, 64, 56, 56))
    pooled = pooled.blocked(16) if layout.block > 1 else pooled
    pooled = pooled.channels_last() if layout == LAST else pooled
    same = (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)
    work = work_of(Pool("max", *same), [image(layout)], [image(pooled)])
    assert work is not None
    # Nine taps, each a load and a maximum, of some 25,000 vectors.
    assert 9 * image().type.elements / 8 < work.operations < 1e6


def test_a_sum_along_rows_of_no_vector_is_slow() -> None:
    along, across = (Reduce("sum", (axis,), True) for axis in (2, 1))
    short = rows(1, 4096, 7)
    assert estimated(along, short, rows(1, 4096, 1)) > estimated(across, short, rows(1, 1, 7))


def test_larger_tensors_and_fewer_threads_take_longer() -> None:
    kinds: list[tuple[Kind, tuple[int, ...]]] = [
        (Softmax(-1), (12, 512, 512)),
        (elementwise(SILU), (4, 512, 1024)),
        (Transpose((0, 1, 2)), (4, 512, 1024)),
    ]
    for kind, shape in kinds:
        large = rows(*shape)
        small = rows(shape[0], shape[1] // 16, shape[2])
        one, two = (estimated(kind, large, large, threads=n) for n in (1, 2))
        assert estimated(kind, small, small) < two < one


def test_normalizations_of_rows() -> None:
    x, vector = rows(128, 768), rows(768)
    layer = estimated(LayerNorm(-1, 1e-5), x, vector, vector, x)
    rms = estimated(LayerNorm(-1, 1e-5, centres=False), x, vector, vector, x)
    assert rms < layer


def test_a_gather_reads_what_it_selects() -> None:
    chosen = rows(64, 256)
    few, many = (
        estimated(Gather(0), rows(n, 256), rows(64, dtype="int64"), chosen) for n in (100, 30000)
    )
    assert few == many


def test_lookups_and_parts_of_a_concatenation() -> None:
    table = Table(tuple(range(256))[::-1], "uint8")
    byte = image(dtype="uint8")
    assert estimated(table, byte, byte) > estimated(Transpose((0, 1, 2, 3)), byte, byte)
    shift = Table(tuple(range(256)), "uint8")
    assert estimated(shift, byte, byte) < estimated(table, byte, byte) / 4
    halves = [rows(1, 64, 56, 56)] * 2
    assert estimated(Concat(1), *halves, rows(1, 128, 56, 56)) > estimated(
        Concat(1), halves[0], rows(1, 64, 56, 56)
    )


def test_rows_are_divided_into_vectors_and_single_elements() -> None:
    assert [vector_steps(n) for n in (1, 8, 9, 64, 71)] == [1, 1, 2, 8, 15]


def test_times_are_those_of_the_calibration_or_published_ones() -> None:
    assert host_times(target()).operation_ns > 0
    assert host_times(PortableTarget(load_hardware_spec("avx2_f32"))) == HostTimes()
