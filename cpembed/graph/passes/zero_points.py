"""Zero points of products become additions to sums of the integers as they are, which is what
kernels compute: ``sum (A - a) (B - b) = sum A B - b sum A - a sum B + n a b``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cpembed.codegen.epilogue import BIAS, Epilogue, channel_axes, channel_numbers
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Product
from cpembed.graph.passes.channels import reduced
from cpembed.graph.passes.corrections import at_one_point, corrections, wrapped
from cpembed.graph.passes.rewriting import Array, Rewriting
from cpembed.ir.dtypes import is_integer


def without_zero_points(graph: Graph) -> Graph:
    """The same results, equal bit for bit, of products without zero points.

    That of a first operand goes into the bias, where the second is constant, and padding becomes
    that zero point (:attr:`Product.padding`). Where the second has a zero point, or varies, the
    sums are stored in 32 bits; a product with ones sums what one operand has under the zero point
    of the other, and elementwise operators put all together and do what the epilogue did.
    """
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        match operator.kind:
            case Product(zero_points=(a, b)) as product if a or b:
                if _has_sums(graph, operator, product):
                    _remove(rewriting, operator, product)
            case _:
                pass
    return rewriting.graph()


def _sums_of_weights(product: Product, weights: Array) -> Array:
    """Of each channel, the sum of what the first operand is multiplied with."""
    small = at_one_point(product.computation, {*channel_axes(product.computation)})
    a, b = small.inputs
    ones = np.ones(a.shape, a.dtype)
    sums = Product(small, small.output.shape, padding=1).sums(ones, weights.reshape(b.shape))
    vector = np.zeros(product.channels, np.int64)
    vector[channel_numbers(small)] = sums
    return vector


def _has_sums(graph: Graph, operator: Operator, product: Product) -> bool:
    """Whether sums of integers are stored as they are, or scaled by constants."""
    epilogue = product.epilogue
    vectors = operator.inputs[2 : 2 + len(product.vectors)]
    plain = epilogue is None or not epilogue.is_integral
    sums = product.computation.output.dtype
    return plain and is_integer(sums) and all(name in graph.constants for name in vectors)


def _remove(rewriting: Rewriting, operator: Operator, product: Product) -> None:
    graph = rewriting.source
    (a, b), count = product.zero_points, len(product.vectors)
    vectors = dict(zip(product.vectors, operator.inputs[2:], strict=False))
    weights = graph.constants.get(operator.inputs[1])
    added = np.full(product.channels, a * b * reduced(product), np.int64)
    if weights is not None and a:
        added -= a * _sums_of_weights(product, weights)
    if BIAS in vectors:
        added += graph.constants[vectors[BIAS]].reshape(-1)
    if b == 0 and weights is not None:
        epilogue = product.epilogue or Epilogue(product.dtype)
        epilogue = replace(epilogue, bias=True)
        vectors[BIAS] = rewriting.constant(f"{operator.name} bias", wrapped(added))
        kind = replace(product, zero_points=(0, 0), epilogue=epilogue, padding=product.padding + a)
        names = (vectors[name] for name in epilogue.vectors)
        inputs = (*operator.inputs[:2], *names, *operator.inputs[2 + count :])
        rewriting.replace(operator, replace(operator, kind=kind, inputs=inputs))
        return
    rewriting.replace(operator, *corrections(rewriting, operator, product, added, weights is None))
