"""Kernels of everything between products, from a kind and the layouts of its tensors.

A kernel is text on flat buffers, ``main(in0, in1, ..., out0, ...)``. It writes the elements of its
outputs and nothing else: halos are filled once by the owner of the buffer and never read. No buffer
may overlap another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cpembed.codegen.plan import KernelPlan
from cpembed.errors import LoweringError
from cpembed.graph import kinds
from cpembed.graph.kinds import Kind
from cpembed.network.operators import (
    elementwise,
    grouped,
    grouped_integers,
    lines,
    movement,
    pooling,
    reductions,
    resizing,
)
from cpembed.network.operators.emission import EFFORT, FUNCTION_EFFORT, Operands
from cpembed.network.operators.movement import conversion_plan
from cpembed.network.operators.nest import PlacedTensor, Tensors

__all__ = [
    "EFFORT",
    "FUNCTION_EFFORT",
    "PlacedTensor",
    "conversion_plan",
    "generated_plan",
]


def _grouped_product_plan(kind: kinds.GroupedProduct, operands: Operands) -> KernelPlan:
    if kind.integers:
        return grouped_integers.integer_product_plan(kind, operands)
    return grouped.grouped_product_plan(kind, operands)


_PLANS: Mapping[type[Kind], Callable[[Any, Operands], KernelPlan]] = {
    kinds.Elementwise: elementwise.elementwise_plan,
    kinds.Quantize: elementwise.quantize_plan,
    kinds.Dequantize: elementwise.dequantize_plan,
    kinds.DynamicQuantize: elementwise.dynamic_quantize_plan,
    kinds.Table: elementwise.table_plan,
    kinds.Reshape: movement.move_plan,
    kinds.Transpose: movement.move_plan,
    kinds.Concat: movement.move_plan,
    kinds.Bitcast: movement.bitcast_plan,
    kinds.Slice: movement.move_plan,
    kinds.Expand: movement.move_plan,
    kinds.Pad: resizing.pad_plan,
    kinds.Gather: movement.gather_plan,
    kinds.GroupedProduct: _grouped_product_plan,
    kinds.GroupQuantize: grouped_integers.group_quantize_plan,
    kinds.GroupedGather: grouped.grouped_gather_plan,
    kinds.Resize: resizing.resize_plan,
    kinds.CacheUpdate: lines.cache_update_plan,
    kinds.Pool: pooling.pool_plan,
    kinds.Reduce: reductions.reduce_plan,
    kinds.Softmax: reductions.softmax_plan,
    kinds.LayerNorm: reductions.layer_norm_plan,
    kinds.Sort: lines.sort_plan,
    kinds.Scan: lines.scan_plan,
    kinds.Scatter: lines.scatter_plan,
}


def generated_plan(kind: Kind, inputs: Tensors, outputs: Tensors, threads: int) -> KernelPlan:
    """Return the kernel of an operator that is no product.

    Parameters
    ----------
    kind : Kind
    inputs, outputs : sequence of PlacedTensor
    threads : int
        Maximum number of threads; small operators use fewer.

    Raises
    ------
    LoweringError
        For a kind or a type without a kernel, and for tensors without elements, of which
        :func:`~cpembed.graph.passes.folding.fold` leaves none.
    """
    plan = _PLANS.get(type(kind))
    if plan is None:
        raise LoweringError(f"{kind.label} has no generated kernel: products are embedded instead")
    for tensor in (*inputs, *outputs):
        if not tensor.type.elements:
            raise LoweringError(
                f"{kind.label} with {tensor.type}, which has no elements: fold the graph before"
            )
    return plan(kind, Operands(inputs, outputs, threads))
