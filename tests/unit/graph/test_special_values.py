"""Passes and definitions on NaN, infinities, and tensors of 0 elements."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from cpembed.graph.graph import Graph, Operator, evaluate
from cpembed.graph.kinds import (
    Apply,
    Concat,
    Dequantize,
    DynamicQuantize,
    Elementwise,
    Expand,
    Gather,
    Input,
    Kind,
    LayerNorm,
    Number,
    Pad,
    Pool,
    Quantize,
    Reduce,
    Reshape,
    Resize,
    Slice,
    Softmax,
    TensorType,
    Transpose,
)
from cpembed.graph.passes import prepare
from cpembed.graph.passes.expressions import magnitudes
from cpembed.graph.passes.folding import fold
from cpembed.network.observation import difference

SPECIAL = np.asarray([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, 0.37, -1.2, 3.0], np.float32)


def chain(shape: tuple[int, ...], *kinds: Kind, dtype: str = "float32") -> Graph:
    """Operators one after the other."""
    names = [f"t{k}" for k in range(len(kinds) + 1)]
    operators = tuple(
        Operator(f"op{k}", kind, (names[k],), (names[k + 1],)) for k, kind in enumerate(kinds)
    )
    return Graph("chain", {"t0": TensorType(shape, dtype)}, (names[-1],), {}, operators)


def function(operation: str, *numbers: float) -> Elementwise:
    return Elementwise(Apply(operation, (Input(0), *map(Number, numbers))), "float32")


QUANTIZE, BACK = Quantize((0.1,), (3,), "uint8"), Dequantize((0.1,), (3,))
POOL = Pool("max", (3,), (1,), (1,), (1,), (1,))


@pytest.mark.parametrize(
    "kinds",
    [
        (QUANTIZE, BACK, function("mul", 2.0)),
        (function("sqrt"), QUANTIZE, BACK, function("add", 1.0)),
        (POOL, QUANTIZE),
        (Reduce("max", (1,), False), QUANTIZE),
        (Pad((0, 1), (0, 1), math.nan), QUANTIZE),
        (Pad((0, 1), (0, 1), math.inf), QUANTIZE, BACK, Pad((0, 1), (0, 1), -math.inf), QUANTIZE),
        (QUANTIZE, BACK, Pad((0, 2), (0, 0), math.inf), QUANTIZE),
        (QUANTIZE, BACK, Pad((0, 2), (0, 0), math.nan), POOL, QUANTIZE),
        (function("exp"), Softmax(1), QUANTIZE, BACK, function("log")),
    ],
    ids=lambda kinds: "-".join(kind.label for kind in kinds),
)
def test_passes_keep_special_values(kinds: tuple[Kind, ...]) -> None:
    graph = chain((4, 9), *kinds)
    generator = np.random.default_rng(0)
    array = np.stack([generator.permutation(SPECIAL) for _ in range(4)])
    (wanted,), (found,) = (
        evaluate(g, {"t0": array}, lambda name: False).values() for g in (graph, prepare(graph))
    )
    assert difference(found, wanted) == 0


def test_the_powers_of_a_softmax_without_a_maximum_may_be_infinite() -> None:
    x = TensorType((2, 3), "float32")
    operators = (
        Operator("powers", function("exp"), ("x",), ("p",)),
        Operator("sum", Reduce("sum", (1,), True), ("p",), ("s",)),
        Operator(
            "share", Elementwise(Apply("div", (Input(0), Input(1))), "float32"), ("p", "s"), ("y",)
        ),
    )
    graph = Graph("softmax", {"x": x}, ("y",), {}, operators)
    array = np.asarray([[1000, 1, 2], [math.inf, -math.inf, 0]], np.float32)
    wanted = evaluate(graph, {"x": array})["y"]
    assert np.isnan(wanted).any()
    assert difference(evaluate(prepare(graph), {"x": array})["y"], wanted) == 0


def test_magnitudes_bound_what_is_made_of_bytes() -> None:
    graph = chain((4, 9), BACK, function("mul", 3.0), function("exp"), dtype="uint8")
    bounds = magnitudes(graph)
    assert bounds["t1"] == pytest.approx(25.8)
    assert bounds["t2"] == pytest.approx(77.4)
    assert bounds["t3"] == math.inf
    assert magnitudes(chain((4,), function("tanh")))["t1"] == math.inf


EMPTY: list[tuple[Kind, tuple[tuple[int, ...], ...]]] = [
    (function("exp"), ((0, 3),)),
    (Reshape((0, 5)), ((3, 0),)),
    (Transpose((1, 0)), ((0, 3),)),
    (Slice((0, 2), (3, 2), (1, 1)), ((3, 4),)),
    (Expand((0, 4)), ((1, 4),)),
    (Softmax(1), ((2, 0),)),
    (Softmax(0), ((2, 0),)),
    (LayerNorm(1, 1e-5), ((0, 4), (4,), (4,))),
    (Pool("max", (2, 2), (1, 1), (0, 0), (0, 0), (1, 1)), ((0, 2, 4, 4),)),
    (Pool("mean", (2, 2), (1, 1), (0, 0), (0, 0), (1, 1)), ((2, 0, 4, 4),)),
    (Resize((8, 8)), ((0, 2, 4, 4),)),
    (Resize((8, 8), "linear"), ((0, 2, 4, 4),)),
    (QUANTIZE, ((0, 4),)),
    (DynamicQuantize(), ((0, 4),)),
    (Pad((1, 0), (1, 0), 3.0), ((0, 4),)),
    (Concat(1), ((2, 0, 4), (2, 3, 4))),
    (Concat(0), ((0, 4), (0, 4))),
    *((Reduce(what, (1,), True), ((2, 0, 3),)) for what in ("sum", "prod", "max", "min", "mean")),
    *((Reduce(what, (0,), False), ((0, 3),)) for what in ("sum", "prod", "max", "min", "mean")),
    *((Reduce(what, (0, 1), False), ((0, 3),)) for what in ("sum", "max")),
    (Reduce("argmax", (1,), False), ((0, 3),)),
]


@pytest.mark.parametrize("kind, shapes", EMPTY, ids=str)
def test_tensors_of_0_elements_have_results_and_need_no_kernel(
    kind: Kind, shapes: tuple[tuple[int, ...], ...]
) -> None:
    arrays = {f"x{k}": np.ones(shape, np.float32) for k, shape in enumerate(shapes)}
    types = kind.types([TensorType.of_array(array) for array in arrays.values()])
    names = tuple(f"y{k}" for k in range(len(types)))
    operator = Operator("one", kind, tuple(arrays), names)
    graph = Graph(
        "one", {n: TensorType.of_array(a) for n, a in arrays.items()}, names, {}, (operator,)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = kind.evaluate([*arrays.values()])
    assert [TensorType.of_array(array) for array in wanted] == [*types]
    folded = fold(graph)
    for left in folded.operators:
        assert all(folded.types[name].elements for name in (*left.inputs, *left.outputs))
    found = evaluate(folded, arrays)
    for name, expected in zip(names, wanted, strict=True):
        assert difference(found[name], expected) == 0


def test_reductions_of_nothing_give_what_changes_nothing() -> None:
    for dtype, least, largest in (("float32", -math.inf, math.inf), ("int8", -128, 127)):
        empty = np.ones((2, 0), dtype)
        values = {
            what: Reduce(what, (1,), False).evaluate([empty])[0][0]
            for what in ("sum", "prod", "max", "min")
        }
        assert values == {"sum": 0, "prod": 1, "max": least, "min": largest}
    assert np.isnan(Reduce("mean", (1,), False).evaluate([np.ones((2, 0), np.float32)])[0]).all()


def test_an_index_finds_nothing_in_a_tensor_of_0_elements() -> None:
    (found,) = Gather(0).evaluate([np.ones((3, 2)), np.ones(0, np.int64)])
    assert found.shape == (0, 2)


@pytest.mark.parametrize("kind", [function("sub"), Reduce("max", (1,), True), Softmax(1), POOL])
def test_definitions_do_not_warn(kind: Kind) -> None:
    if isinstance(kind, Elementwise):
        kind = Elementwise(Apply("sub", (Input(0), Input(0))), "int8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kind.evaluate([np.stack([SPECIAL, SPECIAL[::-1], np.full(9, -math.inf, np.float32)])])
