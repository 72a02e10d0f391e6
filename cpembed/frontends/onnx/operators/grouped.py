"""Weight-only products and embeddings: packed weights with scales of blocks."""

from __future__ import annotations

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends.expressions import X, Y, Z, mul, sub
from cpembed.frontends.grouped import Weights, grouped_gather, grouped_product, unpacked
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.graph.kinds import BlockDequantize
from cpembed.graph.kinds.base import Array, axis_of
from cpembed.graph.kinds.grouped import BITS

# Accuracy level of MatMulNBits that allows activations to be rounded to int8.
_INT8_LEVEL = 4


def _bits(call: Call) -> int:
    bits = call.integer("bits", 4)
    if bits not in BITS:
        call.reject(f"weights of {bits} bits are not read: use 2, 4 or 8")
    return bits


def _matmul_n_bits(call: Call) -> str:
    bits, block = _bits(call), call.integer("block_size", 0)
    rows, columns = call.integer("N", 0), call.integer("K", 0)
    if block < 16 or block & (block - 1) or min(rows, columns) < 1:
        raise WorkloadError(f"{rows} by {columns} weights in blocks of {block}")
    if call.integer("weight_prepacked", 0):
        call.reject("weights in another processor's layout are not read: export them unpacked")
    _check_order(call, columns, block)
    groups, size = -(-columns // block), block * bits // 8
    packed = call.constant(1, "the weights")
    bias = call.optional(5)
    if packed.size != rows * groups * size or packed.dtype != np.uint8:
        raise WorkloadError(f"weights {packed.dtype} {list(packed.shape)}: give {rows} rows of "
                            f"{groups} blocks of {size} bytes")  # fmt: skip
    codes = unpacked(packed.reshape(rows, -1), bits, columns)
    scales = _float_scales(call, 2).reshape(rows, groups)
    zeros = _zero_points(call, 3, (rows, groups), bits)
    weights = Weights(codes, scales, zeros, bits, block)
    rounds = call.integer("accuracy_level", 0) == _INT8_LEVEL
    return grouped_product(call, call.input(0), weights, bias, rounds=rounds)


def _check_order(call: Call, columns: int, block: int) -> None:
    """Reject groups whose columns do not follow each other."""
    order = call.optional_constant(4, "the order of the groups (g_idx)")
    if order is None:
        return
    if not np.array_equal(order.reshape(-1)[:columns], np.arange(columns) // block):
        call.reject(
            "columns of a group that do not follow each other (g_idx) are not read: export "
            "without act_order, or with the columns sorted by their group"
        )


def _float_scales(call: Call, k: int) -> Array:
    """Return scales in a type that kernels read."""
    scales = call.constant(k, "the scales")
    return scales if str(scales.dtype) == "float16" else scales.astype(np.float32)


def _zero_points(call: Call, k: int, shape: tuple[int, int], bits: int) -> Array:
    """Return zero points by row and group, which may be packed or floats."""
    zeros = call.optional_constant(k, "the zero points")
    if zeros is None:
        return np.full(shape, 1 << (bits - 1), np.uint8)
    if zeros.dtype == np.uint8:
        rows, groups = shape
        if zeros.size != rows * -(-groups * bits // 8):
            raise WorkloadError(f"zero points {list(zeros.shape)} of {rows} rows, {groups} groups")
        return unpacked(zeros.reshape(rows, -1), bits, groups)
    return zeros.astype(np.float32).reshape(shape)


def _gather_block_quantized(call: Call) -> str:
    data = call.constant(0, "the table")
    block, rank = call.integer("block_size", 128), data.ndim
    gathered = axis_of(call.integer("gather_axis", 0), rank)
    quantized = axis_of(call.integer("quantize_axis", 1), rank)
    if rank != 2 or (gathered, quantized) != (0, 1):
        call.reject("only rows of a matrix are gathered, with blocks along a row: transpose it")
    scales = _float_scales(call, 2)
    zeros = call.optional_constant(3, "the zero points")
    if call.narrow_input(0) in ("int4", "uint4"):
        bits, low = 4, int(np.iinfo(data.dtype).min)
        # Signed codes are stored with an offset.
        offset = 8 if low < 0 else 0
        codes = (data.astype(np.int16) + offset).astype(np.uint8)
        levels = np.full(scales.shape, 0) if zeros is None else zeros.astype(np.int16)
        points = (levels + offset).astype(np.uint8)
    else:
        bits = _bits(call)
        columns = data.shape[1] * 8 // bits
        codes = unpacked(data, bits, columns)
        points = _zero_points(call, 3, (data.shape[0], scales.shape[1]), bits)
    weights = Weights(codes, scales, points, bits, block)
    return grouped_gather(call, call.input(1), weights, str(scales.dtype))


def block_dequantized(call: Call, q: str, scale: str, zero: str | None, block: int) -> str:
    """Emit a dequantization with a scale and a zero point for each block of an axis.

    Parameters
    ----------
    call : Call
    q, scale : str
        Integers of a byte, and their scales.
    zero : str, optional
        Zero points.
    block : int
        Number of elements of a block.
    """
    axis = axis_of(call.integer("axis", 1), len(call.shape(q)))
    inputs = [q, scale] if zero is None else [q, scale, zero]
    kind = BlockDequantize(axis, block)
    kind.types([call.type_of(tensor) for tensor in inputs])
    if all(map(call.builder.is_constant, inputs)):
        return call.emit(kind, *inputs)
    # Computed in every call: an axis of blocks, along which parameters are the same.
    shape = call.shape(q)
    if shape[axis] % block:
        call.reject(f"{shape[axis]} elements in blocks of {block}, computed while the network "
                    "runs: make them constant, or give complete blocks")  # fmt: skip
    split = (*shape[:axis], shape[axis] // block, block, *shape[axis + 1 :])
    ones = (*call.shape(scale)[: axis + 1], 1, *call.shape(scale)[axis + 1 :])
    factors = [call.reshaped(tensor, ones) for tensor in inputs[1:]]
    # X is the integer, Y the scale, Z the zero point.
    expression = mul(X, Y) if zero is None else mul(sub(X, Z), Y)
    blocks = call.elementwise(expression, call.reshaped(q, split), *factors, dtype="float32")
    return call.reshaped(blocks, shape)


TABLE: dict[str, Translation] = {
    "com.microsoft.MatMulNBits": _matmul_n_bits,
    "com.microsoft.GatherBlockQuantized": _gather_block_quantized,
}
