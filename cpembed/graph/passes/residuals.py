"""Sums of a product's result and another tensor are stored by the product itself."""

from __future__ import annotations

from dataclasses import replace

from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Elementwise, Product, Quantize
from cpembed.graph.passes.chains import UNLIMITED
from cpembed.graph.passes.expressions import both_inputs, limited, limits
from cpembed.graph.passes.quantization import (
    Quantized,
    dequantized,
    float32,
    quantizing,
    range_of,
    stored,
)
from cpembed.graph.passes.requantizations import storing_as
from cpembed.graph.passes.rewriting import Rewriting, only_reader, producer_of
from cpembed.kernel.epilogue import Residual


def residuals(graph: Graph) -> Graph:
    """Of dequantized tensors that are added, limited and quantized anew, the one that a product
    stores and nothing else reads takes the other one as its residual.

    Of two such products the later one does. The sum is rounded once, where the graph rounds a
    product by a scale, a sum and a quotient: results differ by at most one quantum.
    """
    rewriting = Rewriting(graph)
    places = {operator.outputs[0]: place for place, operator in enumerate(graph.operators)}
    done: set[str] = set()
    for operator in graph.operators:
        kind = quantizing(operator)
        found = None if kind is None else _sum(graph, operator)
        if kind is None or found is None:
            continue
        first, second, clip = found
        pairs = [(first, second), (second, first)]
        able = [pair for pair in pairs if _takes(graph, *pair) and pair[0].tensor not in done]
        if not able:
            continue
        own, other = max(able, key=lambda pair: places[pair[0].tensor])
        done.add(own.tensor)
        rewriting.replace(operator, _with_residual(graph, operator, own, other, kind, clip))
    return rewriting.graph()


def _sum(
    graph: Graph, operator: Operator
) -> tuple[Quantized, Quantized, tuple[float, float]] | None:
    """The two tensors whose sum is quantized, and its limits."""
    clip, tensor = UNLIMITED, operator.inputs[0]
    while True:
        found = producer_of(graph, tensor, Elementwise)
        if found is None or only_reader(graph, tensor) is None or found[1].dtype != "float32":
            return None
        before, kind = found
        if len(before.inputs) == 1:
            inner = limits(kind.expression)
            if inner is None:
                return None
            clip = limited(inner, clip)
            tensor = before.inputs[0]
            continue
        if len(before.inputs) != 2 or not both_inputs(kind.expression, "add"):
            return None
        first, second = (dequantized(graph, name) for name in before.inputs)
        if first is None or second is None or first == second:
            return None
        return first, second, clip


def _takes(graph: Graph, own: Quantized, other: Quantized) -> bool:
    """Whether a product stores ``own`` for this sum alone, in the shape of ``other``."""
    found = producer_of(graph, own.tensor, Product)
    if found is None or graph.types[own.tensor].shape != graph.types[other.tensor].shape:
        return False
    epilogue = found[1].epilogue
    reader = only_reader(graph, own.tensor)
    alone = reader is not None and only_reader(graph, reader.output) is not None
    plain = epilogue is not None and epilogue.scale and epilogue.residual is None
    return alone and plain and not graph.is_constant(other.tensor)


def _with_residual(
    graph: Graph,
    operator: Operator,
    own: Quantized,
    other: Quantized,
    kind: Quantize,
    clip: tuple[float, float],
) -> Operator:
    product = graph.producers[own.tensor]
    assert isinstance(product.kind, Product)
    assert product.kind.epilogue is not None
    low, high = (stored(limit, kind) for limit in clip)
    unit = float32(kind.scale[0])
    residual = Residual(
        other.dtype,
        own.scale / unit,
        other.scale / unit,
        other.zero_point,
        kind.zero_point[0],
        None if (low, high) == range_of(kind.dtype) else (low, high),
    )
    epilogue = storing_as(product.kind.epilogue, kind.dtype)
    changed = product.kind.storing(replace(epilogue, residual=residual))
    return replace(
        product, kind=changed, inputs=(*product.inputs, other.tensor), outputs=operator.outputs
    )
