"""Random inputs of a network, for whoever gives none."""

from __future__ import annotations

import numpy as np
import pytest

from cpembed.frontends.builder import Builder
from cpembed.frontends.loops import LoopBody
from cpembed.graph.graph import Graph, Operator, evaluate
from cpembed.graph.kinds import Apply, Elementwise, Gather, Input, Reshape, TensorType
from cpembed.ir.dtypes import numpy_dtype
from cpembed.network.inputs import random_inputs, special_inputs


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"],
)
def test_every_type_has_random_inputs(dtype: str) -> None:
    graph = Graph("net", {"x": TensorType((40, 5), dtype)}, ("x",))
    (array,) = random_inputs(graph, 3).values()
    assert array.dtype == (np.bool_ if dtype == "bool" else numpy_dtype(dtype))
    assert array.shape == (40, 5)
    assert len(np.unique(array.astype(np.float64))) > 1
    assert special_inputs(graph, {"x": array})["x"].dtype == array.dtype


def test_indices_lie_within_what_they_select_from() -> None:
    """Directly, through movement, and as indices of indices."""
    table = np.arange(14, dtype=np.int64).reshape(7, 2) % 5
    small = np.arange(5, dtype=np.float32)
    operators = (
        Operator("flat", Reshape((6,)), ("ids",), ("flat ids",)),
        Operator("rows", Gather(0), ("table", "flat ids"), ("row",)),
        Operator("numbers", Gather(-1), ("small", "row"), ("y",)),
        Operator("free", Elementwise(Apply("neg", (Input(0),)), "int64"), ("z",), ("n",)),
    )
    inputs = {"ids": TensorType((2, 3), "int64"), "z": TensorType((300,), "int64")}
    constants = {"table": table, "small": small}
    graph = Graph("net", inputs, ("y", "n"), constants, operators)
    for seed in range(20):
        arrays = random_inputs(graph, seed)
        evaluate(graph, arrays)
        assert arrays["ids"].min() >= 0
        assert arrays["ids"].max() < 5
    assert arrays["z"].max() > 200


def test_a_state_that_selects_lies_within_what_a_loop_selects_from() -> None:
    """``id = next[id]`` in four steps, the first one an input."""
    outer = Builder("net")
    first = outer.input("first", TensorType((1,), "int64"))
    loop = LoopBody(outer, "loop", 4)
    state = loop.state(first)
    following = loop.builder.constant(np.asarray([3, 0, 1, 2], np.int64))
    (last,), _ = loop.emit([loop.builder.add(Gather(0), [following, state], "next")])
    graph = outer.graph({"y": last})
    for seed in range(20):
        arrays = random_inputs(graph, seed)
        evaluate(graph, arrays)
        assert 0 <= arrays["first"].item() < 4
        assert special_inputs(graph, arrays)["first"] is arrays["first"]
