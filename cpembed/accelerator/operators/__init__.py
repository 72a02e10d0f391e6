"""Operators of graphs as specifications in scalar statements."""

from __future__ import annotations

from cpembed.accelerator.operators.forms import Forms, GraphTensor, NoForm, OperatorForm
from cpembed.accelerator.operators.products import product_forms
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Product

__all__ = ["Forms", "GraphTensor", "NoForm", "OperatorForm", "operator_forms"]


def operator_forms(operator: Operator, graph: Graph) -> Forms:
    if isinstance(operator.kind, Product):
        return product_forms(operator, graph)
    return NoForm(operator.name)
