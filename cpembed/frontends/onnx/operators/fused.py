"""Operators that ONNX Runtime's optimizer makes of several: written as these."""

from __future__ import annotations

import numpy as np

from cpembed.errors import WorkloadError
from cpembed.frontends import expressions as e
from cpembed.frontends.convolutions import matmul as product
from cpembed.frontends.expressions import X, Y, Z, add, apply, mul
from cpembed.frontends.onnx.operators.convolution import convolved_floats
from cpembed.frontends.onnx.operators.integers import sums_of
from cpembed.frontends.onnx.site import Site, Translation
from cpembed.graph.kinds import DynamicQuantize, Input, LayerNorm, Scalar


def bias_gelu(site: Site) -> str:
    return site.elementwise(e.gelu(add(X, Y)), site.input(0), site.input(1))


def fast_gelu(site: Site) -> str:
    if site.optional(1) is None:
        return site.elementwise(e.gelu_tanh(X), site.input(0))
    return site.elementwise(e.gelu_tanh(add(X, Y)), site.input(0), site.input(1))


def fused_matmul(site: Site) -> str:
    if site.flag("transBatchA") or site.flag("transBatchB"):
        site.refuse("batches that are transposed are not read: transpose before")
    a = site.input(0)
    rank = site.rank(0)
    if site.flag("transA"):
        a = site.transposed(a, (*range(rank - 2), rank - 1, rank - 2))
    result = product(site, a, site.input(1), transposed=site.flag("transB"))
    alpha = site.number("alpha", 1.0)
    return result if alpha == 1.0 else site.elementwise(mul(X, alpha), result)


def fused_conv(site: Site) -> str:
    """A convolution, a tensor that is added, and an activation."""
    result = convolved_floats(site, site.input(0), site.input(1), site.optional(2))
    if site.optional(3) is not None:
        result = site.elementwise(add(X, Y), result, site.input(3))
    parameters = site.attribute("activation_params") or ()
    a, b = (*parameters, 0.0, 0.0)[:2]
    match site.text("activation", ""):
        case "Relu":
            return site.elementwise(e.relu(X), result)
        case "Tanh" | "Sigmoid" as name:
            return site.elementwise(apply(name.lower(), X), result)
        case "LeakyRelu":
            return site.elementwise(e.leaky_relu(X, a), result)
        case "Clip":
            return site.elementwise(e.clip(X, a, b), result)
        case "HardSigmoid":
            return site.elementwise(e.hard_sigmoid(X, a, b), result)
        case "":
            return result
        case other:
            site.refuse(f"activation {other} is not known: use Relu, Clip or Sigmoid")


def scaled_integers(site: Site) -> str:
    """MatMulIntegerToFloat: sums of integers times both scales, with a bias."""
    sums = sums_of(site, (site.input(0), site.input(1)), (site.optional(4), site.optional(5)))
    return _scaled(site, sums, site.input(2), site.input(3), site.optional(6))


def quantized_at_run_time(site: Site) -> str:
    """DynamicQuantizeMatMul: the first factor is quantized by its own range."""
    q, scale, zero = site.emit_all(DynamicQuantize(), site.input(0))
    sums = sums_of(site, (q, site.input(1)), (zero, site.optional(3)))
    return _scaled(site, sums, scale, site.input(2), site.optional(4))


def _scaled(site: Site, sums: str, first: str, second: str, bias: str | None) -> str:
    expression: Scalar = mul(X, mul(Y, Z))
    tensors = [sums, first, second]
    if any(len(site.shape(t)) > 1 for t in (first, second)):
        raise WorkloadError("scales of more than one dimension: give one, or one a column")
    if bias is not None:
        expression = add(expression, Input(3))
        tensors.append(bias)
    return site.elementwise(expression, *tensors, dtype="float32")


def skip_layer_normalization(site: Site) -> list[str]:
    """The layer normalization of a sum, which is the fourth result."""
    if any(site.wanted[1:3]):
        site.refuse("the mean or the deviation is asked for: export the model without")
    tensors = [site.input(0), site.input(1)]
    if (bias := site.optional(4)) is not None:
        tensors.append(bias)
    total = add(X, Y) if bias is None else add(add(X, Y), Z)
    x = site.elementwise(total, *tensors)
    shift = site.optional(3) or site.tensor(np.zeros(site.type(2).shape), "float32")
    kind = LayerNorm(site.rank() - 1, site.number("epsilon", 1e-12))
    return [site.emit(kind, x, site.input(2), shift), "", "", x]


TABLE: dict[str, Translation] = {
    "com.microsoft.BiasGelu": bias_gelu,
    "com.microsoft.FastGelu": fast_gelu,
    "com.microsoft.FusedMatMul": fused_matmul,
    "com.microsoft.FusedConv": fused_conv,
    "com.microsoft.MatMulIntegerToFloat": scaled_integers,
    "com.microsoft.DynamicQuantizeMatMul": quantized_at_run_time,
    "com.microsoft.SkipLayerNormalization": skip_layer_normalization,
}
