"""Operators at every element, one after the other, become one: one pass over memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from cpembed.codegen.epilogue import BYTES
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Apply, Dequantize, Elementwise, Input, Quantize, Scalar
from cpembed.graph.kinds.elementwise import BOOLEAN, computing_dtype
from cpembed.graph.passes.expressions import apply, compacted, is_whole, size_of, substituted
from cpembed.graph.passes.magnitudes import magnitudes, of_expression
from cpembed.graph.passes.quantization import clipped, float32, is_plain, moved, range_of
from cpembed.graph.passes.rewriting import Rewriting, only_reader

MOST_INPUTS = 16
MOST_OPERATIONS = 96
"""Of one expression."""


def fusion(graph: Graph) -> Graph:
    """Expressions take the operators whose results only they read, and what dequantizes their
    inputs, whoever else reads that; a quantization takes what it quantizes.

    Equal bit for bit. Only operators of one shape become one, of at most 16 inputs, and none whose
    result may be a NaN that is stored as an integer in between.
    """
    while (changed := _once(graph)) is not graph:
        # What two operators read that have become one, one operator reads.
        graph = changed
    return graph


def _once(graph: Graph) -> Graph:
    rewriting = Rewriting(graph)
    bounds = magnitudes(graph)
    forms: dict[str, _Form] = {}
    for operator in graph.operators:
        form = _form(graph, operator)
        if form is None:
            continue
        if form.dtype in BYTES and form.computing.startswith("float"):
            taken = [bounds[name] for name in form.tensors]
            form = replace(form, may_be_nan=of_expression(form.expression, taken) == math.inf)
        merged = _merged(graph, operator, form, forms)
        if merged != form:
            form = replace(merged, may_be_nan=form.may_be_nan)
            rewriting.replace(operator, _operator(graph, operator, form))
        forms[operator.output] = form
    return rewriting.graph()


@dataclass(frozen=True)
class _Form:
    """An operator as an expression of tensors, computed in a type and stored in another;
    ``is_light``: a dequantization, which is repeated for each of its readers; ``may_be_nan``: its
    result, before it is stored as an integer."""

    expression: Scalar
    tensors: tuple[str, ...]
    computing: str
    dtype: str
    is_light: bool = False
    may_be_nan: bool = False


def _form(graph: Graph, operator: Operator) -> _Form | None:
    dtypes = [graph.types[name].dtype for name in operator.inputs]
    match operator.kind:
        case Elementwise() as kind:
            computing = kind.computes_in(dtypes)
            return _Form(kind.expression, operator.inputs, computing, kind.dtype)
        case Dequantize() as kind if is_plain(kind):
            zero = kind.zero_point[0]
            if dtypes[0] not in BYTES and zero:
                return None
            value = apply("mul", moved(Input(0), -zero), float32(kind.scale[0]))
            return _Form(value, operator.inputs, "float32", "float32", is_light=True)
        case Quantize() as kind if is_plain(kind) and np.iinfo(kind.dtype).bits <= 16:
            if dtypes[0] != "float32":
                return None
            quotient = apply("div", Input(0), float32(kind.scale[0]))
            value = moved(apply("round", quotient), kind.zero_point[0])
            return _Form(value, operator.inputs, "float32", kind.dtype)
        case _:
            return None


def _merged(graph: Graph, operator: Operator, form: _Form, forms: dict[str, _Form]) -> _Form:
    """The form with those of its inputs that it can take, one by one."""
    for name in dict.fromkeys(form.tensors):
        inner = forms.get(name)
        if inner is None or not _can_take(graph, operator, form, name, inner):
            continue
        taken = _taken(form, name, inner)
        shapes = [graph.types[tensor].shape for tensor in taken.tensors]
        if not shapes or np.broadcast_shapes(*shapes) != graph.types[operator.output].shape:
            # What is left out gave the result its shape.
            continue
        if len(taken.tensors) <= MOST_INPUTS and size_of(taken.expression) <= MOST_OPERATIONS:
            form = taken
    return form


def _can_take(graph: Graph, operator: Operator, form: _Form, name: str, inner: _Form) -> bool:
    if inner.computing != form.computing or inner.may_be_nan:
        return False
    if not inner.is_light:
        shapes = graph.types[name].shape, graph.types[operator.output].shape
        if only_reader(graph, name) is not operator or shapes[0] != shapes[1]:
            return False
    if inner.dtype == "bool":
        top = inner.expression
        return isinstance(top, Apply) and top.operation in BOOLEAN
    if inner.dtype == form.computing:
        return True
    return inner.dtype in BYTES and form.computing == "float32"


def _taken(form: _Form, name: str, inner: _Form) -> _Form:
    """The form with the expression of an input in that input's place."""
    value = inner.expression
    if inner.dtype in BYTES:
        # What is stored in eight bits is rounded and limited.
        whole = value if is_whole(value) else apply("round", value)
        value = clipped(whole, *range_of(inner.dtype))
    first = len(form.tensors)
    value = substituted(value, lambda node: Input(node.number + first))

    def change(node: Input) -> Scalar:
        return value if form.tensors[node.number] == name else node

    expression = substituted(form.expression, change)
    expression, tensors = compacted(expression, (*form.tensors, *inner.tensors))
    return replace(form, expression=expression, tensors=tensors, is_light=False)


def _operator(graph: Graph, operator: Operator, form: _Form) -> Operator:
    own = computing_dtype([graph.types[name].dtype for name in form.tensors])
    computing = None if own == form.computing else form.computing
    kind = Elementwise(form.expression, form.dtype, computing)
    return replace(operator, kind=kind, inputs=form.tensors)
