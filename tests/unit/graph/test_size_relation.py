"""Graphs at two sizes: what is accepted computes the smaller graph's results.

Each case is a function from sizes to a graph. Where the relation holds, the larger graph with its
masks is evaluated on inputs that are filled up, and compared with the smaller one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from cpembed.errors import WorkloadError
from cpembed.graph import kinds
from cpembed.graph.family import Family, Filling, shape_at, shape_text
from cpembed.graph.graph import Graph, evaluate
from cpembed.graph.instances import (
    Instance,
    Mode,
    fitted_extent,
    make_instance,
    openness,
)
from cpembed.graph.kinds import Apply, Elementwise, Input, Number, TensorType
from cpembed.graph.size_relation import SizeObstacle, relate
from tests.unit.graph.size_graphs import (
    PADDED,
    SCALED,
    Maker,
    attention,
    family,
    made,
    of,
    ordered,
    positions,
    recurrent,
)


def fillings(instance: Instance, family: Family, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Arrays of an instance's fillers in a run of some sizes."""
    named = family.named(sizes)
    arrays: dict[str, Any] = {}
    for filler in instance.fillers:
        extent = filler.extent.at(named)
        if filler.kind is Filling.MASK:
            shape = instance.graph.inputs[filler.name].shape
            arrays[filler.name] = (np.arange(filler.size) < extent).reshape(shape)
        elif filler.kind is Filling.COUNT:
            arrays[filler.name] = np.asarray(extent, np.int64)
        else:
            arrays[filler.name] = np.asarray(filler.size / extent, np.float32)
    return arrays


def filled(array: Any, shape: tuple[int, ...], value: float = 0) -> Any:
    margins = [(0, n - m) for n, m in zip(shape, array.shape, strict=True)]
    return np.pad(array, margins, constant_values=value)


@pytest.mark.parametrize("name", PADDED)
def test_the_larger_graph_computes_the_smaller_ones(name: str) -> None:
    """At every smaller size; along both symbols at once too."""
    models = family(PADDED[name])
    facts = openness(models)
    assert facts.modes["s"] is not Mode.EXACT, facts.reasons
    large = (3, 9)
    least = tuple(facts.regular)
    instance = make_instance(models, facts, large, least)
    random = np.random.default_rng(1)
    for s in range(least[1], 10):
        named = {"b": 3, "s": s}
        small = models.graph((3, s))
        x = random.normal(size=small.inputs["x"].shape).astype(np.float32)
        want = evaluate(small, {"x": x}, lambda name: False)
        # Whatever is beyond the end: the library writes zeros, and no result depends on it.
        inputs = {"x": filled(x, instance.graph.inputs["x"].shape)}
        got = evaluate(
            instance.graph, inputs | fillings(instance, models, (3, s)), lambda name: False
        )
        for number, output in enumerate(small.outputs):
            factors = [[e.at(named) for e in axis] for axis in facts.outputs[number]]
            wide = [[e.at({"b": 3, "s": 9}) for e in axis] for axis in facts.outputs[number]]
            result = got[output].reshape([n for axis in wide for n in axis])
            part = result[tuple(slice(0, n) for axis in factors for n in axis)]
            np.testing.assert_allclose(
                part.reshape(want[output].shape), want[output], rtol=2e-6, atol=1e-6
            )
            assert shape_at(facts.outputs[number], named) == want[output].shape


@pytest.mark.parametrize("name", ["softmax", "mean", "attention", "dynamically quantized"])
@pytest.mark.parametrize("sizes", [(8, 10), (3, 10), (9, 10)])
def test_ranges_of_two_sizes(name: str, sizes: tuple[int, int]) -> None:
    """Only one size is smaller, so that numbers are told apart by the larger one."""
    models = Family("net", {"b": range(2, 4), "s": range(*sizes)}, PADDED[name])
    if name == "attention" and sizes == (8, 10):
        # Rows times columns of two sizes each: nothing tells which is which.
        with pytest.raises(WorkloadError, match="extent"):
            openness(models)
        return
    facts = openness(models)
    assert shape_at(facts.inputs[0], {"b": 2, "s": 9})[:2] == (2, 9)
    instance = make_instance(models, facts, (3, 9), tuple(facts.regular))
    x = np.random.default_rng(4).normal(size=models.graph((3, 9)).inputs["x"].shape)
    inputs = {"x": x.astype(np.float32)}
    (expected,) = evaluate(models.graph((3, 9)), inputs, lambda name: False).values()
    masks = fillings(instance, models, (3, 9))
    (result,) = evaluate(instance.graph, inputs | masks, lambda name: False).values()
    np.testing.assert_allclose(result, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("descending", [False, True])
def test_filling_is_sorted_behind_numbers_that_are_equal_to_it(descending: bool) -> None:
    models = family(partial(ordered, count=0, descending=descending))
    facts = openness(models)
    instance = make_instance(models, facts, (3, 9), tuple(facts.regular))
    x = np.array([[np.inf, np.nan, -np.inf, 1.0]] * 3, np.float32)
    inputs = {"x": filled(x, (3, 9))} | fillings(instance, models, (3, 4))
    result = evaluate(instance.graph, inputs, lambda name: False)
    expected = evaluate(models.graph((3, 4)), {"x": x}, lambda name: False)
    for name, array in expected.items():
        np.testing.assert_array_equal(result[name][:, :4], array)


@pytest.mark.parametrize(
    "name",
    [
        *("elementwise", "softmax", "attention", "convolution", "mean"),
        *("attention in a loop", "steps by their number"),
    ],
)
def test_rows_are_independent_where_a_symbol_is_split(name: str) -> None:
    """A stack of two runs is the run of a stack."""
    models = family(PADDED[name])
    facts = openness(models)
    assert facts.modes == {"b": Mode.SPLIT, "s": Mode.PADDED}
    x = np.random.default_rng(2).normal(size=models.graph((3, 5)).inputs["x"].shape)
    x = x.astype(np.float32)
    (whole,) = evaluate(models.graph((3, 5)), {"x": x}, lambda n: False).values()
    parts = [
        next(iter(evaluate(models.graph((n, 5)), {"x": x[a : a + n]}, lambda n: False).values()))
        for a, n in ((0, 2), (2, 1))
    ]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-6)


@pytest.mark.parametrize("backwards", [False, True])
def test_rows_of_a_recurrence_are_split_and_its_steps_counted(backwards: bool) -> None:
    models = family(partial(recurrent, backwards=backwards))
    facts = openness(models)
    assert facts.modes == {"b": Mode.SPLIT, "s": Mode.PADDED}
    instance = make_instance(models, facts, (3, 9), tuple(facts.regular))
    assert [(f.kind, str(f.extent)) for f in instance.fillers] == [(Filling.COUNT, "s")]


def test_two_padded_axes_of_one_tensor_are_masked() -> None:
    """A sum over both, of which neither is split because a third one is."""

    def maker(sizes: Mapping[str, int]) -> Graph:
        builder, x = made(sizes, sizes["r"], sizes["b"], sizes["s"])
        shifted = Elementwise(Apply("add", (Input(0), Number(1.0))), "float32")
        y = builder.add(shifted, [x], "shifted")
        return builder.graph({"y": builder.add(kinds.Reduce("sum", (1, 2), False), [y], "sum")})

    ranges = {"r": range(1, 3), "b": range(1, 6), "s": range(2, 10)}
    models = Family("net", ranges, maker)
    facts = openness(models)
    assert facts.modes == {"r": Mode.SPLIT, "b": Mode.PADDED, "s": Mode.PADDED}
    instance = make_instance(models, facts, (2, 5, 9), tuple(facts.regular))
    x = np.random.default_rng(3).normal(size=(2, 3, 4)).astype(np.float32)
    inputs = {"x": filled(x, (2, 5, 9))} | fillings(instance, models, (2, 3, 4))
    (result,) = evaluate(instance.graph, inputs, lambda name: False).values()
    np.testing.assert_allclose(result, (x + 1).sum((1, 2)), rtol=1e-5)


def flipped(sizes: Mapping[str, int]) -> kinds.Slice:
    return kinds.Slice((0, sizes["s"] - 1), (sizes["b"], -1), (1, -1))


def appended(sizes: Mapping[str, int]) -> Graph:
    builder, x = made(sizes, sizes["b"], sizes["s"])
    last = builder.constant(np.ones((sizes["b"], 1), np.float32))
    return builder.graph({"y": builder.add(kinds.Concat(1), [x, last], "op")})


def normalized(sizes: Mapping[str, int]) -> Graph:
    builder, x = made(sizes, sizes["b"], sizes["s"])
    ones = builder.constant(np.ones(sizes["s"], np.float32))
    return builder.graph({"y": builder.add(kinds.LayerNorm(1, 1e-5), [x, ones, ones], "op")})


def scaled_by_size(sizes: Mapping[str, int]) -> Graph:
    times = Elementwise(Apply("mul", (Input(0), Number(1 / sizes["s"]))), "float32")
    return of("b", "s")(times)(sizes)


def growing(sizes: Mapping[str, int]) -> Graph:
    builder, x = made(sizes, sizes["b"], sizes["s"])
    table = builder.constant(np.linspace(0, 1, sizes["s"], dtype=np.float32))
    added = Elementwise(Apply("add", (Input(0), Input(1))), "float32")
    return builder.graph({"y": builder.add(added, [x, table], "add")})


REFUSED: dict[str, tuple[Maker, str]] = {
    "elements after the end": (
        appended, "puts elements after the end"),
    "the last element": (
        lambda n: of("b", "s")(kinds.Slice((0, n["s"] - 1), (n["b"], n["s"]), (1, 1)))(n),
        "depends on its size"),
    "backwards": (lambda n: of("b", "s")(flipped(n))(n), "depends on its size"),
    "norm": (
        normalized, "normalizes along"),
    "resize": (
        of("b", "s")(kinds.Resize((4,))), "resizes"),
    "reflection": (of("b", "s")(kinds.Pad((0, 1), (0, 1), mode="reflect")), "pads the end"),
    "a mean of everything": (
        scaled_by_size, "attributes that depend on the sizes"),
    "rows joined with columns": (
        lambda n: of("b", "s", 3)(kinds.Reshape((n["s"], n["b"] * 3)))(n), "reshaped across"),
    "another runtime's operator": (
        of("b", "s")(kinds.Foreign("Det", (TensorType((), "float32"),), "callback", list)),
        "no rule for open sizes"),
    "a constant of its size": (growing, "constant that depends on the sizes"),
    "pooling": (
        of("b", 1, "s")(kinds.Pool("max", (2,), (1,), (0,), (0,), (1,))), "pools along"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_a_size_is_named(name: str) -> None:
    maker, reason = REFUSED[name]
    models = family(maker)
    with pytest.raises(SizeObstacle, match=reason):
        relate(models.graph((3, 5)), models.graph((3, 9)))
    facts = openness(models)
    assert facts.modes["s"] is Mode.EXACT
    assert "s" in facts.reasons


def test_a_place_is_no_row() -> None:
    """What differs from row to row cannot be split, even where it can be padded."""
    models = family(positions)
    assert openness(models).modes == {"b": Mode.SPLIT, "s": Mode.PADDED}
    with pytest.raises(SizeObstacle, match="varies with the place"):
        relate(models.graph((3, 5)), models.graph((3, 9)), shifts=True)


def test_too_many_exact_sizes_are_an_error() -> None:
    with pytest.raises(WorkloadError, match=r"s cannot be a range of 199 sizes: .* at most 64"):
        openness(family(REFUSED["norm"][0], s=200))


def test_a_size_of_one_that_broadcasts_has_an_instance_of_its_own() -> None:
    def maker(sizes: Mapping[str, int]) -> Graph:
        builder, x = made(sizes, sizes["b"], 4)
        if sizes["b"] == 1:
            return builder.graph({"y": builder.add(SCALED, [x], "op")})
        y = builder.add(SCALED, [x], "op")
        return builder.graph({"y": builder.add(SCALED, [y], "again")})

    models = Family("net", {"b": range(1, 9)}, maker)
    facts = openness(models)
    assert facts.modes == {"b": Mode.SPLIT}
    assert facts.regular == (2,)
    assert make_instance(models, facts, (1,), (1,)).most == (1,)
    assert make_instance(models, facts, (4,), (2,)).least == (2,)


def test_extents_are_affine_in_one_size() -> None:
    models = family(PADDED["softmax"])
    values = {(b, s): 2 * s + 1 for b in (1, 2) for s in (2, 5, 7)}
    assert str(fitted_extent(models, values)) == "2*s+1"
    assert str(fitted_extent(models, dict.fromkeys(values, 4))) == "4"
    with pytest.raises(SizeObstacle, match="no multiple of one size"):
        fitted_extent(models, {(b, s): b * s for b in (1, 2) for s in (2, 5)})


def test_shapes_are_in_terms_of_the_symbols() -> None:
    facts = openness(family(attention))
    assert shape_text(facts.inputs[0]) == "[b, s, 8]"
    assert shape_text(facts.outputs[0]) == "[b*s, 8]"
    assert shape_at(facts.outputs[0], {"b": 2, "s": 5}) == (10, 8)
    assert math.prod(shape_at(facts.inputs[0], {"b": 2, "s": 5})) == 80


def test_a_size_at_which_a_model_cannot_be_read_is_named() -> None:
    models = family(of("b", "s")(kinds.Reduce("max", (7,), False)))
    with pytest.raises(WorkloadError, match=r"at b=3, s=9: .*axis 7"):
        openness(models)
