"""Passes from the graph that a front end writes to the graph that is compiled, in their order."""

from __future__ import annotations

from collections.abc import Collection

from cpembed.codegen.epilogue import CHAIN_TYPES, PROCESSOR_CHAIN_TYPES
from cpembed.graph.graph import Graph
from cpembed.graph.loop import with_bodies
from cpembed.graph.passes import epilogue_fusion, integer_operators
from cpembed.graph.passes.attention import recognize_attention
from cpembed.graph.passes.chain_fusion import fuse_chains
from cpembed.graph.passes.dynamic_products import dynamic_products
from cpembed.graph.passes.element_types import BytePair, assign_element_types
from cpembed.graph.passes.elementwise_fusion import fuse_elementwise
from cpembed.graph.passes.folding import fold
from cpembed.graph.passes.grouped_products import grouped_products
from cpembed.graph.passes.half_floats import shorten_floats, widen_half_floats
from cpembed.graph.passes.hoisting import hoist
from cpembed.graph.passes.integer_products import integer_products
from cpembed.graph.passes.normalizations import recognize_normalizations
from cpembed.graph.passes.quantized_attention import recognize_quantized_attention
from cpembed.graph.passes.transpositions import absorb_transpositions, cancel_transpositions
from cpembed.graph.passes.zero_points import remove_zero_points

__all__ = ["prepare"]


def prepare(
    graph: Graph,
    *,
    first: str = "uint8",
    second: str = "int8",
    multiplied: Collection[BytePair] = (),
    floats: str = "float32",
    fuse: bool = True,
    attends: bool = False,
) -> Graph:
    """Run all passes.

    Quantized values and parameters are those of the model. The result of an operator differs from
    the model's arithmetic in floats by at most one quantum.

    Parameters
    ----------
    graph : Graph
        Graph as a front end made it.
    first, second : str, default "uint8" and "int8"
        Element types that the two factors of products of bytes get. Unless both are bytes, such
        products keep their types.
    multiplied : collection of (str, str)
        Further pairs of types of bytes that the instruction multiplies.
    floats : str, default "float32"
        Element type to which the operands of products of float32 are rounded: bfloat16, float16, or
        float32 itself.
    fuse : bool, default True
        Fuse chains of elementwise operators.
    attends : bool, default False
        Replace the products and the softmax of an attention by one operator.
    """
    # Types that no kernel computes in go before all, so that folding computes as kernels do.
    graph = widen_half_floats(graph)
    # Folding comes first, since the patterns of later passes match constants and operators in
    # their shortest form, and again after each pass that leaves both behind.
    graph = fold(hoist(fold(graph)))
    # Transpositions around convolutions hide what they separate, so they go before any matching.
    graph = cancel_transpositions(graph)
    # Means, differences and quotients are still operators of their own; the passes on integers
    # would take means and differences out of the pattern.
    graph = recognize_normalizations(graph)
    # The softmax between two products is one by now. Dequantized factors are left to the passes on
    # integers.
    if attends:
        graph = fold(recognize_attention(graph))
    # Blocked dequantizations are of no use to the passes on integers, whose scales are of channels.
    graph = grouped_products(graph)
    # Dequantizations sink below movement, and quantizations rise above it, until both are next to
    # the products and sums that the following passes match.
    graph = fold(integer_operators.move_integers(graph))
    # Products claim their bias, clipping and quantization before any other pass sees these.
    graph = integer_products(graph)
    # Factors whose scale is computed in each call have no epilogue with a constant scale.
    graph = dynamic_products(graph)
    # A product takes a requantization of its result before a residual is added in that scale. The
    # sums may be requantized as well, hence once more after them.
    graph = epilogue_fusion.fuse_requantizations(graph)
    graph = epilogue_fusion.fuse_residuals(graph)
    graph = epilogue_fusion.fuse_requantizations(graph)
    # Only what no product could take becomes a table or integer arithmetic. Tables come first: a
    # sum or product of two functions of one tensor is a function of that tensor.
    graph = integer_operators.tabulate(graph)
    graph = integer_operators.integer_elementwise(graph)
    # Folding composes what is left of transpositions, which products of matrices then absorb.
    graph = fold(absorb_transpositions(fold(graph)))
    # Types are assigned once all integer operators exist. Conversions are inserted as tables, which
    # merge with neighbouring ones.
    graph = integer_operators.tabulate(assign_element_types(graph, first, second, multiplied))
    # Zero points shift with the types, so the bias that accounts for them is computed only now. The
    # weights of products that stayed floats are dequantized from here on.
    graph = fold(remove_zero_points(graph), weights=True)
    # What is left in floats: epilogues first, since a transposition after a bias is absorbed only
    # once the bias is part of the product.
    graph = absorb_transpositions(epilogue_fusion.fuse_float_epilogues(graph))
    # With its epilogue complete, a product whose result is only rounded to a short float stores
    # that itself.
    graph = shorten_floats(graph, floats)
    # Last, so that every pattern above sees single operators. What is merged with an activation
    # then goes into the product before it as one.
    if fuse:
        types = CHAIN_TYPES if floats == "float16" else PROCESSOR_CHAIN_TYPES
        graph = fuse_chains(fold(fuse_elementwise(graph)), types)
    graph = fold(graph, weights=True)
    # Scales, masks and roundings between two products of integers are one operator by now.
    if attends:
        graph = fold(recognize_quantized_attention(graph))
    # Bodies keep the types of their inputs and outputs, so each is prepared by itself.
    return with_bodies(
        graph,
        lambda body: prepare(
            body, first=first, second=second, multiplied=multiplied, floats=floats, fuse=fuse
        ),
    )
