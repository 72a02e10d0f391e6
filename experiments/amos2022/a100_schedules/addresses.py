"""Lines and sectors that a warp's loads touch when factors are packed on the way."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from experiments.amos2022.a100_schedules.schedules import (
    COLUMNS,
    DEPTH,
    ROWS,
    Layer,
    Schedule,
)

LINE, SECTOR, ELEMENT = 128, 32, 2
"""Bytes."""

LANES = 32

_MOST = 8192
"""Maximum number of elements of a tile that are looked at; tiles repeat a pattern."""

_STEPS = 3
"""Number of refills that are looked at."""

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Side:
    """An axis of a packed factor: its name, its extent in shared memory and in all."""

    name: str
    tile: int
    total: int


def sides(row: Schedule, factor: str) -> tuple[Side, ...]:
    """Return the axes of the packed image (``a``) or filters (``b``), outermost first.

    The instruction's axes within a tile follow the tiles.
    """
    spatial, reduce = row.spatial_axes, row.reduce_axes
    outer = ["i" if factor == "a" else "j", "x"]
    outer += [axis for axis in "npq" if axis in spatial and factor == "a"]
    outer += [axis for axis in "crs" if axis in reduce]
    side_list: list[Side] = []
    for name in outer:
        if name in spatial:
            side_list.append(Side(name, spatial[name].in_block, spatial[name].total))
        else:
            side_list.append(Side(name, reduce[name].in_step, reduce[name].total))
    inner = [("row", ROWS), ("depth", DEPTH)] if factor == "a" else [("depth", DEPTH)]
    inner += [("column", COLUMNS)] if factor == "b" else []
    return (*side_list, *(Side(name, extent, extent) for name, extent in inner))


@dataclass(frozen=True)
class Access:
    """A warp's load of an element by each lane.

    ``lines`` of L1 that it reads; ``missing``: the share of loads that touch a sector not touched
    before, in the first refills or (``missing_once``) in a single one; ``sectors`` not touched
    before, likewise; ``footprint``: bytes of all lines of a refill.
    """

    lines: float
    missing: float
    sectors: float
    missing_once: float
    sectors_once: float
    footprint: float


@lru_cache(maxsize=256)
def access(row: Schedule, factor: str, vector: int, *, entire_factor: bool = False) -> Access:
    """Return the loads that fill shared memory with a factor.

    Parameters
    ----------
    row : Schedule
        A row of the table.
    factor : str
        ``a`` for the image, ``b`` for the filters.
    vector : int
        Number of consecutive elements of a tile in a lane.
    entire_factor : bool
        True for loads that pack the entire factor in order.
    """
    axes = sides(row, factor)
    refills: list[dict[str, int]] = (
        [{}] if entire_factor else list(itertools.islice(_refills(row), _STEPS))
    )
    places = [
        _bytes(row, factor, axes, vector, refill, entire_factor=entire_factor) for refill in refills
    ]
    addresses = np.concatenate(places)
    lines = np.sort(np.where(addresses >= 0, addresses // LINE, -1), axis=1)
    counts = (np.diff(lines, axis=1) != 0).sum(axis=1) + 1 - (lines[:, 0] < 0)
    missing, sectors = _new(addresses)
    missing_once, sectors_once = _new(places[0])
    first = places[0][places[0] >= 0]
    elements = math.prod(side.total if entire_factor else side.tile for side in axes)
    footprint = len(np.unique(first // LINE)) * LINE * elements / places[0].size
    most = max(0.5, float(counts.mean()))
    return Access(most, missing, sectors, missing_once, sectors_once, footprint)


def _new(places: Indices) -> tuple[float, float]:
    """Return the share of loads that touch new sectors, and the new sectors of a load."""
    sectors, first = np.unique(np.where(places >= 0, places // SECTOR, -1), return_index=True)
    first = first[sectors >= 0]
    loads = len(places)
    return len(np.unique(first // places.shape[1])) / loads, len(first) / loads


def _refills(row: Schedule) -> Iterator[dict[str, int]]:
    """Yield the place of each refill along each reduction, in order."""
    axes = row.reduce_axes
    ranges = [range(axis.refills) for axis in axes.values()]
    return (dict(zip(axes, place, strict=True)) for place in itertools.product(*ranges))


def _bytes(
    row: Schedule,
    factor: str,
    axes: Sequence[Side],
    vector: int,
    refill: dict[str, int],
    *,
    entire_factor: bool,
) -> Indices:
    """Return addresses by load and lane; -1 for padding, where nothing is read."""
    extents = [side.total if entire_factor else side.tile for side in axes]
    count = min(math.prod(extents), _MOST)
    group = LANES * vector
    count = count // group * group or count
    rest = np.arange(count, dtype=np.int64)
    place: dict[str, Indices] = {}
    for side, extent in reversed(list(zip(axes, extents, strict=True))):
        place[side.name] = rest % extent + (
            0 if entire_factor else refill.get(side.name, 0) * extent
        )
        rest = rest // extent
    element, inside = _element(row, factor, place)
    addresses = np.where(inside, element * ELEMENT, -1)
    if count % group:
        return addresses.reshape(1, -1)
    return addresses.reshape(-1, LANES, vector).transpose(0, 2, 1).reshape(-1, LANES)


def _element(
    row: Schedule, factor: str, place: dict[str, Indices]
) -> tuple[Indices, NDArray[np.bool_]]:
    """Return the index in the image or the filters, and if it is one."""
    layer, sizes = row.layer, row.layer.sizes
    deep = place["x"] * DEPTH + place["depth"]
    inside = deep < row.depth
    at = _unfused(deep, row.sums, sizes) | {axis: place[axis] for axis in "crs" if axis in place}
    if factor == "b":
        filters = place["j"] * COLUMNS + place["column"]
        return ((filters * layer.c + at["c"]) * layer.r + at["r"]) * layer.s + at["s"], inside
    pixel = place["i"] * ROWS + place["row"]
    inside &= pixel < row.rows
    at |= _unfused(pixel, row.pixels, sizes) | {
        axis: place[axis] for axis in "npq" if axis in place
    }
    high = at["p"] * layer.stride + at["r"] * layer.dilation - layer.pad
    wide = at["q"] * layer.stride + at["s"] * layer.dilation - layer.pad
    inside &= (high >= 0) & (high < layer.h) & (wide >= 0) & (wide < layer.w)
    return ((at["n"] * layer.c + at["c"]) * layer.h + high) * layer.w + wide, inside


def _unfused(fused: Indices, axes: Sequence[str], sizes: dict[str, int]) -> dict[str, Indices]:
    coordinates: dict[str, Indices] = {}
    for axis in reversed(axes):
        coordinates[axis] = fused % sizes[axis]
        fused = fused // sizes[axis]
    return coordinates


@lru_cache(maxsize=256)
def result_lines(layer: Layer, pixels: tuple[str, ...]) -> float:
    """Return the lines of L1 of a warp that reads results of tiles in the order of the output.

    Fused pixels are rows of a tile, two of which are a line. Neighbours along an axis that is an
    outer loop lie in different tiles.

    Parameters
    ----------
    layer : Layer
        A layer.
    pixels : tuple of str
        Pixel axes that feed the rows of the instruction.
    """
    warps = min(layer.outputs // LANES, _MOST // LANES)
    # Warps from all over the output.
    first = np.arange(warps, dtype=np.int64) * (layer.outputs // LANES // warps) * LANES
    rest = first[:, None] + np.arange(LANES)
    place: dict[str, Indices] = {}
    for axis, extent in (("q", layer.q), ("p", layer.p), ("k", layer.k), ("n", layer.n)):
        place[axis], rest = rest % extent, rest // extent
    sizes = layer.sizes
    pixel = np.zeros_like(first)[:, None]
    for axis in pixels:
        pixel = pixel * sizes[axis] + place[axis]
    tile = pixel // ROWS * (layer.k // COLUMNS) + place["k"] // COLUMNS
    for axis in "npq":
        if axis not in pixels:
            tile = tile * sizes[axis] + place[axis]
    address = ((tile * ROWS + pixel % ROWS) * COLUMNS + place["k"] % COLUMNS) * ELEMENT
    lines = np.sort(address // LINE, axis=1)
    return float(((np.diff(lines, axis=1) != 0).sum(axis=1) + 1).mean())
