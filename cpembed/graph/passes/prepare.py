"""Sequence of passes from a front end's graph to the graph that is compiled."""

from __future__ import annotations

from cpembed.graph.graph import Graph
from cpembed.graph.passes.element_types import assign_element_types, shorten_floats
from cpembed.graph.passes.elementwise_fusion import fuse_elementwise
from cpembed.graph.passes.epilogue_fusion import (
    fuse_float_epilogues,
    fuse_requantizations,
    fuse_residuals,
)
from cpembed.graph.passes.folding import fold
from cpembed.graph.passes.integer_elementwise import integer_elementwise, tabulate
from cpembed.graph.passes.integer_movement import move_integers
from cpembed.graph.passes.integer_products import integer_products
from cpembed.graph.passes.normalizations import recognize_normalizations
from cpembed.graph.passes.transpositions import absorb_transpositions, cancel_transpositions
from cpembed.graph.passes.zero_points import remove_zero_points


def prepare(
    graph: Graph, *, first: str = "uint8", second: str = "int8", fuse: bool = True
) -> Graph:
    """Run all passes.

    Quantized values and parameters are those of the model; the result of an operator differs from
    the model's arithmetic in floats by at most one quantum.

    Parameters
    ----------
    graph : Graph
        Graph as a front end made it.
    first, second : str, default "uint8" and "int8"
        Element types of the two factors that the target's instruction multiplies.
    fuse : bool, default True
        Fuse chains of elementwise operators.
    """
    # Folding comes first, since the patterns of later passes match constants and operators in
    # their shortest form, and again after each pass that leaves both behind.
    graph = fold(graph)
    # Transpositions around convolutions hide what they separate, so they go before any matching.
    graph = cancel_transpositions(graph)
    # Means and differences still are operators of their own; later passes would take them apart.
    graph = recognize_normalizations(graph)
    # Dequantizations sink below movement, so that they arrive next to the products.
    graph = fold(move_integers(graph))
    graph = integer_products(graph)
    # A product's result is requantized in the product, before residuals look at its scale; their
    # sums may be followed by a requantization as well, hence once more after them.
    graph = fuse_requantizations(graph)
    graph = fuse_requantizations(fuse_residuals(graph))
    # Only what no product could take becomes a table or integer arithmetic.
    graph = integer_elementwise(tabulate(graph))
    graph = fold(absorb_transpositions(fold(graph)))
    # Types are assigned once the integer operators exist; it inserts conversions, which are tables
    # that merge with neighbouring ones.
    graph = tabulate(assign_element_types(graph, first, second))
    # Zero points shift with the types, so the bias that accounts for them is computed now. The
    # weights of products that stayed floats are dequantized from here on.
    graph = fold(remove_zero_points(graph), weights=True)
    # What is left in floats: epilogues first, since a transposition after a bias is absorbed only
    # once the bias is part of the product.
    graph = absorb_transpositions(fuse_float_epilogues(graph))
    graph = shorten_floats(graph, first, second)
    # Last, so that every pattern above sees single operators.
    return fold(fuse_elementwise(graph) if fuse else graph, weights=True)
