"""Views of factors, executed by a model of TMA, against the original elements of the operand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.gpu.suites import layers
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.targets.cuda.lower import TiledProduct, lower
from cpembed.targets.cuda.tma.boxes import chunk_digits
from cpembed.targets.cuda.tma.factors import packed_image
from cpembed.targets.cuda.tma.views import ImageView, image_views, refusal
from cpembed.transform.program import Loop, PackedOperand, pack
from tests.unit.targets.cuda.tma.copies import copied


@cache
def products(words: str, constraints: str = "fused", target: str = "mma_f16") -> list[TiledProduct]:
    spec = hardware_spec(target)
    computation = workload(words, target=spec)
    embeddings = solve(computation, spec, constraints=constraints, top=5).embeddings
    return [lower(embedding.candidate.program, spec) for embedding in embeddings]


class Reference:
    """Elements of a factor by batch, row and depth, from the indices of the derived program."""

    def __init__(self, product: TiledProduct, number: int) -> None:
        self.product, self.number = product, number
        instruction = product.program.instruction
        self.operand = product.program.role(instruction.computation.operands[number].name)
        elements = int(np.prod(self.operand.original_shape))
        # All elements differ, and none is zero.
        self.data = np.arange(1, elements + 1).reshape(self.operand.original_shape)
        self.loops = product.columns if number else product.rows
        self.tile = product.instruction.n if number else product.instruction.m

    def values(self, batch: int, row: Any, deep: Any) -> dict[str, Any]:
        product = self.product
        values: dict[str, Any] = dict.fromkeys(product.program.extents, 0)
        values |= digits(batch, product.batch)
        values |= digits(row // self.tile, self.loops)
        values |= digits(deep // product.instruction.k, product.depth)
        values[product.axes[self.number]] = row % self.tile
        values[product.axes[2]] = deep % product.instruction.k
        return values

    def elements(self, batch: int, rows: NDArray[Any], deep: NDArray[Any]) -> NDArray[Any]:
        """Elements by row and depth; 0 where the program's packed operand has none."""
        values = self.values(batch, rows[:, None], deep[None])
        names = [dimension.name for dimension in self.operand.dimensions]
        packed = [index.evaluate(values) for index in self.operand.access]
        position = [i.evaluate(dict(zip(names, packed, strict=True))) for i in self.operand.source]
        inside = np.ones((rows.size, deep.size), bool)
        for x, size in zip(position, self.operand.original_shape, strict=True):
            inside &= (x >= 0) & (x < size)
        found = [np.where(inside, x, 0) for x in position]
        return np.where(inside, self.data[tuple(found)], 0)

    def stored(self, batch: int, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether a row has a result in the first column."""
        output = self.product.output.layout
        values = self.values(batch, rows, np.zeros_like(rows))
        inside = rows < self.rows()
        for index, size in zip(output.access, output.shape, strict=True):
            position = index.evaluate(values)
            inside &= (position >= 0) & (position < size)
        return inside

    def rows(self) -> int:
        return int(np.prod([loop.extent for loop in self.loops], dtype=int)) * self.tile

    def depth(self) -> int:
        return self.product.tiles[3] * self.product.instruction.k

    def memory(self, layout: PackedOperand) -> NDArray[Any]:
        return np.asarray(pack(layout, self.data)).reshape(-1)


def digits(number: Any, loops: Sequence[Loop]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for place, loop in reversed(list(enumerate(loops))):
        values[loop.name] = number % loop.extent if place else number
        number = number // loop.extent
    return values


def image(
    view: ImageView, reference: Reference, start: tuple[int, int, int], tiles: int, depth: int
) -> NDArray[Any]:
    """Elements of an image by row of the factor and depth."""
    batch, tile, deep = start
    memory = reference.memory(view.operand.layout)
    product = reference.product
    rows, length = tiles * reference.tile, depth * product.instruction.k
    shared = np.full(rows * length, -1)
    size = view.tensor_map.element_bytes
    for copy in view.copies:
        values = dict.fromkeys(product.program.extents, 0)
        values |= digits(batch, product.batch)
        values |= digits(tile + copy.tile, reference.loops)
        values |= digits(deep, product.depth)
        coordinates, offsets = (
            [int(index.evaluate(values)) for index in indices]
            for indices in (copy.coordinates, copy.filter)
        )
        elements = copied(view.tensor_map, memory, coordinates, offsets)
        # Eight rows of an image are a period of the swizzle.
        assert copy.offset % (8 * view.tensor_map.swizzle) == 0
        first = copy.offset // size
        assert (shared[first : first + elements.size] == -1).all()
        shared[first : first + elements.size] = elements
    assert (shared != -1).all()
    assert view.transaction_bytes == shared.size * size
    if view.major == "mn":
        # Blocks of 64 rows, depth by rows.
        return shared.reshape(-1, length, 64).transpose(0, 2, 1).reshape(rows, length)
    return shared.reshape(rows, length)


def check(product: TiledProduct, number: int, tiles: int, depth: int) -> list[ImageView]:
    views = image_views(product, number, tiles, depth)
    reference = Reference(product, number)
    rng = random.Random(7)
    blocks = -(-reference.rows() // (tiles * reference.tile))
    stages = -(-product.tiles[3] // depth)
    for view in views:
        starts = {(0, 0, 0), (product.tiles[0] - 1, (blocks - 1) * tiles, (stages - 1) * depth)}
        for _ in range(4):
            starts.add(
                (
                    rng.randrange(product.tiles[0]),
                    rng.randrange(blocks) * tiles,
                    rng.randrange(stages) * depth,
                )
            )
        if view.zero_beyond:
            starts |= {(0, 0, (stages + n) * depth) for n in (0, 1, stages)}
        for start in sorted(starts):
            compare(view, reference, start, tiles, depth)
    return list(views)


def compare(
    view: ImageView, reference: Reference, start: tuple[int, int, int], tiles: int, depth: int
) -> None:
    batch, tile, deep = start
    found = image(view, reference, start, tiles, depth)
    first = deep * reference.product.instruction.k
    depth_range = np.arange(first, min(first + found.shape[1], reference.depth()))
    rows = tile * reference.tile + np.arange(found.shape[0])
    stored = reference.stored(batch, rows)
    expected = reference.elements(batch, rows[stored], depth_range)
    assert np.array_equal(found[stored, : depth_range.size], expected), start
    if view.zero_beyond:
        valid = max(0, reference.depth() - first)
        assert not found[:, valid:].any(), start


GEMMS = (
    "gemm m=64 n=64 k=128",
    "gemm m=100 n=72 k=200",
    "gemm m=33 n=200 k=72",
    "gemm m=96 n=128 k=64 trans_a=1",
    "gemm m=64 n=96 k=136 trans_b=1",
    "gemm m=72 n=136 k=40 trans_a=1 trans_b=1",
    "batched_gemm b=3 m=40 n=48 k=80",
)

CONVOLUTIONS = (
    "conv2d n=2 c=64 h=14 w=14 k=64 r=3 s=3 pad=1 layout=NHWC",
    "conv2d n=1 c=32 h=15 w=13 k=32 r=3 s=3 pad=1 stride=2 layout=NHWC",
    "conv2d n=2 c=16 h=12 w=12 k=24 r=3 s=3 pad=2 dilation=2 layout=NHWC",
    "conv2d n=1 c=64 h=16 w=16 k=64 r=1 s=1 layout=NHWC",
    "conv2d n=1 c=32 h=17 w=17 k=32 r=1 s=1 stride=2 layout=NHWC",
    "conv2d n=2 c=64 h=9 w=9 k=64 r=3 s=3 groups=2 pad=1 layout=NHWC",
    "conv2d n=1 c=3 h=20 w=20 k=32 r=5 s=5 pad=2 stride=2 layout=NHWC",
    "conv2d n=1 c=32 h=14 w=14 k=32 r=3 s=3 pad=1",
    "conv1d n=2 c=32 w=50 k=32 s=5 pad=2 layout=NWC",
    "conv1d n=2 c=32 w=50 k=32 s=3 stride=3 dilation=2 pad=2 layout=NWC",
    # A step that no element stride reaches: inside of the operand, and beyond its ends.
    "conv1d n=2 c=32 w=160 k=32 s=3 stride=9 layout=NWC",
    "conv1d n=2 c=32 w=160 k=32 s=3 stride=9 pad=2 layout=NWC",
    "conv3d n=1 c=32 d=6 h=7 w=8 k=16 t=3 r=3 s=3 pad=1 layout=NDHWC",
    "conv3d n=2 c=16 d=5 h=6 w=6 k=16 t=3 r=1 s=1 stride=2 pad=1 layout=NDHWC",
    "transposed_conv2d n=1 c=32 h=7 w=7 k=32 r=4 s=4 pad=1 stride=2",
)


@pytest.mark.quick(14)
@pytest.mark.parametrize("constraints", ["fused", "in_place_padded"])
@pytest.mark.parametrize("words", [*GEMMS, *CONVOLUTIONS])
def test_views_load_the_elements_of_the_operand(words: str, constraints: str) -> None:
    rng = random.Random(words)
    for product in products(words, constraints)[:3]:
        for number in (0, 1):
            tiles, depth = rng.choice((1, 2, 4, 8)), rng.choice((1, 2, 4))
            assert check(product, number, tiles, depth)


def random_words(rng: random.Random) -> str:
    channels = [8 * rng.randint(1, 9) for _ in range(2)]
    if rng.random() < 0.3:
        m, n, k = (rng.randint(8, 160) for _ in range(3))
        flags = f"trans_a={rng.randint(0, 1)} trans_b={rng.randint(0, 1)}"
        return f"gemm m={m} n={n} k={8 * (k // 8)} {flags}"
    height, width = rng.randint(5, 20), rng.randint(5, 20)
    return (
        f"conv2d n={rng.randint(1, 3)} c={channels[0]} h={height} w={width} k={channels[1]} "
        f"r={rng.randint(1, 3)} s={rng.randint(1, 3)} pad={rng.randint(0, 2)} "
        f"stride={rng.randint(1, 3)} dilation={rng.randint(1, 2)} "
        f"layout={rng.choice(('NHWC', 'NHWC', 'NCHW'))}"
    )


@pytest.mark.quick(6)
@pytest.mark.parametrize("seed", range(60))
def test_views_of_random_products(seed: int) -> None:
    rng = random.Random(seed)
    constraints = rng.choice(("fused", "flattened", "in_place_padded"))
    for product in products(random_words(rng), constraints)[:2]:
        for number in (0, 1):
            check(product, number, rng.choice((1, 2, 3, 4, 8, 16)), rng.choice((1, 2, 4)))


@pytest.mark.parametrize("words", [GEMMS[1], CONVOLUTIONS[0], CONVOLUTIONS[2]])
def test_bytes_are_loaded_too(words: str) -> None:
    for product in products(words, "fused", "mma_s8")[:2]:
        for number, tiles, depth in ((0, 2, 1), (1, 8, 2), (0, 1, 4)):
            for view in check(product, number, tiles, depth):
                assert view.major == "k"


def best(words: str, number: int, tiles: int, depth: int, constraints: str = "fused") -> ImageView:
    return image_views(products(words, constraints)[0], number, tiles, depth)[0]


def test_operands_are_loaded_from_where_they_are() -> None:
    """A matrix by boxes, an image in im2col mode, filters by boxes; nothing is packed."""
    matrix = best("gemm m=128 n=128 k=128", 0, 8, 4)
    assert (matrix.is_im2col, len(matrix.copies), matrix.major) == (False, 1, "k")
    columns = best("gemm m=128 n=128 k=128", 1, 16, 4)
    assert (columns.major, len(columns.copies)) == ("mn", 2)
    activations = best(CONVOLUTIONS[0], 0, 8, 4)
    assert (activations.is_im2col, len(activations.copies)) == (True, 1)
    filters = best(CONVOLUTIONS[0], 1, 8, 4)
    assert (filters.is_im2col, filters.major, len(filters.copies)) == (False, "k", 1)
    for view in (matrix, columns, activations, filters):
        assert not view.operand.needs_packing


def suite_convolutions() -> list[str]:
    """Convolutions of the suites that the GPU's benchmarks pack, channels last."""
    items = layers(("amos12", "unit16", "deepbench"))
    return list(dict.fromkeys(item.words for item in items))


@pytest.mark.quick(2)
@pytest.mark.parametrize("words", suite_convolutions())
def test_images_of_the_suites_are_loaded_from_where_they_are(words: str) -> None:
    """Those that CUTLASS loads in im2col mode: channels are a multiple of 16 bytes.

    sm90_implicit_gemm_gmma_ss_warpspecialized.hpp, can_implement: alignment of 128 bits. Among the
    embeddings that use the instruction best is one whose image TMA loads, by pixels or by boxes.
    """
    spec = hardware_spec("wgmma_f16")
    computation = workload(words, target=spec)
    embeddings = solve(computation, spec, constraints="fused", top=8).embeddings
    used = [embedding.overheads.utilisation for embedding in embeddings]
    in_place: list[bool] = []
    for embedding, share in zip(embeddings, used, strict=True):
        product = lower(embedding.candidate.program, spec)
        image = computation.inputs[0].name
        number = 0 if product.first[0].layout.name == image else 1
        tiles, depths = (2 if number == 0 else 16), {min(d, product.tiles[3]) for d in (1, 2, 4)}
        # A box holds channels of one position, so a stage of 4 is not for 96 of them.
        is_loaded = any(refusal(product, number, tiles, depth) == "" for depth in depths)
        in_place.append(is_loaded and share == max(used))
        # Otherwise neighbours are fewer bytes apart than strides of tensor maps.
        assert not is_loaded or computation.extents["c"] * 2 % 16 == 0
    assert any(in_place) == (computation.extents["c"] * 2 % 16 == 0)


def test_strides_and_dilation_are_those_of_the_map() -> None:
    strided = best(CONVOLUTIONS[1], 0, 2, 2)
    assert strided.tensor_map.element_strides == (1, 2, 2, 1)
    dilated = best(CONVOLUTIONS[2], 0, 2, 1)
    assert [str(index) for index in dilated.copies[0].filter] == ["2*s.o", "2*r.o"]


def test_a_depth_beyond_which_nothing_is_zero_is_told() -> None:
    """A filter row too many lies inside of the image, but outside of the filters."""
    assert not best(CONVOLUTIONS[0], 0, 2, 4).zero_beyond
    assert best(CONVOLUTIONS[0], 1, 2, 4).zero_beyond
    assert best("gemm m=64 n=64 k=72", 0, 2, 4).zero_beyond


def test_a_refusal_says_why() -> None:
    channels_first = products("conv2d n=1 c=32 h=14 w=14 k=32 r=3 s=3 pad=1")[0]
    assert "I: 64 elements in a row are not" in refusal(channels_first, 0, 4, 4)
    assert refusal(products(GEMMS[0])[0], 0, 4, 4) == ""


def test_packed_rows_beyond_the_depth_are_zero() -> None:
    product = products("conv2d n=1 c=16 h=8 w=8 k=16 r=3 s=3 pad=1 layout=NHWC")[0]
    reference = Reference(product, 0)
    layout = packed_image(product, 0)
    assert layout.shape == (1, 3, 64, 64)
    memory = reference.memory(layout).reshape(layout.shape)
    assert not memory[0, 2, :, 16:].any()
    found = memory[0].transpose(1, 0, 2).reshape(64, -1)[:, : reference.depth()]
    rows, deep = np.arange(64), np.arange(reference.depth())
    assert np.array_equal(found, reference.elements(0, rows, deep))


def test_digits_of_a_chunk() -> None:
    rows = np.arange(64)
    steps = np.array([rows // 16 % 4 * 3, rows % 16 * 2])
    assert [(extent, step.tolist()) for extent, step in chunk_digits(steps)] == [
        (16, [0, 2]),
        (4, [3, 0]),
    ]
    with pytest.raises(LoweringError, match="no box"):
        chunk_digits(np.array([rows // 14, rows % 14]))
