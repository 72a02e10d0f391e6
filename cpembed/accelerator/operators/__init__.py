"""Operators of graphs as specifications in scalar statements.

:func:`specifications` returns the forms of an operator: each is a specification whose tensors are
those of the graph in another order of dimensions, channels last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cpembed.accelerator.operators.alternatives import alternatives, ordered
from cpembed.accelerator.operators.elements import (
    dequantize_forms,
    elementwise_forms,
    quantize_forms,
    table_forms,
)
from cpembed.accelerator.operators.forms import Forms, GraphTensor, NoForm, OperatorForm
from cpembed.accelerator.operators.movements import is_view, movement_forms
from cpembed.accelerator.operators.products import product_forms
from cpembed.accelerator.operators.reductions import (
    layer_norm_forms,
    pool_forms,
    reduce_forms,
    softmax_forms,
)
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import (
    Concat,
    Dequantize,
    Elementwise,
    Expand,
    Gather,
    Kind,
    LayerNorm,
    Pad,
    Pool,
    Product,
    Quantize,
    Reduce,
    Reshape,
    Resize,
    Slice,
    Softmax,
    Table,
    Transpose,
)
from cpembed.hw.isa import InstructionSet

__all__ = [
    "Forms",
    "GraphTensor",
    "NoForm",
    "OperatorForm",
    "is_view",
    "operator_forms",
    "specifications",
]

_FORMS: Mapping[type[Kind], Callable[[Operator, Graph], Forms]] = {
    Product: product_forms,
    Elementwise: elementwise_forms,
    Quantize: quantize_forms,
    Dequantize: dequantize_forms,
    Table: table_forms,
    Pool: pool_forms,
    Reduce: reduce_forms,
    Softmax: softmax_forms,
    LayerNorm: layer_norm_forms,
    **dict.fromkeys(
        (Concat, Expand, Gather, Pad, Reshape, Resize, Slice, Transpose), movement_forms
    ),
}


def specifications(operator: Operator, graph: Graph, machine: InstructionSet) -> Forms:
    """Return the forms of an operator for a machine, those that it computes best first.

    Forms whose statements are all matched by instructions come before the others, which need the
    host or a chain of moves; among them, those with the fewest cycles of executions come first.

    Parameters
    ----------
    operator : Operator
    graph : Graph
        Graph of the operator, after :func:`cpembed.graph.passes.prepare`.
    machine : InstructionSet

    Returns
    -------
    tuple of OperatorForm, or NoForm
        The reason where no statements compute the operator.
    """
    forms = operator_forms(operator, graph)
    if isinstance(forms, NoForm):
        return forms
    every = (alternative for form in forms for alternative in alternatives(form, machine))
    return ordered(every, machine)


def operator_forms(operator: Operator, graph: Graph) -> Forms:
    """Return the forms of an operator, whatever the machine; the most literal one first.

    Returns
    -------
    tuple of OperatorForm, or NoForm
        The reason where no statements compute the operator.
    """
    forms = _FORMS.get(type(operator.kind))
    if forms is None:
        return NoForm(f"{operator.name}: {operator.kind.label} has no statements")
    if not all(graph.types[name].elements for name in (*operator.inputs, *operator.outputs)):
        return NoForm(f"{operator.name}: a tensor without elements")
    return forms(operator, graph)
