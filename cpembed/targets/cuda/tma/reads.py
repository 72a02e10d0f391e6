"""Bytes of global memory that asynchronous copies of a kernel read: images without their zeros.

A copy of TMA reads no byte that is outside of the array, so an image of padding and of rows beyond
the result takes fewer bytes of L2 than it has in shared memory. Bytes are counted copy by copy from
the coordinates that the kernel computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from cpembed.targets.cuda.lower import TiledProduct
from cpembed.targets.cuda.multistage.reads import SECTOR_BYTES
from cpembed.targets.cuda.tma.factors import Numbers, digit_values
from cpembed.targets.cuda.tma.tensor_maps import Im2colBox, TensorMap
from cpembed.targets.cuda.tma.views import ImageView
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan
from cpembed.targets.cuda.warp_specialized.tiles import WorkItem

SAMPLED_BLOCKS = 16
"""Maximum number of blocks of rows over which a mean of bytes is taken."""


def count_reads(plan: SpecializedPlan, items: Iterable[WorkItem] | None = None) -> tuple[int, int]:
    """Count bytes and sectors that bulk copies of the kernel read; a multicast counts once.

    Parameters
    ----------
    plan : SpecializedPlan
    items : iterable of WorkItem, optional
        Work items that are counted, by default those of all workers.
    """
    order = plan.order
    if items is None:
        items = (item for worker in range(order.workers) for item in order.items(worker))
    counted, total = list(items), np.zeros(2, np.int64)
    for number in range(2):
        if plan.schedule.loads[number] == "threads":
            continue
        across, along = order.cluster[number], order.cluster[1 - number]
        copies = along // plan.schedule.sharers(number)
        requests = [
            (item.batch, (item.row, item.column)[number] + place, step)
            for item in counted
            for place in range(across)
            for step in range(item.first, item.last)
        ]
        reads = _image_reads(plan, number, np.array(requests).reshape(-1, 3))
        total += copies * reads.sum(axis=1)
    return int(total[0]), int(total[1])


def mean_bytes(plan: SpecializedPlan, number: int) -> float:
    """Return the mean number of bytes of the sectors that are read for an image in a stage.

    Parameters
    ----------
    plan : SpecializedPlan
    number : int
        0 for the first factor, 1 for the second.
    """
    view, schedule = plan.views[number], plan.schedule
    if view is None:
        return plan.images[number].content_bytes
    sizes = schedule.block[number], schedule.depth
    key = number, schedule.layouts[number], *sizes
    if key not in plan.lowered.mean_reads:
        # Of many blocks, those at equal distances.
        rows, batch = plan.blocks[number], plan.blocks[2]
        sampled = np.linspace(0, rows - 1, min(rows, SAMPLED_BLOCKS)).round().astype(np.int64)
        grid = np.meshgrid([0, batch - 1][:batch], sampled, np.arange(plan.steps))
        requests = np.stack(grid, -1).reshape(-1, 3)
        reads = _view_reads(view, plan.product, number, requests, sizes)
        plan.lowered.mean_reads[key] = float(reads[1].mean()) * SECTOR_BYTES
    return plan.lowered.mean_reads[key]


def _image_reads(plan: SpecializedPlan, number: int, requests: Numbers) -> Numbers:
    """Return bytes and sectors of images, by batch, block along the rows, and stage."""
    view = plan.views[number]
    if view is None:
        size = plan.images[number].content_bytes
        return np.repeat([[size], [size // SECTOR_BYTES]], len(requests), axis=1)
    sizes = plan.schedule.block[number], plan.schedule.depth
    return _view_reads(view, plan.product, number, requests, sizes)


def _view_reads(
    view: ImageView,
    product: TiledProduct,
    number: int,
    requests: Numbers,
    sizes: tuple[int, int],
) -> Numbers:
    """Return the bytes, and the sectors, that the copies of a view read for each image.

    Parameters
    ----------
    view : ImageView
    product : TiledProduct
    number : int
        0 for the first factor, 1 for the second.
    requests : array of int64, shape (images, 3)
        Batch, block along the factor's rows, and stage of each image.
    sizes : tuple of int
        Number of instruction tiles of a block, and of a stage along the depth.
    """
    unique, inverse = np.unique(requests, axis=0, return_inverse=True)
    batch, block, step = unique.T
    total = np.zeros((2, len(unique)), np.int64)
    for copy in view.copies:
        loops = product.columns if number else product.rows
        values: dict[str, Numbers | int] = {
            **dict.fromkeys(product.program.extents, 0),
            **digit_values(batch, product.batch),
            **digit_values(block * sizes[0] + copy.tile, loops),
            **digit_values(step * sizes[1], product.depth),
        }
        places, offsets = (
            [np.broadcast_to(index.evaluate(values), batch.shape) for index in indices]
            for indices in (copy.coordinates, copy.filter)
        )
        count = _pixels_read if view.is_im2col else _boxes_read
        total += count(view.tensor_map, places, offsets)
    return total[:, inverse.reshape(-1)]


def _places(first: Numbers, step: int, count: int, size: int) -> tuple[Numbers, Numbers]:
    """Return the first of the places ``first + n * step`` from 0 to below a size, and their number.

    There are ``count`` places, of which those inside are counted.
    """
    begin = np.maximum(0, -(first // step))
    end = np.minimum(count, -((first - size) // step))
    return first + begin * step, np.maximum(0, end - begin)


def _boxes_read(tensor_map: TensorMap, places: Sequence[Numbers], _: Sequence[Numbers]) -> Numbers:
    """Return the bytes of boxes that are inside of the array, and their sectors."""
    counts = list(reversed(tensor_map.image_shape))
    steps = (1, *tensor_map.element_strides[1:])
    row, *rest = (
        _places(*each) for each in zip(places, steps, counts, tensor_map.global_dims, strict=True)
    )
    # Rows that begin with a sector, and in the middle of one.
    even, odd = np.ones_like(row[0]), np.zeros_like(row[0])
    for (first, count), step, stride in zip(
        rest, steps[1:], tensor_map.global_strides, strict=True
    ):
        # Places that move the rows by half a sector.
        moving = np.zeros_like(count)
        if stride % SECTOR_BYTES:
            moving = (count + first % 2) // 2 if step % 2 else count * (first % 2)
        still = count - moving
        even, odd = even * still + odd * moving, even * moving + odd * still
    return _transferred(tensor_map, row, (even, odd))


def _pixels_read(
    tensor_map: TensorMap, places: Sequence[Numbers], offsets: Sequence[Numbers]
) -> Numbers:
    """Return the bytes of pixels in im2col mode that are inside of the array, and their sectors."""
    box = tensor_map.box
    assert isinstance(box, Im2colBox)
    channel, *base, image = places
    steps, bases = tensor_map.element_strides[1:-1], tensor_map.bases
    number, inner = np.zeros_like(channel), 1
    for place, lower, step, count in zip(base, box.lower, steps, bases, strict=True):
        # Blocks of a cluster that are beyond the result may begin beyond the last base.
        number = number + np.minimum((place - lower) // step, count - 1) * inner
        inner *= count
    pixels = number[:, None] + np.arange(box.pixels)
    images = image[:, None] + pixels // inner
    valid = (images >= 0) & (images < tensor_map.global_dims[-1])
    address = images * tensor_map.global_strides[-1]
    dimensions = zip(
        base, box.lower, steps, bases, offsets, tensor_map.global_dims[1:-1],
        tensor_map.global_strides[:-1], strict=True,
    )  # fmt: skip
    for place, lower, step, count, offset, size, stride in dimensions:
        base_place = pixels % count * step + lower
        beyond = (place[:, None] - base_place) * (pixels == pixels[:, :1])
        coordinate = base_place + beyond + offset[:, None]
        valid &= (coordinate >= 0) & (coordinate < size)
        address = address + coordinate * stride
        pixels = pixels // count
    odd = (valid & (address % SECTOR_BYTES != 0)).sum(axis=1)
    row = _places(channel, 1, box.channels, tensor_map.global_dims[0])
    return _transferred(tensor_map, row, (valid.sum(axis=1) - odd, odd))


def _transferred(
    tensor_map: TensorMap, row: tuple[Numbers, Numbers], rows: tuple[Numbers, Numbers]
) -> Numbers:
    """Return the bytes and the sectors of contiguous rows.

    Parameters
    ----------
    tensor_map : TensorMap
    row : tuple of array
        First element along the innermost dimension, and number of elements.
    rows : tuple of array
        Number of rows that begin with a sector, and of those that are half a sector further on.
    """
    size = tensor_map.element_bytes
    begin, length = row[0] * size, row[1] * size
    sectors = sum(
        count * (-(-(begin + length + moved) // SECTOR_BYTES) - (begin + moved) // SECTOR_BYTES)
        for count, moved in zip(rows, (0, SECTOR_BYTES // 2), strict=True)
    )
    sectors = np.where(length > 0, sectors, 0)
    return np.stack([(rows[0] + rows[1]) * length, sectors])
