"""Tensor Memory Accelerator in numpy, after the PTX ISA: what a copy puts into shared memory.

Second source of the tests of views: it knows tensor maps and nothing of products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.targets.cuda.tma.tensor_maps import Im2colBox, TensorMap, TiledBox


def copied(
    tensor_map: TensorMap,
    memory: NDArray[Any],
    coordinates: Sequence[int],
    offsets: Sequence[int] = (),
) -> NDArray[Any]:
    """Elements that a copy writes, in the order of shared memory before the swizzle.

    ``memory`` are the elements of the array in global memory.
    """
    if isinstance(tensor_map.box, TiledBox):
        positions = _boxed(tensor_map, tensor_map.box, coordinates)
    else:
        positions = _walked(tensor_map, tensor_map.box, coordinates, offsets)
    sizes = np.array(tensor_map.global_dims)[:, None]
    inside = ((positions >= 0) & (positions < sizes)).all(axis=0)
    strides = np.array((tensor_map.element_bytes, *tensor_map.global_strides))
    addresses = strides @ np.where(inside, positions, 0)
    assert not (addresses % tensor_map.element_bytes).any()
    return np.where(inside, memory[addresses // tensor_map.element_bytes], 0)


def _boxed(tensor_map: TensorMap, box: TiledBox, coordinates: Sequence[int]) -> NDArray[np.int64]:
    """Positions by dimension, innermost first, and element."""
    ranges = [
        np.arange(start, start + extent, step)
        for start, extent, step in zip(
            coordinates, box.extents, tensor_map.element_strides, strict=True
        )
    ]
    outermost_first = np.meshgrid(*reversed(ranges), indexing="ij")
    return np.array([grid.reshape(-1) for grid in reversed(outermost_first)])


def _walked(
    tensor_map: TensorMap, box: Im2colBox, coordinates: Sequence[int], offsets: Sequence[int]
) -> NDArray[np.int64]:
    channel, *base, image = coordinates
    steps = tensor_map.element_strides[1:-1]
    last = [size - 1 + up for size, up in zip(tensor_map.global_dims[1:-1], box.upper, strict=True)]
    limit = {1: 65536, 2: 256, 3: 32}[len(base)]
    assert all(0 <= offset < limit for offset in offsets)
    pixels: list[list[int]] = []
    for _ in range(box.pixels):
        # The base of the filter lies in the bounding box (PTX ISA, im2col mode).
        corners = zip(box.lower, base, last, strict=True)
        assert all(low <= x <= high for low, x, high in corners)
        pixels.append([*(x + offset for x, offset in zip(base, offsets, strict=True)), image])
        for place, step in enumerate(steps):
            base[place] += step
            if base[place] <= last[place]:
                break
            base[place] = box.lower[place]
        else:
            image += 1
    channels = np.tile(np.arange(channel, channel + box.channels), box.pixels)
    return np.array([channels, *np.repeat(np.array(pixels), box.channels, axis=0).T])
