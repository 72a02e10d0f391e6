"""Attention on a target: sizes of tiles, kernels of their two products, the estimate of the whole.

The products of a tile are embedded like any other product, and their kernels called inside one
kernel (:mod:`~cpembed.network.operators.attention`). Scores, keys and values of a tile stay in the
second-level cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cpembed.codegen.recorded import Memory, RecordedCall
from cpembed.errors import LoweringError
from cpembed.graph.kinds import (
    Apply,
    Attention,
    Elementwise,
    Input,
    Number,
    Softmax,
    TensorType,
)
from cpembed.graph.kinds.attention import AXES
from cpembed.graph.passes.attention_splitting import attention_products
from cpembed.ir.computation import Computation
from cpembed.ir.index import row_major_strides
from cpembed.ir.parser import parse_computation
from cpembed.network.attention_costs import AttentionCosts
from cpembed.network.operator_costs import estimate_operator_us
from cpembed.network.operators.attention import attention_plan
from cpembed.network.operators.attention_tiles import TileProduct, Tiles
from cpembed.network.operators.emission import Operands
from cpembed.network.operators.nest import PlacedTensor, Tensors
from cpembed.network.operators.tiled_kernel import AttentionPlan
from cpembed.network.product_kernel import ProductKernel, recorded_kernel
from cpembed.network.product_kernels import KernelRequest, ProductKernels, least_unit_us
from cpembed.targets.capabilities import AnyTarget, host_times
from cpembed.targets.registry import open_target

_ROWS = (8, 16, 32, 48, 64, 96, 128)
_KEYS = (128, 256, 384, 512, 768, 1024)
"""Rows of blocks and keys of tiles that are compared."""

_CACHE_SHARE = 0.5
"""Fraction of the second-level cache that a tile's operands and scores may take."""

_ROW_COST, _KEY_COST = 8.0, 24.0
"""Time per tile in rows of its keys, which are read once for all its rows; and in keys of its rows,
whose sums are scaled once for all its keys. Both are relative to a score's products."""

_VECTOR, _REMAINDER_COST = 8, 0.7
"""Scores of a vector, and fraction of the time that keys behind the last vector of a row add
(measured on a Zen 3: 197 keys took 1.6 times as long as two tiles of 104)."""

_FEW_ROWS = 16
"""Maximum number of rows for which keys are read in place: packing them takes as long as the
products of so many rows lose on keys that are not packed (measured on a Zen 3, depth 128)."""

_STREAMED_BYTES = 32 << 10
"""Maximum number of bytes of a tile's keys and values where each is read once: half of them are
requested at a time (1,024 keys of depth 128 on a Zen 3 with other work: tiles of 32 keys with
requests took about 0.7 of the time of tiles of 512 without them, tiles of 128 without 0.8)."""

_PART_KEYS, _PART_COST = 128, 0.02
"""Minimum number of keys of a part, and fraction of the time that each further part adds."""


@dataclass(frozen=True)
class AttentionKernel:
    """Kernel of an attention, with its parts.

    Attributes
    ----------
    products : tuple of two ProductKernel
        Kernels of a tile's scores and of its sums of values.
    cost_us : float
        Estimated microseconds.
    """

    planned: AttentionPlan
    tiles: Tiles
    products: tuple[ProductKernel, ProductKernel]
    cost_us: float

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all scores and sums, masked ones included."""
        extents = self.tiles.extents
        scores = math.prod(extents[axis] for axis in "bhsn")
        return scores * (extents["k"] + extents["d"])

    def recorded(self, tensors: Tensors) -> RecordedCall:
        """Return the kernel's call on new memory, to be timed."""
        buffers = [Memory(max(1, t.layout.elements), t.storage_dtype) for t in tensors]
        return RecordedCall(self.planned.plan, (*buffers, *self.planned.scratch))


@dataclass(frozen=True, eq=False)
class AttentionChoice:
    """Choice of an attention's kernel on a target.

    Attributes
    ----------
    types : tuple of TensorType
        Types of query, key, value and mask.
    products : ProductKernels
        Kernels of products on the target.
    """

    kind: Attention
    types: tuple[TensorType, ...]
    products: ProductKernels
    threads: int

    @cached_property
    def tiles(self) -> Tiles:
        """Blocks of rows and tiles of keys.

        Raises :class:`LoweringError` if memory has neither rows nor columns.
        """
        query, key, value = self.kind.sizes(self.types)
        (result,) = self.kind.types(self.types)
        shapes = [*self.types[:3], result]
        strides = {
            name: _strides(kind.shape, axes)
            for name, kind, axes in zip("QKVO", shapes, self.kind.axes, strict=True)
        }
        extents = {"b": query["b"], "h": query["h"], "g": query["h"] // key["h"]}
        extents |= {"s": query["s"], "n": key["s"], "k": query["d"], "d": value["d"]}
        # With one row each, the heads that share a key are the rows of one product.
        row_axis = "h" if query["s"] == 1 and extents["g"] > 1 else "s"
        draft = Tiles(extents, strides, row_axis, 1, 1)
        cache = host_times(open_target(self.products.units.primary)).cache_bytes[1]
        causal = self.kind.causal is not None
        # Where the system does not say, as large as that of a small core.
        budget = int((cache or 256 << 10) * _CACHE_SHARE)
        rows, keys = _tile_sizes(draft, self.threads, budget, causal=causal)
        tiles = replace(draft, rows=rows, keys=keys)
        if reads_once(tiles) and rows <= _FEW_ROWS:
            size = 4 if self.kind.factors == "float32" else 2
            most = _STREAMED_BYTES // (size * (extents["k"] + extents["d"]))
            keys = min(keys, max(_VECTOR, most // _VECTOR * _VECTOR))
            tiles = replace(tiles, keys=keys, streams=True)
        return _in_parts(tiles, self.threads)

    @cached_property
    def workloads(self) -> tuple[Computation, Computation]:
        """Products of a tile: scores of rows and keys, sums of values."""
        return tile_workloads(self.tiles, (self.kind.factors,) * 4, "float32")

    @cached_property
    def requests(self) -> tuple[KernelRequest, ...]:
        """Searches for the kernels of a tile's products.

        Few rows read keys and values in place, since packing them would take longer.
        """
        packed = tuple(KernelRequest(workload, None, False) for workload in self.workloads)
        if not reads_once(self.tiles) or self.tiles.rows > _FEW_ROWS:
            return packed
        return tuple(
            replace(request, in_place=(name,)) for request, name in zip(packed, "KV", strict=True)
        )

    def kernel(self, target: AnyTarget, inputs: Tensors, outputs: Tensors) -> AttentionKernel:
        """Return the kernel on row-major tensors.

        Parameters
        ----------
        target : Target
            Target whose calibration estimates copies.
        inputs, outputs : sequence of PlacedTensor

        Raises
        ------
        LoweringError
            If a product of tiles has no kernel.
        """
        costs = AttentionCosts(self.kind, self.tiles, target, self.threads)
        products, recorded = tile_products(self.products, self.requests, self.kind.label)
        operands = Operands(inputs, outputs, self.threads)
        planned = attention_plan(self.kind, operands, self.tiles, *recorded)
        cost = costs.total_us(products, recorded, inputs, outputs)
        return AttentionKernel(planned, self.tiles, products, cost)

    def split_us(self, target: AnyTarget, limit: float) -> float:
        """Estimate the time of the two products and the softmax as operators of their own.

        Parameters
        ----------
        target : Target
            Target whose calibration estimates the softmax.
        limit : float
            Time from which on no estimate is needed: where a lower bound reaches it, infinity is
            returned, and no kernels are searched.
        """
        query, key, _ = self.kind.sizes(self.types)
        shape = (query["b"], query["h"], query["s"], key["s"])
        scores = [PlacedTensor.plain(TensorType(shape, "float32"))]
        scaled = Elementwise(Apply("mul", (Input(0), Number(self.kind.scale))), "float32")
        between = sum(
            estimate_operator_us(target, kind, scores, scores, self.threads)
            for kind in (scaled, Softmax(3))
        )
        workloads = attention_products(self.kind, self.types)
        return between + products_us(self.products, workloads, self.threads, limit - between)


def products_us(
    products: ProductKernels, workloads: Sequence[Computation], threads: int, limit: float
) -> float:
    """Estimate the time of products as operators of their own.

    Parameters
    ----------
    products : ProductKernels
    workloads : sequence of Computation
    threads : int
    limit : float
        Time from which on no estimate is needed: where a lower bound reaches it, infinity is
        returned, and no kernels are searched.
    """

    def least_us(workload: Computation) -> float:
        specs = products.units.candidates([operand.dtype for operand in workload.inputs])
        return min((least_unit_us(spec, workload) for spec in specs), default=0.0)

    if sum(map(least_us, workloads)) >= limit:
        return math.inf
    kernels = [products.lookup(KernelRequest(w, None, False)) for w in workloads]
    return sum(
        math.inf if kernel is None else kernel.estimate_us(workload.macs, threads)
        for kernel, workload in zip(kernels, workloads, strict=True)
    )


def tile_workloads(
    tiles: Tiles, factors: Sequence[str], sums: str
) -> tuple[Computation, Computation]:
    """Return the products of a tile: scores of rows and keys, sums of values.

    Parameters
    ----------
    tiles : Tiles
    factors : sequence of str
        Element types of queries, keys, weights and values.
    sums : str
        Element type of scores and sums.

    Raises
    ------
    LoweringError
        If a matrix in memory has neither contiguous rows nor contiguous columns.
    """
    rows, keys, extents, strides = tiles.rows, tiles.keys, tiles.extents, tiles.strides
    # Keys and values are packed once for all blocks of rows: if there are many, as weights are.
    varying = reads_once(tiles)
    query, query_shape = _matrix("m", rows, "k", extents["k"], strides["Q"], tiles.row_axis)
    key, key_shape = _matrix("n", keys, "k", extents["k"], strides["K"], "s")
    value, value_shape = _matrix("k", keys, "n", extents["d"], strides["V"], "s")
    scores = parse_computation(
        f"S[m, n] += Q[{query}] * K[{key}]",
        {"m": rows, "n": keys, "k": extents["k"]},
        name="gemm",
        dtypes={"S": sums, "Q": factors[0], "K": factors[1]},
        shapes={"Q": query_shape, "K": key_shape},
        varying=("K",) if varying else (),
    )
    values = parse_computation(
        f"Y[m, n] += P[m, k] * V[{value}]",
        {"m": rows, "n": extents["d"], "k": keys},
        name="gemm",
        dtypes={"Y": sums, "P": factors[2], "V": factors[3]},
        shapes={"V": value_shape},
        varying=("V",) if varying else (),
    )
    return scores, values


def reads_once(tiles: Tiles) -> bool:
    """Return True if each key is read by one block of rows, as when single tokens are decoded."""
    return tiles.blocks * (tiles.extents["g"] if tiles.row_axis == "s" else 1) == 1


def tile_products(
    products: ProductKernels, requests: Sequence[KernelRequest], label: str
) -> tuple[tuple[ProductKernel, ProductKernel], tuple[TileProduct, TileProduct]]:
    """Return the kernels of the two products of attention's tiles, and these as parts of another.

    Parameters
    ----------
    products : ProductKernels
    requests : sequence of KernelRequest
        The products of scores and of values.
    label : str
        Name of the operator in messages.

    Raises
    ------
    LoweringError
        If a product of tiles has no kernel.
    """
    first, second = (_tile_product(products, each, label) for each in requests)
    scores, values = (
        TileProduct.recorded(recorded_kernel(each, None, {}, 1)) for each in (first, second)
    )
    return (first, second), (scores, values)


def _tile_product(products: ProductKernels, request: KernelRequest, label: str) -> ProductKernel:
    """Return the kernel of a product of tiles, if need be with operands that are packed.

    Parameters
    ----------
    products : ProductKernels
    request : KernelRequest
    label : str
        Name of the attention for the error.

    Raises
    ------
    LoweringError
        If there is none.
    """
    kernel = products.lookup(request)
    if kernel is None and request.in_place:
        kernel = products.lookup(replace(request, in_place=()))
    if kernel is None:
        raise LoweringError(f"{label} has no kernel of its products")
    return kernel


def _strides(shape: Sequence[int], axes: str) -> Mapping[str, int]:
    """Return the distance along each axis of attention in a row-major tensor."""
    steps = dict(zip(axes, row_major_strides(shape), strict=True))
    return {axis: steps.get(axis, 0) for axis in AXES}


def _matrix(
    row: str, rows: int, column: str, columns: int, strides: Mapping[str, int], axis: str
) -> tuple[str, tuple[int, int]]:
    """Return index and shape of a matrix inside a tensor, whose rows are along ``axis``."""
    along, across = strides[axis], strides["d"]
    if across == 1 or columns == 1:
        return f"{row}, {column}", (rows, max(columns, along))
    if along == 1 or rows == 1:
        return f"{column}, {row}", (columns, max(rows, across))
    raise LoweringError("attention with neither rows nor columns contiguous in memory")


def _in_parts(tiles: Tiles, threads: int) -> Tiles:
    """Divide the keys of each block, if there are too few blocks for equal shares of threads."""
    blocks, keys = tiles.all_blocks, tiles.extents["n"]

    def time(parts: int) -> float:
        share = -(-blocks * parts // threads) * threads / (blocks * parts)
        return share * (1 + _PART_COST * (parts - 1))

    parts = min(range(1, max(1, min(threads, keys // _PART_KEYS)) + 1), key=time)
    # As many tiles in each part.
    steps = -(-tiles.tiles // parts) * parts
    if parts == 1:
        return tiles
    size = -(-keys // steps)
    rounded = _in_vectors(size, keys)
    size = rounded if -(-keys // rounded) == steps else size
    return replace(tiles, parts=parts, keys=size)


def _in_vectors(size: int, keys: int) -> int:
    """Return the keys of a tile rounded up to vectors, unless there are fewer keys."""
    rounded = -(-size // _VECTOR) * _VECTOR
    return rounded if rounded <= keys else size


def _tile_sizes(tiles: Tiles, threads: int, budget: int, *, causal: bool) -> tuple[int, int]:
    """Return the rows of a block and the keys of a tile with the least time by the model.

    Parameters
    ----------
    tiles : Tiles
        Attention without these sizes.
    threads : int
    budget : int
        Bytes that a tile's operands and scores may take.
    causal : bool
        True if parts of the tiles at the diagonal are masked.
    """
    rows, keys = tiles.row_count, tiles.extents["n"]
    depth, values = tiles.extents["k"], tiles.extents["d"]
    heads = tiles.extents["b"] * tiles.heads

    def bytes_of(m: int, n: int) -> int:
        return 4 * (m * n + n * (depth + values) + m * (depth + 2 * values))

    def time(m: int, n: int) -> float:
        blocks, steps = -(-rows // m), -(-keys // n)
        # Threads have equal numbers of blocks, rounded up.
        share = -(-heads * blocks // threads) * threads / (heads * blocks)
        computed = blocks * m / rows * steps * n / keys
        diagonal = 1 + (n + m) / (2 * max(keys, 1)) if causal else 1.0
        overhead = 1 + _ROW_COST / m + (_KEY_COST / n if steps > 1 else 0.0)
        overhead += _REMAINDER_COST if n % _VECTOR else 0.0
        return share * computed * diagonal * overhead

    # Equal tiles, as many as each size gives, so that the last one repeats little.
    equal = {_in_vectors(-(-keys // -(-keys // n)), keys) for n in (*_KEYS, keys) if n <= keys}
    blocks = {_in_vectors(-(-rows // -(-rows // m)), rows) for m in _ROWS}
    sizes = [(m, n) for m in {*(m for m in _ROWS if m < rows), *blocks} for n in equal]
    fitting = [size for size in sizes if bytes_of(*size) <= budget]
    return min(fitting or sizes[:1] or [(rows, keys)], key=lambda size: (time(*size), size))
