"""Operators between quantized tensors, as ONNX's and ONNX Runtime's QLinear operators say them:
written as the operator of floats with quantization around it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cpembed.frontends import expressions as e
from cpembed.frontends.convolutions import matmul as product
from cpembed.frontends.expressions import X, Y, apply
from cpembed.frontends.onnx.operators.convolution import convolved_floats
from cpembed.frontends.onnx.operators.movement import concat_along
from cpembed.frontends.onnx.operators.pooling import averaged, whole_image
from cpembed.frontends.onnx.operators.quantization import dequantized, quantized
from cpembed.frontends.onnx.site import Site, Translation
from cpembed.graph.kinds import Scalar, Softmax


def _floats(site: Site, k: int, axis: int = 0) -> str:
    """The tensor of an input that is followed by its scale and its zero point."""
    scale = site.constant(k + 1, "a scale")
    zero = site.optional_constant(k + 2, "a zero point")
    return dequantized(site, site.input(k), scale, zero, axis)


def _stored(site: Site, x: str, k: int, dtype: str | None = None, axis: int = 0) -> str:
    """A result in integers, by the scale and the zero point at inputs ``k`` and ``k + 1``."""
    zero = site.optional_constant(k + 1, "a zero point")
    kept = dtype or (site.type().dtype if zero is None else str(zero.dtype))
    return quantized(site, x, site.constant(k, "a scale"), zero, kept, axis)


def conv(site: Site) -> str:
    x, w = _floats(site, 0, 1), _floats(site, 3, 0)
    bias = None
    if site.optional(8) is not None:
        bias = _bias(site, 8, 1, 4)
    return _stored(site, convolved_floats(site, x, w, bias), 6, axis=1)


def _bias(site: Site, k: int, first: int, second: int) -> str:
    """A bias of integers, whose scale is that of the products."""
    scale = site.constant(first, "a scale").reshape(-1) * site.constant(second, "a scale")
    return dequantized(site, site.input(k), np.asarray(scale, np.float32), None, 0)


def matmul(site: Site) -> str:
    a = _floats(site, 0, max(0, site.rank(0) - 2))
    b = _floats(site, 3, site.rank(3) - 1)
    return _stored(site, product(site, a, b), 6)


def gemm(site: Site) -> str:
    """Inputs: A, B and the bias C, of 32 bits, then the result's scale and zero point, without
    which it is of floats."""
    a, b = _floats(site, 0), _floats(site, 3, 0 if site.flag("transB") else 1)
    if site.flag("transA"):
        a = site.transposed(a, (1, 0))
    result = product(site, a, b, transposed=site.flag("transB"))
    alpha = site.number("alpha", 1.0)
    if alpha != 1.0:
        result = site.elementwise(e.mul(X, alpha), result)
    if site.optional(6) is not None:
        scale = alpha * site.constant(1, "a scale") * site.constant(4, "a scale")
        bias = dequantized(site, site.input(6), np.asarray(scale, np.float32), None, -1)
        result = site.elementwise(e.add(X, Y), result, bias)
    return result if site.optional(7) is None else _stored(site, result, 7)


def binary(operation: str) -> Translation:
    def translate(site: Site) -> str:
        a, b = _floats(site, 0), _floats(site, 3)
        return _stored(site, site.elementwise(apply(operation, X, Y), a, b), 6)

    return translate


def unary(expression: Callable[[Site], Scalar]) -> Translation:
    def translate(site: Site) -> str:
        return _stored(site, site.elementwise(expression(site), _floats(site, 0)), 3)

    return translate


def softmax(site: Site) -> str:
    axis = site.whole("axis", -1)
    if site.whole("opset", 13) < 13 and axis % site.rank() != site.rank() - 1:
        site.refuse("softmax over several axes at once: give the last axis")
    return _stored(site, site.emit(Softmax(axis % site.rank()), _floats(site, 0)), 3)


def average_pool(site: Site) -> str:
    _check_order(site)
    return _stored(site, averaged(site, _floats(site, 0)), 3)


def global_average_pool(site: Site) -> str:
    _check_order(site)
    return _stored(site, whole_image(site, "mean", _floats(site, 0)), 3)


def _check_order(site: Site) -> None:
    if site.flag("channels_last"):
        site.refuse("channels after the image are not read: export with channels first")


def concat(site: Site) -> str:
    """Inputs: the result's scale and zero point, then each tensor with its own."""
    dtype = str(site.constant(1, "a zero point").dtype)
    tensors = [_floats(site, k) for k in range(2, len(site.inputs), 3)]
    axis = site.axis(0, len(site.shape(tensors[0])))
    return _stored(site, concat_along(site, tensors, axis), 0, dtype)


TABLE: dict[str, Translation] = {
    "QLinearConv": conv,
    "QLinearMatMul": matmul,
    "com.microsoft.QGemm": gemm,
    "com.microsoft.QLinearAdd": binary("add"),
    "com.microsoft.QLinearMul": binary("mul"),
    "com.microsoft.QLinearSigmoid": unary(lambda site: apply("sigmoid", X)),
    "com.microsoft.QLinearLeakyRelu": unary(
        lambda site: e.leaky_relu(X, site.number("alpha", 0.01))
    ),
    "com.microsoft.QLinearSoftmax": softmax,
    "com.microsoft.QLinearAveragePool": average_pool,
    "com.microsoft.QLinearGlobalAveragePool": global_average_pool,
    "com.microsoft.QLinearConcat": concat,
}
