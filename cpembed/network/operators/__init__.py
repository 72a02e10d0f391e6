"""Kernels of everything between products, from a kind and the layouts of its tensors.

A kernel is text on flat buffers, ``main(in0, in1, ..., out0, ...)``. It writes the elements of its
outputs and nothing else: halos are filled once by the owner of the buffer and never read. No buffer
may overlap another.
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
from cpembed.network.operators.emission import Operands
from cpembed.network.operators.movement import (
    conversion_plan,
    gather_plan,
    move_plan,
    pad_plan,
    resize_plan,
)
from cpembed.network.operators.nest import PlacedTensor
from cpembed.network.operators.pooling import pool_plan
from cpembed.network.operators.reductions import (
    extremum_plan,
    layer_norm_plan,
    reduce_plan,
    softmax_plan,
)

__all__ = ["PlacedTensor", "bytes_moved", "conversion_plan", "generated_plan"]


def _pad_plan(kind: Pad, operands: Operands) -> KernelPlan:
    return (move_plan if kind.mode == "constant" else pad_plan)(kind, operands)


def _reduction_plan(kind: Reduce, operands: Operands) -> KernelPlan:
    return (extremum_plan if kind.is_index else reduce_plan)(kind, operands)


_Maker = Callable[[Any, Operands], KernelPlan]

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
    kind: Kind, inputs: Sequence[PlacedTensor], outputs: Sequence[PlacedTensor], threads: int
) -> KernelPlan:
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


def bytes_moved(kind: Kind, inputs: Sequence[PlacedTensor], outputs: Sequence[PlacedTensor]) -> int:
    """Return the number of bytes that a kernel reads and writes, halos not included.

    Parameters
    ----------
    kind : Kind
        Slices and gathers read no more of the data than they write.
    inputs, outputs : sequence of PlacedTensor
    """
    written = sum(tensor.bytes for tensor in outputs)
    if isinstance(kind, (Slice, Gather, Expand)):
        size = np.dtype(inputs[0].storage_dtype).itemsize
        read = min(inputs[0].type.elements, outputs[0].type.elements) * size
        return read + sum(tensor.bytes for tensor in inputs[1:]) + written
    return sum(tensor.bytes for tensor in inputs) + written
