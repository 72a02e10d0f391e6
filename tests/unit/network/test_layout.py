"""Layouts beside their own maps, element by element."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from cpembed.network.layout import Layout

PLAIN = Layout.plain((2, 8, 3, 4))
LAYOUTS = [
    PLAIN,
    PLAIN.channels_last(),
    PLAIN.channels_last().with_halo((1, 2)),
    PLAIN.blocked(4),
    PLAIN.blocked(4).with_halo((2, 0)),
    Layout.plain((2, 8, 5)).channels_last().with_halo((1,)),
    Layout.plain((1, 4, 2, 2, 3)).channels_last().with_halo((1, 0, 1)),
    Layout.plain((5,)),
    Layout.plain(()),
]


def place(layout: Layout, index: tuple[int, ...]) -> int:
    """Of an element in memory: from the texts of its index."""
    texts = layout.physical_index([str(i) for i in index])
    total = 0
    for text, extent in zip(texts, layout.physical_shape, strict=True):
        value = eval(text)
        assert 0 <= value < extent
        total = total * extent + value
    return total


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_element_has_a_place_of_its_own(layout: Layout) -> None:
    places = [place(layout, index) for index in itertools.product(*map(range, layout.shape))]
    assert len(set(places)) == len(places) == math.prod(layout.shape)
    assert max(places, default=0) < layout.elements


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_tensor_is_read_out_of_its_buffer(layout: Layout) -> None:
    buffer = np.full(layout.elements, -1)
    tensor = np.arange(math.prod(layout.shape)).reshape(layout.shape)
    for index in itertools.product(*map(range, layout.shape)):
        buffer[place(layout, index)] = tensor[index]
    assert np.array_equal(layout.elements_of(buffer), tensor)
    assert np.array_equal(layout.buffer_of(tensor, -1).reshape(-1), buffer)


@pytest.mark.parametrize("layout", [one for one in LAYOUTS if one.block == 1], ids=str)
def test_strides_lead_from_one_index_to_the_next(layout: Layout) -> None:
    for axis, stride in enumerate(layout.strides()):
        index = [0] * len(layout.shape)
        first = place(layout, tuple(index))
        index[axis] = layout.shape[axis] - 1
        assert place(layout, tuple(index)) - first == stride * (layout.shape[axis] - 1)


@pytest.mark.parametrize("one, other", list(itertools.combinations(LAYOUTS[:5], 2)), ids=str)
def test_equal_memory_is_equal_places(one: Layout, other: Layout) -> None:
    indices = list(itertools.product(*map(range, one.shape)))
    equal = all(place(one, index) == place(other, index) for index in indices)
    assert one.same_memory(other) == (equal and one.elements == other.elements)


def test_what_is_the_same_under_other_names() -> None:
    pixel = Layout.plain((1, 32, 1, 1))
    assert pixel.same_memory(pixel.channels_last())
    assert pixel.same_memory(pixel.blocked(16))
    image = Layout.plain((1, 16, 4, 4))
    assert image.blocked(16).same_memory(image.channels_last())
    assert not image.same_memory(image.channels_last())
