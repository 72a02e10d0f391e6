"""Products of dequantized tensors become products of the integers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cpembed.codegen.epilogue import BYTES, Epilogue
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Dequantize, Product
from cpembed.graph.kinds.elementwise import along
from cpembed.graph.passes.epilogue_matching import (
    RELU,
    UNLIMITED,
    Chain,
    Floats,
    chains,
    reduced,
    weights_times,
    weights_vector,
)
from cpembed.graph.passes.quantization import (
    LARGEST_SCALE,
    Quantized,
    are_factors,
    dequantized,
    float32,
    range_of,
    stored_limits,
)
from cpembed.graph.passes.rewriting import Array, Rewriting, producer_of

_LARGEST_SUM = 2**31 - 1
_LARGEST_BIAS = 2**30
_LARGEST_PRODUCT = 255 * 128


def integer_products(graph: Graph) -> Graph:
    """Of each product whose operands are dequantized from eight bits, the product of the integers.

    A factor and a bias of each channel, limits, and a quantization that follow go into its
    epilogue: results are those of exact sums, rounded once, and differ from those of the graph by
    at most one quantum. Without a quantization the epilogue stores floats, which differ by at most
    half a unit of the bias. Left as they are: second operands with scales of other axes than the
    channels, and with several zero points.
    """
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        match operator.kind:
            case Product(epilogue=None) as product if product.dtype == "float32":
                _convert(rewriting, operator, product)
            case _:
                pass
    return rewriting.graph()


@dataclass(frozen=True)
class _Weights:
    """The second operand: of its integers the scales, an element for each channel, and zero
    point; ``shifted`` is the array itself where it has to be another one."""

    tensor: str
    dtype: str
    scale: Floats
    zero_point: int
    shifted: Array | None = None


def _convert(rewriting: Rewriting, operator: Operator, product: Product) -> None:
    graph = rewriting.source
    first = dequantized(graph, operator.inputs[0])
    second = _weights(graph, operator.inputs[1], product)
    if first is None or second is None:
        return
    best: tuple[Chain, _Stored] | None = None
    every = list(chains(graph, operator, product))
    # What floats become in the end says how coarsely they may be rounded before.
    quantum = next((float32(c.quantize.scale[0]) for c in every if c.quantize), math.inf)
    for chain in every:
        found = _stored(graph, chain, first, second, quantum)
        if found is not None:
            best = chain, found
    if best is None:
        return
    chain, result = best
    weights = second.tensor
    if result.weights is not None:
        weights = rewriting.constant(f"{second.tensor} for {operator.name}", result.weights)
    a, b = (operand.name for operand in product.computation.inputs)
    dtypes = {a: first.dtype, b: second.dtype, product.computation.output.name: "int32"}
    integers = Product(
        product.computation.with_dtypes(dtypes),
        chain.shape,
        (first.zero_point, second.zero_point),
        result.epilogue,
    )
    names = [rewriting.constant(f"{operator.name} {key}", v) for key, v in result.vectors.items()]
    inputs = (first.tensor, weights, *names)
    rewriting.replace(chain.last, Operator(operator.name, integers, inputs, chain.last.outputs))


def _weights(graph: Graph, tensor: str, product: Product) -> _Weights | None:
    found = producer_of(graph, tensor, Dequantize)
    if found is None:
        return None
    operator, kind = found
    name = operator.inputs[0]
    given = graph.types[name]
    if given.dtype not in BYTES or not 0 < min(kind.scale) <= max(kind.scale) <= LARGEST_SCALE:
        return None
    scale, zero = (
        _of_channels(product, given.shape, along(values, kind.axis, len(given.shape), "float32"))
        for values in (kind.scale, kind.zero_point)
    )
    if scale is None or zero is None:
        return None
    if not zero.any():
        return _Weights(name, given.dtype, scale, 0)
    if name in graph.constants:
        zeros = along(kind.zero_point, kind.axis, len(given.shape), "int32")
        centred = graph.constants[name].astype(np.int32) - zeros
        for dtype in ("int8", given.dtype):
            low, high = range_of(dtype)
            if low <= centred.min() and centred.max() <= high:
                return _Weights(name, dtype, scale, 0, centred.astype(dtype))
    if np.any(zero != zero[0]):
        return None
    return _Weights(name, given.dtype, scale, int(zero[0]))


def _of_channels(product: Product, shape: tuple[int, ...], values: Array) -> Floats | None:
    if values.size == 1:
        return np.full(product.channels, values.reshape(()), np.float64)
    return weights_vector(product, np.broadcast_to(values, shape))


@dataclass(frozen=True)
class _Stored:
    """What is stored at the end of a chain, the vectors for that, and other weights for it."""

    epilogue: Epilogue
    vectors: dict[str, Array]
    weights: Array | None


def _stored(
    graph: Graph, chain: Chain, first: Quantized, second: _Weights, quantum: float
) -> _Stored | None:
    """None where an epilogue cannot say it, or a rounded bias moves results by a ``quantum``."""
    unit, weights = first.scale * second.scale, second.shifted
    bias = _bias(chain, unit)
    if bias is not None and not _fits(chain, bias):
        unit, weights = _coarser(graph, chain, unit, bias, second)
        bias = _bias(chain, unit)
        if weights is None or bias is None or not _fits(chain, bias):
            return None
    scale = unit if chain.factor is None else unit * chain.factor
    kind = chain.quantize
    stored = scale if kind is None else scale / float32(kind.scale[0])
    if not are_factors(stored) or not _is_near(chain, bias, scale, quantum):
        return None
    vectors: dict[str, Array] = {}
    has_bias = bias is not None and bool(bias.any())
    if bias is not None and has_bias:
        vectors["bias"] = bias.astype(np.int32)
    vectors["scale"] = stored.astype(np.float32)
    if kind is None:
        if chain.limits not in (UNLIMITED, RELU):
            return None
        epilogue = Epilogue("float32", scale=True, bias=has_bias, relu=chain.limits == RELU)
        return _Stored(epilogue, vectors, weights)
    clip, zero = stored_limits(chain.limits, kind), kind.zero_point[0]
    epilogue = Epilogue(kind.dtype, scale=True, bias=has_bias, clip=clip, zero_point=zero)
    return _Stored(epilogue, vectors, weights)


def _bias(chain: Chain, unit: Floats) -> Floats | None:
    """The addend in units of the sums, rounded; its own integers where it has them in that unit."""
    if chain.addend is None:
        return None
    if chain.integers is not None and chain.factor is None:
        values, factors = chain.integers
        if np.allclose(factors, unit, rtol=1e-6, atol=0):
            return values
    scale = unit if chain.factor is None else unit * chain.factor
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = np.where(chain.addend == 0, 0, chain.addend / scale)
    return np.rint(quotient)


def _is_near(chain: Chain, bias: Floats | None, scale: Floats, quantum: float) -> bool:
    """Whether rounding a bias to units of the sums moves no result by more than half a quantum."""
    if chain.addend is None or bias is None or chain.integers is not None:
        return True
    return bool(np.all(np.abs(chain.addend - bias * scale) <= 0.5 * quantum))


def _coarser(
    graph: Graph, chain: Chain, unit: Floats, bias: Floats, second: _Weights
) -> tuple[Floats, Array | None]:
    """Larger units of the channels whose bias is too large for 32 bits, and weights in them.

    The weights of such a channel are next to nothing beside its bias. Rounding them anew moves a
    sum of n products by at most ``128 n`` of a unit that the bias has 2^30 of.
    """
    given = graph.constants.get(second.tensor) if second.shifted is None else second.shifted
    if given is None or second.zero_point or not np.all(np.isfinite(bias)):
        return unit, None
    larger = np.where(np.abs(bias) > _LARGEST_BIAS, unit * np.abs(bias) / _LARGEST_BIAS, unit)
    scaled = weights_times(chain.product, given, unit / larger)
    return larger, None if scaled is None else np.rint(scaled).astype(given.dtype)


def _fits(chain: Chain, bias: Floats) -> bool:
    """Whether sums with the bias stay within 32 bits."""
    sums = reduced(chain.product) * _LARGEST_PRODUCT
    return bool(np.all(np.isfinite(bias)) and np.abs(bias).max() + sums <= _LARGEST_SUM)
