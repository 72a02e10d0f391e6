"""What ``cpembed network`` does, as a library."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpembed.driver.named import hardware_spec
from cpembed.errors import BackendUnavailable, InvariantError
from cpembed.export.layout import workspace_of
from cpembed.export.library import EVERYTHING, Contents, Library
from cpembed.export.program import Role
from cpembed.files import write_whole
from cpembed.graph.graph import Array, Graph, Operator, check_inputs
from cpembed.graph.kinds import Product
from cpembed.hw.instruction import HardwareSpec
from cpembed.network.assignment.policies import policy_cost
from cpembed.network.build import CompiledNetwork, compile_network, prepared_for
from cpembed.network.kernel_cache import Progress, silent
from cpembed.network.layout_problem import Execution
from cpembed.network.plan import NetworkPlan, Planning, plan_network
from cpembed.network.product_kernels import utilisation
from cpembed.network.run import NetworkRun, run_network
from cpembed.network.stepwise import StepwiseRun, run_stepwise, stepwise_document
from cpembed.network.verification import Judged
from cpembed.runtime.measurement.environment import provenance
from cpembed.targets.capabilities import links_here, saved_file_instructions
from cpembed.targets.registry import open_target


@dataclass(frozen=True)
class Asked:
    """``folder``: where the library is written, once it is verified, or the programs of a target
    without libraries; None: nowhere."""

    target: str
    folder: Path | None = None
    how: Planning = field(default_factory=Planning)
    verifies: bool = True
    times: bool = True
    name: str | None = None
    contents: Contents = EVERYTHING


@dataclass(frozen=True)
class NetworkResult:
    """``document``: what ``cpembed network --json`` prints; ``library``: what was written, None
    where an operator differs from its definition, or nothing was to be."""

    document: dict[str, Any]
    library: Library | None
    run: NetworkRun | StepwiseRun

    @property
    def failed(self) -> tuple[Judged, ...]:
        return self.run.failed

    def require(self) -> None:
        """Raises :class:`InvariantError` where an operator differs from its definition."""
        if self.failed:
            named = ", ".join(one.operator for one in self.failed[:3])
            raise InvariantError(
                f"{len(self.failed)} operators differ from their definition ({named}): please "
                "report this command line"
            )


_STEPWISE = (
    "A folder for each product of the network, numbered in the order in which they run; "
    "`network.json` says what each computes, of which tensors, and what the host does in between."
)


class _Differs(Exception):
    """Keeps a library that is wrong from being written."""


def network(
    graph: Graph, asked: Asked, inputs: Mapping[str, Array], progress: Progress = silent
) -> NetworkResult:
    """Plan, compile and run a network as a front end made it.

    Raises :class:`~cpembed.errors.WorkloadError` for other inputs than its own, and as
    :func:`~cpembed.network.build.compile_network` does.
    """
    check_inputs(graph, inputs)
    spec = hardware_spec(asked.target)
    if not _links(spec):
        found = run_stepwise(
            prepared_for(graph, spec),
            spec,
            inputs,
            progress=progress,
            timeout=asked.how.timeout,
            save=asked.folder,
        )
        document = stepwise_document(found)
        if asked.folder is not None:
            asked.folder.mkdir(parents=True, exist_ok=True)
            write_whole(asked.folder / "network.json", json.dumps(document, indent=1) + "\n")
            title, how = (
                f"# {graph.name} on {spec.name}",
                saved_file_instructions(open_target(spec)),
            )
            write_whole(asked.folder / "README.md", f"{title}\n\n{_STEPWISE}\n\n{how}\n")
        return NetworkResult(document, None, found)
    drafts: list[tuple[CompiledNetwork, NetworkRun]] = []

    def check(draft: CompiledNetwork) -> None:
        run = run_network(
            draft, inputs, verifies=asked.verifies, times=asked.times, progress=progress
        )
        drafts.append((draft, run))
        if run.failed:
            raise _Differs

    written = None
    with tempfile.TemporaryDirectory(prefix="cpembed-") as scratch, suppress(_Differs):
        written = compile_network(
            graph,
            spec,
            asked.folder or Path(scratch),
            asked.how,
            name=asked.name,
            contents=asked.contents,
            progress=progress,
            check=check,
        )
    draft, run = drafts[0]
    library = None if written is None or asked.folder is None else written.library
    return NetworkResult(network_document(draft, run), library, run)


def network_plan(
    graph: Graph, target: str, how: Planning, progress: Progress = silent
) -> dict[str, Any]:
    """The document of a network that is planned and not compiled.

    Raises :class:`BackendUnavailable` for a target that runs networks product by product.
    """
    spec = hardware_spec(target)
    if not _links(spec):
        raise BackendUnavailable(f"{spec.name} has no plan of layouts: leave --plan-only out")
    return plan_document(plan_network(prepared_for(graph, spec), spec, how, progress))


def _links(spec: HardwareSpec) -> bool:
    """Whether a library of this machine holds the target's kernels."""
    return links_here(open_target(spec))


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
