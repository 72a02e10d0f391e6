"""Images of a factor in shared memory that TMA can load, decided from the factor's addresses.

The image of a factor in one stage is K-major: it has a row of 32, 64 or 128 bytes of the depth, as
long as the span of the swizzle, for each row of the factor (column of the second one). If elements
of 16 bits are contiguous along rows it can be M-major or N-major instead: blocks of 64 rows, each
with a row of 128 bytes for each step of the depth.

A copy of TMA fills an image or a part of it. A tiled box can, if the coordinates of its elements
are digits of the number of the image's row, each in a dimension of its own, wherever a copy begins.
Im2col mode can, if rows walk through dimensions with carries from one to the next, as the flattened
pixels of a convolution do. Otherwise a layout that a box loads is packed, or threads copy.

Coordinates of all rows and of all of the depth are compared, so the decision is exact for the sizes
of a product. Rows whose results nobody stores can be anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpembed.errors import LoweringError
from cpembed.ir.index import IndexExpr
from cpembed.targets.cuda.lower import GlobalOperand, TiledProduct
from cpembed.targets.cuda.tma.boxes import (
    Image,
    MapDimension,
    box_dimensions,
    chunk_digits,
    chunk_steps,
    tiled_map,
    walk_digits,
)
from cpembed.targets.cuda.tma.factors import FactorAccess, Numbers, accesses
from cpembed.targets.cuda.tma.tensor_maps import Im2colBox, TensorMap
from cpembed.targets.cuda.warp_specialized.layouts import SPANS, Major

BLOCK_ROWS = 64
"""Number of rows of a factor in a block of an image that is M-major or N-major."""


@dataclass(frozen=True, kw_only=True)
class ImageCopy:
    """A copy of TMA that fills a part of an image.

    Attributes
    ----------
    offset : int
        Byte of the image at which the part begins, a multiple of eight rows.
    tile : int
        Instruction tile of the image, along the factor's rows, at which the loops of
        ``coordinates`` are evaluated.
    coordinates : tuple of IndexExpr
        Coordinates of the copy, innermost first, over the product's loops.
    filter : tuple of IndexExpr
        Offsets of im2col mode, width first; empty for a box.
    """

    offset: int
    tile: int
    coordinates: tuple[IndexExpr, ...]
    filter: tuple[IndexExpr, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImageView:
    """An image of a factor that TMA loads: all copies have one tensor map."""

    operand: GlobalOperand
    """Layout in global memory."""
    tensor_map: TensorMap
    copies: tuple[ImageCopy, ...]
    major: Major = "k"
    zero_beyond: bool
    """True if what is loaded beyond the depth is zero, in any stage: partly or wholly beyond it."""

    @property
    def transaction_bytes(self) -> int:
        """Bytes of a stage that the mbarrier counts, zeros outside of the operand included."""
        return len(self.copies) * self.tensor_map.transaction_bytes

    @property
    def is_im2col(self) -> bool:
        return isinstance(self.tensor_map.box, Im2colBox)


def image_views(
    product: TiledProduct, number: int, tiles: int, depth: int
) -> tuple[ImageView, ...]:
    """Return the views of a factor's image that TMA can load, the best one first.

    There is one for each layout and order of the image. Layouts that need no packing come before
    those that do, fewer copies before more, and K-major images before others.

    Parameters
    ----------
    product
        Product whose operand is loaded.
    number
        0 for the first factor, 1 for the second.
    tiles
        Number of adjacent instruction tiles of a block along the factor's rows.
    depth
        Number of adjacent instruction tiles along the depth in a stage: 1, 2 or 4.
    """
    views = list[ImageView]()
    for access in accesses(product, number):
        built = list[ImageView]()
        for build in _BUILDERS:
            try:
                built.append(build(access, tiles, depth))
            except LoweringError:
                continue
        for major in ("k", "mn"):
            same = [view for view in built if view.major == major]
            views += sorted(same, key=lambda view: len(view.copies))[:1]
    return tuple(sorted(views, key=lambda view: _preference(product, view)))


def _preference(product: TiledProduct, view: ImageView) -> tuple[int, int, bool]:
    packs = view.operand.needs_packing
    # Weights are packed ahead of all calls, but need another copy of them in memory.
    cost = 0 if not packs else 1 if view.operand.layout.name == product.packed_ahead else 2
    return cost, len(view.copies), view.major != "k"


def refusal(product: TiledProduct, number: int, tiles: int, depth: int) -> str:
    """Return why TMA cannot load a factor from where it is, in one line; empty if it can.

    Parameters
    ----------
    product, number, tiles, depth
        Those of :func:`image_views`.
    """
    access = accesses(product, number)[0]
    reasons: list[str] = []
    for build in _BUILDERS:
        try:
            build(access, tiles, depth)
        except LoweringError as error:
            reasons.append(str(error))
        else:
            return ""
    return f"{access.operand.layout.name}: {'; '.join(reasons)}"


def _tiled_view(access: FactorAccess, tiles: int, depth: int) -> ImageView:
    """Return the K-major view by boxes, of as many rows each as possible."""
    panel = _contiguous_depth(access, depth)
    parts = access.row_parts(tiles)
    for count in _divisors(tiles):
        try:
            steps = chunk_steps(parts, count * access.tile_rows, access.stored_rows)
            dimensions = box_dimensions(access, panel, chunk_digits(steps))
            _require_complete(dimensions, access.tile_counts[0] % count)
            tensor_map = tiled_map(access, dimensions)
        except LoweringError:
            if count == 1:
                raise
            continue
        image_tile = access.tile_rows * panel * access.element_bytes
        copies = [
            ImageCopy(
                offset=tile * image_tile,
                tile=tile,
                coordinates=tuple(dimension.coordinate for dimension in dimensions),
            )
            for tile in range(0, tiles, count)
        ]
        return ImageView(
            operand=access.operand,
            tensor_map=tensor_map,
            copies=tuple(copies),
            zero_beyond=_is_zero_beyond(access, depth, dimensions),
        )
    raise LoweringError("an image has at least one tile")


def _row_major_view(access: FactorAccess, tiles: int, depth: int) -> ImageView:
    """Return the M-major or N-major view by boxes of 64 rows."""
    if access.element_bytes != 2:
        raise LoweringError("only elements of 16 bits are multiplied M-major or N-major")
    if tiles * access.tile_rows % BLOCK_ROWS:
        raise LoweringError(f"{tiles} tiles are no blocks of {BLOCK_ROWS} rows")
    require_contiguous(chunk_steps(access.row_parts(tiles), BLOCK_ROWS, access.stored_rows))
    deep = depth * access.tile_depth
    steps = chunk_steps(access.depth_parts(depth), deep, access.elements_deep)
    dimensions = box_dimensions(access, BLOCK_ROWS, chunk_digits(steps))
    _require_complete(dimensions, access.tile_counts[1] % depth)
    block_tiles = BLOCK_ROWS // access.tile_rows
    copies = [
        ImageCopy(
            offset=number * deep * BLOCK_ROWS * access.element_bytes,
            tile=number * block_tiles,
            coordinates=tuple(dimension.coordinate for dimension in dimensions),
        )
        for number in range(tiles // block_tiles)
    ]
    return ImageView(
        operand=access.operand,
        tensor_map=tiled_map(access, dimensions),
        copies=tuple(copies),
        major="mn",
        zero_beyond=_is_zero_beyond(access, depth, dimensions),
    )


def _im2col_view(access: FactorAccess, tiles: int, depth: int) -> ImageView:
    """Return the K-major view in im2col mode: one copy of all rows."""
    panel = _contiguous_depth(access, depth)
    image = Image(access, panel, walk_digits(access.row_parts(1), access.stored_rows))
    dimensions = image.dimensions()
    tensor_map, offsets = image.tensor_map(dimensions, tiles * access.tile_rows)
    copy = ImageCopy(
        offset=0,
        tile=0,
        coordinates=tuple(dimension.coordinate for dimension in dimensions),
        filter=offsets,
    )
    # Bases of a filter that is too long are inside of an image all the same.
    bounded = (dimensions[0], dimensions[-1])
    return ImageView(
        operand=access.operand,
        tensor_map=tensor_map,
        copies=(copy,),
        zero_beyond=_is_zero_beyond(access, depth, bounded),
    )


_BUILDERS = (_tiled_view, _im2col_view, _row_major_view)


def _divisors(number: int) -> list[int]:
    return [n for n in range(number, 0, -1) if number % n == 0]


def _contiguous_depth(access: FactorAccess, depth: int) -> int:
    """Return the number of elements of an image's row.

    Raises :class:`LoweringError` unless they are contiguous.
    """
    panel = depth * access.tile_depth
    if panel * access.element_bytes not in SPANS:
        raise LoweringError(f"rows of {panel * access.element_bytes} bytes: one of {SPANS}")
    require_contiguous(chunk_steps(access.depth_parts(depth), panel, access.elements_deep))
    return panel


def _require_complete(dimensions: Sequence[MapDimension], rest: int) -> None:
    """Raise :class:`LoweringError` if a copy of fewer tiles needs bounds that the map has not."""
    if rest and any(dimension.is_part for dimension in dimensions):
        raise LoweringError(f"the last copy has {rest} tiles that no bound of the map ends")


def require_contiguous(steps: Numbers) -> None:
    """Raise :class:`LoweringError` unless a row of an image is contiguous in memory."""
    expected = np.zeros_like(steps)
    expected[-1] = np.arange(steps.shape[1])
    if not np.array_equal(steps, expected):
        raise LoweringError(f"{steps.shape[1]} elements of an image's row are not contiguous")


def _is_zero_beyond(access: FactorAccess, depth: int, dimensions: Sequence[MapDimension]) -> bool:
    """Return True if all elements beyond the depth are outside of one of the map's dimensions.

    It is enough to look at one pass of the inner loops: in later ones the outermost loop, and with
    it the coordinate, is larger.
    """
    if not access.depth_loops:
        # No coordinate follows from the number of a stage.
        return False
    names = {loop.name for loop in access.depth_loops} | {access.depth_axis}
    inner = math.prod(loop.extent for loop in access.depth_loops[1:])
    parts = access.depth_parts(depth, beyond=inner + depth)[:, access.elements_deep :]
    layout = access.operand.layout
    if access.zero_padded:
        # The rest of a packed row is zero.
        parts = parts[:, -access.elements_deep % layout.shape[-1] :]
    for dimension in dimensions:
        place = dimension.place
        if place is not None and names.issuperset(layout.access[place].iterators):
            coordinates = parts[place] + access.constants[place]
            if (coordinates >= layout.shape[place]).all():
                return True
    return False
