"""Graphs that are built operator by operator."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.errors import WorkloadError
from cpembed.frontends.builder import Builder, reshaped_axis
from cpembed.frontends.expressions import X, Y, add
from cpembed.graph.graph import evaluate
from cpembed.graph.kinds import (
    Dequantize,
    Elementwise,
    Expand,
    Kind,
    Reshape,
    Slice,
    TensorType,
    Transpose,
)

SUM = Elementwise(add(X, Y), "float32")


def quantized(channels: bool) -> tuple[Builder, str]:
    """A builder with a constant [3, 4] that is dequantized, along its first axis."""
    builder = Builder("test")
    integers = builder.constant(np.arange(12, dtype=np.int8).reshape(3, 4), "q")
    scale = (0.5, 1.0, 2.0) if channels else (0.5,)
    return builder, builder.add(Dequantize(scale, (1,), 0), [integers], "w")


def test_what_is_constant_is_computed_at_once() -> None:
    builder = Builder("test")
    a = builder.constant(np.float32([1, 2]))
    b = builder.add(SUM, [a, a], "sum")
    assert builder.operators == []
    assert builder.value(b) is not None
    assert builder.constants[b].tolist() == [2, 4]


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("kind", [
    Transpose((1, 0)), Reshape((3, 2, 2)), Reshape((3, 1, 4)), Slice((0, 1), (3, 3), (1, 1)),
])  # fmt: skip
def test_moving_a_quantized_constant_moves_its_integers(kind: Kind, channels: bool) -> None:
    builder, w = quantized(channels)
    moved = builder.add(kind, [w], "moved")
    assert builder.is_quantized(moved)
    (expected,) = kind.evaluate([builder.value(w)])  # type: ignore[list-item]
    assert np.array_equal(builder.value(moved), expected)  # type: ignore[arg-type]
    graph = builder.graph({"moved": moved})
    assert [type(o.kind) for o in graph.operators] == [Dequantize]
    assert np.array_equal(evaluate(graph, {})["moved"], expected)


def test_channels_keep_their_axis_through_several_moves() -> None:
    builder, w = quantized(channels=True)
    kinds = (Reshape((3, 2, 2)), Transpose((2, 0, 1)), Transpose((1, 2, 0)), Reshape((3, 4)))
    expected = builder.value(w)
    for kind in kinds:
        w = builder.add(kind, [w], "moved")
        (expected,) = kind.evaluate([expected])  # type: ignore[list-item]
        assert np.array_equal(builder.value(w), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Reshape((12,)), Slice((1, 0), (3, 4), (1, 1)), Expand((2, 3, 4))])
def test_what_breaks_up_channels_becomes_floats(kind: Kind) -> None:
    builder, w = quantized(channels=True)
    moved = builder.add(kind, [w], "moved")
    assert not builder.is_quantized(moved)
    (expected,) = kind.evaluate([builder.value(w)])  # type: ignore[list-item]
    assert np.array_equal(builder.constants[moved], expected)


def test_the_axis_after_a_reshape() -> None:
    assert reshaped_axis((2, 3, 4), 1, (2, 3, 2, 2)) == 1
    assert reshaped_axis((2, 3, 4), 1, (2, 1, 3, 4)) == 2
    assert reshaped_axis((2, 3, 4), 1, (6, 4)) is None
    assert reshaped_axis((2, 3, 4), 1, (3, 2, 4)) is None


def test_operators_that_nothing_needs_are_left_out() -> None:
    builder = Builder("test")
    x = builder.input("x", TensorType((2,), "float32"))
    builder.add(SUM, [x, builder.constant(np.float32([5, 5]))], "unused")
    y = builder.add(SUM, [x, builder.constant(np.float32([1, 2]))], "used")
    graph = builder.graph({"y": y})
    assert [operator.name for operator in graph.operators] == ["used"]
    assert len(graph.constants) == 1
    assert evaluate(graph, {"x": np.float32([3, 4])})["y"].tolist() == [4, 6]


def test_operators_of_one_name_are_told_apart() -> None:
    builder = Builder("test")
    x = builder.input("x", TensorType((2,), "float32"))
    for _ in range(3):
        x = builder.add(SUM, [x, x], "twice")
    graph = builder.graph({"y": x})
    assert [operator.name for operator in graph.operators] == ["twice", "twice#2", "twice#3"]


def test_an_inner_tensor_gives_up_the_name_of_an_output() -> None:
    builder = Builder("test")
    x = builder.input("x", TensorType((2,), "float32"))
    y = builder.add(SUM, [x, x], "y")
    z = builder.add(SUM, [y, y], "z")
    graph = builder.graph({"y": z, "z": y})
    found = evaluate(graph, {"x": np.float32([1, 2])})
    assert found["y"].tolist() == [4, 8]
    assert found["z"].tolist() == [2, 4]


def test_tensors_of_too_many_elements_are_refused() -> None:
    builder = Builder("test")
    x = builder.input("x", TensorType((1,), "float32"))
    with pytest.raises(WorkloadError, match="2\\^31 elements"):
        builder.add(Expand((1 << 16, 1 << 16)), [x], "large")


def test_large_constants_are_left_to_each_call() -> None:
    builder = Builder("test")
    x = builder.constant(np.zeros(1, np.float32))
    large = builder.add(Expand((1 << 15, 1 << 14)), [x], "large")
    assert builder.value(large) is None
    assert len(builder.operators) == 1
