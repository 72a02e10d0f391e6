"""Sizes that a model leaves open, as callers state them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from cpembed.errors import ModelError
from cpembed.frontends.open_sizes import OpenModel
from cpembed.graph.family import Family
from cpembed.graph.graph import Graph
from cpembed.graph.kinds import TensorType

INPUTS: dict[str, tuple[int | str, ...] | None] = {
    "ids": ("batch", "length"),
    "image": ("batch", 3, "", "?"),
    "free": None,
    "fixed": (2, 5),
}
FREE = {"free": (1,), "image": (4, 3, 8, 8)}


def read(shapes: Mapping[str, Sequence[int]]) -> Graph:
    """A graph whose inputs are the shapes that reach the reader."""
    kinds = {name: TensorType(tuple(shape), "float32") for name, shape in shapes.items()}
    return Graph("m", kinds, tuple(kinds)[:1])


MODEL = OpenModel("m", INPUTS, read)


def shapes_of(request: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: kind.shape for name, kind in MODEL.fixed(request).inputs.items()}


def test_a_dimension_is_fixed_wherever_its_name_stands() -> None:
    partial = {"image:0": (4,)}
    assert shapes_of({"batch": 4, "length": 7}) == {"ids": (4, 7), **partial}
    assert shapes_of({"ids": (4, 7), **FREE}) == {
        "ids": (4, 7),
        "free": (1,),
        "image": (4, 3, 8, 8),
    }
    assert shapes_of({"batch": (4,), "ids": (4, 7)}) == {"ids": (4, 7), **partial}


def test_ranges_make_a_family() -> None:
    family = MODEL.at({"batch": range(1, 17), "length": range(8, 9), "free": (2,)})
    assert isinstance(family, Family)
    assert family.ranges == {"batch": range(1, 17)}
    assert family.graph((5,)).inputs["ids"].shape == (5, 8)
    assert family.ranges_text == "batch=1..16"


def test_a_range_in_a_shape_has_the_name_of_its_dimension() -> None:
    family = MODEL.at({"image": (range(1, 5), 3, range(8, 33), 16), "length": 3})
    assert isinstance(family, Family)
    assert [*family.ranges] == ["batch", "image.2"]
    graph = family.graph((2, 9))
    assert graph.inputs["image"].shape == (2, 3, 9, 16)
    assert graph.inputs["ids"].shape == (2, 3)


@pytest.mark.parametrize("request_, said", [
    ({"photo": 3}, "has no input photo: its inputs are ids, image, free, fixed, its open"),
    ({"batch": 4, "ids": (5, 7)}, "the size batch is given as 4 and as 5"),
    ({"batch": range(1, 5), "ids": (4, 7)}, "the size batch is given as 1..4 and as 4"),
    ({"ids": (4, 7, 1)}, "input ids has 2 dimensions, the shape 4,7,1 has 3"),
    ({"fixed": (range(1, 3), 5)}, "dimension 0 of input fixed is 2 in the model, not 1..2"),
    ({"batch": (4, 5)}, "batch is one dimension, not 2"),
    ({"batch": range(5)}, "write a range of sizes from 1 on"),
    ({"batch": range(5, 1)}, "write a range of sizes from 1 on"),
    ({"batch": range(1, 9, 2)}, "write a range of sizes from 1 on"),
])  # fmt: skip
def test_what_contradicts_is_one_line(request_: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ModelError) as caught:
        MODEL.at(request_)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_size_is_asked_for_where_ranges_do_not_apply() -> None:
    with pytest.raises(ModelError, match=r"batch=1\.\.16 is a range of sizes"):
        MODEL.fixed({"batch": range(1, 17)})
