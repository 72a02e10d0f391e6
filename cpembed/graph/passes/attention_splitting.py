"""Split attention into its two products and the softmax between them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from cpembed.codegen.epilogue import Epilogue
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import (
    Apply,
    Attention,
    Elementwise,
    Input,
    Number,
    Product,
    Reduce,
    Scalar,
    Softmax,
    TensorType,
)
from cpembed.graph.passes.rewriting import Rewriting
from cpembed.ir.computation import Computation
from cpembed.ir.parser import parse_computation
from cpembed.ir.scalars import apply


def split_attentions(graph: Graph, names: Collection[str]) -> Graph:
    """Replace some attentions by products, an elementwise operator and a softmax.

    Results differ by roundings of float32, and of weights to a shorter type of factors. Keys that a
    mask excludes count again if their values are infinite or NaN.
    """
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        if operator.name in names and isinstance(operator.kind, Attention):
            _split(rewriting, operator, operator.kind)
    return rewriting.graph()


def attention_products(
    kind: Attention, types: Sequence[TensorType]
) -> tuple[Computation, Computation]:
    """Return the products of all scores, and of all sums of values."""
    query, key, value = kind.sizes(types)
    extents = {"b": query["b"], "j": key["h"], "i": query["h"] // key["h"]}
    extents |= {"m": query["s"], "n": key["s"], "k": query["d"], "d": value["d"]}
    # Axes of one element need no index: shapes of a product's operands are reshapes.
    present = {name for name, extent in extents.items() if extent > 1 or name in "mnkd"}

    def indices(axes: str, heads: str, row: str, column: str) -> str:
        letters = {"b": "b", "h": heads, "s": row, "d": column}
        return ", ".join(name for axis in axes for name in letters[axis] if name in present)

    weights = indices("bhsd", "ji", "m", "n")
    query_text, key_text, value_text, result_text = (
        indices(axes, heads, row, column)
        for axes, heads, row, column in zip(
            kind.axes, ("ji", "j", "j", "ji"), "mnnm", "kkdd", strict=True
        )
    )
    texts = (
        f"S[{weights}] += Q[{query_text}] * K[{key_text}]",
        f"O[{result_text}] += P[{weights}] * V[{value_text}]",
    )
    is_batched = bool(present & {"b", "j", "i"})
    scores, sums = (
        parse_computation(
            text,
            {name: extents[name] for name in present if name in inside},
            name="batched_gemm" if is_batched else "gemm",
            dtypes={operands[0]: "float32"} | dict.fromkeys(operands[1:], kind.factors),
            varying=(operands[2],),
        )
        for text, operands, inside in zip(texts, ("SQK", "OPV"), ("bjimnk", "bjimnd"), strict=True)
    )
    return scores, sums


def _limited_scores(kind: Attention) -> Scalar:
    """Return the score before any mask, of the product of query and key (input 0)."""
    score = apply("mul", Input(0), kind.scale)
    if not kind.softcap:
        return score
    return apply("mul", apply("tanh", apply("div", score, kind.softcap)), kind.softcap)


def _split(rewriting: Rewriting, operator: Operator, kind: Attention) -> None:
    graph, name = rewriting.source, operator.name
    types = [graph.types[tensor] for tensor in operator.inputs]
    query, key, _ = kind.sizes(types)
    shape = (query["b"], query["h"], query["s"], key["s"])
    first, second = attention_products(kind, types)
    operators: list[Operator] = []

    def emit(new: Product | Elementwise | Softmax | Reduce, label: str, *inputs: str) -> str:
        tensor = rewriting.fresh(f"{name} {label}")
        operators.append(Operator(tensor, new, inputs, (tensor,)))
        return tensor

    products = emit(Product(first, shape), "products", *operator.inputs[:2])
    expression, inputs = _limited_scores(kind), [products]
    if kind.masked:
        mask = operator.inputs[3]
        inputs.append(mask)
        if types[3].dtype == "bool":
            expression = Apply("where", (Input(1), expression, Number(kind.excluded)))
        else:
            expression = apply("add", expression, Input(1))
    if kind.causal is not None:
        later = np.triu(np.ones(shape[2:], bool), kind.causal + 1)
        inputs.append(rewriting.constant(f"{name} later", later))
        expression = Apply("where", (Input(len(inputs) - 1), Number(-math.inf), expression))
    scores = emit(Elementwise(expression, "float32"), "scores", *inputs)
    weights = emit(Softmax(3), "weights", scores)
    if kind.zero_rows:
        largest = emit(Reduce("max", (3,), True), "maxima", scores)
        zeroed = Apply("where", (apply("equal", Input(0), -math.inf), Number(0.0), Input(1)))
        weights = emit(Elementwise(zeroed, "float32"), "zeroed weights", largest, weights)
    if kind.factors != "float32":
        weights = emit(Elementwise(Input(0), kind.factors), "rounded weights", weights)
    result = graph.types[operator.output].shape
    epilogue = None if kind.dtype == "float32" else Epilogue(kind.dtype)
    values = Product(second, result, epilogue=epilogue)
    last = Operator(name, values, (weights, operator.inputs[2]), operator.outputs)
    rewriting.replace(operator, *operators, last)
