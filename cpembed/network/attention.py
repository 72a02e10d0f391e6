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
from cpembed.graph.kinds import Attention, TensorType
from cpembed.graph.kinds.attention import AXES
from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.network.layout import row_major_strides
from cpembed.network.operator_costs import estimate_copy_us
from cpembed.network.operators.attention import AttentionPlan, attention_plan
from cpembed.network.operators.attention_tiles import TileProduct, Tiles
from cpembed.network.operators.emission import Operands
from cpembed.network.operators.nest import PlacedTensor
from cpembed.network.product_kernel import ProductKernel
from cpembed.network.product_kernels import KernelRequest, ProductKernels, recorded_kernel
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

_SCORE_NS = 0.35
"""Nanoseconds of a score's scale, masks, maximum, power and sum: an assumption, not calibrated."""


@dataclass(frozen=True)
class AttentionKernel:
    """Kernel of an attention, with what it was made of.

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

    def recorded(self, tensors: Sequence[PlacedTensor]) -> RecordedCall:
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
        return replace(draft, rows=rows, keys=keys)

    @cached_property
    def workloads(self) -> tuple[Computation, Computation]:
        """Products of a tile: scores of rows and keys, sums of values."""
        tiles, extents = self.tiles, self.tiles.extents
        rows, keys, strides = tiles.rows, tiles.keys, tiles.strides
        # Keys and values are packed once for all blocks of rows: if there are many, as weights are.
        varying = tiles.blocks * (extents["g"] if tiles.row_axis == "s" else 1) == 1
        query, query_shape = _matrix("m", rows, "k", extents["k"], strides["Q"], tiles.row_axis)
        key, key_shape = _matrix("n", keys, "k", extents["k"], strides["K"], "s")
        value, value_shape = _matrix("k", keys, "n", extents["d"], strides["V"], "s")
        scores = parse_computation(
            f"S[m, n] += Q[{query}] * K[{key}]",
            {"m": rows, "n": keys, "k": extents["k"]},
            name="gemm",
            dtypes=dict.fromkeys("QKS", "float32"),
            shapes={"Q": query_shape, "K": key_shape},
            varying=("K",) if varying else (),
        )
        values = parse_computation(
            f"Y[m, n] += P[m, k] * V[{value}]",
            {"m": rows, "n": extents["d"], "k": keys},
            name="gemm",
            dtypes=dict.fromkeys("PVY", "float32"),
            shapes={"V": value_shape},
            varying=("V",) if varying else (),
        )
        return scores, values

    @property
    def requests(self) -> tuple[KernelRequest, ...]:
        """Searches for the kernels of a tile's products."""
        return tuple(KernelRequest(workload, None, False) for workload in self.workloads)

    def kernel(
        self, target: AnyTarget, inputs: Sequence[PlacedTensor], outputs: Sequence[PlacedTensor]
    ) -> AttentionKernel:
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
        kernels = [self.products.lookup(request) for request in self.requests]
        first, second = kernels
        if first is None or second is None:
            raise LoweringError(f"{self.kind.label} has no kernel of its products")
        recorded = [
            TileProduct.recorded(recorded_kernel(kernel, None, {}, 1)) for kernel in (first, second)
        ]
        operands = Operands(inputs, outputs, self.threads)
        planned = attention_plan(self.kind, operands, self.tiles, recorded[0], recorded[1])
        cost = self._cost_us(target, (first, second), inputs)
        return AttentionKernel(planned, self.tiles, (first, second), cost)

    def _cost_us(
        self,
        target: AnyTarget,
        kernels: tuple[ProductKernel, ProductKernel],
        inputs: Sequence[PlacedTensor],
    ) -> float:
        tiles = self.tiles
        count = tiles.products(self.kind.causal)
        products = 0.0
        for kernel, workload in zip(kernels, self.workloads, strict=True):
            products += count * kernel.estimate_us(workload.macs, 1)
        scores = count * tiles.rows * tiles.keys * _SCORE_NS / 1e3
        packed = sum(estimate_copy_us(target, t, t, self.threads) for t in inputs[1:3])
        # Products are estimated on all threads.
        return packed + products + scores / min(self.threads, tiles.tasks)


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
        return share * computed * diagonal * overhead

    # Equal tiles, as many as each size gives, so that the last one repeats little.
    equal = {-(-keys // -(-keys // n)) for n in (*_KEYS, keys) if n <= keys}
    sizes = [(m, n) for m in {*(m for m in _ROWS if m < rows), min(rows, 128)} for n in equal]
    fitting = [size for size in sizes if bytes_of(*size) <= budget]
    return min(fitting or sizes[:1] or [(rows, keys)], key=lambda size: (time(*size), size))
