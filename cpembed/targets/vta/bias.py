"""What is added to the accumulators before they are shifted: one value per output channel, say.

A bias has some of the output's dimensions. As tiles it is a tensor of accumulators over those
packed dimensions of the output that these depend on, loaded beside the output tile and added to it
by the ALU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from cpembed.errors import LoweringError
from cpembed.targets.vta.gemm_kernels import MAX_ITERATIONS, Indices, Kernel
from cpembed.targets.vta.isa import Factors
from cpembed.targets.vta.regions import Region
from cpembed.targets.vta.tiles import TileNest, TileTensor
from cpembed.transform.program import PackedOperand


def with_bias(nest: TileNest, axes: tuple[int, ...]) -> TileNest:
    """The nest with a bias over dimensions ``axes`` of the original output; itself without any.

    Raises :class:`LoweringError` for a dimension that the output does not have.
    """
    if not axes:
        return nest
    packed = nest.acc.packed
    rank = len(packed.original_shape)
    if list(axes) != sorted(set(axes)) or not all(0 <= axis < rank for axis in axes):
        raise LoweringError(
            f"bias: {axes} are no dimensions of {packed.name}, in order; it has {rank}"
        )
    source = tuple(packed.source[axis] for axis in axes)
    used = {name for index in source for name in index.iterators}
    kept = [
        k
        for k, dimension in enumerate(packed.dimensions)
        if k >= nest.acc.rank or dimension.name in used
    ]
    bias = PackedOperand(
        f"{packed.name}.bias",
        "int32",
        tuple(packed.original_shape[axis] for axis in axes),
        tuple(packed.dimensions[k] for k in kept),
        source,
        tuple(packed.access[k] for k in kept),
    )
    tensor = TileTensor(nest.acc.memory, bias, sum(k < nest.acc.rank for k in kept))
    return replace(nest, bias=tensor)


@dataclass(frozen=True)
class _Walk:
    """Neighbouring dimensions of an output tile that are one loop of an instruction."""

    extent: int
    dst: int
    src: int


def bias_kernels(acc: Region, bias: Region, base: int, bias_base: int) -> list[Kernel]:
    """ALU instructions that add a region of the bias to the output tile it belongs to."""
    names = [dimension.name for dimension in bias.tensor.packed.dimensions]
    walks: list[_Walk] = []
    for k, dimension in enumerate(acc.tensor.packed.dimensions[: acc.tensor.rank]):
        has = dimension.name in names
        src = bias.strides[names.index(dimension.name)] if has else 0
        walk = _Walk(acc.spans[k].count, acc.strides[k], src)
        outer = walks[-1] if walks else None
        if walk.extent == 1:
            continue
        if outer is not None and outer.src == walk.src * walk.extent:
            walk = _Walk(outer.extent * walk.extent, walk.dst, walk.src)
            walks.pop()
        walks.append(walk)
    walks.sort(key=lambda walk: walk.extent)
    loops = [walk for walk in walks[-2:] if walk.extent <= MAX_ITERATIONS]
    outer, inner = ([_Walk(1, 0, 0)] * 2 + loops)[-2:]
    unrolled = [walk for walk in walks if walk not in loops]
    return [
        Kernel(
            _uops(unrolled, base, bias_base),
            outer.extent,
            inner.extent,
            Factors(outer.dst, inner.dst),
            Factors(outer.src, inner.src),
        )
    ]


def _uops(walks: list[_Walk], base: int, bias_base: int) -> Indices:
    places = np.indices([walk.extent for walk in walks]).reshape(
        len(walks), math.prod(walk.extent for walk in walks)
    )
    dst = base + sum(place * walk.dst for place, walk in zip(places, walks, strict=True))
    src = bias_base + sum(place * walk.src for place, walk in zip(places, walks, strict=True))
    table = np.zeros((places.shape[1], 3), np.int64)
    table[:, 0], table[:, 1] = dst, src
    return table
