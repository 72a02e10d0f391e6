"""Products on laid-out tensors compute what they compute on plain ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cpembed.driver.named import workload
from cpembed.errors import LoweringError
from cpembed.graph.kinds import Product, TensorType
from cpembed.ir.computation import Computation
from cpembed.ir.reference import random_inputs, reference
from cpembed.network.layout import Layout, dimensions_of, padding_of
from cpembed.network.physical_product import PhysicalProduct, physical_product

WORDS = (
    "conv2d n=2 c=8 h=5 w=6 k=16 r=3 s=3 pad=1",
    "conv2d n=1 c=16 h=7 w=7 k=8 r=3 s=3 pad=1,2 stride=2 dilation=1,2",
    "conv2d n=1 c=8 h=6 w=6 k=8 r=1 s=1",
    "conv2d n=1 c=4 h=5 w=5 k=2 r=3 s=3 pad=1 groups=2",
    "conv2d n=1 c=1 h=5 w=5 k=1 r=3 s=3 pad=1 groups=2",
    "depthwise n=1 c=8 h=5 w=5 r=3 s=3 pad=1",
    "conv1d n=1 c=8 w=9 k=4 s=3 pad=1",
    "conv3d n=1 c=4 d=3 h=4 w=4 k=4 t=3 r=1 s=3 pad=1,0,1",
)


def tensor_shape(computation: Computation, name: str) -> tuple[int, ...]:
    """The shape that a network gives the tensor: channels and groups are one axis."""
    shape = computation.operand(name).shape
    return (shape[0], shape[1] * shape[2], *shape[3:]) if "g" in computation.extents else shape


def memory(tensor: np.ndarray, layout: Layout) -> np.ndarray:
    """A tensor as it lies, zeros in the halo."""
    buffer = np.zeros(layout.elements, tensor.dtype)
    numbers = layout.elements_of(np.arange(layout.elements))
    buffer[numbers.reshape(-1)] = tensor.reshape(-1)
    return buffer


def is_padded(product: PhysicalProduct) -> bool:
    """True if padding is read that is not in memory."""
    return any(operand.zero_outside for operand in product.computation.inputs)


def layouts(shape: tuple[int, ...], halo: tuple[int, ...]) -> list[Layout]:
    plain = Layout.plain(shape)
    found = [plain, plain.channels_last()]
    if shape[1] % 4 == 0 and shape[1] > 4:
        found.append(plain.blocked(4))
    return found + [one.with_halo(halo) for one in found[1:] if any(halo)]


@pytest.mark.parametrize("words", WORDS)
def test_results_are_the_same_in_every_layout(words: str) -> None:
    computation = workload(f"{words} dtype=int8,int8,int32")
    first, second = (operand.name for operand in computation.inputs)
    output = computation.output.name
    product = Product(computation, tensor_shape(computation, output))
    inputs = random_inputs(computation, 3)
    wanted = reference(computation, inputs)
    shape = tensor_shape(computation, first)
    halo = padding_of(product, TensorType(shape, "int8"))
    tensor = inputs[first].reshape(shape)
    result = wanted.reshape(product.shape)
    tried = 0
    pairs = itertools.product(layouts(shape, halo), layouts(product.shape, (1,) * len(halo)))
    for one, other in pairs:
        try:
            made = physical_product(product, one, other)
        except LoweringError:
            assert max(one.block, other.block) > 1
            continue
        operands = {operand.name: operand for operand in made.computation.inputs}
        given = {
            first: memory(tensor, one).reshape(operands[first].shape),
            second: inputs[second].reshape(operands[second].shape),
        }
        assert is_padded(made) == (any(halo) and not one.has_halo)
        found = reference(made.computation, given)
        placed = made.output.placed(found)
        assert np.array_equal(other.elements_of(placed), result), (str(one), str(other))
        tried += 1
    assert tried >= 4


def test_padding_that_is_not_zero_has_to_be_in_memory() -> None:
    computation = workload("conv2d n=1 c=8 h=5 w=5 k=8 r=3 s=3 pad=1 dtype=uint8,int8,int32")
    product = Product(computation, (1, 8, 5, 5), padding=7)
    image = Layout.plain((1, 8, 5, 5)).channels_last()
    with pytest.raises(LoweringError, match="in memory"):
        physical_product(product, image, image)
    assert not is_padded(physical_product(product, image.with_halo((1, 1)), image))


def test_dimensions_that_are_no_split_are_refused() -> None:
    assert dimensions_of((1, 12, 8), (1, 3, 4, 8)) == [[0], [1, 2], [3]]
    with pytest.raises(LoweringError):
        dimensions_of((1, 12, 8), (1, 5, 4, 8))
