"""Elements by indices that are tensors: gathered by their numbers in row-major order. Scattering at
constant indices is gathering from the tensor and what is put into it, one after the other."""

from __future__ import annotations

import math

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.expressions import X, Y, Z, add, apply, mul, where
from cpembed.frontends.movements import (
    at_places,
    check_indices,
    from_front,
    gathered_elements,
    row_major_steps,
)
from cpembed.frontends.onnx.site import Site, Translation
from cpembed.frontends.rows import cumulative_sum as summed
from cpembed.graph.kinds import Concat, Gather
from cpembed.graph.kinds.base import Array, axis_of


def gather_elements(site: Site) -> str:
    return gathered_elements(site, site.input(0), site.input(1), site.axis())


def gather_nd(site: Site) -> str:
    shape, picked = site.type(0).shape, site.type(1).shape
    batch, depth = site.whole("batch_dims", 0), picked[-1]
    if not 0 <= batch < len(picked) or batch + depth > len(shape):
        raise WorkloadError(f"indices {list(picked)} of a tensor {list(shape)}")
    steps = row_major_steps(shape)
    total: str | None = None
    last = len(picked) - 1
    for k in range(depth):
        column = site.reshaped(site.part(site.input(1), last, k, k + 1), picked[:-1])
        check_indices(site, column, shape[batch + k])
        index = from_front(site, column, shape[batch + k])
        term = site.elementwise(mul(X, steps[batch + k]), index)
        total = term if total is None else site.elementwise(add(X, Y), total, term)
    if total is None:
        raise WorkloadError(f"indices {list(picked)} name no axis")
    rows, tail = np.indices(picked[:batch], sparse=True), shape[batch + depth :]
    offset = np.zeros((*picked[:-1], *tail), np.int64)
    for k, places in enumerate(rows):
        offset = offset + (places * steps[k]).reshape(*places.shape, *(1,) * (offset.ndim - batch))
    if tail:
        offset = offset + np.arange(math.prod(tail)).reshape(tail)
    wide = site.reshaped(total, (*picked[:-1], *(1,) * len(tail)))
    return at_places(site, site.input(0), site.elementwise(add(X, Y), wide, site.tensor(offset)))


def _scattered(site: Site, data: str, updates: str, places: Array) -> str:
    """``data`` with the elements of ``updates`` at ``places``, numbers in row-major order."""
    kind = site.type_of(data)
    source = np.arange(kind.elements)
    source[places.reshape(-1)] = kind.elements + np.arange(places.size)
    both = site.emit(
        Concat(0), site.reshaped(data, (kind.elements,)), site.reshaped(updates, (places.size,))
    )
    return site.emit(Gather(0), both, site.tensor(source.reshape(kind.shape)))


def _check_reduction(site: Site) -> None:
    if site.text("reduction", "none") != "none":
        site.refuse("scattering with a reduction is not read: scatter without one")


def scatter_elements(site: Site) -> str:
    _check_reduction(site)
    shape, axis = site.type().shape, site.axis()
    index = site.constant(1, "where it scatters")
    index = np.where(index < 0, index + shape[axis], index)
    if index.ndim != len(shape) or (index < 0).any() or (index >= shape[axis]).any():
        raise WorkloadError(f"indices {list(index.shape)} beyond a tensor {list(shape)}")
    steps = row_major_steps(shape)
    places = index * steps[axis]
    for k, at in enumerate(np.indices(index.shape, sparse=True)):
        if k != axis:
            places = places + at * steps[k]
    return _scattered(site, site.input(0), site.input(2), places)


def scatter_nd(site: Site) -> str:
    _check_reduction(site)
    shape = site.type().shape
    index = site.constant(1, "where it scatters")
    depth = index.shape[-1]
    sizes, steps = np.asarray(shape[:depth]), np.asarray(row_major_steps(shape)[:depth])
    index = np.where(index < 0, index + sizes, index)
    if (index < 0).any() or (index >= sizes).any():
        raise WorkloadError(f"indices {list(index.shape)} beyond a tensor {list(shape)}")
    tail = shape[depth:]
    places = (index * steps).sum(-1).reshape(*index.shape[:-1], *(1,) * len(tail))
    places = places + np.arange(math.prod(tail)).reshape(tail)
    return _scattered(site, site.input(0), site.input(2), places)


def one_hot(site: Site) -> str:
    depth = site.integers(1, "the depth")[0]
    rank = site.rank(0)
    axis = axis_of(site.whole("axis", -1), rank + 1)
    shape = [*site.type(0).shape]
    shape.insert(axis, 1)
    if not 0 < depth <= 1 << 24:
        raise WorkloadError(f"a depth of {depth}: give 1 to 2^24")
    index = from_front(site, site.input(0), depth)
    steps = np.arange(depth).reshape([-1 if k == axis else 1 for k in range(rank + 1)])
    equal = site.elementwise(
        apply("equal", X, Y), site.reshaped(index, shape), site.tensor(steps), dtype="bool"
    )
    off, on = (site.reshaped(t, ()) for t in _halves(site, site.input(2)))
    return site.elementwise(where(X, Y, Z), equal, on, off, dtype=site.type(2).dtype)


def _halves(site: Site, pair: str) -> tuple[str, str]:
    return site.part(pair, 0, 0, 1), site.part(pair, 0, 1, 2)


def trilu(site: Site) -> str:
    shape = site.type().shape
    if len(shape) < 2:
        site.refuse(f"a triangle of {site.type()}: give matrices")
    k = 0 if site.optional(1) is None else site.integers(1, "the diagonal")[0]
    upper = site.flag("upper", True)
    mask = np.ones(shape[-2:], bool)
    mask = np.triu(mask, k) if upper else np.tril(mask, k)
    zero = site.tensor(0, site.type().dtype)
    return site.elementwise(
        where(X, Y, Z), site.tensor(mask), site.input(0), zero, dtype=site.type().dtype
    )


def cumulative_sum(site: Site) -> str:
    axis = axis_of(site.integers(1, "the axis")[0], site.rank())
    exclusive, reverse = site.flag("exclusive"), site.flag("reverse")
    return summed(site, site.input(), axis, exclusive=exclusive, reverse=reverse)


TABLE: dict[str, Translation] = {
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "ScatterElements": scatter_elements,
    "Scatter": scatter_elements,
    "ScatterND": scatter_nd,
    "OneHot": one_hot,
    "Trilu": trilu,
    "CumSum": cumulative_sum,
}
