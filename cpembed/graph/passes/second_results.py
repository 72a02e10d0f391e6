"""Fuse a second reader of a product's floats into the product, which then has two results.

A kernel for a GPU stores a second expression of the sums in registers at the price of its bytes: an
activation beside the tensor that a later sum reads again, or the float16 that the next product
multiplies beside the float32 of a residual connection.
"""

from __future__ import annotations

from dataclasses import replace

from cpembed.codegen.epilogue import CHAIN_TYPES, Chain, Epilogue, Residual, SecondResult
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Input, Product, Scalar
from cpembed.graph.passes.elementwise_fusion import Form, elementwise_form
from cpembed.graph.passes.rewriting import Rewriting
from cpembed.ir.scalars import apply, substituted


def fuse_second_results(graph: Graph) -> Graph:
    """Let products of floats store an elementwise function of their result beside it.

    The function has no other operand but numbers. If it and another one are all that reads the
    result, these two are stored instead of it. Results are equal bit for bit.
    """
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        if isinstance(operator.kind, Product) and operator.kind.dtype == "float32":
            _fuse(rewriting, operator, operator.kind)
    return rewriting.graph()


def _fuse(rewriting: Rewriting, operator: Operator, product: Product) -> None:
    graph, epilogue = rewriting.source, product.epilogue or Epilogue("float32")
    if epilogue.second is not None or epilogue.is_integral or epilogue.wraps:
        return
    result, readers = operator.outputs[0], graph.readers[operator.outputs[0]]
    functions = [(r, form) for r in readers if (form := _function(graph, r, product)) is not None]
    is_stored = result in graph.outputs or len(functions) < len(readers) or len(functions) > 2
    if not functions or (len(readers) == 1 and not is_stored):
        return
    value, chain = _value(epilogue), epilogue.chain
    *first, (second, form) = functions[:1] if is_stored else functions
    seconds = SecondResult(form.dtype, _applied(form, value))
    if epilogue.residual is not None and chain is None:
        chain = Chain(value)
        epilogue = replace(epilogue, residual=Residual(epilogue.residual.dtype))
    stored, outputs = epilogue.dtype, operator.outputs
    for reader, activation in first:
        stored, outputs = activation.dtype, reader.outputs
        chain = Chain(_applied(activation, value), 0 if chain is None else chain.vectors)
        rewriting.replace(reader)
    fused = replace(epilogue, dtype=stored, chain=chain, second=seconds)
    rewriting.replace(second)
    kind = product.with_epilogue(fused)
    rewriting.replace(operator, replace(operator, kind=kind, outputs=(*outputs, *second.outputs)))


def _function(graph: Graph, reader: Operator, product: Product) -> Form | None:
    """Return a reader as an expression of a product's result alone, or None."""
    form = elementwise_form(graph, reader)
    if form is None or form.computing != "float32" or form.dtype not in CHAIN_TYPES:
        return None
    if len(set(form.tensors)) != 1 or graph.types[reader.output].shape != product.shape:
        return None
    return form


def _value(epilogue: Epilogue) -> Scalar:
    """Return the result of an epilogue of floats as an expression of the inputs of a chain."""
    if epilogue.chain is not None:
        return epilogue.chain.expression
    if epilogue.residual is None:
        return Input(0)
    total = apply("add", Input(0), Input(1))
    return apply("max", total, 0.0) if epilogue.residual.relu else total


def _applied(form: Form, value: Scalar) -> Scalar:
    return substituted(form.expression, lambda _: value)
