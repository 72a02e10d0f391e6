"""Boxes of results, stored by a model of TMA, against the elements that a derived program names."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.codegen.epilogue import Epilogue, Residual
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.targets.cuda.lower import TiledProduct, lower
from cpembed.targets.cuda.tma.stores import StoreView, store_view
from tests.unit.targets.cuda.tma.test_views import digits, random_words

ROWS = 16
"""Of a warp in an accumulator (PTX ISA, fragments of mma.m16n8k16 and of wgmma)."""


def products(
    words: str, target: str, epilogue: Epilogue | None, constraints: str = "fused"
) -> list[TiledProduct]:
    spec = hardware_spec(target)
    embeddings = solve(workload(words, target=spec), spec, constraints=constraints, top=4)
    return [lower(e.candidate.program, spec, epilogue) for e in embeddings.embeddings]


def named_elements(product: TiledProduct, values: dict[str, Any]) -> NDArray[Any]:
    """Numbers of the original elements of the result at iterators; -1 where there is none."""
    operands = product.program.instruction.computation.operands
    role = product.program.role(operands[2].name)
    names = [dimension.name for dimension in role.dimensions]
    packed = dict(zip(names, (index.evaluate(values) for index in role.access), strict=True))
    places = np.broadcast_arrays(*(index.evaluate(packed) for index in role.source))
    inside = np.ones(places[0].shape, bool)
    number = np.zeros(places[0].shape, np.int64)
    for place, size in zip(places, role.original_shape, strict=True):
        inside &= (place >= 0) & (place < size)
        number = number * size + place
    return np.where(inside, number, -1)


def stored(product: TiledProduct, view: StoreView) -> dict[int, list[int]]:
    """Elements that all boxes write, by their places in memory: those of each write."""
    batches, row_tiles, column_tiles, _ = product.tiles
    m, n = product.instruction.m, product.instruction.n
    written: dict[int, list[int]] = {}
    places = itertools.product(
        range(batches), range(row_tiles), range(0, m, ROWS), range(0, column_tiles, view.tiles)
    )
    for batch, row_tile, row, column_tile in places:
        values: dict[str, Any] = dict.fromkeys(product.program.extents, 0)
        values |= digits(batch, product.batch) | digits(row_tile, product.rows)
        rows, columns = np.arange(ROWS)[:, None], np.arange(view.tiles * n)[None]
        tiles = column_tile + columns // n
        sums = values | digits(tiles, product.columns)
        sums |= {product.axes[0]: row + rows, product.axes[1]: columns % n}
        elements = np.where(tiles < column_tiles, named_elements(product, sums), -1)
        values |= digits(column_tile, product.columns) | {product.axes[0]: row}
        first = [int(index.evaluate(values)) for index in view.coordinates]
        for place, element in zip(box(view, first), elements.reshape(-1), strict=True):
            if place is not None:
                written.setdefault(place, []).append(int(element))
    return written


def box(view: StoreView, first: list[int]) -> list[int | None]:
    """Places of a box's elements in memory, innermost first; None outside of the array."""
    tensor_map = view.tensor_map
    size = tensor_map.element_bytes
    strides = [1, *(stride // size for stride in tensor_map.global_strides)]
    places = list[int | None]()
    for index in itertools.product(*map(range, tensor_map.image_shape)):
        at = [c + i for c, i in zip(first, reversed(index), strict=True)]
        inside = all(0 <= c < d for c, d in zip(at, tensor_map.global_dims, strict=True))
        places.append(sum(map(math.prod, zip(at, strides, strict=True))) if inside else None)
    return places


def check(product: TiledProduct, columns: int) -> bool:
    """Whether there is a view, which then stores each element once, where it belongs."""
    try:
        view = store_view(product, columns)
    except LoweringError:
        return False
    elements = math.prod(product.output.layout.original_shape)
    assert stored(product, view) == {place: [place] for place in range(elements)}
    return True


CASES = {
    "gemm m=133 n=72 k=32": True,
    "gemm m=70 n=75 k=32": False,  # Rows are no multiple of 16 bytes apart.
    "batched_gemm b=3 m=70 n=24 k=48": True,
    "conv2d n=2 c=16 h=9 w=9 k=40 r=3 s=3 pad=1 layout=NHWC": True,
    "conv2d n=2 c=16 h=9 w=9 k=40 r=3 s=3 pad=1": False,  # Channels are not contiguous.
    "conv2d n=1 c=32 h=7 w=16 k=32 r=3 s=3 pad=1 groups=2 layout=NHWC": True,
    "conv3d n=1 c=16 d=4 h=5 w=5 k=16 t=3 r=3 s=3 pad=1 layout=NDHWC": True,
}


@pytest.mark.parametrize("target", ["mma_f16", "wgmma_f16"])
@pytest.mark.parametrize("words", CASES)
def test_boxes_store_each_result_once(words: str, target: str) -> None:
    epilogue = Epilogue("float16")
    built = [
        check(product, columns)
        for product in products(words, target, epilogue)
        for columns in (2, 4, 8)
    ]
    assert any(built) == CASES[words]


@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", range(60))
def test_boxes_of_random_products(seed: int) -> None:
    rng = random.Random(seed)
    words, target = random_words(rng), rng.choice(("mma_f16", "wgmma_f16"))
    epilogue = rng.choice((None, Epilogue("float16"), Epilogue("bfloat16", bias=True)))
    constraints = rng.choice(("fused", "flattened", "in_place_padded"))
    for product in products(words, target, epilogue, constraints)[:2]:
        check(product, rng.choice((2, 4, 8, 12)))


REFUSALS = {
    "threads read residuals": Epilogue("float32", residual=Residual(dtype="float32")),
    "register that an epilogue takes apart": Epilogue("float16", relu=True),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_a_refusal_says_why(reason: str) -> None:
    target = "wgmma_f16_f16" if "register" in reason else "wgmma_f16"
    (product, *_) = products("gemm m=64 n=64 k=64", target, REFUSALS[reason])
    with pytest.raises(LoweringError, match=reason):
        store_view(product, 8)


def test_pixels_of_a_convolution_are_rows_of_a_matrix() -> None:
    words = "conv2d n=2 c=16 h=9 w=9 k=64 r=3 s=3 pad=1 layout=NHWC"
    product = products(words, "wgmma_f16", Epilogue("float16"))[0]
    tensor_map = store_view(product, 8).tensor_map
    assert tensor_map.global_dims == (64, 2 * 9 * 9)
    assert tensor_map.image_shape == (16, 64)
