"""Products of floats take what follows them into their epilogues, and get the element types of a
target that multiplies shorter floats."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cpembed.codegen.epilogue import BYTES, SCALE, Epilogue, Residual
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Elementwise, Product, Quantize
from cpembed.graph.passes.element_types import storing_as
from cpembed.graph.passes.epilogue_matching import (
    RELU,
    UNLIMITED,
    Chain,
    before_limits,
    chains,
    weights_times,
)
from cpembed.graph.passes.expressions import both_inputs, limited, limits
from cpembed.graph.passes.quantization import (
    Quantized,
    are_factors,
    dequantized,
    float32,
    quantizing,
    range_of,
    stored_limits,
)
from cpembed.graph.passes.rewriting import (
    Array,
    Rewriting,
    only_reader,
    producer_of,
    until_unchanged,
)


def float_epilogues(graph: Graph) -> Graph:
    """Of products of floats the bias of each channel, a ReLU, and a tensor that is added to all of
    that, again with a ReLU, are stored with the product.

    Equal bit for bit, but where a factor of each channel (a batch normalization) is multiplied into
    constant weights, or several biases become one: these round once more, or less. Of two products
    that are added, the later one takes the other.
    """
    rewriting = Rewriting(graph)
    for operator in reversed(graph.operators):
        match operator.kind:
            case Product(epilogue=None) as product if product.dtype == "float32":
                _convert(rewriting, operator, product)
            case Product(epilogue=Epilogue("float32", residual=None)) as product:
                _add_to_integers(rewriting, operator, product)
            case _:
                pass
    return rewriting.graph()


def _add_to_integers(rewriting: Rewriting, operator: Operator, product: Product) -> None:
    """A product of integers that stores floats takes a sum that is stored as well."""
    graph, epilogue = rewriting.source, product.epilogue
    added = _added(rewriting, Chain(product, product.shape, operator))
    if epilogue is None or added is None:
        return
    reader = only_reader(graph, added.last.output)
    if reader is not None and isinstance(reader.kind, Elementwise | Quantize):
        # The sum is part of that operator.
        return
    residual = Residual("float32", relu=added.relu)
    kind = product.with_epilogue(replace(epilogue, residual=residual))
    inputs = (*operator.inputs, added.other)
    rewriting.replace(
        added.last, replace(operator, kind=kind, inputs=inputs, outputs=added.last.outputs)
    )


@dataclass(frozen=True)
class _Sum:
    """What is added to a product's result, with or without a ReLU after it."""

    other: str
    relu: bool
    last: Operator


def _convert(rewriting: Rewriting, operator: Operator, product: Product) -> None:
    graph = rewriting.source
    best: tuple[Chain, Array | None] | None = None
    for chain in chains(graph, operator, product):
        weights = _weights(graph, chain, operator.inputs[1])
        able = chain.quantize is None and chain.limits in (UNLIMITED, RELU)
        if able and (chain.factor is None or weights is not None):
            best = chain, weights
    assert best is not None
    chain, weights = best
    added = _added(rewriting, chain)
    inputs = list(operator.inputs)
    if weights is not None:
        inputs[1] = rewriting.constant(f"{operator.inputs[1]} for {operator.name}", weights)
    if chain.addend is not None:
        bias = chain.addend.astype(np.float32)
        inputs.append(rewriting.constant(f"{operator.name} bias", bias))
    relu = chain.limits == RELU
    epilogue = Epilogue("float32", bias=chain.addend is not None, relu=relu)
    last, shape = chain.last, chain.shape
    if added is not None:
        epilogue = replace(epilogue, residual=Residual("float32", relu=added.relu))
        inputs.append(added.other)
        last, shape = added.last, graph.types[added.last.output].shape
    if last is not operator:
        plain = epilogue == Epilogue("float32")
        kind = replace(product, shape=shape, epilogue=None if plain else epilogue)
        new = Operator(operator.name, kind, tuple(inputs), last.outputs)
        rewriting.replace(last, new)


def _weights(graph: Graph, chain: Chain, tensor: str) -> Array | None:
    """The constant weights with the factor of each channel."""
    weights = graph.constants.get(tensor)
    if chain.factor is None or weights is None:
        return None
    scaled = weights_times(chain.product, weights.astype(np.float64), chain.factor)
    return None if scaled is None else scaled.astype(np.float32)


def _added(rewriting: Rewriting, chain: Chain) -> _Sum | None:
    graph = rewriting.source
    reader = only_reader(graph, chain.last.output)
    if reader is None or rewriting.is_replaced(reader):
        return None
    match reader.kind:
        case Elementwise(dtype="float32", computing=None) as kind if len(reader.inputs) == 2:
            types = [graph.types[name] for name in reader.inputs]
            same = types[0] == types[1] and types[0].dtype == "float32"
            if not same or not both_inputs(kind.expression, "add"):
                return None
        case _:
            return None
    first, second = reader.inputs
    other = second if first == chain.last.output else first
    if graph.is_constant(other):
        return None
    after = only_reader(graph, reader.output)
    if after is not None and _is_relu(after):
        # Replaced where a later product took the sum.
        return None if rewriting.is_replaced(after) else _Sum(other, True, after)
    return _Sum(other, False, reader)


def _is_relu(operator: Operator) -> bool:
    match operator.kind:
        case Elementwise(dtype="float32") as kind:
            return len(operator.inputs) == 1 and limits(kind.expression) == RELU
        case _:
            return False


def residuals(graph: Graph) -> Graph:
    """Of two tensors that are added, limited and quantized, the one that a product stores for this
    sum alone takes the other one, of integers of eight bits, as its residual.

    Of two such products the later one does. Where it stores integers, they are rounded as before;
    where it stores floats, it adds these. The sum is rounded once, where the graph rounds a product
    by a scale, a sum and a quotient: results differ by at most one quantum.
    """
    rewriting = Rewriting(graph)
    places = {operator.outputs[0]: place for place, operator in enumerate(graph.operators)}
    for operator in graph.operators:
        kind = quantizing(operator)
        found = None if kind is None else _sum(graph, operator)
        if kind is None or found is None:
            continue
        (first, second), clip = found
        able: list[tuple[_Own, Quantized]] = []
        for name, partner in ((first, second), (second, first)):
            own, other = _own(graph, name), dequantized(graph, partner)
            if own is None or other is None or graph.is_constant(other.tensor):
                continue
            unit = float32(kind.scale[0])
            if not are_factors(own.scale / unit, other.scale / unit, sums=True):
                continue
            if graph.types[name].shape == graph.types[partner].shape:
                able.append((own, other))
        if able:
            own, other = max(able, key=lambda pair: places[pair[0].operator.output])
            rewriting.replace(operator, _with_residual(operator, own, other, kind, clip))
    return rewriting.graph()


@dataclass(frozen=True)
class _Own:
    """A product whose result only the sum reads: integers with a ``scale``, or floats."""

    operator: Operator
    product: Product
    epilogue: Epilogue
    scale: float
    rounds: bool


def _sum(graph: Graph, operator: Operator) -> tuple[tuple[str, str], tuple[float, float]] | None:
    """The two tensors whose sum is quantized, and its limits."""
    tensor, clip = before_limits(graph, operator.inputs[0])
    found = producer_of(graph, tensor, Elementwise)
    if found is None or only_reader(graph, tensor) is None or found[1].dtype != "float32":
        return None
    before, kind = found
    if len(before.inputs) != 2 or not both_inputs(kind.expression, "add"):
        return None
    first, second = before.inputs
    return (first, second), clip


def _own(graph: Graph, tensor: str) -> _Own | None:
    """The product that stores a tensor of floats, or the integers that it is made of."""
    if only_reader(graph, tensor) is None:
        return None
    integers = dequantized(graph, tensor)
    name = tensor if integers is None else integers.tensor
    found = producer_of(graph, name, Product)
    if found is None or only_reader(graph, name) is None:
        return None
    operator, product = found
    epilogue = product.epilogue
    if epilogue is None or not epilogue.scale or epilogue.residual is not None:
        return None
    if integers is not None:
        return _Own(operator, product, epilogue, integers.scale, True)
    if epilogue.dtype != "float32":
        return None
    return _Own(operator, product, epilogue, 1.0, False)


def _with_residual(
    operator: Operator, own: _Own, other: Quantized, kind: Quantize, clip: tuple[float, float]
) -> Operator:
    unit = float32(kind.scale[0])
    residual = Residual(
        other.dtype,
        own.scale / unit,
        other.scale / unit,
        other.zero_point,
        kind.zero_point[0],
        stored_limits(clip, kind),
        rounds=own.rounds,
    )
    if own.rounds:
        epilogue = storing_as(own.epilogue, kind.dtype)
    else:
        epilogue = replace(own.epilogue, dtype=kind.dtype)
    changed = own.product.with_epilogue(replace(epilogue, residual=residual))
    inputs = (*own.operator.inputs, other.tensor)
    return replace(own.operator, kind=changed, inputs=inputs, outputs=operator.outputs)


LARGEST_RATIO = 2.0
"""Of a result's scale to that in which it is stored anew: a tensor that loses its negative half has
half the range."""


def requantizations(graph: Graph) -> Graph:
    """Where a product's result of eight bits is dequantized, limited and quantized anew, and
    nothing else reads it, the product stores that result.

    It is rounded once instead of twice: results differ by at most one quantum of the coarser of
    both scales. A result whose new scale is less than half as coarse is left as it is.
    """
    return until_unchanged(graph, _requantize)


def _requantize(rewriting: Rewriting, operator: Operator) -> None:
    graph, kind = rewriting.source, quantizing(operator)
    if kind is None:
        return
    tensor, clip = before_limits(graph, operator.inputs[0])
    source = dequantized(graph, tensor)
    if source is None or not (only_reader(graph, tensor) and only_reader(graph, source.tensor)):
        return
    product = producer_of(graph, source.tensor, Product)
    if product is not None:
        _store(rewriting, operator, kind, source, product, clip)


def _store(
    rewriting: Rewriting,
    operator: Operator,
    kind: Quantize,
    source: Quantized,
    found: tuple[Operator, Product],
    outer: tuple[float, float],
) -> None:
    graph = rewriting.source
    before, product = found
    epilogue = product.epilogue
    ratio = source.scale / float32(kind.scale[0])
    if epilogue is None or epilogue.dtype not in BYTES or not epilogue.scale:
        return
    if ratio > LARGEST_RATIO:
        return
    residual, inputs = epilogue.residual, list(before.inputs)
    # Limits of the other integers, as numbers, are limits of the result.
    low, high = epilogue.range if residual is None else residual.clip or range_of(epilogue.dtype)
    low, high = ((limit - source.zero_point) * source.scale for limit in (low, high))
    clip = stored_limits(limited((low, high), outer), kind)
    zero = kind.zero_point[0]
    if residual is not None:
        residual = replace(
            residual,
            own_scale=residual.own_scale * ratio,
            scale=residual.scale * ratio,
            stored_zero_point=zero,
            clip=clip,
        )
        changed = replace(storing_as(epilogue, kind.dtype), residual=residual)
    else:
        place = 2 + product.vectors.index(SCALE)
        scale = graph.constants.get(inputs[place])
        if scale is None:
            return
        scale = (scale.astype(np.float64) * ratio).astype(np.float32)
        inputs[place] = rewriting.constant(f"{before.name} scale", scale)
        changed = replace(epilogue, dtype=kind.dtype, zero_point=zero, clip=clip)
    product = product.with_epilogue(changed)
    new = replace(before, kind=product, inputs=tuple(inputs), outputs=operator.outputs)
    rewriting.replace(operator, new)
