"""Products of floats take what follows them into their epilogues, and get the element types of a
target that multiplies shorter floats."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cpembed.codegen.epilogue import Epilogue, Residual
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Elementwise, Input, Product, Quantize
from cpembed.graph.passes.chains import RELU, UNLIMITED, Chain, chains
from cpembed.graph.passes.channels import weights_times
from cpembed.graph.passes.expressions import both_inputs, limits
from cpembed.graph.passes.rewriting import Array, Rewriting, only_reader
from cpembed.ir.dtypes import numpy_dtype


def float_epilogues(graph: Graph) -> Graph:
    """Of products of floats the bias of each channel, a ReLU, and a tensor that is added to all of
    that, again with a ReLU, are stored with the product.

    Equal bit for bit, but where a factor of each channel (a batch normalization) is multiplied into
    constant weights, or several biases become one: these round once more, or less. Of two products
    that are added, the later one takes the other.
    """
    rewriting = Rewriting(graph)
    for operator in reversed(graph.operators):
        match operator.kind:
            case Product(epilogue=None) as product if product.dtype == "float32":
                _convert(rewriting, operator, product)
            case Product(epilogue=Epilogue("float32", residual=None)) as product:
                _add_to_integers(rewriting, operator, product)
            case _:
                pass
    return rewriting.graph()


def _add_to_integers(rewriting: Rewriting, operator: Operator, product: Product) -> None:
    """A product of integers that stores floats takes a sum that is stored as well."""
    graph, epilogue = rewriting.source, product.epilogue
    added = _added(rewriting, Chain(product, product.shape, operator))
    if epilogue is None or added is None:
        return
    reader = only_reader(graph, added.last.output)
    if reader is not None and isinstance(reader.kind, Elementwise | Quantize):
        # The sum is part of that operator.
        return
    residual = Residual("float32", relu=added.relu)
    kind = product.storing(replace(epilogue, residual=residual))
    inputs = (*operator.inputs, added.other)
    rewriting.replace(
        added.last, replace(operator, kind=kind, inputs=inputs, outputs=added.last.outputs)
    )


@dataclass(frozen=True)
class _Sum:
    """What is added to a product's result, with or without a ReLU after it."""

    other: str
    relu: bool
    last: Operator


def _convert(rewriting: Rewriting, operator: Operator, product: Product) -> None:
    graph = rewriting.source
    best: tuple[Chain, Array | None] | None = None
    for chain in chains(graph, operator, product):
        weights = _weights(graph, chain, operator.inputs[1])
        able = chain.quantize is None and chain.limits in (UNLIMITED, RELU)
        if able and (chain.factor is None or weights is not None):
            best = chain, weights
    assert best is not None
    chain, weights = best
    added = _added(rewriting, chain)
    inputs = list(operator.inputs)
    if weights is not None:
        inputs[1] = rewriting.constant(f"{operator.inputs[1]} for {operator.name}", weights)
    if chain.addend is not None:
        bias = chain.addend.astype(np.float32)
        inputs.append(rewriting.constant(f"{operator.name} bias", bias))
    relu = chain.limits == RELU
    epilogue = Epilogue("float32", bias=chain.addend is not None, relu=relu)
    last, shape = chain.last, chain.shape
    if added is not None:
        epilogue = replace(epilogue, residual=Residual("float32", relu=added.relu))
        inputs.append(added.other)
        last, shape = added.last, graph.types[added.last.output].shape
    if last is not operator:
        plain = epilogue == Epilogue("float32")
        kind = replace(product, shape=shape, epilogue=None if plain else epilogue)
        new = Operator(operator.name, kind, tuple(inputs), last.outputs)
        rewriting.replace(last, new)


def _weights(graph: Graph, chain: Chain, tensor: str) -> Array | None:
    """The constant weights with the factor of each channel."""
    weights = graph.constants.get(tensor)
    if chain.factor is None or weights is None:
        return None
    scaled = weights_times(chain.product, weights.astype(np.float64), chain.factor)
    return None if scaled is None else scaled.astype(np.float32)


def _added(rewriting: Rewriting, chain: Chain) -> _Sum | None:
    graph = rewriting.source
    reader = only_reader(graph, chain.last.output)
    if reader is None or rewriting.is_replaced(reader):
        return None
    match reader.kind:
        case Elementwise(dtype="float32", computing=None) as kind if len(reader.inputs) == 2:
            types = [graph.types[name] for name in reader.inputs]
            same = types[0] == types[1] and types[0].dtype == "float32"
            if not same or not both_inputs(kind.expression, "add"):
                return None
        case _:
            return None
    first, second = reader.inputs
    other = second if first == chain.last.output else first
    if graph.is_constant(other):
        return None
    after = only_reader(graph, reader.output)
    if after is not None and _is_relu(after):
        # Replaced where a later product took the sum.
        return None if rewriting.is_replaced(after) else _Sum(other, True, after)
    return _Sum(other, False, reader)


def _is_relu(operator: Operator) -> bool:
    match operator.kind:
        case Elementwise(dtype="float32") as kind:
            return len(operator.inputs) == 1 and limits(kind.expression) == RELU
        case _:
            return False


def float_types(graph: Graph, first: str, second: str) -> Graph:
    """Operands of products of float32 as shorter floats, rounded to the nearest even: results are
    those of the rounded operands. A product whose result only such operands read stores them."""
    if "bfloat16" not in (first, second):
        return graph
    return _stored_short(_operands(graph, (first, second)))


def _operands(graph: Graph, dtypes: tuple[str, str]) -> Graph:
    rewriting = Rewriting(graph)
    known: dict[tuple[str, str], str] = {}
    for operator in graph.operators:
        kind = operator.kind
        if not isinstance(kind, Product):
            continue
        workload = kind.computation
        if any(operand.dtype != "float32" for operand in workload.operands):
            continue
        before: list[Operator] = []
        names: list[str] = []
        for name, dtype in zip(operator.inputs[:2], dtypes, strict=True):
            if (name, dtype) not in known:
                known[name, dtype] = _short(rewriting, name, dtype, before)
            names.append(known[name, dtype])
        pairs = zip(workload.inputs, dtypes, strict=True)
        workload = workload.with_dtypes({operand.name: dtype for operand, dtype in pairs})
        new = replace(
            operator,
            kind=replace(kind, computation=workload),
            inputs=(*names, *operator.inputs[2:]),
        )
        rewriting.replace(operator, *before, new)
    return rewriting.graph()


def _short(rewriting: Rewriting, name: str, dtype: str, before: list[Operator]) -> str:
    array = rewriting.source.constants.get(name)
    if dtype == "float32":
        return name
    if array is not None:
        return rewriting.constant(f"{name} as {dtype}", array.astype(numpy_dtype(dtype)))
    new = rewriting.fresh(f"{name} as {dtype}")
    before.append(Operator(new, Elementwise(Input(0), dtype), (name,), (new,)))
    return new


def _stored_short(graph: Graph) -> Graph:
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        match operator.kind:
            case Elementwise(Input(0), dtype="bfloat16"):
                pass
            case _:
                continue
        before = graph.producers.get(operator.inputs[0])
        if before is None or not isinstance(before.kind, Product):
            continue
        epilogue = before.kind.epilogue or Epilogue(before.kind.dtype)
        if epilogue.dtype != "float32" or epilogue.residual is not None:
            continue
        if only_reader(graph, operator.inputs[0]) is operator:
            kind = before.kind.storing(replace(epilogue, dtype="bfloat16"))
            rewriting.replace(operator, replace(before, kind=kind, outputs=operator.outputs))
    return rewriting.graph()
