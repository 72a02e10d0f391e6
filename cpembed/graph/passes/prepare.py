"""All passes in their order."""

from __future__ import annotations

from cpembed.graph.graph import Graph
from cpembed.graph.passes.element_types import element_types, float_types
from cpembed.graph.passes.elementwise_fusion import fusion
from cpembed.graph.passes.epilogue_fusion import float_epilogues, requantizations, residuals
from cpembed.graph.passes.folding import fold
from cpembed.graph.passes.integer_elementwise import integer_elementwise, tables
from cpembed.graph.passes.integer_movement import movements
from cpembed.graph.passes.integer_products import integer_products
from cpembed.graph.passes.normalizations import normalizations
from cpembed.graph.passes.transpositions import image_orders, transpositions
from cpembed.graph.passes.zero_points import without_zero_points


def prepare(
    graph: Graph, *, first: str = "uint8", second: str = "int8", fuse: bool = True
) -> Graph:
    """The graph whose operators are compiled.

    ``first`` and ``second``: the element types of the two factors that the target's instruction
    multiplies. Integers and their parameters are those of the model; a result differs from the
    model's own arithmetic in floats by at most one quantum at each operator. ``fuse``: operators
    at every element, one after the other, become one.
    """
    graph = movements(normalizations(image_orders(fold(graph))))
    graph = integer_products(fold(graph))
    graph = residuals(requantizations(graph))
    graph = tables(requantizations(graph))
    graph = transpositions(fold(integer_elementwise(graph)))
    graph = tables(element_types(fold(graph), first, second))
    graph = fold(without_zero_points(graph), weights=True)
    graph = transpositions(float_epilogues(graph))
    graph = float_types(graph, first, second)
    return fold(fusion(graph) if fuse else graph, weights=True)
