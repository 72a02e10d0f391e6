"""Operators that move elements and are written with several kinds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.emitter import Emitter
from cpembed.frontends.expressions import X, Y, add, less, mul, where
from cpembed.graph.kinds import Gather, Pad

_MOST_PADDING = 1 << 20
"""Elements, of padding by what is at the other end: an index for each is kept."""


def padded(
    emitter: Emitter,
    x: str,
    before: Sequence[int],
    after: Sequence[int],
    mode: str = "constant",
    value: float = 0,
) -> str:
    """So many elements more before and after each axis, fewer where a number is below 0. ``mode``:
    one of :class:`Pad`'s, or ``wrap``, the elements at the other end.

    Raises :class:`WorkloadError` for reflections of more elements than there are.
    """
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        x = emitter.part(x, axis, max(0, -low), emitter.shape(x)[axis] - max(0, -high))
    before, after = (tuple(max(0, n) for n in widths) for widths in (before, after))
    if not any((*before, *after)):
        return x
    sizes = emitter.shape(x)
    if mode != "constant" and any(
        n and not s for n, s in zip((*before, *after), sizes * 2, strict=True)
    ):
        raise WorkloadError(f"{mode} padding of {emitter.type_of(x)}, which has no elements")
    if mode == "wrap":
        return _wrapped(emitter, x, before, after)
    widths = zip(sizes, before, after, strict=True)
    if mode == "reflect" and any(max(b, a) >= size for size, b, a in widths if b or a):
        raise WorkloadError(f"a reflection of more than {list(emitter.shape(x))} has")
    if emitter.dtype(x).startswith(("int", "uint", "bool")):
        value = int(value)
    return emitter.emit(Pad(before, after, value, mode), x)


def _wrapped(emitter: Emitter, x: str, before: Sequence[int], after: Sequence[int]) -> str:
    if max((*before, *after)) > _MOST_PADDING:
        raise WorkloadError("padding is below a million")
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        if low or high:
            size = emitter.shape(x)[axis]
            places = np.arange(-low, size + high) % size
            x = emitter.emit(Gather(axis), x, emitter.tensor(places))
    return x


def repeated(emitter: Emitter, x: str, counts: Sequence[int]) -> str:
    """As ``numpy.tile``: each axis is expanded by one before it, of as many elements as there are
    repetitions."""
    shape = emitter.shape(x)
    rank = max(len(counts), len(shape))
    shape = (*(1,) * (rank - len(shape)), *shape)
    counts = (*(1,) * (rank - len(counts)), *counts)
    apart = [size for extent in shape for size in (1, extent)]
    whole = [size for pair in zip(counts, shape, strict=True) for size in pair]
    x = emitter.expanded(emitter.reshaped(x, apart), whole)
    return emitter.reshaped(x, [count * size for count, size in zip(counts, shape, strict=True)])


def row_major_steps(shape: Sequence[int]) -> list[int]:
    """How far the elements of each axis are apart."""
    return [math.prod(shape[k + 1 :]) for k in range(len(shape))]


def check_indices(emitter: Emitter, index: str, size: int) -> None:
    """Raise :class:`WorkloadError` for constant indices beyond an axis of so many elements."""
    value = emitter.builder.value(index)
    if value is not None and value.size and not -size <= value.min() <= value.max() < size:
        raise WorkloadError(f"indices from {value.min()} to {value.max()} of an axis of {size}")


def from_front(emitter: Emitter, index: str, size: int) -> str:
    """Indices of an axis as int64, those below 0 counted from its end."""
    wide = emitter.cast(index, "int64")
    return emitter.elementwise(where(less(X, 0), add(X, size), X), wide)


def at_places(emitter: Emitter, x: str, places: str) -> str:
    """Elements by their numbers in row-major order."""
    return emitter.emit(Gather(0), emitter.reshaped(x, (math.prod(emitter.shape(x)),)), places)


def gathered_elements(emitter: Emitter, x: str, index: str, axis: int) -> str:
    """An index along one axis for each element of the result; the other indices are the element's
    own.

    Raises :class:`WorkloadError` for indices of another rank.
    """
    shape, picked = emitter.shape(x), emitter.shape(index)
    if len(picked) != len(shape):
        raise WorkloadError(f"indices {list(picked)} of a tensor {list(shape)}")
    check_indices(emitter, index, shape[axis])
    steps = row_major_steps(shape)
    rest = np.zeros(picked, np.int64)
    for k, places in enumerate(np.indices(picked, sparse=True)):
        if k != axis:
            rest += places * steps[k]
    index = from_front(emitter, index, shape[axis])
    places = emitter.elementwise(add(mul(X, steps[axis]), Y), index, emitter.tensor(rest))
    return at_places(emitter, x, places)
