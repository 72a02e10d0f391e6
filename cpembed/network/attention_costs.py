"""Estimated times of attention: products of its tiles, softmax, and copies.

The work of the softmax follows the loops of its text
(:mod:`cpembed.network.operators.attention_softmax`), as that of other operators does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cpembed.codegen.approximations import exp2_below
from cpembed.codegen.plan import storage_dtype
from cpembed.graph.kinds import Attention
from cpembed.network.operator_costs import estimate_copy_us
from cpembed.network.operators.attention_softmax import ROW_GROUP
from cpembed.network.operators.attention_tiles import TileProduct, Tiles
from cpembed.network.operators.nest import Tensors
from cpembed.network.operators.operation_counts import WIDTH, function_operations, text_operations
from cpembed.network.operators.work import SHORTENED, vector_steps
from cpembed.network.product_kernels import ProductKernel
from cpembed.targets.capabilities import AnyTarget, Calibrated, HostTimes, host_times
from cpembed.targets.registry import open_target

_LINE_BYTES = 64
# Operations that the combination of a row's lanes takes where those of its group overlap.
_COMBINATION = 10.0
# Microseconds of a call of a part in compiled code.
_CALL_US = 0.02


@dataclass(frozen=True)
class AttentionCosts:
    """Estimated times of an attention in tiles.

    Attributes
    ----------
    target : Target
        Target whose calibration gives the times of operations and of lines from caches.
    threads : int
    """

    kind: Attention
    tiles: Tiles
    target: AnyTarget
    threads: int

    @cached_property
    def times(self) -> HostTimes:
        """Times of the processor."""
        return host_times(self.target)

    def softmax_operations(self) -> float:
        """Return the operations on vectors of a tile's softmax, and of the sums of its values."""
        tiles, depth = self.tiles, self.tiles.extents["d"]
        steps = tiles.rows * vector_steps(tiles.keys)
        grouped = tiles.rows / min(ROW_GROUP, tiles.rows)
        exponential = text_operations(lambda bind: exp2_below(bind, "x"))
        # A load and a comparison; then a load, a difference, a factor, a store and a sum.
        scores = 1.5 + self._mask_operations() + 0.5 + 2.0 + exponential + 2.0
        scores += SHORTENED if self.kind.factors == "bfloat16" else 0.0
        rows = 2 * _COMBINATION * tiles.rows + (exponential + 10.0) * grouped
        # Loads of the sums so far and of the tile's, a product with a sum, a store.
        sums = 3.0 * tiles.rows * vector_steps(depth) if tiles.tiles > 1 else 0.0
        return scores * steps + rows + sums

    def _mask_operations(self) -> float:
        """Return the operations per vector of scales and masks before the maximum."""
        count = 0.0
        if self.kind.softcap:
            count += function_operations("tanh") + 2.0
        if self.kind.masked:
            count += 2.0
        # Scores are stored, with their scale, only where they change.
        return count + 2.0 if count or self.kind.scale <= 0 else 0.0

    def total_us(
        self,
        products: Sequence[ProductKernel],
        recorded: Sequence[TileProduct],
        inputs: Tensors,
        outputs: Tensors,
    ) -> float:
        """Return the time of the whole attention on all threads.

        Parameters
        ----------
        products : sequence of ProductKernel
            Kernels of the scores and the sums of a tile.
        recorded : sequence of TileProduct
            Calls of these kernels, which tell what is packed before.
        inputs, outputs : sequence of PlacedTensor
        """
        tiles, times = self.tiles, self.times
        count = tiles.products(self.kind.causal)
        softmax_ns = self.softmax_operations() * times.operation_ns
        tiles_us = sum(tile_us(product, times) for product in products)
        busy_us = count * (tiles_us + softmax_ns / 1e3)
        # Sums and quotients of each row, which are stored.
        busy_us += 3.0 * outputs[0].type.elements / WIDTH * times.operation_ns / 1e3
        packed_us = packings_us(recorded, inputs, self.target, self.threads)
        least_us = self._moved_us(inputs, outputs)
        return packed_us + launched_us(tiles, self.threads, times, busy_us, least_us)

    def _moved_us(self, inputs: Tensors, outputs: Tensors) -> float:
        """Return the time in which one core reads the inputs, from the cache that holds them."""
        size = sum(tensor.bytes for tensor in (*inputs, *outputs))
        line_ns = self.times.load_line_ns[self.times.level(size)]
        return size / _LINE_BYTES * line_ns / 1e3


def tile_us(kernel: ProductKernel, times: HostTimes) -> float:
    """Return the time of a product of one tile on one thread, with its packing.

    Parameters
    ----------
    kernel : ProductKernel
    times : HostTimes
        Times of the processor.
    """
    program = kernel.candidate.program
    macs = program.unfused.macs
    if kernel.spec is None:
        return kernel.estimate_us(macs, 1)
    executing = open_target(kernel.spec)
    if not isinstance(executing, Calibrated):
        return kernel.estimate_us(macs, 1)
    # Read from where the caller has it, and written for the product to read.
    second = program.unfused.inputs[1]
    is_packed = second.varies and not program.operand(second.name).is_identity
    size = np.dtype(storage_dtype(second.dtype)).itemsize
    lines = size * math.prod(second.shape) / _LINE_BYTES if is_packed else 0.0
    packing_ns = lines * (times.load_line_ns[2] + times.store_line_ns[1])
    return executing.part_us(program, kernel.schedule) + packing_ns / 1e3 + _CALL_US


def packings_us(
    products: Sequence[TileProduct], inputs: Tensors, target: AnyTarget, threads: int
) -> float:
    """Return the time in which keys and values are packed, once for all blocks of rows.

    Parameters
    ----------
    products : sequence of TileProduct
        Products of scores and of values.
    inputs : sequence of PlacedTensor
        Query, key and value, then others.
    target : Target
        Target whose calibration estimates copies.
    threads : int
    """
    return sum(
        estimate_copy_us(target, tensor, tensor, threads)
        for product, name, tensor in zip(products, "KV", inputs[1:3], strict=True)
        if product.packing(name) is not None
    )


def launched_us(
    tiles: Tiles, threads: int, times: HostTimes, busy_us: float, moved_us: float = 0.0
) -> float:
    """Return the time of all tasks on the threads.

    Parameters
    ----------
    tiles : Tiles
    threads : int
    times : HostTimes
        Times of the processor.
    busy_us : float
        Time of all tasks on one thread.
    moved_us : float
        Time in which one thread reads and writes all tensors.
    """
    parts = min(threads, tiles.tasks)
    # The busiest thread decides.
    busy_us *= math.ceil(tiles.tasks / parts) / tiles.tasks
    launch = times.launch_us if parts > 1 else min(_CALL_US, times.call_us)
    return launch + max(busy_us, moved_us / parts)
