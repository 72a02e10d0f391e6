"""Sizes of tiles that a search compares, combined over all axes of an operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.template import Template

Array = NDArray[Any]
Key = tuple[str, str]
"""Tensor and memory of a buffer."""

PARTS = (2, 4, 8, 16)
"""Parts of the largest execution in which axes are tiled that need not be executed whole."""


@dataclass(frozen=True)
class LoopSlot:
    """A loop of an order of buffers, and the option's column that has its tile's size."""

    axis: str
    level: int


@dataclass(frozen=True)
class LoopOrder:
    """Loops and depths that an order of the buffers determines."""

    loops: tuple[LoopSlot, ...]
    depths: Mapping[Key, int]
    output_depth: int


def tile_counts(count: int) -> list[int]:
    """Return the sizes of tiles that are least for their number of tiles, ascending.

    >>> tile_counts(7)
    [1, 2, 3, 4, 7]
    """
    return sorted({-(-count // n) for n in range(1, count + 1)})


@dataclass(frozen=True)
class AxisOptions:
    """Sizes of the tiles of one axis, one row per option and one column per level."""

    extent: int
    sizes: Array
    tiles: Array

    @cached_property
    def _counts(self) -> dict[tuple[int, int], Array]:
        return {}

    @cached_property
    def _parts(self) -> dict[tuple[int, int | None], tuple[Array, Array]]:
        return {}

    def parts(self, levels: int, granule: int | None = None) -> tuple[Array, Array]:
        """Return the different sizes of the tiles inside of a number of loops, and their counts.

        Parameters
        ----------
        levels : int
        granule : int, optional
            Size of the parts of those tiles; by default they have none.

        Returns
        -------
        sizes, counts : ndarray
            One row per option; counts are 0 where an option has fewer sizes than others.
        """
        key = levels, granule
        if key not in self._parts:
            rows: list[dict[int, int]] = []
            for chain in self.sizes:
                inner = tuple(map(int, chain[:levels]))
                rows.append(_sizes(self.extent, inner if granule is None else (*inner, granule)))
            width = max(map(len, rows))
            sizes = np.ones((len(rows), width), np.int64)
            counts = np.zeros((len(rows), width), np.int64)
            for n, row in enumerate(rows):
                sizes[n, : len(row)], counts[n, : len(row)] = list(row), list(row.values())
            self._parts[key] = sizes, counts
        return self._parts[key]

    def executions(self, levels: int, granule: int) -> Array:
        """Return the number of executions along the axis, inside of a number of its loops."""
        key = levels, granule
        if key not in self._counts:
            chains = [tuple(map(int, chain[:levels])) for chain in self.sizes]
            counts = [
                _tiles(self.extent, (*chain, min(granule, *chain, self.extent))) for chain in chains
            ]
            self._counts[key] = np.array(counts, np.int64)
        return self._counts[key]


def axis_options(
    extent: int, granule: int, levels: int, *, is_fine: bool, is_even: bool
) -> AxisOptions:
    """Return the sizes of the tiles of one axis that are worth comparing.

    Parameters
    ----------
    extent : int
        Extent of the axis.
    granule : int
        Points of the axis in the largest execution.
    levels : int
        Number of the loops over its tiles, each inside of the one before.
    is_fine : bool
        True if tiles may be smaller than the largest execution.
    is_even : bool
        True if all tiles of a loop must have as many tiles of the next one.
    """
    chains: list[tuple[int, ...]] = [()]
    for _ in range(levels):
        longer: list[tuple[int, ...]] = []
        for chain in chains:
            span = chain[-1] if chain else extent
            options = {min(span, granule * c) for c in tile_counts(-(-span // granule))}
            if is_fine:
                # Executions of fewer points than the largest need fewer rows at once.
                options |= {-(-min(span, granule) // n) for n in PARTS}
            longer += [(*chain, size) for size in sorted(options)]
        chains = longer
    if is_even:
        chains = [c for c in chains if _is_even(extent, (*c, granule))] or [(extent,) * levels]
    sizes = np.array(chains, np.int64).reshape(len(chains), levels)
    tiles = np.empty_like(sizes)
    for row, chain in enumerate(chains):
        for level in range(levels):
            tiles[row, level] = _tiles(extent, chain[: level + 1])
    return AxisOptions(extent, sizes, tiles)


def _is_even(extent: int, chain: tuple[int, ...]) -> bool:
    """True if all tiles of a level have the same number of tiles of the next one."""
    product, span = 1, extent
    for size in chain:
        product *= -(-span // size)
        span = min(span, size)
    return _tiles(extent, chain) == product


def _tiles(extent: int, chain: Sequence[int]) -> int:
    """Return the number of tiles that are not empty, on the innermost level of a chain."""
    if not chain:
        return 1
    complete, rest = divmod(extent, chain[0])
    count = complete * _tiles(chain[0], chain[1:])
    return count + (_tiles(rest, chain[1:]) if rest else 0)


def _sizes(extent: int, chain: Sequence[int]) -> dict[int, int]:
    """Return how many tiles of each size are on the innermost level of a chain."""
    if not chain:
        return {extent: 1}
    complete, rest = divmod(extent, chain[0])
    counts: dict[int, int] = {}
    for size, count in ((chain[0], complete), (rest, 1)):
        if size and count:
            for inner, inner_count in _sizes(size, chain[1:]).items():
                counts[inner] = counts.get(inner, 0) + count * inner_count
    return counts


@dataclass
class Grid:
    """Options of all axes, combined: size and number of tiles of each axis on each level."""

    template: Template
    sizes: dict[str, list[Array]]
    tiles: dict[str, list[Array]]
    options: Mapping[str, AxisOptions]
    choice: Mapping[str, Array]

    def size(self, axis: str, levels: int) -> Any:
        """Return the size of an axis's tile inside of a number of its loops."""
        return self.sizes[axis][levels - 1] if levels else self.template.extents[axis]

    def count(self, axis: str, levels: int) -> Any:
        """Return the number of an axis's tiles inside of a number of its loops."""
        return self.tiles[axis][levels - 1] if levels else 1

    def parts(self, axis: str, levels: int, granule: int | None = None) -> list[tuple[Any, Any]]:
        """Return the different sizes of an axis's tiles, each with the number of its tiles.

        Parameters
        ----------
        axis : str
        levels : int
            Number of its loops around a tile.
        granule : int, optional
            Size of the parts of those tiles; by default they have none.
        """
        if axis not in self.options:
            return list(_sizes(self.template.extents[axis], (granule,) if granule else ()).items())
        sizes, counts = self.options[axis].parts(levels, granule)
        choice = self.choice[axis]
        return [(s[choice], c[choice]) for s, c in zip(sizes.T, counts.T, strict=True)]

    def executions(self, axis: str, levels: int, granule: int) -> Any:
        """Return the number of executions along an axis, inside of a number of its loops."""
        if axis not in self.options:
            return -(-self.template.extents[axis] // granule)
        return self.options[axis].executions(levels, granule)[self.choice[axis]]
