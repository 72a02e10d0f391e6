"""Outputs of operators by the statements of their forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cpembed.accelerator.operators.forms import OperatorForm


def evaluated(form: OperatorForm, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return a form's outputs in the graph's shapes, from arrays of the graph's tensors."""
    tensors = form.tensors
    inputs = {n: tensors[n].logical(arrays[tensors[n].name]) for n in form.specification.inputs}
    values = form.specification.evaluate(inputs)
    outputs = {tensors[name]: values[name] for name in form.specification.outputs}
    return {tensor.name: tensor.graph_array(array) for tensor, array in outputs.items()}
