"""A product whose result is only quantized anew stores it so at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Elementwise, Product, Quantize
from cpembed.graph.passes.chains import UNLIMITED
from cpembed.graph.passes.expressions import limits
from cpembed.graph.passes.quantization import (
    Quantized,
    dequantized,
    float32,
    quantizing,
    range_of,
    stored,
)
from cpembed.graph.passes.rewriting import Rewriting, only_reader, producer_of
from cpembed.kernel.epilogue import SCALE


def requantizations(graph: Graph) -> Graph:
    """Where a product's result of eight bits is dequantized, limited and quantized with a coarser
    scale, and nothing else reads it, the product stores that result.

    It is rounded once instead of twice: results differ by at most one quantum.
    """
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        kind = quantizing(operator)
        if kind is not None:
            _convert(rewriting, operator, kind)
    return rewriting.graph()


def _convert(rewriting: Rewriting, operator: Operator, kind: Quantize) -> None:
    graph = rewriting.source
    limited, tensor = UNLIMITED, operator.inputs[0]
    while (found := producer_of(graph, tensor, Elementwise)) is not None:
        before, elementwise = found
        inner = limits(elementwise.expression) if len(before.inputs) == 1 else None
        if inner is None or elementwise.dtype != "float32" or not only_reader(graph, tensor):
            return
        limited = max(limited[0], inner[0]), min(limited[1], inner[1])
        tensor = before.inputs[0]
    source = dequantized(graph, tensor)
    if source is None or not (only_reader(graph, tensor) and only_reader(graph, source.tensor)):
        return
    product = producer_of(graph, source.tensor, Product)
    if product is not None:
        _store(rewriting, operator, kind, source, product, limited)


def _store(
    rewriting: Rewriting,
    operator: Operator,
    kind: Quantize,
    source: Quantized,
    found: tuple[Operator, Product],
    limited: tuple[float, float],
) -> None:
    graph = rewriting.source
    before, product = found
    epilogue = product.epilogue
    if epilogue is None or not epilogue.scale or epilogue.residual is not None:
        return
    scale = graph.constants.get(before.inputs[2 + product.vectors.index(SCALE)])
    ratio = source.scale / float32(kind.scale[0])
    if scale is None or ratio > 1:
        return
    # Limits of the finer integers, as numbers, are limits of the result.
    ends = ((limit - source.zero_point) * source.scale for limit in epilogue.range)
    low, high = (stored(min(max(limit, limited[0]), limited[1]), kind) for limit in ends)
    clip = None if (low, high) == range_of(kind.dtype) else (low, high)
    changed = replace(epilogue, dtype=kind.dtype, zero_point=kind.zero_point[0], clip=clip)
    new = rewriting.constant(
        f"{before.name} scale", (scale.astype(np.float64) * ratio).astype(np.float32)
    )
    inputs = list(before.inputs)
    inputs[2 + product.vectors.index(SCALE)] = new
    kept = replace(
        before, kind=product.storing(changed), inputs=tuple(inputs), outputs=operator.outputs
    )
    rewriting.replace(operator, kept)
