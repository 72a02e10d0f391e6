"""Kernels of everything between products: from an operator's kind and its tensors' layouts to the
text of a kernel on flat buffers, ``main(in0, in1, ..., out0, ...)``.

A kernel writes the elements of its outputs and nothing else: what lies in a halo is filled once by
whoever owns the buffer, and is never read. No buffer may overlap another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cpembed.codegen.plan import KernelPlan
from cpembed.errors import LoweringError
from cpembed.graph.kinds import (
    Concat,
    Dequantize,
    DynamicQuantize,
    Elementwise,
    Expand,
    Gather,
    Kind,
    LayerNorm,
    Pad,
    Pool,
    Quantize,
    Reduce,
    Reshape,
    Resize,
    Slice,
    Softmax,
    Table,
    Transpose,
)
from cpembed.network.operators.elementwise import (
    dequantize_plan,
    dynamic_quantize_plan,
    elementwise_plan,
    quantize_plan,
    table_plan,
)
from cpembed.network.operators.movement import (
    conversion_plan,
    gather_plan,
    move_plan,
    pad_plan,
    resize_plan,
)
from cpembed.network.operators.nest import Placed
from cpembed.network.operators.pooling import pool_plan
from cpembed.network.operators.reductions import (
    extremum_plan,
    layer_norm_plan,
    reduce_plan,
    softmax_plan,
)

__all__ = ["Placed", "bytes_moved", "conversion_plan", "generated_plan"]


def _pad_plan(
    kind: Pad, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    plan = move_plan if kind.mode == "constant" else pad_plan
    return plan(kind, inputs, outputs, threads)


def _reduction_plan(
    kind: Reduce, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    plan = extremum_plan if kind.is_index else reduce_plan
    return plan(kind, inputs, outputs, threads)


_Maker = Callable[[Any, Sequence[Placed], Sequence[Placed], int], KernelPlan]

_PLANS: Mapping[type[Kind], _Maker] = {
    Elementwise: elementwise_plan,
    Quantize: quantize_plan,
    Dequantize: dequantize_plan,
    Table: table_plan,
    Reshape: move_plan,
    Transpose: move_plan,
    Concat: move_plan,
    Slice: move_plan,
    Expand: move_plan,
    Pad: _pad_plan,
    Gather: gather_plan,
    Resize: resize_plan,
    DynamicQuantize: dynamic_quantize_plan,
    Pool: pool_plan,
    Reduce: _reduction_plan,
    Softmax: softmax_plan,
    LayerNorm: layer_norm_plan,
}


def generated_plan(
    kind: Kind, inputs: Sequence[Placed], outputs: Sequence[Placed], threads: int
) -> KernelPlan:
    """The kernel of an operator that is no product; small ones run on fewer threads.

    Raises :class:`LoweringError` for a kind or a type that has no kernel, and for a tensor without
    elements: :func:`~cpembed.graph.passes.folding.fold` leaves none.
    """
    plan = _PLANS.get(type(kind))
    if plan is None:
        raise LoweringError(f"{kind.label} has no generated kernel: products are embedded instead")
    for tensor in (*inputs, *outputs):
        if not tensor.type.elements:
            raise LoweringError(
                f"{kind.label} with {tensor.type}, which has no elements: fold the graph before"
            )
    return plan(kind, inputs, outputs, threads)


def bytes_moved(kind: Kind, inputs: Sequence[Placed], outputs: Sequence[Placed]) -> int:
    """Of the elements that a kernel reads, each counted once, and of those that it writes; halos
    are not touched. A slice and a gather read no more of the data than they write."""
    written = sum(tensor.bytes for tensor in outputs)
    if isinstance(kind, (Slice, Gather, Expand)):
        size = np.dtype(inputs[0].stored).itemsize
        taken = min(inputs[0].type.elements, outputs[0].type.elements) * size
        return taken + sum(tensor.bytes for tensor in inputs[1:]) + written
    return sum(tensor.bytes for tensor in inputs) + written
