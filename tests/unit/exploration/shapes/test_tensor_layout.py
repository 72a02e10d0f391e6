"""Layouts of tensors in memory, against the addresses of all of their elements."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.exploration.shapes.network import Part, TensorLayout, tensor_layout
from cpembed.exploration.shapes.shape import Shape, template
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import PackedDimension, PackedOperand
from tests.unit.exploration.shapes.layers import random_shape, small_layer, target_of


def places(operand: PackedOperand) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """Of each element the indices in memory at which it lies."""
    found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for index in np.ndindex(operand.shape):
        values = dict(zip((d.name for d in operand.dimensions), index, strict=True))
        element = tuple(int(source.evaluate(values)) for source in operand.source)
        if all(0 <= e < size for e, size in zip(element, operand.original_shape, strict=True)):
            found.setdefault(element, []).append(index)
    return found


def addresses(layout: TensorLayout) -> NDArray[np.int64]:
    """Of each element, in a buffer that has room for whole parts and no more."""
    total = np.zeros(layout.shape, np.int64)
    reach = 1
    for part in reversed(layout.parts):
        index = np.arange(layout.shape[part.axis]) // part.step % part.extent
        total += reach * index.reshape([-1 if a == part.axis else 1 for a in range(total.ndim)])
        reach *= part.extent
    return total


def order_of(operand: PackedOperand) -> list[tuple[int, ...]]:
    """The elements as they follow each other in memory."""
    found = places(operand)
    assert all(len(at) == 1 for at in found.values())
    return sorted(found, key=lambda element: found[element][0])


def operands(seed: int, count: int, constraints: str) -> list[tuple[PackedOperand, bool]]:
    rng = random.Random(seed)
    found: list[tuple[PackedOperand, bool]] = []
    while len(found) < count:
        layer, shape = small_layer(rng), random_shape(rng, 64)
        result = solve(layer, target_of(shape), constraints=constraints, top=3)
        for one in result.embeddings:
            program = one.candidate.program
            outputs = {operand.name for operand in program.workload.outputs}
            found += [(operand, operand.name in outputs) for operand in program.operands]
    return found


@pytest.mark.quick(1)
@pytest.mark.parametrize("constraints", ["in_place_padded", "relaxed", "complete", "fused"])
def test_elements_lie_in_the_order_that_the_parts_say(constraints: str) -> None:
    regular = 0
    for operand, stored in operands(1, 120, constraints):
        layout = tensor_layout(operand, operand.original_shape, stored=stored)
        if layout.packed:
            assert layout.packed == operand.elements
            continue
        regular += 1
        flat = addresses(layout)
        assert len(np.unique(flat)) == flat.size
        expected = sorted(np.ndindex(layout.shape), key=lambda element: int(flat[element]))
        assert order_of(operand) == expected, (operand, layout)
    assert regular > 60


@pytest.mark.quick(1)
@pytest.mark.parametrize("constraints", ["in_place_padded", "complete"])
def test_what_is_packed_lies_more_than_once_or_without_regular_steps(constraints: str) -> None:
    """Nothing that has a place of its own and regular steps is called packed, but for blocks that
    a halo moves, and windows that are read in part."""
    for operand, stored in operands(2, 120, constraints):
        layout = tensor_layout(operand, operand.original_shape, stored=stored)
        if not layout.packed:
            continue
        found = places(operand)
        once = all(len(at) == 1 for at in found.values())
        whole = len(found) == np.prod(operand.original_shape)
        moved = any(index.constant for index in operand.source)
        affine = all(index.is_affine for index in operand.source)
        assert not (once and whole and affine and not moved), (operand, layout)


def test_one_layout_of_a_producer_and_of_a_consumer() -> None:
    """A convolution that stores blocks of 4 channels, and a padded one that loads blocks of 4: the
    halo is room in the buffer. One that loads blocks of 8 needs another layout."""
    shape = (1, 8, 6, 6)
    first = workload("conv2d n=1 c=4 h=6 w=6 k=8 r=1 s=1", template())
    second = workload("conv2d n=1 c=8 h=6 w=6 k=4 r=3 s=3 pad=1", template())
    found: dict[str, TensorLayout] = {}
    for name, layer, extents, place in (
        ("stored", first, (1, 4, 4), -1),
        ("loaded", second, (1, 4, 4), 0),
        ("whole", second, (1, 4, 8), 0),
    ):
        result = solve(layer, target_of(Shape(*extents)), constraints="in_place_padded", top=None)
        programs = [one.candidate.program for one in result.embeddings]
        wanted = {"y": ("k",), "z": ("c",)}
        program = next(
            one
            for one in programs
            if all(tuple(one.embedding.family[a]) == axes for a, axes in wanted.items())
        )
        found[name] = tensor_layout(program.operands[place], shape, stored=place == -1)
    assert found["stored"] == found["loaded"] != found["whole"]
    assert found["stored"].named(image=True) == "NCHW4c"
    assert found["whole"].named(image=True) == "NHWC"


@pytest.mark.parametrize("before, regular", [(0, True), (4, True), (1, False)])
def test_a_halo_that_is_no_whole_block_moves_the_blocks(before: int, regular: bool) -> None:
    """Blocks of 4 that begin one element before the tensor are other blocks."""
    dimensions = (PackedDimension("w.o", 3), PackedDimension("w.i", 4))
    source = IndexExpr((IndexTerm("w.o", 4), IndexTerm("w.i")), -before)
    operand = PackedOperand("A", "int8", (6,), dimensions, (source,), ())
    assert (tensor_layout(operand, (6,), stored=False).packed == 0) is regular


@pytest.mark.parametrize(
    "shape, axes, expected",
    [
        ((1, 32, 28, 28), (2, 3), None),
        ((1, 64, 28, 28), (2, 3), "NCHW16c"),
        ((1, 32, 56, 56), (1,), "NCHW16c"),
        ((1, 24, 56, 56), (1,), None),
        ((1, 64, 1, 1), (2, 3), "NHWC"),
        ((1, 1, 56, 56), (1,), "NCHW"),
    ],
)
def test_layouts_carried_to(
    shape: tuple[int, ...], axes: tuple[int, ...], expected: str | None
) -> None:
    blocks = (Part(1, 16, 4), Part(2, 1, 56), Part(3, 1, 56), Part(1, 1, 16))
    taken = TensorLayout((1, 64, 56, 56), blocks).carried_to(shape, axes)
    assert (None if taken is None else taken.named(image=True)) == expected


@pytest.mark.quick(2)
@pytest.mark.parametrize("reshaped", [(2, 3, 4, 5), (6, 20), (1, 6, 4, 5), (2, 12, 5), (120,)])
def test_reshaped_operands(reshaped: tuple[int, ...]) -> None:
    """The layout of a tensor that a program sees in another shape has the same addresses."""
    layer = workload("batched_gemm b=6 m=4 n=3 k=5", template())
    rng = random.Random(3)
    regular = 0
    for _ in range(20):
        result = solve(
            layer, target_of(random_shape(rng, 64)), constraints="in_place_padded", top=2
        )
        for one in result.embeddings:
            operand = one.candidate.program.operands[0]
            layout = tensor_layout(operand, reshaped, stored=False)
            if layout.packed:
                continue
            regular += 1
            flat = addresses(layout).reshape(operand.original_shape)
            expected = sorted(np.ndindex(flat.shape), key=lambda element: int(flat[element]))
            assert order_of(operand) == expected
    assert regular > 5
