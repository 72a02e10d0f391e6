"""What ``cpembed network`` says, as one JSON document."""

from __future__ import annotations

import math
from typing import Any

from cpembed.export.layout import workspace_of
from cpembed.export.program import Role
from cpembed.graph.graph import Operator
from cpembed.graph.kinds import Product
from cpembed.ir.computation import Computation
from cpembed.network.build import CompiledNetwork
from cpembed.network.comparison import policy_cost
from cpembed.network.options import Execution
from cpembed.network.plan import NetworkPlan
from cpembed.network.run import NetworkRun
from cpembed.network.verification import Judged
from cpembed.runtime.measurement.environment import provenance


def plan_document(plan: NetworkPlan) -> dict[str, Any]:
    """Of a plan that was not compiled: its times are estimated."""
    return _document(plan, None, None)


def network_document(compiled: CompiledNetwork, run: NetworkRun | None) -> dict[str, Any]:
    """Operators, tensors, totals, the choice of layouts; ``run``: what executing it found."""
    return _document(compiled.plan, compiled, run)


def _document(
    plan: NetworkPlan, compiled: CompiledNetwork | None, run: NetworkRun | None
) -> dict[str, Any]:
    times = None if run is None else run.times
    judged = {one.operator: one for one in run.judged} if run is not None else {}
    special = {one.operator: one for one in run.special} if run is not None else {}
    measured = {} if compiled is None else _measured(compiled, run)
    return {
        "network": plan.graph.name,
        "target": plan.target.name,
        "threads": plan.threads,
        "provenance": "estimated" if times is None else "measured",
        "operators": [
            {
                **_operator(plan, operator),
                "measured_us": measured.get(operator.name),
                **_verified("verified", "max_error", judged.get(operator.name)),
                **_verified(
                    "verified_with_special_values",
                    "max_error_with_special_values",
                    special.get(operator.name),
                ),
            }
            for operator in plan.graph.operators
        ],
        "tensors": _tensors(plan, measured),
        "totals": {
            "predicted_us": plan.assignment.cost,
            "measured_us": None if times is None else times.warm_us,
            "cold_us": None if times is None else times.cold_us,
            "rounds": None if times is None else times.rounds,
            **({} if compiled is None else _memory(compiled)),
            **_counts(plan),
        },
        "special_inputs": [] if run is None else list(run.special_inputs),
        "spreads_nan": [] if run is None else [o.operator for o in run.special if o.spreads_nan],
        "assignment": _assignment(plan),
        **provenance(),
    }


def _verified(name: str, error: str, judged: Judged | None) -> dict[str, Any]:
    if judged is None:
        return {name: None, error: None}
    return {name: judged.verified, error: finite(judged.max_error)}


def _measured(compiled: CompiledNetwork, run: NetworkRun | None) -> dict[str, float]:
    """Microseconds by operator and conversion."""
    if run is None or run.times is None:
        return {}
    steps = run.times.steps_us
    return {name: math.fsum(steps[a:b]) for name, (a, b) in compiled.network.calls.items()}


def _operator(plan: NetworkPlan, operator: Operator) -> dict[str, Any]:
    execution = plan.execution(operator)
    activations = [n for n in operator.inputs if not plan.graph.is_constant(n)]
    document: dict[str, Any] = {
        "name": operator.name,
        "kind": type(operator.kind).__name__.lower(),
        "label": operator.kind.label,
        "inputs": activations,
        "outputs": list(operator.outputs),
        "layouts": [str(layout) for layout in execution.ports],
        "workload": None,
        "macs": 0,
        "embedded_on": None,
        "embedding": None,
        "family": None,
        "utilisation": None,
        "reason": "moves no memory" if execution.aliases else None,
        "predicted_us": execution.cost_us,
    }
    if isinstance(operator.kind, Product):
        document |= _product(operator.kind, execution)
    return document


def _product(kind: Product, execution: Execution) -> dict[str, Any]:
    layer = execution.layer
    assert layer is not None
    family = layer.candidate.embedding.family
    words = ", ".join(f"{axis}: {' '.join(of) or '-'}" for axis, of in family.items())
    return {
        "workload": str(kind.computation),
        "axes": dict(kind.computation.extents),
        "macs": kind.computation.macs,
        "embedded_on": layer.target if layer.is_native else None,
        "embedding": layer.embedding,
        "family": words,
        "utilisation": utilisation(kind.computation, layer.utilisation)
        if layer.is_native
        else None,
        "reason": layer.reason,
    }


def utilisation(workload: Computation, of_laid_out: float) -> float:
    """The useful share of what is executed for a product. A product on laid-out tensors, whose
    share is given, does not know which zeros were inserted into an image."""
    return of_laid_out * workload.useful_macs / workload.macs


def _tensors(plan: NetworkPlan, measured: dict[str, float]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in plan.ways.layouts.activations:
        kind = plan.graph.types[name]
        found[name] = {
            "shape": list(kind.shape),
            "dtype": kind.dtype,
            "layout": str(plan.written[name]),
            "conversions": [
                {
                    "to": str(done.target),
                    "us": measured.get(f"{name} as {done.target}", done.cost_us),
                }
                for done in plan.conversions
                if done.tensor == name
            ],
        }
    return found


def _memory(compiled: CompiledNetwork) -> dict[str, int]:
    program = compiled.network.program
    shared = workspace_of(program)
    own = sum(b.bytes for b in program.buffers if b.role is Role.WORKSPACE and not b.is_shared)
    return {
        "bytes_workspace": shared.bytes + own,
        "bytes_weights": sum(b.bytes for b in program.with_role(Role.CONSTANT)),
    }


def _counts(plan: NetworkPlan) -> dict[str, int]:
    layers = [e.layer for e in plan.executions.values() if e.layer is not None]
    kinds = [o.kind for o in plan.graph.operators if isinstance(o.kind, Product)]
    return {
        "operators": len(plan.graph.operators),
        "products": len(kinds),
        "embedded": sum(layer.is_native for layer in layers),
        "on_target": sum(layer.spec == plan.target for layer in layers),
        "macs": sum(kind.computation.macs for kind in kinds),
        "conversions": len(plan.conversions),
    }


def finite(value: float) -> float | None:
    """A number that JSON has."""
    return value if math.isfinite(value) else None


def _assignment(plan: NetworkPlan) -> dict[str, Any]:
    chosen, problem = plan.assignment, plan.ways.problem
    return {
        "costs": "estimated" if plan.ways.measuring is None else "measured",
        "cost_us": chosen.cost,
        "bound_us": chosen.bound,
        "gap": chosen.gap,
        "proven": chosen.proven,
        "seconds": chosen.seconds,
        "options": sum(len(node.options) for node in problem.nodes),
        "layouts": sum(len(tensor.layouts) for tensor in problem.tensors),
        "channels_last_us": finite(policy_cost(problem, plan.ways.channels_last())),
        "own_best_us": finite(policy_cost(problem, None)),
    }
