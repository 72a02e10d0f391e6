"""Small networks, made by hand."""

from __future__ import annotations

from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Apply, Elementwise, Input
from cpembed.graph.kinds.base import TensorType
from cpembed.graph.kinds.product import Product
from cpembed.ir.computation import Computation
from cpembed.workloads.naming import parse_workload

NEGATED = Elementwise(Apply("neg", (Input(0),)), "int32")


def product(words: str) -> Product:
    """A product without an epilogue, by the command line's naming."""
    workload = parse_workload(words.split())
    return Product(workload, workload.output.shape)


def network(name: str, products: dict[str, str], *, negated: bool = True) -> Graph:
    """Products by operator, which read inputs of the network each; the result of each negated."""
    operators: list[Operator] = []
    inputs: dict[str, TensorType] = {}
    for operator, words in products.items():
        kind = product(words)
        reads = tuple(f"{operator}.{o.name}" for o in kind.computation.inputs)
        for read, operand in zip(reads, kind.computation.inputs, strict=True):
            inputs[read] = TensorType(operand.shape, operand.dtype)
        operators.append(Operator(operator, kind, reads, (f"{operator}.out",)))
        if negated:
            out = f"{operator}.negated"
            operators.append(Operator(f"{operator}/neg", NEGATED, (f"{operator}.out",), (out,)))
    outputs = tuple(operators[-1].outputs)
    return Graph(name, inputs, outputs, operators=tuple(operators))


def macs(words: str) -> int:
    workload: Computation = parse_workload(words.split())
    return workload.macs
