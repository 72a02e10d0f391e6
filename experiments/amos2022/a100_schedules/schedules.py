"""Schedules that AMOS's authors timed on an A100, a row of a table each."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cpembed.errors import WorkloadError

DATA = Path(__file__).parent / "data.csv"

ROWS, COLUMNS, DEPTH = 8, 32, 16
"""Extents of the instruction, WMMA m8n32k16: pixels, filters, and the depth that is summed over."""

PAIRS = (("n", "c"), ("n", "r"), ("n", "s"), ("p", "c"), ("p", "s"), ("q", "c"), ("q", "r"))
"""Meaning of the seven digits of a mapping: (pixel axis, reduction) that feed its rows
and depth. An output row with a window's row, and a column with a column, are no pair: they index
the image together. Chosen axes are fused in this order, the last one innermost."""

_SIZES = ("n", "c", "h", "w", "k", "r", "s", "stride", "pad", "dilation")


@dataclass(frozen=True)
class Layer:
    """A convolution of NCHW images: ``n`` of ``c`` channels, with ``k`` filters of ``r * s``."""

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: int
    pad: int
    dilation: int

    @property
    def sizes(self) -> dict[str, int]:
        """Extents of pixel axes and reductions."""
        return {"n": self.n, "p": self.p, "q": self.q, "c": self.c, "r": self.r, "s": self.s}

    @property
    def p(self) -> int:
        return (self.h + 2 * self.pad - (self.r - 1) * self.dilation - 1) // self.stride + 1

    @property
    def q(self) -> int:
        return (self.w + 2 * self.pad - (self.s - 1) * self.dilation - 1) // self.stride + 1

    @property
    def outputs(self) -> int:
        return self.n * self.k * self.p * self.q

    def __str__(self) -> str:
        return f"{self.c}x{self.h}x{self.w} -> {self.k}, {self.r}x{self.s} / {self.stride}"


@dataclass(frozen=True)
class Spatial:
    """Tiles along an output axis.

    They are of the grid, in sequence, by the warps of a block, and in a warp's registers.
    """

    blocks: int
    sequence: int
    warps: int
    registers: int

    @property
    def in_block(self) -> int:
        """Tiles of a block at a time."""
        return self.warps * self.registers

    @property
    def total(self) -> int:
        return self.blocks * self.sequence * self.in_block


@dataclass(frozen=True)
class Reduction:
    """Tiles along a reduction: refills of shared memory, loads of fragments, products of these."""

    refills: int
    loads: int
    products: int

    @property
    def in_step(self) -> int:
        """Tiles in shared memory at a time."""
        return self.loads * self.products

    @property
    def total(self) -> int:
        return self.refills * self.in_step


@dataclass(frozen=True)
class OtherKernels:
    """The division of the kernels next to the product.

    They pack the factors and put results in place: 32 elements of a warp are divided among blocks,
    in sequence, and among warps.
    """

    blocks: int
    sequence: int
    warps: int
    unroll: int


@dataclass(frozen=True)
class Schedule:
    """A row of the table.

    ``vectorize``: elements of a copy to shared memory; ``inline``: factors are packed by these
    copies instead of by kernels before; ``unroll``: statements up to which loops are written out;
    ``auxiliary``: None if the table does not say. ``ms`` is with all kernels.
    """

    layer: Layer
    mapping: str
    spatial: tuple[Spatial, ...]
    reduce: tuple[Reduction, ...]
    vectorize: int
    inline: bool
    unroll: int
    ms: float
    auxiliary: OtherKernels | None = None

    @cached_property
    def pixels(self) -> tuple[str, ...]:
        """Pixel axes that feed the instruction's rows, fused in this order."""
        return tuple(dict.fromkeys(pixel for pixel, _ in self._chosen_pairs))

    @cached_property
    def sums(self) -> tuple[str, ...]:
        """Reductions that feed the instruction's depth."""
        return tuple(dict.fromkeys(reduction for _, reduction in self._chosen_pairs))

    @property
    def _chosen_pairs(self) -> list[tuple[str, str]]:
        return [pair for digit, pair in zip(self.mapping, PAIRS, strict=True) if digit == "1"]

    @cached_property
    def spatial_axes(self) -> dict[str, Spatial]:
        """Tiles of rows ``i`` and columns ``j``, then each pixel axis that is an outer loop."""
        outer = [axis for axis in "npq" if axis not in self.pixels]
        return dict(zip(("i", "j", *outer), self.spatial, strict=True))

    @cached_property
    def reduce_axes(self) -> dict[str, Reduction]:
        """Tiles of the depth ``x``, then each reduction that is an outer loop."""
        outer = [axis for axis in "crs" if axis not in self.sums]
        return dict(zip(("x", *outer), self.reduce, strict=True))

    @cached_property
    def rows(self) -> int:
        """Extent of the fused pixel axes."""
        return math.prod(self.layer.sizes[axis] for axis in self.pixels)

    @cached_property
    def depth(self) -> int:
        return math.prod(self.layer.sizes[axis] for axis in self.sums)

    @property
    def products(self) -> int:
        """Number of products of the instruction."""
        tiles = math.prod(axis.total for axis in self.spatial)
        return tiles * math.prod(axis.total for axis in self.reduce)

    def check(self) -> None:
        """Check the tiles; raise :class:`WorkloadError` if they are not those of the mapping."""
        sizes, layer = self.layer.sizes, self.layer
        expected = {
            "i": -(-self.rows // ROWS),
            "j": layer.k // COLUMNS,
            "x": -(-self.depth // DEPTH),
        }
        for name, axis in (*self.spatial_axes.items(), *self.reduce_axes.items()):
            if axis.total != expected.get(name, sizes.get(name)):
                raise WorkloadError(
                    f"{layer}, mapping {self.mapping}: {axis.total} tiles along {name}"
                )


def undivided(layer: Layer, mapping: str, *, inline: bool) -> Schedule:
    """Return the schedule with all tiles in the grid's blocks and in refills."""
    bare = Schedule(layer, mapping, (), (), 1, inline, 0, 0.0)
    outer = [layer.sizes[axis] for axis in "npq" if axis not in bare.pixels]
    sums = [layer.sizes[axis] for axis in "crs" if axis not in bare.sums]
    tiles = (-(-bare.rows // ROWS), layer.k // COLUMNS, *outer)
    spatial = tuple(Spatial(count, 1, 1, 1) for count in tiles)
    reduce = tuple(Reduction(count, 1, 1) for count in (-(-bare.depth // DEPTH), *sums))
    return Schedule(layer, mapping, spatial, reduce, 1, inline, 0, 0.0)


def read(path: Path = DATA) -> list[Schedule]:
    """Return the rows of a table; raise :class:`WorkloadError` for one that is wrong."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(_rows(csv.DictReader(file), path))


def _rows(table: csv.DictReader[str], path: Path) -> Iterator[Schedule]:
    for number, row in enumerate(table, 2):
        try:
            schedule = _schedule(row)
        except (KeyError, ValueError, TypeError) as error:
            raise WorkloadError(f"{path}, line {number}: {error!r}") from None
        schedule.check()
        yield schedule


def _schedule(row: dict[str, str]) -> Schedule:
    division = row.get("other")
    return Schedule(
        Layer(*(int(row[name]) for name in _SIZES)),
        row["mapping"],
        tuple(Spatial(*_numbers(group)) for group in row["spatial"].split()),
        tuple(Reduction(*_numbers(group)) for group in row["reduce"].split()),
        int(row["vectorize"]),
        row["inline"] == "1",
        int(row["unroll"]),
        float(row["ms"]),
        _auxiliary(division, int(row["other_unroll"])) if division else None,
    )


def _auxiliary(group: str, unroll: int) -> OtherKernels:
    blocks, sequence, warps = _numbers(group)
    return OtherKernels(blocks, sequence, warps, unroll)


def _numbers(group: str) -> list[int]:
    return [int(number) for number in group.split("x")]
