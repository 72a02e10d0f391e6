"""Operator kinds: one class each, with its types and its definition in numpy.

The set is small and closed: front ends translate every model into it.
"""

from cpembed.graph.kinds.attention import Attention
from cpembed.graph.kinds.base import Foreign, Kind, TensorType
from cpembed.graph.kinds.elementwise import (
    Dequantize,
    DynamicQuantize,
    Elementwise,
    Quantize,
    Table,
)
from cpembed.graph.kinds.grouped import (
    BlockDequantize,
    GroupedFormat,
    GroupedGather,
    GroupedProduct,
    GroupQuantize,
)
from cpembed.graph.kinds.lines import CacheUpdate, Scan, Scatter, Sort
from cpembed.graph.kinds.movement import (
    Bitcast,
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
from cpembed.graph.kinds.quantized_attention import QuantizedAttention
from cpembed.graph.kinds.reductions import LayerNorm, Pool, Reduce, Softmax
from cpembed.ir.scalars import Apply, Input, Number, Scalar

__all__ = [
    "Apply",
    "Attention",
    "Bitcast",
    "BlockDequantize",
    "CacheUpdate",
    "Concat",
    "Dequantize",
    "DynamicQuantize",
    "Elementwise",
    "Expand",
    "Foreign",
    "Gather",
    "GroupQuantize",
    "GroupedFormat",
    "GroupedGather",
    "GroupedProduct",
    "Input",
    "Kind",
    "LayerNorm",
    "Number",
    "Pad",
    "Pool",
    "Product",
    "Quantize",
    "QuantizedAttention",
    "Reduce",
    "Reshape",
    "Resize",
    "Scalar",
    "Scan",
    "Scatter",
    "Slice",
    "Softmax",
    "Sort",
    "Table",
    "TensorType",
    "Transpose",
]
