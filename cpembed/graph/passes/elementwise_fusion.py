"""Fuse chains of elementwise operators, so that memory is passed over once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from cpembed.codegen.epilogue import BYTES
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Apply, Dequantize, Elementwise, Input, Quantize, Scalar
from cpembed.graph.kinds.elementwise import computing_dtype
from cpembed.graph.passes.expressions import (
    compacted,
    expression_bound,
    is_whole,
    magnitudes,
    operation_count,
)
from cpembed.graph.passes.quantization import (
    clipped,
    float32,
    integer_range,
    is_per_tensor,
    offset,
)
from cpembed.graph.passes.rewriting import Rewriting, only_reader
from cpembed.ir.scalars import BOOLEAN, apply, substituted

# Maximum number of inputs and operations of one fused expression: the text of a kernel grows with
# both.
_MAX_INPUTS, _MAX_OPERATIONS = 16, 96


def fuse_elementwise(graph: Graph) -> Graph:
    """Merge elementwise operators into their only readers, quantization at both ends included.

    Dequantizations are merged into every reader. Results are equal bit for bit: only operators of
    one shape are merged, and none whose result may be a NaN that is stored as an integer in
    between.
    """
    # A tensor that two merged operators read may have one reader now.
    while (changed := _fuse_once(graph)) is not graph:
        graph = changed
    return graph


def _fuse_once(graph: Graph) -> Graph:
    rewriting = Rewriting(graph)
    bounds = magnitudes(graph)
    forms: dict[str, Form] = {}
    for operator in graph.operators:
        form = elementwise_form(graph, operator)
        if form is None:
            continue
        if form.dtype in BYTES and form.computing.startswith("float"):
            input_bounds = [bounds[name] for name in form.tensors]
            bound = expression_bound(form.expression, input_bounds)
            form = replace(form, may_be_nan=bound == math.inf)
        merged = _with_inputs_merged(graph, operator, form, forms)
        if merged != form:
            form = replace(merged, may_be_nan=form.may_be_nan)
            rewriting.replace(operator, _operator(graph, operator, form))
        forms[operator.output] = form
    return rewriting.graph()


@dataclass(frozen=True)
class Form:
    """Operator at every element, as an expression of tensors.

    Attributes
    ----------
    tensors : tuple of str
        Tensors that the inputs of the expression stand for.
    computing, dtype : str
        Types of the arithmetic and of the stored result.
    is_light : bool
        True for a dequantization, which is repeated for each of its readers: bytes are read in
        place of floats.
    may_be_nan : bool
        True if the result may be NaN before it is stored as an integer, which makes it 0.
    """

    expression: Scalar
    tensors: tuple[str, ...]
    computing: str
    dtype: str
    is_light: bool = False
    may_be_nan: bool = False


def elementwise_form(graph: Graph, operator: Operator) -> Form | None:
    """Return an operator at every element, quantization included, as an expression of tensors."""
    dtypes = [graph.types[name].dtype for name in operator.inputs]
    match operator.kind:
        case Elementwise() as kind:
            computing = kind.computes_in(dtypes)
            return Form(kind.expression, operator.inputs, computing, kind.dtype)
        case Dequantize() as kind if is_per_tensor(kind):
            zero_point = kind.zero_point[0]
            # The difference of wider integers is not exact in float32.
            if dtypes[0] not in BYTES and zero_point:
                return None
            value = apply("mul", offset(Input(0), -zero_point), float32(kind.scale[0]))
            return Form(value, operator.inputs, "float32", "float32", is_light=True)
        case Quantize() as kind if is_per_tensor(kind) and np.iinfo(kind.dtype).bits <= 16:
            if dtypes[0] != "float32":
                return None
            quotient = apply("div", Input(0), float32(kind.scale[0]))
            value = offset(apply("round", quotient), kind.zero_point[0])
            return Form(value, operator.inputs, "float32", kind.dtype)
        case _:
            return None


def _with_inputs_merged(
    graph: Graph, operator: Operator, form: Form, forms: dict[str, Form]
) -> Form:
    for name in dict.fromkeys(form.tensors):
        inner = forms.get(name)
        if inner is None or not _is_mergeable(graph, operator, form, name, inner):
            continue
        merged = _merged(form, name, inner)
        shapes = [graph.types[tensor].shape for tensor in merged.tensors]
        # The input that would disappear may have given the result its shape.
        if not shapes or np.broadcast_shapes(*shapes) != graph.types[operator.output].shape:
            continue
        operations = operation_count(merged.expression)
        if len(merged.tensors) <= _MAX_INPUTS and operations <= _MAX_OPERATIONS:
            form = merged
    return form


def _is_mergeable(graph: Graph, operator: Operator, form: Form, name: str, inner: Form) -> bool:
    if inner.computing != form.computing or inner.may_be_nan:
        return False
    if not inner.is_light:
        shapes = graph.types[name].shape, graph.types[operator.output].shape
        if only_reader(graph, name) is not operator or shapes[0] != shapes[1]:
            return False
    # Kernels compute conditions; a Boolean that is made of anything else has to be stored first.
    if inner.dtype == "bool":
        top = inner.expression
        return isinstance(top, Apply) and top.operation in BOOLEAN
    if inner.dtype == form.computing:
        return True
    return inner.dtype in BYTES and form.computing == "float32"


def _merged(form: Form, name: str, inner: Form) -> Form:
    """Substitute the expression of an input for that input."""
    value = inner.expression
    if inner.dtype in BYTES:
        # The bytes that are no longer stored were rounded and saturated.
        rounded = value if is_whole(value) else apply("round", value)
        value = clipped(rounded, integer_range(inner.dtype))
    first = len(form.tensors)
    value = substituted(value, lambda node: Input(node.number + first))

    def change(node: Input) -> Scalar:
        return value if form.tensors[node.number] == name else node

    expression = substituted(form.expression, change)
    expression, tensors = compacted(expression, (*form.tensors, *inner.tensors))
    return replace(form, expression=expression, tensors=tensors, is_light=False)


def _operator(graph: Graph, operator: Operator, form: Form) -> Operator:
    default = computing_dtype([graph.types[name].dtype for name in form.tensors])
    computing = None if default == form.computing else form.computing
    kind = Elementwise(form.expression, form.dtype, computing)
    return replace(operator, kind=kind, inputs=form.tensors)
