"""Tensor copies of random maps, tiled and im2col, against a definition element by element."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from cpembed.targets.cuda.emulator.executor import (
    Counters,
    Launch,
    MapArgument,
    Order,
    compile_text,
)
from cpembed.targets.cuda.tma.tensor_maps import Im2colBox, TensorMap, TiledBox
from tests.unit.targets.cuda.emulator.running import ORDERS, Array, fault, needs_compiler

pytestmark = needs_compiler

THREADS = 64


def text_of(rank: int, mode: str) -> str:
    """A block copies to shared memory, or from it for the mode "store"."""
    coordinates = ", ".join(f"%{i + 2}" for i in range(rank))
    inputs = ", ".join(f'"r"(at[{i}])' for i in range(rank))
    offsets, offset_inputs = "", ""
    if mode == "im2col":
        offsets = ", {" + ", ".join(f"%{rank + 3 + i}" for i in range(rank - 2)) + "}"
        offset_inputs = "".join(f', "h"((unsigned short)tap[{i}])' for i in range(rank - 2))
    kind = "im2col" if mode == "im2col" else "tile"
    if mode == "store":
        copy = f"""
  for (int i = threadIdx.x; i < bytes; i += {THREADS}) memory[i] = out[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {{
    asm volatile("cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group "
                 "[%1, {{{coordinates}}}], [%0];"
                 :: "r"(to), "l"(&map), {inputs} : "memory");
    asm volatile("cp.async.bulk.commit_group;");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }}"""
    else:
        copy = f"""
  if (threadIdx.x == 0) {{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(object));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(object), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.{kind}"
                 ".mbarrier::complete_tx::bytes "
                 "[%0], [%1, {{{coordinates}}}], [%{rank + 2}]{offsets};"
                 :: "r"(to), "l"(&map), {inputs}, "r"(object){offset_inputs} : "memory");
  }}
  __syncthreads();
  asm volatile("{{ .reg .pred p; again: "
               "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra again; }}"
               :: "r"(object) : "memory");
  for (int i = threadIdx.x; i < bytes; i += {THREADS}) out[i] = memory[i];"""
    return f"""
#include <cuda.h>
extern "C" __global__ void copy(const __grid_constant__ CUtensorMap map, const int* at,
                                const int* tap, unsigned char* out, int bytes) {{
  extern __shared__ __align__(1024) unsigned char memory[];
  unsigned to = (unsigned)__cvta_generic_to_shared(memory);
  unsigned object = to + (bytes + 1023) / 1024 * 1024;
  {copy}
}}
"""


def run(
    tensor_map: TensorMap,
    array: Array,
    at: tuple[int, ...],
    tap: tuple[int, ...] = (),
    *,
    order: Order | int = Order.FORWARD,
    image: Array | None = None,
) -> tuple[Array, Counters]:
    """The bytes that come to shared memory; with an image it is stored instead."""
    mode = "store" if image is not None else "im2col" if tap else "tile"
    bytes_ = tensor_map.transaction_bytes
    out = np.zeros(bytes_, np.uint8) if image is None else image.view(np.uint8).ravel().copy()
    arguments = [
        MapArgument(tensor_map, array),
        np.array(at, np.int32),
        np.array(tap or (0,), np.int32),
        out,
        bytes_,
    ]
    launch = Launch("copy", (1, 1, 1), (THREADS, 1, 1), -(-bytes_ // 1024) * 1024 + 8)
    counters = compile_text(text_of(len(at), mode)).run(launch, arguments, order=order)
    return out, counters


def swizzled(elements: Array, swizzle: int) -> Array:
    """Chunks of 16 bytes are permuted within spans, by the number of the 128-byte line."""
    flat = elements.view(np.uint8).ravel()
    if swizzle == 0:
        return flat
    made = np.empty_like(flat)
    for chunk in range(flat.size // 16):
        line = chunk // 8
        to = chunk ^ line % (swizzle // 16)
        made[to * 16 : to * 16 + 16] = flat[chunk * 16 : chunk * 16 + 16]
    return made


@dataclass(frozen=True)
class Case:
    """A map, its array, and a copy."""

    tensor_map: TensorMap
    array: Array
    at: tuple[int, ...]
    tap: tuple[int, ...] = ()

    def element(self, index: tuple[int, ...]) -> float:
        """Of the array by coordinates, innermost first; zero outside."""
        inside = all(0 <= i < d for i, d in zip(index, self.tensor_map.global_dims, strict=True))
        return self.array[tuple(reversed(index))] if inside else 0


DTYPES = ("float16", "float32", "int8", "bfloat16")


def random_array(shape: list[int], dtype: str, rng: np.random.Generator) -> Array:
    """Of dimensions, innermost first; nothing in it is zero."""
    kind = np.uint16 if dtype == "bfloat16" else np.dtype(dtype)
    return rng.integers(1, 100, shape[::-1]).astype(kind)


def strides(dims: list[int], size: int) -> tuple[int, ...]:
    return tuple(int(np.prod(dims[: n + 1])) * size for n in range(len(dims) - 1))


def tiled_case(rng: np.random.Generator) -> Case:
    rank, dtype = int(rng.integers(1, 6)), str(rng.choice(DTYPES))
    size = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    swizzle = int(rng.choice((0, 32, 64, 128)))
    step = 16 // size
    inner = swizzle // size if swizzle else step * int(rng.integers(1, 4))
    # Strides are multiples of 16 bytes.
    dims = [step * int(rng.integers(1, 6)), *(int(d) for d in rng.integers(1, 6, rank - 1))]
    skips = [1, *(int(s) for s in rng.integers(1, 3, rank - 1))]
    box = [
        inner,
        *(int(b) * s for b, s in zip(rng.integers(1, 5, rank - 1), skips[1:], strict=True)),
    ]
    tensor_map = TensorMap(
        dtype=dtype,
        global_dims=tuple(dims),
        global_strides=strides(dims, size),
        element_strides=tuple(skips),
        box=TiledBox(tuple(box)),
        swizzle=swizzle,
    )
    at = tuple(int(rng.integers(-b - 1, d + 2)) for b, d in zip(box, dims, strict=True))
    return Case(tensor_map, random_array(dims, dtype, rng), at)


def tiled_image(case: Case) -> Array:
    box, skips = case.tensor_map.box.extents, case.tensor_map.element_strides
    ranges = [range(0, extent, skip) for extent, skip in zip(box, skips, strict=True)]
    elements = [
        case.element(tuple(a + i for a, i in zip(case.at, reversed(index), strict=True)))
        for index in itertools.product(*reversed(ranges))
    ]
    return swizzled(np.array(elements, case.array.dtype), case.tensor_map.swizzle)


def im2col_case(rng: np.random.Generator) -> Case:
    """Of a convolution: corners are those of its padding, filter and dilation."""
    spatial, dtype = int(rng.integers(1, 4)), str(rng.choice(("float16", "int8")))
    size = np.dtype(dtype).itemsize
    swizzle = int(rng.choice((0, 32, 64, 128)))
    channels = swizzle // size if swizzle else 32 // size
    dims = [channels * int(rng.integers(1, 3)), *(int(d) for d in rng.integers(3, 7, spatial)), 3]
    filters = [int(f) for f in rng.integers(1, 4, spatial)]
    padding = [int(rng.integers(0, f)) for f in filters]
    steps = [int(s) for s in rng.integers(1, 3, spatial)]
    tensor_map = TensorMap(
        dtype=dtype,
        global_dims=tuple(dims),
        global_strides=strides(dims, size),
        element_strides=(1, *steps, 1),
        box=Im2colBox(
            lower=tuple(-p for p in padding),
            upper=tuple(p - (f - 1) for p, f in zip(padding, filters, strict=True)),
            channels=channels,
            pixels=int(rng.integers(1, 40)),
        ),
        swizzle=swizzle,
    )
    places = [len(range(-p, d - 1 + p - f + 2, s)) for p, d, f, s in
              zip(padding, dims[1:-1], filters, steps, strict=True)]  # fmt: skip
    first = [
        int(rng.integers(0, n)) * s - p for n, s, p in zip(places, steps, padding, strict=True)
    ]
    at = (channels * int(rng.integers(0, 2)), *first, int(rng.integers(0, 3)))
    tap = tuple(int(rng.integers(0, f)) for f in filters)
    return Case(tensor_map, random_array(dims, dtype, rng), at, tap)


def im2col_image(case: Case) -> Array:
    """Output pixels of a convolution from one on, in their order, each with its channels."""
    tensor_map, box = case.tensor_map, case.tensor_map.box
    corners = zip(box.lower, tensor_map.global_dims[1:-1], box.upper, strict=True)
    pixels = [
        range(low, dim + high, step)
        for (low, dim, high), step in zip(corners, tensor_map.element_strides[1:-1], strict=True)
    ]
    batches = range(case.at[-1], case.at[-1] + box.pixels + 1)
    order = itertools.product(batches, *reversed(pixels))
    start = tuple(reversed(case.at[1:]))
    chosen = itertools.islice(itertools.dropwhile(lambda place: place != start, order), box.pixels)
    elements = [
        case.element(
            (
                case.at[0] + c,
                *(p + t for p, t in zip(place[:0:-1], case.tap, strict=True)),
                place[0],
            )
        )
        for place in chosen
        for c in range(box.channels)
    ]
    return swizzled(np.array(elements, case.array.dtype), tensor_map.swizzle)


@pytest.mark.parametrize("seed", range(4))
def test_tiles(seed: int) -> None:
    rng = np.random.default_rng(seed)
    zeros = 0
    for number in range(25):
        case = tiled_case(rng)
        expected = tiled_image(case)
        zeros += not expected.all()
        out, _ = run(case.tensor_map, case.array, case.at, order=ORDERS[number % 3])
        np.testing.assert_array_equal(out, expected, str(case))
    assert zeros > 0


@pytest.mark.parametrize("seed", range(4))
def test_pixels_of_images(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for number in range(25):
        case = im2col_case(rng)
        out, _ = run(case.tensor_map, case.array, case.at, case.tap, order=ORDERS[number % 3])
        np.testing.assert_array_equal(out, im2col_image(case), str(case))


def test_stores_are_the_inverse_of_loads_and_leave_the_rest() -> None:
    rng = np.random.default_rng(9)
    for _ in range(25):
        case = tiled_case(rng)
        skips = case.tensor_map.element_strides
        box = case.tensor_map.box.extents
        counts = [-(-b // s) for b, s in zip(box, skips, strict=True)]
        image = rng.integers(100, 120, counts[::-1]).astype(case.array.dtype)
        expected = case.array.copy()
        for index in itertools.product(*map(range, counts)):
            to = tuple(a + i * s for a, i, s in zip(case.at, index, skips, strict=True))
            if all(0 <= i < d for i, d in zip(to, case.tensor_map.global_dims, strict=True)):
                expected[tuple(reversed(to))] = image[tuple(reversed(index))]
        array = case.array.copy()
        run(
            case.tensor_map, array, case.at,
            image=swizzled(image, case.tensor_map.swizzle),
        )  # fmt: skip
        np.testing.assert_array_equal(array, expected, str(case))


def test_what_a_copy_costs() -> None:
    array = np.ones((6, 80), np.float16)
    tensor_map = TensorMap(
        dtype="float16", global_dims=(80, 6), global_strides=(160,), element_strides=(1, 1),
        box=TiledBox((64, 4)), swizzle=128,
    )  # fmt: skip
    _, counters = run(tensor_map, array, (32, 3))
    # Three of the four rows, and 48 of 64 elements of each; the rest are zeros.
    assert counters.bulk_load_bytes == 3 * 48 * 2
    assert counters.bulk_load_sectors == 3 * 3
    assert counters.bulk_load_image_bytes == 4 * 128


def test_a_copy_of_another_rank_or_mode_is_a_fault() -> None:
    array = np.ones((4, 4, 32), np.float16)
    tensor_map = TensorMap(
        dtype="float16", global_dims=(32, 4, 4), global_strides=(64, 256),
        element_strides=(1, 1, 1), box=TiledBox((32, 2, 2)), swizzle=64,
    )  # fmt: skip
    arguments = [
        MapArgument(tensor_map, array), np.zeros(3, np.int32), np.zeros(3, np.int32),
        np.zeros(256, np.uint8), 256,
    ]  # fmt: skip
    launch = Launch("copy", (1, 1, 1), (THREADS, 1, 1), 2048)
    line = fault(compile_text(text_of(2, "tile")), launch, arguments)
    assert "has 2 coordinates, and its tensor map is one of rank 3" in line
    line = fault(compile_text(text_of(3, "im2col")), launch, arguments)
    assert "has 3 coordinates and offsets, and its tensor map is one of rank 3" in line


def test_an_array_takes_the_place_of_a_map_nowhere() -> None:
    arguments = [np.zeros(64, np.float16), np.zeros(1, np.int32), np.zeros(1, np.int32),
                 np.zeros(16, np.uint8), 16]  # fmt: skip
    launch = Launch("copy", (1, 1, 1), (THREADS, 1, 1), 2048)
    line = fault(compile_text(text_of(1, "tile")), launch, arguments)
    assert "takes a tensor map as argument 0" in line
