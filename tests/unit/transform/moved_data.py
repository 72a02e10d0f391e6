"""What each rewrite does to data, forwards and back: written from Table 2, not from layouts."""

import math
from functools import singledispatch

import numpy as np

from cpembed.transform import rewrites
from cpembed.transform.program import Rewrite
from cpembed.transform.rewrites import Fuse, Overlapped, Pad, Reorder, Split


@singledispatch
def forward(rewrite: Rewrite, data: np.ndarray) -> np.ndarray:
    """Data in the layout after a rewrite, from data before it."""
    raise TypeError(rewrite)


@singledispatch
def inverse(rewrite: Rewrite, data: np.ndarray) -> np.ndarray:
    """Data in the layout before a rewrite, from data after it; what it left out is zero."""
    raise TypeError(rewrite)


def reshaped(data: np.ndarray, at: int, count: int, sizes: tuple[int, ...]) -> np.ndarray:
    """So many dimensions from ``at`` on become dimensions of these sizes."""
    return data.reshape(*data.shape[:at], *sizes, *data.shape[at + count :])


def unrolled(rewrite: rewrites._Unrolled) -> np.ndarray:
    """The old element of every combination of parts, of the parts' shape."""
    grids = np.indices([part.extent for part in rewrite.parts])
    steps = [part.coefficient for part in rewrite.parts]
    return np.tensordot(steps, grids, axes=1) + rewrite.offset


@forward.register
def _(rewrite: rewrites._Unrolled, data: np.ndarray) -> np.ndarray:
    elements, at = unrolled(rewrite), rewrite.dimension
    inside = (elements >= 0) & (elements < rewrite.extent)
    taken = np.take(data, np.clip(elements, 0, rewrite.extent - 1), axis=at)
    mask = inside.reshape((1,) * at + inside.shape + (1,) * (data.ndim - at - 1))
    return np.where(mask, taken, np.zeros((), data.dtype))


@inverse.register
def _(rewrite: rewrites._Unrolled, data: np.ndarray) -> np.ndarray:
    elements, at = unrolled(rewrite).ravel(), rewrite.dimension
    flat = reshaped(data, at, len(rewrite.parts), (elements.size,))
    result = np.zeros((*data.shape[:at], rewrite.extent, *flat.shape[at + 1 :]), data.dtype)
    keep = np.flatnonzero((elements >= 0) & (elements < rewrite.extent))
    result[(slice(None),) * at + (elements[keep],)] = np.take(flat, keep, axis=at)
    return result


@forward.register
def _(rewrite: Pad, data: np.ndarray) -> np.ndarray:
    width = [(0, 0)] * data.ndim
    width[rewrite.dimension] = (rewrite.before, rewrite.after)
    return np.pad(data, width)


@inverse.register
def _(rewrite: Pad, data: np.ndarray) -> np.ndarray:
    return np.take(data, rewrite.before + np.arange(rewrite.extent), axis=rewrite.dimension)


@forward.register
def _(rewrite: Split, data: np.ndarray) -> np.ndarray:
    outer = data.shape[rewrite.dimension] // rewrite.factor
    return reshaped(data, rewrite.dimension, 1, (outer, rewrite.factor))


@inverse.register
def _(rewrite: Split, data: np.ndarray) -> np.ndarray:
    size = data.shape[rewrite.dimension] * data.shape[rewrite.dimension + 1]
    return reshaped(data, rewrite.dimension, 2, (size,))


def blocks(rewrite: Overlapped) -> np.ndarray:
    """The old element of each of the new ones."""
    starts = np.arange(rewrite.overlap.count) * rewrite.overlap.block
    starts[-1] -= rewrite.overlap.back
    return starts[:, None] + np.arange(rewrite.overlap.block)


@forward.register
def _(rewrite: Overlapped, data: np.ndarray) -> np.ndarray:
    taken = np.take(data, blocks(rewrite), axis=rewrite.dimension)
    if rewrite.zeros:
        place = (slice(None),) * rewrite.dimension
        taken[(*place, -1, slice(0, rewrite.overlap.back))] = 0
    return taken


@inverse.register
def _(rewrite: Overlapped, data: np.ndarray) -> np.ndarray:
    elements = blocks(rewrite).ravel()
    # The last block's own part: what it shares is in the one before.
    keep = np.flatnonzero(np.r_[True, np.maximum.accumulate(elements)[:-1] < elements[1:]])
    return np.take(reshaped(data, rewrite.dimension, 2, (-1,)), keep, axis=rewrite.dimension)


@forward.register
def _(rewrite: Reorder, data: np.ndarray) -> np.ndarray:
    return data.transpose(rewrite.order)


@inverse.register
def _(rewrite: Reorder, data: np.ndarray) -> np.ndarray:
    return data.transpose(np.argsort(rewrite.order))


@forward.register
def _(rewrite: Fuse, data: np.ndarray) -> np.ndarray:
    size = math.prod(rewrite.extents)
    return reshaped(data, rewrite.dimension, len(rewrite.extents), (size,))


@inverse.register
def _(rewrite: Fuse, data: np.ndarray) -> np.ndarray:
    return reshaped(data, rewrite.dimension, 1, rewrite.extents)
