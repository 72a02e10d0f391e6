"""A product whose result is only quantized anew stores it so at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cpembed.codegen.epilogue import BYTES, SCALE
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Product, Quantize
from cpembed.graph.passes.chains import before_limits
from cpembed.graph.passes.expressions import limited
from cpembed.graph.passes.quantization import (
    Quantized,
    dequantized,
    float32,
    quantizing,
    range_of,
    stored_limits,
)
from cpembed.graph.passes.rewriting import Rewriting, only_reader, producer_of, until_unchanged
from cpembed.graph.passes.shifts import storing_as

LARGEST_RATIO = 2.0
"""Of a result's scale to that in which it is stored anew: a tensor that loses its negative half has
half the range."""


def requantizations(graph: Graph) -> Graph:
    """Where a product's result of eight bits is dequantized, limited and quantized anew, and
    nothing else reads it, the product stores that result.

    It is rounded once instead of twice: results differ by at most one quantum of the coarser of
    both scales. A result whose new scale is less than half as coarse is left as it is.
    """
    return until_unchanged(graph, _convert)


def _convert(rewriting: Rewriting, operator: Operator) -> None:
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
    product = product.storing(changed)
    new = replace(before, kind=product, inputs=tuple(inputs), outputs=operator.outputs)
    rewriting.replace(operator, new)
