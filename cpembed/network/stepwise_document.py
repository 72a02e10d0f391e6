"""Document of a network that ran product by product."""

from __future__ import annotations

from typing import Any

from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Attention, Product
from cpembed.graph.passes.attention_splitting import attention_products
from cpembed.network.host_work import host_target
from cpembed.network.layer_chains import ProductPair
from cpembed.network.stepwise import StepResult, StepwiseRun
from cpembed.network.stepwise_chains import ChainedGraph
from cpembed.runtime.measurement.environment import provenance
from cpembed.targets.registry import open_target


def stepwise_document(run: StepwiseRun) -> dict[str, Any]:
    """Return the document of a run; times are in the target's unit."""
    graph, unit = run.graph, open_target(run.target).unit
    layouts, host = run.chained.layouts, host_target(open_target(run.target))
    products = [s for s in run.steps if _products(s.operator)]
    amounts = [s.amount for s in products if s.amount is not None]
    # Estimates in cycles are no times, and are only listed per operator.
    estimates = [s.estimated for s in products if s.estimated is not None and s.unit == "us"]
    return {
        "network": graph.name,
        "target": run.target.name,
        "units": [run.target.name],
        "threads": 1,
        "provenance": run.provenance,
        "unit": unit,
        "operators": [_step_document(run.chained, step) for step in run.steps],
        "tensors": {
            name: {
                "shape": list(kind.shape),
                "dtype": kind.dtype,
                "layout": str(layouts.written(name)),
                "conversions": [
                    {"to": str(each.read), "us": layouts.conversion_us(each, host)}
                    for each in layouts.conversions
                    if each.tensor == name
                ],
            }
            for name, kind in graph.types.items()
            if not graph.is_constant(name)
        },
        "totals": {
            "predicted_us": sum(estimates) if estimates else None,
            "measured_us": None,
            "cold_us": None,
            f"total_{unit}": sum(amounts) if amounts else None,
            "operators": len(graph.operators),
            "products": sum(_products(s.operator) for s in products),
            "embedded": sum(_products(s.operator) for s in products if s.executed_on is not None),
            "on_target": sum(
                _products(s.operator) for s in products if s.executed_on == run.target.name
            ),
            "macs": sum(_macs(graph, s.operator) for s in products),
            "host_us": sum(work.us for step in run.steps for work in step.host),
            "conversions": len(layouts.conversions),
        },
        "assignment": None,
        **provenance(),
    }


def _products(operator: Operator) -> int:
    """Return the number of products of an operator, two of a chain."""
    is_chain = isinstance(operator.kind, Attention | ProductPair)
    return 2 if is_chain else int(isinstance(operator.kind, Product))


def _macs(graph: Graph, operator: Operator) -> int:
    if isinstance(operator.kind, Attention):
        types = [graph.types[name] for name in operator.inputs]
        return sum(product.macs for product in attention_products(operator.kind, types))
    if isinstance(operator.kind, ProductPair):
        return sum(each.computation.macs for each in (operator.kind.first, operator.kind.second))
    return operator.kind.computation.macs if isinstance(operator.kind, Product) else 0


def _layouts(chained: ChainedGraph, operator: Operator) -> list[str]:
    """Return the layouts in which inputs are read, and in which outputs are written."""
    graph, layouts, parts = chained.graph, chained.layouts, chained.parts(operator)
    names = [
        *(name for name in operator.inputs if not graph.is_constant(name)),
        *operator.outputs,
    ]
    return [
        str(layouts.at(next(p for p in parts if name in (*p.inputs, *p.outputs)), name))
        for name in names
    ]


def _step_document(chained: ChainedGraph, step: StepResult) -> dict[str, Any]:
    graph, operator, kind = chained.graph, step.operator, step.operator.kind
    parts = [part.kind for part in chained.parts(operator)]
    products = [str(part.computation) for part in parts if isinstance(part, Product)]
    # The host computes the definition itself, which is compared with nothing.
    is_compared = step.executed_on is not None
    return {
        "name": operator.name,
        "kind": type(kind).__name__.lower(),
        "label": kind.label,
        "inputs": [n for n in operator.inputs if not graph.is_constant(n)],
        "outputs": list(operator.outputs),
        "layouts": _layouts(chained, operator),
        "workload": "; ".join(products) or None,
        "macs": _macs(graph, operator),
        "embedded_on": step.executed_on,
        "embedding": step.embedding,
        "family": step.family,
        "utilisation": step.utilisation,
        "fused_with": chained.parts(operator)[0].name if isinstance(kind, ProductPair) else None,
        "not_fused": None if step.executed_on is None else chained.reasons.get(operator.name),
        "reason": step.reason or (None if _products(operator) else "computed by the host"),
        "predicted_us": None,
        "measured_us": step.amount if step.unit == "us" else None,
        f"estimated_{step.unit}": step.estimated,
        f"{step.unit}": step.amount,
        "stored": step.stored,
        "host": [work.to_json() for work in step.host],
        "verified": step.verdict.verified if is_compared else None,
        "max_error": step.verdict.max_error if is_compared else None,
    }
