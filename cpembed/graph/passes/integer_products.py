"""Convert products of dequantized tensors to products of the integers, with their epilogues."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cpembed.codegen.epilogue import BYTES, Epilogue
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import Dequantize, Product
from cpembed.graph.kinds.elementwise import along
from cpembed.graph.passes.epilogue_matching import (
    RELU,
    UNLIMITED,
    Chain,
    Floats,
    chains,
    reduction_length,
    scaled_weights,
    weights_vector,
)
from cpembed.graph.passes.quantization import (
    LARGEST_SCALE,
    Quantized,
    are_safe_factors,
    dequantized,
    float32,
    integer_range,
    quantized_clip,
)
from cpembed.graph.passes.rewriting import Rewriting, producer_of, rewritten_float_products

LARGEST_SUM, LARGEST_PRODUCT = 2**31 - 1, 255 * 128
"""Largest magnitudes of sums, which have 32 bits, and of a product of uint8 and int8."""
# Maximum magnitude of a bias that is rounded again: half of the range is left to the products.
_LARGEST_BIAS = 2**30


def integer_products(graph: Graph) -> Graph:
    """Compute products whose operands are dequantized bytes on the integers.

    A factor and a bias per channel, clipping (ReLU included) and a quantization that follow go into
    the epilogue. Sums are exact and rounded once, so results differ from the graph's by at most one
    quantum. Without a quantization the epilogue stores floats, which differ by at most half a unit
    of the bias. Products stay in floats if the second operand has scales along other axes than the
    channels, or several zero points.
    """
    return rewritten_float_products(graph, _convert)


@dataclass(frozen=True)
class QuantizedWeights:
    """Quantized second operand.

    Attributes
    ----------
    tensor, dtype : str
        Tensor of the integers, and the type in which they are multiplied.
    scale : array of shape (channels,)
        Scale of each channel.
    centred : ndarray, optional
        Constant that replaces the operand: its integers without their zero points.
    """

    tensor: str
    dtype: str
    scale: Floats
    zero_point: int
    centred: Array | None = None


def _convert(rewriting: Rewriting, operator: Operator, product: Product) -> None:
    graph = rewriting.source
    first = dequantized(graph, operator.inputs[0])
    second = quantized_weights(graph, operator.inputs[1], product)
    if first is None or second is None:
        return
    longest: tuple[Chain, _Fused] | None = None
    candidates = list(chains(graph, operator, product))
    # The final quantization says how coarsely a bias may be rounded before it.
    quantum = next((float32(c.quantize.scale[0]) for c in candidates if c.quantize), math.inf)
    for chain in candidates:
        fused = _fused(graph, chain, first, second, quantum)
        if fused is not None:
            longest = chain, fused
    # The longest chain is the last one that an epilogue can express.
    if longest is None:
        return
    chain, fused = longest
    weights = second.tensor
    if fused.weights is not None:
        weights = rewriting.constant(f"{second.tensor} for {operator.name}", fused.weights)
    a, b = (operand.name for operand in product.computation.inputs)
    dtypes = {a: first.dtype, b: second.dtype, product.computation.output.name: "int32"}
    integers = Product(
        product.computation.with_dtypes(dtypes),
        chain.shape,
        zero_points=(first.zero_point, second.zero_point),
        epilogue=fused.epilogue,
    )
    names = [rewriting.constant(f"{operator.name} {key}", v) for key, v in fused.vectors.items()]
    inputs = (first.tensor, weights, *names)
    rewriting.replace(chain.last, Operator(operator.name, integers, inputs, chain.last.outputs))


def quantized_weights(graph: Graph, tensor: str, product: Product) -> QuantizedWeights | None:
    """Return the integers of a product's second factor, if it is dequantized bytes.

    Parameters
    ----------
    graph : Graph
    tensor : str
        Second factor.
    product : Product

    Returns
    -------
    QuantizedWeights or None
        None if scales or zero points vary along axes that are summed over, or zero points of
        channels do not fit eight bits.
    """
    producer = producer_of(graph, tensor, Dequantize)
    if producer is None:
        return None
    operator, kind = producer
    name = operator.inputs[0]
    integers = graph.types[name]
    if integers.dtype not in BYTES or not 0 < min(kind.scale) <= max(kind.scale) <= LARGEST_SCALE:
        return None
    rank = len(integers.shape)
    scale, zero_point = (
        _per_channel(product, integers.shape, along(values, kind.axis, rank, "float32"))
        for values in (kind.scale, kind.zero_point)
    )
    if scale is None or zero_point is None:
        return None
    if not zero_point.any():
        return QuantizedWeights(name, integers.dtype, scale, 0)
    if name in graph.constants:
        zeros = along(kind.zero_point, kind.axis, rank, "int32")
        centred = graph.constants[name].astype(np.int32) - zeros
        # Most centred weights have both signs, so int8 comes first.
        for dtype in ("int8", integers.dtype):
            low, high = integer_range(dtype)
            if low <= centred.min() and centred.max() <= high:
                return QuantizedWeights(
                    tensor=name,
                    dtype=dtype,
                    scale=scale,
                    zero_point=0,
                    centred=centred.astype(dtype),
                )
    if np.any(zero_point != zero_point[0]):
        return None
    return QuantizedWeights(name, integers.dtype, scale, int(zero_point[0]))


def _per_channel(product: Product, shape: tuple[int, ...], values: Array) -> Floats | None:
    """Return one element per channel of scales or zero points; None if they vary within one."""
    if values.size == 1:
        return np.full(product.channels, values.reshape(()), np.float64)
    return weights_vector(product, np.broadcast_to(values, shape))


@dataclass(frozen=True)
class _Fused:
    """Epilogue that computes a chain, its vectors by name, and weights to use instead, if any."""

    epilogue: Epilogue
    vectors: dict[str, Array]
    weights: Array | None


def _fused(
    graph: Graph, chain: Chain, first: Quantized, second: QuantizedWeights, quantum: float
) -> _Fused | None:
    """Return the epilogue of a chain, if one expresses it with biases accurate to a quantum."""
    # Sums count units of the two scales, and so does the bias that is added to them.
    unit, weights = first.scale * second.scale, second.centred
    bias = _bias(chain, unit)
    if bias is not None and not _fits_int32(chain, bias):
        unit, weights = _coarser_units(graph, chain, unit, bias, second)
        bias = _bias(chain, unit)
        if weights is None or bias is None or not _fits_int32(chain, bias):
            return None
    # The epilogue multiplies sums by their unit, in quanta of the result if it is quantized.
    scale = unit if chain.factor is None else unit * chain.factor
    kind = chain.quantize
    stored_scale = scale if kind is None else scale / float32(kind.scale[0])
    if not are_safe_factors(stored_scale) or not _is_accurate(chain, bias, scale, quantum):
        return None
    vectors: dict[str, Array] = {}
    has_bias = bias is not None and bool(bias.any())
    if bias is not None and has_bias:
        vectors["bias"] = bias.astype(np.int32)
    vectors["scale"] = stored_scale.astype(np.float32)
    if kind is None:
        if chain.clip not in (UNLIMITED, RELU):
            return None
        epilogue = Epilogue("float32", scale=True, bias=has_bias, relu=chain.clip == RELU)
        return _Fused(epilogue, vectors, weights)
    clip, zero_point = quantized_clip(chain.clip, kind), kind.zero_point[0]
    epilogue = Epilogue(kind.dtype, scale=True, bias=has_bias, clip=clip, zero_point=zero_point)
    return _Fused(epilogue, vectors, weights)


def _bias(chain: Chain, unit: Floats) -> Floats | None:
    """Return the addend in units of the sums, rounded."""
    if chain.addend is None:
        return None
    # The model may have the bias as integers in just this unit, which need no rounding.
    if chain.integers is not None and chain.factor is None:
        values, factors = chain.integers
        if np.allclose(factors, unit, rtol=1e-6, atol=0):
            return values
    scale = unit if chain.factor is None else unit * chain.factor
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = np.where(chain.addend == 0, 0, chain.addend / scale)
    return np.rint(quotient)


def _is_accurate(chain: Chain, bias: Floats | None, scale: Floats, quantum: float) -> bool:
    """True if rounding a bias to units of the sums moves no result by over half a quantum."""
    if chain.addend is None or bias is None or chain.integers is not None:
        return True
    return bool(np.all(np.abs(chain.addend - bias * scale) <= 0.5 * quantum))


def _coarser_units(
    graph: Graph, chain: Chain, unit: Floats, bias: Floats, second: QuantizedWeights
) -> tuple[Floats, Array | None]:
    """Return larger units for channels whose bias exceeds 32 bits, and the weights in them."""
    # The weights of such a channel are negligible compared with its bias: rounding them again moves
    # a sum of n products by at most 128 n units, of which the bias has 2^30.
    weights = graph.constants.get(second.tensor) if second.centred is None else second.centred
    if weights is None or second.zero_point or not np.all(np.isfinite(bias)):
        return unit, None
    larger = np.where(np.abs(bias) > _LARGEST_BIAS, unit * np.abs(bias) / _LARGEST_BIAS, unit)
    scaled = scaled_weights(chain.product, weights, unit / larger)
    return larger, None if scaled is None else np.rint(scaled).astype(weights.dtype)


def _fits_int32(chain: Chain, bias: Floats) -> bool:
    """True if sums with the bias stay within 32 bits."""
    sums = reduction_length(chain.product) * LARGEST_PRODUCT
    return bool(np.all(np.isfinite(bias)) and np.abs(bias).max() + sums <= LARGEST_SUM)
