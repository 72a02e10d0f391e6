"""A product that adds a residual as a product and an operator of its own, for a product whose
kernels cannot add it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from cpembed.codegen.epilogue import Epilogue, Residual
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Apply, Elementwise, Input, Number, Product, Scalar


def without_residuals(graph: Graph, names: Collection[str]) -> Graph:
    """The graph in which these operators, by name, store what they make of their own sums, and
    another operator adds the residual: equal bit for bit, since that is rounded in between either
    way, or stored as floats where it is not."""
    operators: list[Operator] = []
    tensors = set(graph.types)
    for operator in graph.operators:
        if operator.name not in names:
            operators.append(operator)
            continue
        name = f"{operator.output} before the residual"
        while name in tensors:
            name += "'"
        tensors.add(name)
        operators += _split(operator, name)
    return graph.with_operators(operators)


def _split(operator: Operator, between: str) -> tuple[Operator, Operator]:
    kind = operator.kind
    assert isinstance(kind, Product)
    assert kind.epilogue is not None
    assert kind.epilogue.residual is not None
    epilogue, residual = kind.epilogue, kind.epilogue.residual
    alone = replace(epilogue, residual=None)
    if not residual.rounds:
        alone = Epilogue("float32", epilogue.scale, epilogue.bias, epilogue.relu)
    added = Elementwise(_sum(epilogue, residual), kind.dtype, "float32")
    return (
        replace(
            operator,
            kind=kind.storing(alone),
            inputs=operator.inputs[:-1],
            outputs=(between,),
        ),
        Operator(
            f"{operator.name} residual", added, (between, operator.inputs[-1]), operator.outputs
        ),
    )


def _sum(epilogue: Epilogue, residual: Residual) -> Scalar:
    """What :meth:`~cpembed.codegen.epilogue.Epilogue.apply` does with a residual, the second input,
    and the stored value, the first."""
    own, other = Input(0), Input(1)
    if epilogue.dtype == "float32":
        total = Apply("add", (own, other))
        return Apply("max", (total, Number(0.0))) if residual.relu else total
    moved = Apply("sub", (own, Number(epilogue.zero_point))) if residual.rounds else own
    scaled = Apply("mul", (Apply("sub", (other, Number(residual.zero_point))),
                           Number(residual.scale)))  # fmt: skip
    total = Apply("fma", (moved, Number(residual.own_scale), scaled))
    low, high = epilogue.residual_range
    limited = Apply("max", (Apply("min", (Apply("round", (total,)), Number(high))), Number(low)))
    return Apply("add", (limited, Number(residual.stored_zero_point)))
