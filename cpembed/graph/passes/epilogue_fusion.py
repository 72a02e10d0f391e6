"""Fuse bias, ReLU, residual sums and requantization into the epilogues of products.

Products of floats take bias, ReLU and a residual (:func:`fuse_float_epilogues`). Products of
integers get their epilogue, ReLU and clipping included, when they are made
(:mod:`cpembed.graph.passes.integer_products`); requantizations and residual sums are added here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cpembed.codegen.epilogue import BYTES, SCALE, Epilogue, Residual
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import Elementwise, Product, Quantize
from cpembed.graph.passes.element_types import with_output_type
from cpembed.graph.passes.epilogue_matching import (
    RELU,
    UNLIMITED,
    Chain,
    before_clip,
    chains,
    other_input,
    scaled_weights,
)
from cpembed.graph.passes.expressions import clip_range, combines_inputs, composed_clip
from cpembed.graph.passes.quantization import (
    Quantized,
    are_safe_factors,
    byte_quantization,
    dequantized,
    float32,
    integer_range,
    quantized_clip,
)
from cpembed.graph.passes.rewriting import Rewriting, only_reader, producer_of, until_unchanged

# Maximum ratio of the old to the new scale of a requantization that is fused: 2, because a ReLU
# halves the range. Results move by at most this many quanta of the new scale.
_LARGEST_RATIO = 2.0


def fuse_float_epilogues(graph: Graph) -> Graph:
    """Fuse bias per channel, ReLU, and a residual sum with its ReLU, into products of floats.

    Results are equal bit for bit, except where a factor per channel (a batch normalization) is
    multiplied into constant weights or several biases become one: these round once more, or less.
    Of two products that are added, the later one takes the other as its residual.
    """
    rewriting = Rewriting(graph)
    # Backwards, so that the later of two products is the first to claim their sum.
    for operator in reversed(graph.operators):
        match operator.kind:
            case Product(epilogue=None) as product if product.dtype == "float32":
                _fuse_chain(rewriting, operator, product)
            case Product(epilogue=Epilogue("float32", residual=None)) as product:
                _fuse_float_sum(rewriting, operator, product)
            case _:
                pass
    return rewriting.graph()


def _fuse_float_sum(rewriting: Rewriting, operator: Operator, product: Product) -> None:
    """Fuse a sum of floats into a product of integers that stores floats."""
    graph, epilogue = rewriting.source, product.epilogue
    total = _float_sum(rewriting, Chain(product, product.shape, operator))
    if epilogue is None or total is None:
        return
    # Such a reader takes the sum by elementwise fusion, without another pass over memory.
    reader = only_reader(graph, total.last.output)
    if reader is not None and isinstance(reader.kind, Elementwise | Quantize):
        return
    kind = product.with_epilogue(replace(epilogue, residual=Residual("float32", relu=total.relu)))
    inputs = (*operator.inputs, total.addend)
    rewriting.replace(
        total.last, replace(operator, kind=kind, inputs=inputs, outputs=total.last.outputs)
    )


@dataclass(frozen=True)
class _FloatSum:
    """Tensor that is added to a product's result, and whether a ReLU follows."""

    addend: str
    relu: bool
    last: Operator


def _fuse_chain(rewriting: Rewriting, operator: Operator, product: Product) -> None:
    graph = rewriting.source
    longest: tuple[Chain, Array | None] | None = None
    for chain in chains(graph, operator, product):
        weights = _scaled_constant(graph, chain, operator.inputs[1])
        fits = chain.quantize is None and chain.clip in (UNLIMITED, RELU)
        if fits and (chain.factor is None or weights is not None):
            longest = chain, weights
    # The chain of the product alone always fits.
    assert longest is not None
    chain, weights = longest
    total = _float_sum(rewriting, chain)
    inputs = list(operator.inputs)
    if weights is not None:
        inputs[1] = rewriting.constant(f"{operator.inputs[1]} for {operator.name}", weights)
    if chain.addend is not None:
        bias = chain.addend.astype(np.float32)
        inputs.append(rewriting.constant(f"{operator.name} bias", bias))
    epilogue = Epilogue("float32", bias=chain.addend is not None, relu=chain.clip == RELU)
    last, shape = chain.last, chain.shape
    if total is not None:
        epilogue = replace(epilogue, residual=Residual("float32", relu=total.relu))
        inputs.append(total.addend)
        last, shape = total.last, graph.types[total.last.output].shape
    if last is not operator:
        plain = epilogue == Epilogue("float32")
        kind = replace(product, shape=shape, epilogue=None if plain else epilogue)
        rewriting.replace(last, Operator(operator.name, kind, tuple(inputs), last.outputs))


def _scaled_constant(graph: Graph, chain: Chain, tensor: str) -> Array | None:
    """Return constant weights multiplied by the chain's factor per channel."""
    weights = graph.constants.get(tensor)
    if chain.factor is None or weights is None:
        return None
    scaled = scaled_weights(chain.product, weights.astype(np.float64), chain.factor)
    return None if scaled is None else scaled.astype(np.float32)


def _float_sum(rewriting: Rewriting, chain: Chain) -> _FloatSum | None:
    """Match a sum of a chain's result and another tensor of the same type."""
    graph = rewriting.source
    reader = only_reader(graph, chain.last.output)
    if reader is None or rewriting.is_replaced(reader):
        return None
    match reader.kind:
        case Elementwise(dtype="float32", computing=None) as kind if len(reader.inputs) == 2:
            types = [graph.types[name] for name in reader.inputs]
            alike = types[0] == types[1] and types[0].dtype == "float32"
            if not alike or not combines_inputs(kind.expression, "add"):
                return None
        case _:
            return None
    addend = other_input(chain, reader)
    # Constants per channel became a bias; others are left to elementwise fusion.
    if graph.is_constant(addend):
        return None
    after = only_reader(graph, reader.output)
    if after is not None and _is_relu(after):
        # A later product may have taken the sum, and its ReLU with it.
        return None if rewriting.is_replaced(after) else _FloatSum(addend, True, after)
    return _FloatSum(addend, False, reader)


def _is_relu(operator: Operator) -> bool:
    match operator.kind:
        case Elementwise(dtype="float32") as kind:
            return len(operator.inputs) == 1 and clip_range(kind.expression) == RELU
        case _:
            return False


def fuse_residuals(graph: Graph) -> Graph:
    """Fuse a quantized sum of two tensors into the product that computes one of them.

    The other tensor, of bytes, becomes the product's residual. Of two such products the later one
    takes the sum. If it stored integers, its sums are rounded to these before the addition; if it
    stored floats, they are not. The sum is rounded once, where the graph rounds a product by a
    scale, a sum and a quotient, so results differ by at most one quantum.
    """
    rewriting = Rewriting(graph)
    positions = {operator.outputs[0]: k for k, operator in enumerate(graph.operators)}
    for operator in graph.operators:
        kind = byte_quantization(operator)
        total = None if kind is None else _quantized_sum(graph, operator)
        if kind is None or total is None:
            continue
        (first, second), clip = total
        unit = float32(kind.scale[0])
        pairs: list[tuple[_Addend, Quantized]] = []
        for name, partner in ((first, second), (second, first)):
            addend, residual = _addend(graph, name), dequantized(graph, partner)
            if addend is None or residual is None or graph.is_constant(residual.tensor):
                continue
            if not are_safe_factors(addend.scale / unit, residual.scale / unit, sums=True):
                continue
            if graph.types[name].shape == graph.types[partner].shape:
                pairs.append((addend, residual))
        if pairs:
            # The other product's result already exists when the later one runs.
            addend, residual = max(pairs, key=lambda pair: positions[pair[0].operator.output])
            rewriting.replace(operator, _with_residual(operator, addend, residual, kind, clip))
    return rewriting.graph()


@dataclass(frozen=True)
class _Addend:
    """Product whose result only a sum reads.

    It ``rounds`` the result to integers of a ``scale``, or stores floats.
    """

    operator: Operator
    product: Product
    epilogue: Epilogue
    scale: float
    rounds: bool


def _quantized_sum(
    graph: Graph, operator: Operator
) -> tuple[tuple[str, str], tuple[float, float]] | None:
    """Return the two tensors whose sum is quantized, and the clip bounds in between."""
    tensor, clip = before_clip(graph, operator.inputs[0])
    producer = producer_of(graph, tensor, Elementwise)
    if producer is None or only_reader(graph, tensor) is None or producer[1].dtype != "float32":
        return None
    before, kind = producer
    if len(before.inputs) != 2 or not combines_inputs(kind.expression, "add"):
        return None
    first, second = before.inputs
    return (first, second), clip


def _addend(graph: Graph, tensor: str) -> _Addend | None:
    """Return the product that stores a tensor of floats, or the integers that it dequantizes."""
    if only_reader(graph, tensor) is None:
        return None
    integers = dequantized(graph, tensor)
    name = tensor if integers is None else integers.tensor
    producer = producer_of(graph, name, Product)
    if producer is None or only_reader(graph, name) is None:
        return None
    operator, product = producer
    epilogue = product.epilogue
    if epilogue is None or not epilogue.scale or epilogue.residual is not None:
        return None
    if integers is not None:
        scale, rounds = integers.scale, True
    elif epilogue.dtype == "float32":
        scale, rounds = 1.0, False
    else:
        return None
    return _Addend(
        operator=operator, product=product, epilogue=epilogue, scale=scale, rounds=rounds
    )


def _with_residual(
    operator: Operator,
    addend: _Addend,
    residual: Quantized,
    kind: Quantize,
    clip: tuple[float, float],
) -> Operator:
    unit = float32(kind.scale[0])
    fused = Residual(
        residual.dtype,
        own_scale=addend.scale / unit,
        scale=residual.scale / unit,
        zero_point=residual.zero_point,
        stored_zero_point=kind.zero_point[0],
        clip=quantized_clip(clip, kind),
        rounds=addend.rounds,
    )
    if addend.rounds:
        epilogue = with_output_type(addend.epilogue, kind.dtype)
    else:
        epilogue = replace(addend.epilogue, dtype=kind.dtype)
    changed = addend.product.with_epilogue(replace(epilogue, residual=fused))
    inputs = (*addend.operator.inputs, residual.tensor)
    return replace(addend.operator, kind=changed, inputs=inputs, outputs=operator.outputs)


def fuse_requantizations(graph: Graph) -> Graph:
    """Let a product store its bytes in the scale to which they are requantized.

    Nothing else may read the original bytes. The result is rounded once instead of twice, so it
    differs by at most one quantum of the coarser scale. Results whose new scale is less than half
    as coarse are not fused.
    """
    return until_unchanged(graph, _fuse_requantization)


def _fuse_requantization(rewriting: Rewriting, operator: Operator) -> None:
    graph, kind = rewriting.source, byte_quantization(operator)
    if kind is None:
        return
    tensor, clip = before_clip(graph, operator.inputs[0])
    source = dequantized(graph, tensor)
    if source is None or not (only_reader(graph, tensor) and only_reader(graph, source.tensor)):
        return
    producer = producer_of(graph, source.tensor, Product)
    if producer is None:
        return
    before, product = producer
    epilogue = product.epilogue
    ratio = source.scale / float32(kind.scale[0])
    if epilogue is None or epilogue.dtype not in BYTES or not epilogue.scale:
        return
    if ratio > _LARGEST_RATIO:
        return
    residual, inputs = epilogue.residual, list(before.inputs)
    # The numbers at which the old integers saturated limit the new ones too.
    bounds = epilogue.range if residual is None else residual.clip or integer_range(epilogue.dtype)
    low, high = ((bound - source.zero_point) * source.scale for bound in bounds)
    new_clip = quantized_clip(composed_clip((low, high), clip), kind)
    zero_point = kind.zero_point[0]
    if residual is not None:
        residual = replace(
            residual,
            own_scale=residual.own_scale * ratio,
            scale=residual.scale * ratio,
            stored_zero_point=zero_point,
            clip=new_clip,
        )
        changed = replace(with_output_type(epilogue, kind.dtype), residual=residual)
    else:
        position = 2 + product.vectors.index(SCALE)
        scale = graph.constants.get(inputs[position])
        if scale is None:
            return
        scale = (scale.astype(np.float64) * ratio).astype(np.float32)
        inputs[position] = rewriting.constant(f"{before.name} scale", scale)
        changed = replace(epilogue, dtype=kind.dtype, zero_point=zero_point, clip=new_clip)
    kind = product.with_epilogue(changed)
    rewriting.replace(
        operator, replace(before, kind=kind, inputs=tuple(inputs), outputs=operator.outputs)
    )
