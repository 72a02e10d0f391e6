"""Document of a planned or compiled network: operators, tensors, totals and layouts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from cpembed.export.layout import workspace_of
from cpembed.export.program import Role
from cpembed.graph.graph import Operator
from cpembed.graph.kinds import GroupedProduct, Product
from cpembed.graph.loop import Loop
from cpembed.network.assignment.solve import policy_cost
from cpembed.network.attention import AttentionKernel
from cpembed.network.build import CompiledNetwork
from cpembed.network.convolution_methods import ConvolutionMethod
from cpembed.network.executions import WEIGHT_ONLY, Execution
from cpembed.network.observation import Verdict
from cpembed.network.pairs import followers
from cpembed.network.plan import NetworkPlan
from cpembed.network.product_kernels import family_text, utilisation
from cpembed.network.run import NetworkRun
from cpembed.runtime.measurement.environment import provenance


def network_document(
    plan: NetworkPlan, compiled: CompiledNetwork | None, run: NetworkRun | None
) -> dict[str, Any]:
    """Return operators, tensors, totals and layouts as a document, with results of a run if any.

    Parameters
    ----------
    plan : NetworkPlan
    compiled : CompiledNetwork or None
        Library of the plan, if it was compiled.
    run : NetworkRun or None
        Run of the library, if there was one.
    """
    times = None if run is None else run.times
    judged, judged_special = ((), ()) if run is None else (run.verdicts, run.special_verdicts)
    verdicts = {verdict.operator: verdict for verdict in judged}
    special = {verdict.operator: verdict for verdict in judged_special}
    measured = {} if compiled is None else _measured(compiled, run)
    return {
        "network": plan.graph.name,
        "target": plan.units.name,
        "units": list(plan.units.members),
        "threads": plan.threads,
        "provenance": "estimated" if times is None else "measured",
        "operators": [
            {
                **document,
                "measured_us": measured.get(document["name"]),
                **_verified("verified", "max_error", verdicts.get(document["name"])),
                **_verified(
                    "verified_with_special_values",
                    "max_error_with_special_values",
                    special.get(document["name"]),
                ),
                **_method_error(verdicts.get(document["name"])),
            }
            for document in _operators(plan)
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
        "spreads_nan": [verdict.operator for verdict in judged_special if verdict.spreads_nan],
        "assignment": _assignment(plan),
        **provenance(),
    }


def _verified(name: str, error: str, verdict: Verdict | None) -> dict[str, Any]:
    if verdict is None:
        return {name: None, error: None}
    return {name: verdict.verified, error: _finite(verdict.max_error)}


def _method_error(verdict: Verdict | None) -> dict[str, Any]:
    """Return the errors of a product by Winograd's method; nothing for other operators."""
    error = None if verdict is None else verdict.method_error
    if error is None:
        return {}
    growth = _finite(error.growth)
    return {"error": {"rms": error.rms, "sums_rms": error.sums_rms, "growth": growth}}


def _operators(
    plan: NetworkPlan, outer: Mapping[str, str] | None = None, steps: int = 1, prefix: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield the document of each operator, those inside loops after their loop.

    Parameters
    ----------
    plan : NetworkPlan
    outer : mapping from str to str, optional
        Names, outside of the loop, of tensors that its body reads.
    steps : int, default 1
        Number of executions in a run.
    prefix : str
        Text before the names of tensors of a body.
    """

    def name_of(name: str) -> str:
        """Return the name of a tensor; empty for a constant of outside."""
        if plan.graph.is_constant(name):
            return ""
        return (outer or {}).get(name, f"{prefix}{name}")

    separate = _separate(plan)
    for operator in plan.graph.operators:
        document = _operator(plan, operator)
        document["not_fused"] = separate.get(operator.name)
        document["inputs"] = [*filter(None, map(name_of, document["inputs"]))]
        document["outputs"] = [name_of(name) for name in document["outputs"]]
        document["steps"] = steps
        kind = operator.kind
        if not isinstance(kind, Loop):
            document["predicted_us"] *= steps
            yield document
            continue
        # Its time is that of the operators inside, which follow.
        yield document | {"predicted_us": 0.0, "reason": "its operators follow"}
        names: dict[str, str] = {}
        reads = kind.split_inputs(operator.inputs)[1:]
        for inner, tensors in zip(kind.body_inputs[1:], reads, strict=True):
            names |= dict(zip(inner, map(name_of, tensors), strict=True))
        names |= {name: f"{operator.name}/{name}" for name in kind.body_inputs[0]}
        times = steps * kind.counted_steps
        yield from _operators(plan.bodies[operator.name], names, times, f"{operator.name}/")


def _separate(plan: NetworkPlan) -> dict[str, str]:
    """Return why operators are not one kernel with the convolution before them, by their name."""
    reasons: dict[str, str] = {}
    for first, second in followers(plan.graph):
        if plan.execution(second).fused_with != first.name:
            copies = [c.cost_us for c in plan.conversions if c.tensor == first.output]
            costs = [plan.execution(operator).cost_us for operator in (first, second)]
            separate_us = math.fsum([*costs, *copies])
            reasons[second.name] = plan.choices.of_pairs.reason(first, second, separate_us)
    return reasons


def _measured(compiled: CompiledNetwork, run: NetworkRun | None) -> dict[str, float]:
    """Return the measured microseconds by operator and conversion."""
    if run is None or run.times is None:
        return {}
    steps, calls = run.times.steps_us, compiled.network.calls
    loops = {loop.name for loop in compiled.network.program.loops}
    return {name: math.fsum(steps[a:b]) for name, (a, b) in calls.items() if name not in loops}


def _operator(plan: NetworkPlan, operator: Operator) -> dict[str, Any]:
    execution = plan.execution(operator)
    document: dict[str, Any] = {
        "name": operator.name,
        "kind": type(operator.kind).__name__.lower(),
        "label": operator.kind.label,
        "inputs": [n for n in operator.inputs if not plan.graph.is_constant(n)],
        "outputs": list(operator.outputs),
        "layouts": [str(layout) for layout in execution.ports],
        "workload": None,
        "macs": 0,
        "embedded_on": None,
        "embedding": None,
        "family": None,
        "utilisation": None,
        "method": None,
        "reason": "moves no memory" if execution.aliases else None,
        "predicted_us": execution.cost_us,
        "fused_with": execution.fused_with,
    }
    if isinstance(operator.kind, Product):
        document |= _product(operator.kind, execution)
    if execution.attention is not None:
        document |= _attention(execution.attention)
    if isinstance(operator.kind, GroupedProduct):
        document |= {"macs": operator.kind.macs, "reason": WEIGHT_ONLY}
    return document


def _attention(kernel: AttentionKernel) -> dict[str, Any]:
    """Return the document of an attention's two products; its embedding is that of the scores."""
    first, second = kernel.products
    tiles = kernel.tiles
    native = first.is_native and second.is_native
    return {
        "workload": str(first.candidate.program.unfused),
        "axes": {**tiles.extents, "rows": tiles.rows, "keys": tiles.keys},
        "macs": kernel.macs,
        "embedded_on": first.target if native else None,
        "embedding": first.embedding,
        "family": family_text(first.candidate.embedding),
        "utilisation": min(first.utilisation, second.utilisation) if native else None,
        "reason": first.reason or second.reason,
    }


def _product(kind: Product, execution: Execution) -> dict[str, Any]:
    kernel = execution.kernel
    assert kernel is not None
    return {
        "workload": str(kind.computation),
        "axes": dict(kind.computation.extents),
        "macs": kind.computation.macs,
        "embedded_on": kernel.target if kernel.is_native else None,
        "embedding": kernel.embedding,
        "family": family_text(kernel.candidate.embedding),
        "utilisation": utilisation(kind.computation, kernel.utilisation)
        if kernel.is_native
        else None,
        "reason": _deferral(execution) or kernel.reason,
        **_method(execution.method),
    }


def _deferral(execution: Execution) -> str | None:
    """Return which kernel computes the first product of a pair; None for other operators."""
    return f"computed with {execution.fused_with}" if execution.is_deferred else None


def _method(method: ConvolutionMethod | None) -> dict[str, Any]:
    """Return the method of a product, and the product of matrices that it calls."""
    if method is None:
        return {"method": "implicit"}
    return {
        "method": method.name,
        "product": str(method.request.workload),
        "products": method.calls,
        "expected_growth": method.error_growth,
    }


def _tensors(plan: NetworkPlan, measured: dict[str, float], prefix: str = "") -> dict[str, Any]:
    documents: dict[str, Any] = {}
    deferred = (o for o in plan.graph.operators if plan.execution(o).is_deferred)
    # Only a band of it is ever there, in the cache of a thread.
    banded = {operator.output for operator in deferred}
    for name in plan.choices.layouts.activations:
        kind = plan.graph.types[name]
        documents[f"{prefix}{name}"] = {
            "shape": list(kind.shape),
            "dtype": kind.dtype,
            "layout": str(plan.written[name]),
            "in_memory": name not in banded,
            "conversions": [
                {
                    "to": str(conversion.target),
                    # Estimated if the network was not timed.
                    "us": measured.get(
                        f"{prefix}{name} as {conversion.target}", conversion.cost_us
                    ),
                }
                for conversion in plan.conversions
                if conversion.tensor == name
            ],
        }
    for loop, body in plan.bodies.items():
        documents |= _tensors(body, measured, f"{loop}/")
    return documents


def _memory(compiled: CompiledNetwork) -> dict[str, int]:
    program = compiled.network.program
    shared = workspace_of(program)
    unshared = sum(b.bytes for b in program.buffers if b.role is Role.WORKSPACE and not b.is_shared)
    return {
        "bytes_workspace": shared.bytes + unshared,
        "bytes_weights": sum(b.bytes for b in program.with_role(Role.CONSTANT)),
    }


def _counts(plan: NetworkPlan) -> dict[str, int]:
    nested = [*plan.nested()]
    # An attention has two products.
    kernels = [kernel for o, inner, _ in nested for kernel in inner.execution(o).kernels]
    return {
        "operators": len(nested),
        "products": len(kernels),
        "embedded": sum(kernel.is_native for kernel in kernels),
        "on_target": sum(kernel.target in plan.units.members for kernel in kernels),
        "weight_only": sum(isinstance(o.kind, GroupedProduct) for o, _, _ in nested),
        "macs": plan.macs,
        "conversions": sum(len(each.conversions) for each in plan.all_plans()),
    }


def _finite(value: float) -> float | None:
    """Return a number, or None for infinity and NaN, which JSON cannot represent."""
    return value if math.isfinite(value) else None


def _assignment(plan: NetworkPlan) -> dict[str, Any]:
    assignment, problem = plan.assignment, plan.choices.problem
    return {
        "costs": "estimated" if plan.choices.timer is None else "measured",
        "cost_us": assignment.cost,
        "bound_us": assignment.bound,
        "gap": assignment.gap,
        "proven": assignment.proven,
        "seconds": assignment.seconds,
        "options": sum(len(node.options) for node in problem.nodes),
        "layouts": sum(len(tensor.layouts) for tensor in problem.tensors),
        # What simpler choices would cost, to show what the search gained; null if impossible.
        "channels_last_us": _finite(policy_cost(problem, plan.choices.channels_last())),
        "own_best_us": _finite(policy_cost(problem, None)),
    }
