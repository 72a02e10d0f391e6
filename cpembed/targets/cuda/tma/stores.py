"""Boxes of a result that TMA stores, decided from the result's addresses.

A box has the rows of one warp's sums of an instruction tile, and 128, 64 or 32 contiguous bytes of
each. Dimensions of the result that follow each other in memory can be one dimension of the map, so
that the flattened pixels of a convolution are rows of a matrix. All rows and columns are compared:
what a box has beyond the result has to be outside of the map, where nothing is stored. Im2col mode
stores nothing, so rows that are no box are stored by threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import LoweringError
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr
from cpembed.targets.cuda.instructions import WARP_ROWS
from cpembed.targets.cuda.lower import GlobalOperand, TiledProduct, global_operand
from cpembed.targets.cuda.tma.boxes import box_dimensions, chunk_digits, chunk_steps, tiled_map
from cpembed.targets.cuda.tma.factors import FactorAccess, Numbers
from cpembed.targets.cuda.tma.tensor_maps import TensorMap
from cpembed.targets.cuda.tma.views import require_contiguous
from cpembed.targets.cuda.warp_specialized.layouts import SPANS
from cpembed.transform.index_algebra import simplify
from cpembed.transform.program import Loop, PackedDimension, PackedOperand

STORED_BYTES = (2, 4)
"""Sizes of elements whose neighbours in a lane's fragment are stored together."""


@dataclass(frozen=True, kw_only=True)
class StoreView:
    """A box of results that TMA stores.

    Attributes
    ----------
    tensor_map : TensorMap
    tiles : int
        Number of neighbouring instruction tiles of columns in a box.
    coordinates : tuple of IndexExpr
        Coordinates of a box, innermost first, over the product's loops and its axis of rows.
    """

    tensor_map: TensorMap
    tiles: int
    coordinates: tuple[IndexExpr, ...]


@dataclass(frozen=True)
class ResultAccess(FactorAccess):
    """A result of a product, whose columns take the place of a factor's depth."""

    @property
    def depth_loops(self) -> tuple[Loop, ...]:
        return self.product.columns

    @property
    def depth_axis(self) -> str:
        return self.product.axes[1]

    @property
    def tile_depth(self) -> int:
        return self.product.instruction.n

    @property
    def tile_counts(self) -> tuple[int, int]:
        _, rows, columns, _ = self.product.tiles
        return rows, columns

    def at_tile(self, index: IndexExpr) -> IndexExpr:
        # Boxes begin at a warp's rows within an instruction tile.
        extents = self.product.program.extents
        loops = (*self.product.batch, *self.row_loops, *self.depth_loops)
        names = {loop.name for loop in loops} | {self.row_axis}
        moved = index.substitute({n: IndexExpr() for n in extents if n not in names})
        return simplify(moved, extents)


def store_view(product: TiledProduct, columns: int) -> StoreView:
    """Return the boxes in which TMA stores the results of warps.

    Parameters
    ----------
    product : TiledProduct
    columns : int
        Number of adjacent instruction tiles of a warp along columns.

    Raises
    ------
    LoweringError
        If no box is what a warp stores, with the reason.
    """
    epilogue, output = product.epilogue, product.output
    if epilogue is not None and (epilogue.residual is not None or epilogue.second is not None):
        raise LoweringError("threads read residuals and store second outputs")
    if epilogue is not None and product.sums == "float16":
        raise LoweringError("two sums of float16 share a register that an epilogue takes apart")
    if output.placement is not None:
        raise LoweringError("the result is a part of a buffer")
    size = size_bytes(product.output_dtype)
    if size not in STORED_BYTES:
        raise LoweringError(f"results of {size} byte are no words of a lane")
    tile = product.instruction.n * size
    spans = [span for span in SPANS if span % tile == 0 and columns * tile % span == 0]
    reasons = [f"{columns * tile} bytes of columns are none of {SPANS}"] * (not spans)
    for layout in _layouts(product):
        for span in spans[:1]:
            try:
                return _view(ResultAccess(product, 0, layout), span)
            except LoweringError as error:
                reasons.append(str(error))
    raise LoweringError("; ".join(dict.fromkeys(reasons)))


def _layouts(product: TiledProduct) -> Iterator[GlobalOperand]:
    """Yield the result with neighbouring dimensions joined, as many as possible first."""
    layout = replace(product.output.layout, dtype=product.output_dtype)
    joints = [n for n in range(1, len(layout.shape)) if n not in product.output.checked]
    for count in range(len(joints), -1, -1):
        for joined in itertools.combinations(joints, count):
            yield global_operand(
                _joined(layout, joined), product.program, product.axes[1], product.output.length
            )


def _joined(layout: PackedOperand, places: Sequence[int]) -> PackedOperand:
    """Return a layout in which dimensions are joined with those before them."""
    sizes, access = list[int](), list[IndexExpr]()
    for place, (size, index) in enumerate(zip(layout.shape, layout.access, strict=True)):
        if place in places:
            sizes[-1] *= size
            access[-1] = access[-1].times(size) + index
        else:
            sizes.append(size)
            access.append(index)
    dimensions = tuple(PackedDimension(f"d{n}", size) for n, size in enumerate(sizes))
    return replace(layout, dimensions=dimensions, access=tuple(access))


def _view(access: ResultAccess, span: int) -> StoreView:
    """Return the view of boxes with so many bytes of columns; raises :class:`LoweringError`."""
    length = span // access.element_bytes
    tiles = length // access.tile_depth
    rows, columns = access.row_parts(1), access.depth_parts(tiles)
    row_steps = chunk_steps(rows, WARP_ROWS, access.stored_rows)
    column_steps = chunk_steps(columns, length, access.elements_deep)
    require_contiguous(column_steps)
    dimensions = box_dimensions(access, length, chunk_digits(row_steps))
    if any(dimension.is_part or dimension.step != 1 for dimension in dimensions[1:]):
        raise LoweringError("rows of a warp are no box of the result's own dimensions")
    row_names, column_names = access.names("rows"), access.names("depth")
    operand = access.operand
    for place in operand.checked:
        iterators = operand.layout.access[place].iterators
        if not (row_names.issuperset(iterators) or column_names.issuperset(iterators)):
            raise LoweringError("rows, columns or batches end together")
    _require_exact(access, rows, row_steps, row_names, rows.shape[1])
    _require_exact(access, columns, column_steps, column_names, access.elements_deep)
    return StoreView(
        tensor_map=tiled_map(access, dimensions),
        tiles=tiles,
        coordinates=tuple(dimension.coordinate for dimension in dimensions),
    )


def _require_exact(
    access: ResultAccess, parts: Numbers, steps: Numbers, names: frozenset[str], count: int
) -> None:
    """Raise :class:`LoweringError` unless boxes store what the product has, and nothing else.

    Parameters
    ----------
    access : ResultAccess
    parts, steps : Numbers
        Coordinates of all rows or columns, and the steps of a box.
    names : frozenset of str
        Iterators that they follow from.
    count : int
        Number of rows or columns of the product, before those that fill up the last box.
    """
    length = steps.shape[1]
    boxes = np.repeat(parts[:, ::length], length, axis=1) + np.tile(steps, parts.shape[1] // length)
    places = [
        place
        for place, index in enumerate(access.operand.layout.access)
        if index.iterators and names.issuperset(index.iterators)
    ]
    stored = _inside(access, boxes, places)
    results = _inside(access, parts, places)
    results[count:] = False
    if not np.array_equal(stored, results):
        raise LoweringError("no bound of the map ends the last box")


def _inside(access: ResultAccess, parts: Numbers, places: Sequence[int]) -> NDArray[np.bool_]:
    inside = np.ones(parts.shape[1], np.bool_)
    for place in places:
        coordinate = parts[place] + access.constants[place]
        inside &= (coordinate >= 0) & (coordinate < access.operand.layout.shape[place])
    return inside
