"""Quantization, and operators between quantized tensors.

Products with sums of 32 bits take constant zero points as their own. A zero point that is computed
while the network runs is corrected afterwards: ``sum (x - z) w`` is ``sum x w - z * sum w``, where
the second sum runs over the weights that lie inside the image. QLinear operators are written as
operators of floats with quantization around them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends import expressions as e
from cpembed.frontends.composites import shape_without_elements
from cpembed.frontends.expressions import X, Y, Z, add, div, mul, sub
from cpembed.frontends.narrow import INTEGERS, narrowed, widened
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.frontends.onnx.operators.elementwise import element_type
from cpembed.frontends.onnx.operators.grouped import block_dequantized
from cpembed.frontends.onnx.operators.products import (
    convolution_options,
    pooled,
    pooled_image,
    scaled,
)
from cpembed.frontends.products import convolution, matrix_product
from cpembed.graph.kinds import (
    Dequantize,
    DynamicQuantize,
    Input,
    Quantize,
    Reduce,
    Scalar,
    Softmax,
)
from cpembed.graph.kinds.base import Array, axis_of
from cpembed.ir.scalars import apply

# -- conversions ----------------------------------------------------------------------------------


def _parameters(
    call: Call, tensor: str, scale: Array, zero: Array | None, axis: int
) -> tuple[tuple[float, ...], tuple[int, ...], int]:
    """Return scales, zero points (a single one where all are equal) and the axis of both."""
    scales = tuple(float(value) for value in scale.astype(np.float32).reshape(-1))
    zeros = (0,) if zero is None else tuple(int(value) for value in zero.reshape(-1))
    zeros = zeros[:1] if len({*zeros}) == 1 else zeros
    count, shape = max(len(scales), len(zeros)), call.shape(tensor)
    if count == 1:
        return scales, zeros, 0
    axis = axis_of(axis, len(shape))
    if shape[axis] != count:
        raise WorkloadError(
            f"{count} scales or zero points for the {shape[axis]} indices of axis {axis}"
        )
    return scales, zeros, axis


def _check_scales(call: Call, scale: Array, *, divides: bool) -> None:
    """Reject scales that are not finite, and zeros among those that something is divided by."""
    valid = np.isfinite(scale) & ((scale != 0) | (not divides))
    if not valid.all():
        value = scale[~valid].reshape(-1)[0]
        call.reject(f"a scale of {value}: give finite numbers{' other than 0' if divides else ''}")


def _quantized(
    call: Call, x: str, scale: Array, zero: Array | None, dtype: str, axis: int = 1
) -> str:
    """Emit the quantization of floats by constant parameters.

    Scale and zero point have one element, or one for each index of the axis; without a zero point
    it is 0.
    """
    _check_scales(call, scale, divides=True)
    scales, zeros, axis = _parameters(call, x, scale, zero, axis)
    return call.emit(Quantize(scales, zeros, dtype, axis), x)


def _dequantized(call: Call, q: str, scale: Array, zero: Array | None, axis: int = 1) -> str:
    """Emit the dequantization of integers by constant parameters, as for :func:`_quantized`."""
    _check_scales(call, scale, divides=False)
    scales, zeros, axis = _parameters(call, q, scale, zero, axis)
    return call.emit(Dequantize(scales, zeros, axis), q)


def _linear_parameters(call: Call) -> tuple[Array | None, Array | None, bool]:
    """Return scale and zero point of a node, and whether both are constants."""
    zero, value = call.optional(2), call.builder.value
    scale_value, zero_value = value(call.input(1)), value(zero) if zero else None
    return scale_value, zero_value, not zero or zero_value is not None


def _scalars(call: Call, dtype: str) -> tuple[str, str]:
    """Return scale and zero point, computed while the network runs, as scalars."""
    if call.type(1).elements != 1:
        call.reject("scales of channels are computed while the network runs: make them constant")
    scale = call.reshaped(call.input(1), ())
    return scale, call.reshaped(call.optional(2) or call.tensor(0, dtype), ())


def _quantize_linear(call: Call) -> str:
    if call.integer("block_size", 0):
        call.reject("scales of blocks are not read: quantize by tensors or channels")
    scale, zero, is_constant = _linear_parameters(call)
    x, zero_tensor = call.input(0), call.optional(2)
    if narrow := call.narrow_input(2):
        return _narrow_quantized(call, narrow, scale, zero)
    default = "uint8" if zero_tensor is None else call.dtype(zero_tensor)
    dtype = element_type(call, "output_dtype", default)
    if zero_tensor is not None and dtype != default:
        call.reject(f"output_dtype is {dtype}, and the zero point {default}: give one")
    _check_integers(call, dtype)
    if scale is not None and is_constant:
        return _quantized(call, x, scale, zero, dtype, call.integer("axis", 1))
    # Computed in every call, as in dynamic quantization, they are factors like any others.
    rounded = add(apply("round", div(X, Y)), Z)
    return call.elementwise(rounded, x, *_scalars(call, dtype), dtype=dtype)


def _narrow_quantized(call: Call, narrow: str, scale: Array | None, zero: Array | None) -> str:
    """Emit a quantization to the narrow type of the zero point."""
    call.makes.add(narrow)
    call.integer("output_dtype", 0)
    x, axis = call.input(0), call.integer("axis", 1)
    if scale is None or zero is None:
        call.reject(f"scales of {narrow} are computed while the network runs: make them constant")
    if narrow in INTEGERS:
        dtype, bits = INTEGERS[narrow]
        low = 0 if dtype == "uint8" else -(1 << (bits - 1))
        q = _quantized(call, x, scale, zero, dtype, axis)
        return call.elementwise(e.clip(X, low, low + (1 << bits) - 1), q)
    # The zero point is added, which makes a zero of either sign positive.
    quotient = add(div(X, Y), 0.0)
    scaled = call.elementwise(quotient, x, _along_axis(call, x, scale, zero, axis))
    return narrowed(call, scaled, narrow, saturates=call.flag("saturate", True))


def _along_axis(call: Call, x: str, scale: Array, zero: Array | None, axis: int) -> str:
    """Return the scales of narrow floats, whose zero point is 0, shaped to broadcast."""
    if zero is not None and zero.any():
        call.reject("a zero point of narrow floats other than 0: the format defines none")
    rank = len(call.shape(x))
    if scale.size == 1:
        return call.tensor(scale.reshape(()))
    shape = [1] * rank
    shape[axis_of(axis, rank)] = scale.size
    return call.tensor(scale.reshape(shape))


def _dequantize_linear(call: Call) -> str:
    scale, zero, is_constant = _linear_parameters(call)
    q, block = call.input(0), call.integer("block_size", 0)
    if (narrow := call.narrow_input(0)) and narrow not in INTEGERS:
        if block:
            call.reject(f"blocks of {narrow} are not read: dequantize by tensors or channels")
        if scale is None:
            call.reject(f"scales of {narrow} are computed: make them constant")
        values, axis = widened(call, q, narrow), call.integer("axis", 1)
        factors = _along_axis(call, q, scale.astype(np.float32), zero, axis)
        result = call.elementwise(mul(X, Y), values, factors)
        return call.cast(result, element_type(call, "output_dtype", str(scale.dtype)))
    _check_integers(call, call.dtype(q))
    if block:
        result = block_dequantized(call, q, call.input(1), call.optional(2), block)
        return call.cast(result, element_type(call, "output_dtype", call.dtype(call.input(1))))
    if scale is not None and is_constant:
        result = _dequantized(call, q, scale, zero, call.integer("axis", 1))
        return call.cast(result, element_type(call, "output_dtype", str(scale.dtype)))
    parameters = _scalars(call, call.dtype(q))
    return call.elementwise(mul(sub(X, Z), Y), q, *parameters, dtype="float32")


def _check_integers(call: Call, dtype: str) -> None:
    if np.dtype(dtype).kind not in "iu":
        call.reject(f"integers of type {dtype} are not read: use int8 or uint8")


# -- products with sums of 32 bits ----------------------------------------------------------------


def _zero_point(call: Call, tensor: str | None) -> tuple[int, str | None]:
    """Return a zero point as a number, and the tensor where it is computed in every call."""
    if tensor is None:
        return 0, None
    value = call.builder.value(tensor)
    if value is None:
        return 0, tensor
    values = {int(v) for v in value.reshape(-1)}
    # Zero points that differ from channel to channel are subtracted beforehand, by `_centred`.
    return (values.pop(), None) if len(values) == 1 else (0, None)


def _centred(call: Call, weights: str, zero: str | None, axis: int) -> str:
    """Subtract zero points that differ from channel to channel; the result has 16 bits."""
    value = None if zero is None else call.builder.value(zero)
    if value is None or len({int(v) for v in value.reshape(-1)}) == 1:
        return weights
    shape = [1] * len(call.shape(weights))
    shape[axis] = -1
    zeros = value if value.ndim > 1 else value.reshape(shape)
    # A difference of two bytes has nine bits.
    return call.elementwise(sub(X, Y), weights, call.tensor(zeros), dtype="int16")


def _conv_integer(call: Call) -> str:
    x, w = call.input(0), call.input(1)
    zero_x, moving_x = _zero_point(call, call.optional(2))
    zero_w, moving_w = _zero_point(call, call.optional(3))
    if moving_w is not None:
        call.reject("the weights' zero point is computed while the network runs: make it constant")
    w = _centred(call, w, call.optional(3), 0)
    shape, dtype = call.shape(x), call.dtype(x)
    form = convolution(
        shape,
        call.shape(w),
        dtypes=(dtype, call.dtype(w)),
        varying=not call.builder.is_constant(w),
        **convolution_options(call, x, w),
    )
    sums = call.emit(replace(form.product, zero_points=(zero_x, zero_w)), x, w)
    if moving_x is None:
        return sums
    weights = call.builder.value(w)
    if weights is None:
        call.reject(
            "the filter and the image's zero point are computed while the network runs: make one "
            "constant"
        )
    # An image of ones gives the sum of the weights that lie inside the image at each pixel.
    kind = replace(form.product, zero_points=(0, zero_w))
    (inside,) = kind.evaluate([np.ones(shape, dtype), weights])
    # Without padding the sum of the weights is the same at every pixel.
    pixel = inside[tuple(slice(None) if axis == 1 else slice(1) for axis in range(inside.ndim))]
    inside = pixel if (inside == pixel).all() else inside[:1]
    zero = call.reshaped(moving_x, ())
    return call.elementwise(sub(X, mul(Y, Z)), sums, zero, call.tensor(inside), dtype="int32")


def _integer_product(
    call: Call, factors: tuple[str, str], zeros: tuple[str | None, str | None]
) -> str:
    """Emit the product of two matrices of integers, less their zero points (None for 0)."""
    (zero_a, moving_a), (zero_b, moving_b) = (_zero_point(call, zero) for zero in zeros)
    a, b = factors
    if 0 in (*call.shape(a), *call.shape(b)):
        shape = shape_without_elements(matrix_product, call.shape(a), call.shape(b))
        return call.tensor(np.zeros(shape), "int32")
    a = _centred(call, a, zeros[0], max(0, len(call.shape(a)) - 2))
    b = _centred(call, b, zeros[1], len(call.shape(b)) - 1)
    form = call.form_of(matrix_product, a, b)
    result = call.emit(replace(form.product, zero_points=(zero_a, zero_b)), a, b)
    if moving_a is None and moving_b is None:
        return result
    for moving in (moving_a, moving_b):
        if moving is not None and call.type_of(moving).elements != 1:
            call.reject("zero points of rows are computed while the network runs: use one")
    # The product is sum (a - za)(b - zb), with 0 for a zero point that is a tensor.
    rows = _row_sums(call, a, -1, zero_a)
    columns = _row_sums(call, b, -2, zero_b)
    scalars: list[str] = []
    for moving, sums in ((moving_a, columns), (moving_b, rows)):
        if moving is not None:
            scalars.append(call.reshaped(moving, ()))
            result = call.elementwise(sub(X, mul(Y, Z)), result, scalars[-1], sums, dtype="int32")
    if len(scalars) == 2:
        both = mul(mul(Y, Z), call.shape(a)[-1])
        scalars = [call.reshaped(m, ()) for m in (moving_a, moving_b) if m is not None]
        result = call.elementwise(add(X, both), result, *scalars, dtype="int32")
    return result


def _row_sums(call: Call, tensor: str, axis: int, zero: int) -> str:
    """Sum a matrix less its zero point along one of the last two axes."""
    rank = len(call.shape(tensor))
    centred = call.elementwise(sub(X, zero), tensor, dtype="int32")
    return call.emit(Reduce("sum", (rank + axis if rank > 1 else 0,), rank > 1), centred)


def _matmul_integer(call: Call) -> str:
    factors, zeros = (call.input(0), call.input(1)), (call.optional(2), call.optional(3))
    return _integer_product(call, factors, zeros)


def _matmul_integer_to_float(call: Call) -> str:
    factors, zeros = (call.input(0), call.input(1)), (call.optional(4), call.optional(5))
    sums = _integer_product(call, factors, zeros)
    return _scaled_sums(call, sums, call.input(2), call.input(3), call.optional(6))


def _dynamic_quantize_matmul(call: Call) -> str:
    """Emit a product whose first factor is quantized by its own range."""
    weights, scale, zero = call.input(1), call.input(2), call.optional(3)
    return dynamic_product(call, call.input(0), (weights, scale, zero), call.optional(4))


def dynamic_product(
    call: Call, x: str, weights: tuple[str, str, str | None], bias: str | None
) -> str:
    """Emit a product of a tensor, quantized by its own range, and of integers.

    Parameters
    ----------
    call : Call
    x : str
        First factor, of floats.
    weights : tuple of str
        Second factor, its scale, and its zero point; the last is None for 0.
    bias : str or None
        Tensor of floats that is added to the result.
    """
    q, scale, zero = call.emit_all(DynamicQuantize(), x)
    integers, second, zero_point = weights
    sums = _integer_product(call, (q, integers), (zero, zero_point))
    return _scaled_sums(call, sums, scale, second, bias)


def _scaled_sums(call: Call, sums: str, first: str, second: str, bias: str | None) -> str:
    expression: Scalar = mul(X, mul(Y, Z))
    tensors = [sums, first, second]
    if any(len(call.shape(t)) > 1 for t in (first, second)):
        raise WorkloadError("scales of more than one dimension: give one, or one a column")
    if bias is not None:
        expression = add(expression, Input(3))
        tensors.append(bias)
    return call.elementwise(expression, *tensors, dtype="float32")


# -- QLinear operators ----------------------------------------------------------------------------


def _floats(call: Call, k: int, axis: int = 0) -> str:
    """Dequantize input ``k``, which is followed by its scale and its zero point."""
    scale = call.constant(k + 1, "a scale")
    return _dequantized(
        call, call.input(k), scale, call.optional_constant(k + 2, "a zero point"), axis
    )


def _integers(call: Call, x: str, k: int, dtype: str | None = None, axis: int = 0) -> str:
    """Quantize a result by the scale and the zero point at inputs ``k`` and ``k + 1``."""
    zero = call.optional_constant(k + 1, "a zero point")
    dtype = dtype or (call.type().dtype if zero is None else str(zero.dtype))
    return _quantized(call, x, call.constant(k, "a scale"), zero, dtype, axis)


def _qlinear_conv(call: Call) -> str:
    x, w, bias = _floats(call, 0, 1), _floats(call, 3, 0), call.optional(8)
    if bias is not None:
        # The bias has the scale of the products.
        scale = call.constant(1, "a scale").reshape(-1) * call.constant(4, "a scale")
        bias = _dequantized(call, bias, np.asarray(scale, np.float32), None, 0)
    result = call.convolved(x, w, bias, **convolution_options(call, x, w))
    return _integers(call, result, 6, axis=1)


def _qlinear_matmul(call: Call) -> str:
    # Each row of the first factor, and each column of the second, may have its own scale.
    a = _floats(call, 0, max(0, call.rank(0) - 2))
    return _integers(call, call.matmul(a, _floats(call, 3, call.rank(3) - 1)), 6)


def _qgemm(call: Call) -> str:
    """Emit QGemm, whose result is of floats if it has no scale and zero point."""
    a, b = _floats(call, 0), _floats(call, 3, 0 if call.flag("transB") else 1)
    if call.flag("transA"):
        a = call.transposed(a, (1, 0))
    result = scaled(call, call.matmul(a, b, transposed=call.flag("transB")))
    if call.optional(6) is not None:
        alpha = call.number("alpha", 1.0)
        scale = alpha * call.constant(1, "a scale") * call.constant(4, "a scale")
        bias = _dequantized(call, call.input(6), np.asarray(scale, np.float32), None, -1)
        result = call.elementwise(add(X, Y), result, bias)
    return result if call.optional(7) is None else _integers(call, result, 7)


def _qlinear_binary(call: Call, operation: str) -> str:
    a, b = _floats(call, 0), _floats(call, 3)
    return _integers(call, call.elementwise(apply(operation, X, Y), a, b), 6)


def _qlinear_unary(write: Callable[[Call, str], str]) -> Translation:
    """Return the translation of an operator of one tensor, which ``write`` emits on floats."""
    return lambda call: _integers(call, write(call, _floats(call, 0)), 3)


def _softmax(call: Call, x: str) -> str:
    axis = call.integer("axis", -1)
    # Before version 13 of Softmax the axes from this one on counted as one.
    if call.integer("opset", 13) < 13 and axis % call.rank() != call.rank() - 1:
        call.reject("softmax over several axes at once: give the last axis")
    return call.emit(Softmax(axis % call.rank()), x)


def _channels_first(write: Callable[[Call, str, str], str]) -> Callable[[Call, str], str]:
    def mean(call: Call, x: str) -> str:
        if call.flag("channels_last"):
            call.reject("channels after the image are not read: export with channels first")
        return write(call, "mean", x)

    return mean


def _qlinear_concat(call: Call) -> str:
    """Emit QLinearConcat: scale and zero point of the result, then each tensor with its own."""
    dtype = str(call.constant(1, "a zero point").dtype)
    tensors = [_floats(call, k) for k in range(2, len(call.inputs), 3)]
    axis = call.axis(0, len(call.shape(tensors[0])))
    return _integers(call, call.joined(tensors, axis), 0, dtype)


TABLE: dict[str, Translation] = {
    "QuantizeLinear": _quantize_linear,
    "com.microsoft.QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
    "com.microsoft.DequantizeLinear": _dequantize_linear,
    "DynamicQuantizeLinear": lambda call: call.emit_all(DynamicQuantize(), call.input()),
    "ConvInteger": _conv_integer,
    "MatMulInteger": _matmul_integer,
    "com.microsoft.MatMulIntegerToFloat": _matmul_integer_to_float,
    "com.microsoft.DynamicQuantizeMatMul": _dynamic_quantize_matmul,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "com.microsoft.QGemm": _qgemm,
    "com.microsoft.QLinearAdd": partial(_qlinear_binary, operation="add"),
    "com.microsoft.QLinearMul": partial(_qlinear_binary, operation="mul"),
    "com.microsoft.QLinearSigmoid": _qlinear_unary(
        lambda call, x: call.elementwise(apply("sigmoid", X), x)
    ),
    "com.microsoft.QLinearLeakyRelu": _qlinear_unary(
        lambda call, x: call.elementwise(e.leaky_relu(X, call.number("alpha", 0.01)), x)
    ),
    "com.microsoft.QLinearSoftmax": _qlinear_unary(_softmax),
    "com.microsoft.QLinearAveragePool": _qlinear_unary(_channels_first(pooled)),
    "com.microsoft.QLinearGlobalAveragePool": _qlinear_unary(_channels_first(pooled_image)),
    "com.microsoft.QLinearConcat": _qlinear_concat,
}
