"""Operator kinds: one class each, with its types and its definition in numpy.

The set is small and closed: front ends translate every model into it.
"""

from cpembed.graph.kinds.attention import Attention
from cpembed.graph.kinds.base import Kind, TensorType
from cpembed.graph.kinds.elementwise import (
    Dequantize,
    DynamicQuantize,
    Elementwise,
    Quantize,
    Table,
)
from cpembed.graph.kinds.movement import (
    Concat,
    Expand,
    Gather,
    Pad,
    Reshape,
    Resize,
    Slice,
    Transpose,
)
from cpembed.graph.kinds.product import Product
from cpembed.graph.kinds.reductions import LayerNorm, Pool, Reduce, Softmax
from cpembed.ir.scalars import Apply, Input, Number, Scalar

__all__ = [
    "Apply",
    "Attention",
    "Concat",
    "Dequantize",
    "DynamicQuantize",
    "Elementwise",
    "Expand",
    "Gather",
    "Input",
    "Kind",
    "LayerNorm",
    "Number",
    "Pad",
    "Pool",
    "Product",
    "Quantize",
    "Reduce",
    "Reshape",
    "Resize",
    "Scalar",
    "Slice",
    "Softmax",
    "Table",
    "TensorType",
    "Transpose",
]
