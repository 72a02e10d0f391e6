"""Recognize attention of integers in prepared graphs: two products around a quantized softmax."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from cpembed.codegen.epilogue import BYTES, SCALE
from cpembed.errors import WorkloadError
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import (
    Elementwise,
    Input,
    Number,
    Product,
    Quantize,
    QuantizedAttention,
    Scalar,
    Softmax,
)
from cpembed.graph.passes.quantization import requantized
from cpembed.graph.passes.rewriting import Rewriting, only_reader, producer_of
from cpembed.ir.dtypes import numpy_dtype
from cpembed.ir.scalars import substituted


def recognize_quantized_attention(graph: Graph) -> Graph:
    """Replace the operators of an attention of integers by one.

    It comes last: quantizations and zero points are expressions of products' sums by then. Results
    are equal, since the operator is defined by those that it replaces.
    """
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        if isinstance(operator.kind, Softmax) and not operator.kind.log:
            attention = _attention(graph, operator)
            if attention is not None:
                rewriting.replace(*attention)
    return rewriting.graph()


def split_quantized_attentions(graph: Graph, names: Collection[str]) -> Graph:
    """Replace some attentions of integers by the operators that define them."""
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        if operator.name in names and isinstance(operator.kind, QuantizedAttention):
            rewriting.replace(operator, *_pieces(rewriting, operator, operator.kind))
    return rewriting.graph()


def _pieces(
    rewriting: Rewriting, operator: Operator, kind: QuantizedAttention
) -> Sequence[Operator]:
    types = [rewriting.source.types[name] for name in operator.inputs]
    masks, further = operator.inputs[3 : 3 + kind.masks], operator.inputs[3 + kind.masks :]

    def constants(label: str, arrays: Sequence[Array]) -> list[str]:
        return [rewriting.constant(f"{operator.name} {label}", array) for array in arrays]

    before, weights = list[str](), ""
    operators: list[Operator] = []
    for label, piece, _ in kind.pieces(types):
        if label == "scores" and kind.scaling.expression == Input(0):
            continue
        match label:
            case "products":
                names = [*operator.inputs[:2], *constants("scale", kind.vectors(0))]
            case "scores":
                names = [*before, *masks]
            case "values":
                weights = before[0]
                names = [weights, operator.inputs[2], *constants("scale", kind.vectors(1))]
            case "sums of weights":
                ones = kind.ones_type
                array = np.ones(ones.shape, numpy_dtype(ones.dtype))
                names = [weights, *constants("ones", [array])]
            case "result":
                names = [*before, *further]
            case _:
                names = before
        name = rewriting.fresh(f"{operator.name} {label}")
        operators.append(Operator(operator.name, piece, tuple(names), (name,)))
        # The result reads both sums of weights.
        before = [*before, name] if label == "sums of weights" else [name]
    return [*operators[:-1], replace(operators[-1], outputs=operator.outputs)]


def _attention(graph: Graph, softmax: Operator) -> tuple[Operator, Operator] | None:
    """Return the last operator of an attention around a softmax, and the one that replaces all."""
    assert isinstance(softmax.kind, Softmax)
    rank = len(graph.types[softmax.output].shape)
    quantize = only_reader(graph, softmax.output)
    if softmax.kind.axis % rank != rank - 1 or quantize is None:
        return None
    if graph.types[softmax.inputs[0]].dtype != "float32":
        return None
    if not isinstance(quantize.kind, Quantize) or len(quantize.kind.scale) != 1:
        return None
    scores = _scores(graph, softmax.inputs[0])
    after = _values(graph, quantize.output)
    if scores is None or after is None:
        return None
    values, sums, last = after
    product, expression, masks = scores
    first, second = product.kind, values.kind
    assert isinstance(first, Product)
    assert isinstance(second, Product)
    result = _of_sums(graph, last, values, sums)
    if graph.types[last.output].dtype not in BYTES:
        return None
    kind = QuantizedAttention(
        scores=replace(first, padding=0),
        scaling=expression,
        weights=quantize.kind,
        values=replace(second, padding=0),
        weight_sums=sums.kind if sums is not None and isinstance(sums.kind, Product) else None,
        result=result[0],
        masks=len(masks),
        scales=(_scale(graph, product), _scale(graph, values)),
    )
    inputs = (*product.inputs[:2], values.inputs[1], *masks, *result[1])
    try:
        (actual,) = kind.types([graph.types[name] for name in inputs])
    except WorkloadError:
        return None
    if actual != graph.types[last.output]:
        return None
    return last, Operator(values.name, kind, inputs, last.outputs)


def _scores(graph: Graph, name: str) -> tuple[Operator, Elementwise, list[str]] | None:
    """Return the product of scores, the operators on it, and the further tensors that these read.

    A scale alone is part of the product's epilogue, and leaves nothing to compute.
    """
    if only_reader(graph, name) is None:
        return None
    product = _product_of_scores(graph, name)
    if product is not None:
        return product, Elementwise(Input(0), "float32"), []
    scaling = producer_of(graph, name, Elementwise)
    return None if scaling is None else _summed(graph, scaling[0])


def _product_of_scores(graph: Graph, name: str) -> Operator | None:
    """Return the product of bytes that writes a tensor which one operator reads."""
    product = producer_of(graph, name, Product)
    if product is None or only_reader(graph, name) is None:
        return None
    bytes_vary = _multiplies_varying_bytes(graph, product[0])
    return product[0] if bytes_vary and _is_scaled_alike(graph, product[0]) else None


def _summed(graph: Graph, scaling: Operator) -> tuple[Operator, Elementwise, list[str]] | None:
    """Return the product of an elementwise operator's input, and its kind with that input first.

    Last come the operator's other inputs.
    """
    assert isinstance(scaling.kind, Elementwise)
    shape = graph.types[scaling.output].shape
    for number, name in enumerate(scaling.inputs):
        product = _product_of_scores(graph, name)
        if product is None or graph.types[name].shape != shape:
            continue
        order = [number, *(k for k in range(len(scaling.inputs)) if k != number)]
        kind = _reordered(graph, scaling, order)
        return product, kind, [scaling.inputs[k] for k in order[1:]]
    return None


def _values(graph: Graph, weights: str) -> tuple[Operator, Operator | None, Operator] | None:
    """Return the product of weights and values, their sums if any, and the last operator."""
    if weights in graph.outputs:
        return None
    readers = graph.readers[weights]
    products = [r for r in readers if isinstance(r.kind, Product) and r.inputs[0] == weights]
    varying = [r for r in products if _multiplies_varying_bytes(graph, r)]
    sums = [r for r in products if r not in varying]
    if len(products) != len(readers) or len(varying) != 1 or len(sums) > 1:
        return None
    (values,) = varying
    assert isinstance(values.kind, Product)
    if values.kind.epilogue is not None:
        return None if sums or not _is_scaled_alike(graph, values) else (values, None, values)
    last = only_reader(graph, values.output)
    if last is None or not isinstance(last.kind, Elementwise):
        return None
    if sums and (only_reader(graph, sums[0].output) is not last or not _counts(graph, sums[0])):
        return None
    return values, sums[0] if sums else None, last


def _counts(graph: Graph, sums: Operator) -> bool:
    """True for a product with ones that sums the last axis of its first factor."""
    ones = graph.constants.get(sums.inputs[1])
    kind = sums.kind
    assert isinstance(kind, Product)
    return ones is not None and bool((ones == 1).all()) and kind.epilogue is None


def _of_sums(
    graph: Graph, last: Operator, values: Operator, sums: Operator | None
) -> tuple[Elementwise | None, list[str]]:
    """Return the result's kind with the sums as first inputs, and its other inputs."""
    if last is values:
        return None, []
    first = [values.output] if sums is None else [values.output, sums.output]
    order = [last.inputs.index(name) for name in first]
    order += [k for k in range(len(last.inputs)) if k not in order]
    kind = _reordered(graph, last, order)
    return kind, [last.inputs[k] for k in order[len(first) :]]


def _reordered(graph: Graph, operator: Operator, order: Sequence[int]) -> Elementwise:
    """Return an elementwise kind on inputs in another order."""
    kind = operator.kind
    assert isinstance(kind, Elementwise)
    places = {number: place for place, number in enumerate(order)}
    expression = substituted(kind.expression, lambda node: Input(places[node.number]))
    computing = kind.computes_in([graph.types[name].dtype for name in operator.inputs])
    return replace(kind, expression=expression, computing=computing)


def _multiplies_varying_bytes(graph: Graph, operator: Operator) -> bool:
    kind = operator.kind
    assert isinstance(kind, Product)
    workload = kind.computation
    return (
        len(operator.inputs) == 2 + len(kind.vectors)
        and not any(kind.zero_points)
        and all(o.dtype in BYTES and not o.zero_outside for o in workload.inputs)
        and workload.output.dtype == "int32"
        and not any(graph.is_constant(name) for name in operator.inputs[:2])
    )


def _is_scaled_alike(graph: Graph, operator: Operator) -> bool:
    """True for no epilogue, or one of a scale alone that is the same for all channels."""
    kind = operator.kind
    assert isinstance(kind, Product)
    epilogue = kind.epilogue
    if epilogue is None:
        return True
    if epilogue.chain is not None or epilogue.residual is not None or epilogue.placement:
        return False
    if epilogue.vectors != (SCALE,) or epilogue.is_integral:
        return False
    scale = graph.constants.get(operator.inputs[2])
    return scale is not None and bool((scale == scale.flat[0]).all())


def _scale(graph: Graph, operator: Operator) -> float:
    """Return the scale of a product's epilogue; 1 without one."""
    kind = operator.kind
    assert isinstance(kind, Product)
    return 1.0 if kind.epilogue is None else float(graph.constants[operator.inputs[2]].flat[0])


def expressions_of_sums(kind: QuantizedAttention) -> tuple[Elementwise, Elementwise]:
    """Return the kinds of the scores and of the result, with epilogues as part of them.

    Their first inputs are sums of 32 bits.
    """
    scaling, result = kind.scaling, kind.result
    sums: list[Scalar] = []
    for product, scale in zip((kind.scores, kind.values), kind.scales, strict=True):
        epilogue = product.epilogue
        factor = Number(scale)
        sums.append(Input(0) if epilogue is None else requantized(epilogue, Input(0), factor, None))

    def change(node: Input) -> Scalar:
        return node if node.number else sums[0]

    scaling = replace(scaling, expression=substituted(scaling.expression, change))
    if result is None:
        result = Elementwise(sums[1], kind.values.dtype, "float32")
    return scaling, result
