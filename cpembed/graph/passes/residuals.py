"""Sums of a product's result and another tensor are stored by the product itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cpembed.codegen.epilogue import Epilogue, Residual
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Elementwise, Product, Quantize
from cpembed.graph.passes.chains import before_limits
from cpembed.graph.passes.expressions import both_inputs
from cpembed.graph.passes.quantization import (
    Quantized,
    are_factors,
    dequantized,
    float32,
    quantizing,
    stored_limits,
)
from cpembed.graph.passes.rewriting import Rewriting, only_reader, producer_of
from cpembed.graph.passes.shifts import storing_as


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
    changed = own.product.storing(replace(epilogue, residual=residual))
    inputs = (*own.operator.inputs, other.tensor)
    return replace(own.operator, kind=changed, inputs=inputs, outputs=operator.outputs)
