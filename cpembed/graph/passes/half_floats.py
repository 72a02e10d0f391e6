"""Compute float16 in float32, since no kernel multiplies or rounds to float16 between operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cpembed.codegen.epilogue import Epilogue
from cpembed.graph.graph import Graph, Operator, unused_name
from cpembed.graph.kinds import (
    Attention,
    Bitcast,
    Elementwise,
    Foreign,
    Input,
    Kind,
    Product,
    Reshape,
    Transpose,
)
from cpembed.graph.loop import Loop, nested_graphs
from cpembed.graph.passes.rewriting import Rewriting, only_reader, until_unchanged
from cpembed.ir.dtypes import numpy_dtype

HALF = "float16"


def has_half_floats(graph: Graph) -> bool:
    """True if a tensor of the graph, or of a loop's body, is float16."""
    return any(kind.dtype == HALF for each in nested_graphs(graph) for kind in each.types.values())


def widen_half_floats(graph: Graph) -> Graph:
    """Return the graph with its computations in float16 done in float32.

    Inputs and outputs keep their type; results in between are no longer rounded to float16, nor
    overflow it.
    """
    if not has_half_floats(graph):
        return graph
    names = {*graph.types}
    versions: dict[str, str] = {}
    before: list[Operator] = []
    after: list[Operator] = []

    def fresh(name: str) -> str:
        versions[name] = unused_name(f"{name} as float32", names, ".")
        names.add(versions[name])
        return versions[name]

    constants = dict(graph.constants)
    for name, kind in graph.types.items():
        if kind.dtype != HALF:
            continue
        if name in graph.constants:
            # An output of the network keeps its type.
            new = fresh(name) if name in graph.outputs else name
            constants[new] = graph.constants[name].astype(np.float32)
        elif name in graph.inputs:
            before.append(_cast(name, fresh(name), "float32"))
        elif name in graph.outputs:
            after.append(_cast(fresh(name), name, HALF))

    operators = _in_float32(graph, versions, names)
    return replace(graph, constants=constants, operators=(*before, *operators, *after))


def _in_float32(graph: Graph, versions: Mapping[str, str], names: set[str]) -> list[Operator]:
    """Return the operators of a graph on float32 in place of float16.

    ``versions`` are the names in float32 of tensors that have both types; new names are added to
    ``names``.
    """
    operators: list[Operator] = []
    for operator in graph.operators:
        new = replace(
            operator,
            kind=_widened(operator.kind),
            inputs=tuple(versions.get(name, name) for name in operator.inputs),
            outputs=tuple(versions.get(name, name) for name in operator.outputs),
        )
        if not isinstance(operator.kind, Bitcast | Foreign):
            operators.append(new)
            continue
        # These have the bits, or the types, of float16 itself.
        halves = {
            wide: unused_name(f"{name} as float16", names, ".")
            for name, wide in zip(
                (*operator.inputs, *operator.outputs), (*new.inputs, *new.outputs), strict=True
            )
            if graph.types[name].dtype == HALF
        }
        names.update(halves.values())
        operators += [_cast(x, halves[x], HALF) for x in dict.fromkeys(new.inputs) if x in halves]
        operators.append(
            replace(
                new,
                inputs=tuple(halves.get(name, name) for name in new.inputs),
                outputs=tuple(halves.get(name, name) for name in new.outputs),
            )
        )
        operators += [_cast(halves[x], x, "float32") for x in new.outputs if x in halves]
    return operators


def _cast(source: str, target: str, dtype: str) -> Operator:
    return Operator(target, Elementwise(Input(0), dtype), (source,), (target,))


def _widened(kind: Kind) -> Kind:
    """Return the kind that computes and stores float32 in place of float16."""
    if isinstance(kind, Product):
        computation = kind.computation
        halves = [o.name for o in computation.operands if o.dtype == HALF]
        epilogue = kind.epilogue
        if epilogue is not None and epilogue.dtype == HALF:
            epilogue = replace(epilogue, dtype="float32")
        computation = computation.with_dtypes(dict.fromkeys(halves, "float32"))
        return replace(kind, computation=computation, epilogue=epilogue)
    # The others have the types of their inputs.
    if isinstance(kind, Elementwise):
        computing = "float32" if kind.computing == HALF else kind.computing
        dtype = "float32" if kind.dtype == HALF else kind.dtype
        return replace(kind, dtype=dtype, computing=computing)
    if isinstance(kind, Loop) and has_half_floats(kind.body):
        return kind.with_body(_widened_body(kind.body))
    return kind


def _widened_body(body: Graph) -> Graph:
    """Return the body of a loop with float32 in place of float16, at its border too."""
    return replace(
        body,
        inputs={
            name: replace(kind, dtype="float32") if kind.dtype == HALF else kind
            for name, kind in body.inputs.items()
        },
        constants={
            name: array.astype(np.float32) if array.dtype.name == HALF else array
            for name, array in body.constants.items()
        },
        operators=tuple(_in_float32(body, {}, {*body.types})),
    )


def shorten_floats(graph: Graph, dtype: str) -> Graph:
    """Round the operands of products and attention of float32 to shorter floats, to nearest even.

    What only such operands read is stored in shorter floats.

    Parameters
    ----------
    graph : Graph
    dtype : str
        Type of the factors. The graph is returned as it is if it is float32.
    """
    if dtype == "float32":
        return graph
    graph = until_unchanged(_with_short_operands(graph, dtype), _convert_before_movement)
    return _conversions_fused(graph, dtype)


def _with_short_operands(graph: Graph, dtype: str) -> Graph:
    rewriting = Rewriting(graph)
    versions: dict[tuple[str, str], str] = {}
    for operator in graph.operators:
        kind, count = _with_short_factors(operator.kind, dtype)
        if kind is None:
            continue
        before: list[Operator] = []
        names: list[str] = []
        # A tensor that several products read is converted once.
        for name in operator.inputs[:count]:
            if (name, dtype) not in versions:
                versions[name, dtype] = _shortened(rewriting, name, dtype, before)
            names.append(versions[name, dtype])
        inputs = (*names, *operator.inputs[count:])
        rewriting.replace(operator, *before, replace(operator, kind=kind, inputs=inputs))
    return rewriting.graph()


def _with_short_factors(kind: Kind, dtype: str) -> tuple[Kind | None, int]:
    """Return a kind on shorter factors and their number; None for what multiplies no float32."""
    if isinstance(kind, Attention) and kind.factors == "float32":
        return replace(kind, factors=dtype), 3
    if not isinstance(kind, Product):
        return None, 0
    workload = kind.computation
    if any(operand.dtype != "float32" for operand in workload.operands):
        return None, 0
    workload = workload.with_dtypes({operand.name: dtype for operand in workload.inputs})
    return replace(kind, computation=workload), 2


def _shortened(rewriting: Rewriting, name: str, dtype: str, before: list[Operator]) -> str:
    """Return a tensor in a type; an operator that converts it is appended to ``before``."""
    array = rewriting.source.constants.get(name)
    if array is not None:
        return rewriting.constant(f"{name} as {dtype}", array.astype(numpy_dtype(dtype)))
    new = rewriting.fresh(f"{name} as {dtype}")
    before.append(Operator(new, Elementwise(Input(0), dtype), (name,), (new,)))
    return new


def _convert_before_movement(rewriting: Rewriting, operator: Operator) -> None:
    """Let a conversion to short floats precede the movement that it alone reads.

    Less is moved, and the product before the movement can store short floats.
    """
    match operator.kind:
        case Elementwise(Input(0), dtype="bfloat16" | "float16"):
            pass
        case _:
            return
    graph, tensor = rewriting.source, operator.inputs[0]
    before = graph.producers.get(tensor)
    if before is None or not isinstance(before.kind, Reshape | Transpose):
        return
    source = before.inputs[0]
    if graph.types[source].dtype != "float32" or only_reader(graph, tensor) is not operator:
        return
    name = rewriting.fresh(f"{source} as {operator.kind.dtype}")
    converted = Operator(name, operator.kind, (source,), (name,))
    moved = replace(before, inputs=(name,), outputs=operator.outputs)
    rewriting.replace(operator, converted, moved)


def _conversions_fused(graph: Graph, dtype: str) -> Graph:
    """Let products and attention store short floats if nothing reads their results in float32."""
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        if operator.kind != Elementwise(Input(0), dtype):
            continue
        before = graph.producers.get(operator.inputs[0])
        if before is None or only_reader(graph, operator.inputs[0]) is not operator:
            continue
        if isinstance(before.kind, Attention) and before.kind.dtype == "float32":
            kind = replace(before.kind, dtype=dtype)
            rewriting.replace(operator, replace(before, kind=kind, outputs=operator.outputs))
        if not isinstance(before.kind, Product):
            continue
        epilogue = before.kind.epilogue or Epilogue(before.kind.dtype)
        if epilogue.dtype != "float32" or epilogue.residual is not None:
            continue
        kind = before.kind.with_epilogue(replace(epilogue, dtype=dtype))
        rewriting.replace(operator, replace(before, kind=kind, outputs=operator.outputs))
    return rewriting.graph()
