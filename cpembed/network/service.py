"""Command ``cpembed network``: plan, compile, verify and run a network, as one JSON document."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpembed.driver.matching import network_units
from cpembed.errors import BackendUnavailable, InvariantError
from cpembed.export.layout import workspace_of
from cpembed.export.library import EVERYTHING, Contents, Library
from cpembed.export.program import Role
from cpembed.files import write_whole
from cpembed.graph.graph import Array, Graph, Operator, check_inputs
from cpembed.graph.kinds import GroupedProduct, Product
from cpembed.graph.loop import Loop
from cpembed.graph.passes.half_floats import has_half_floats
from cpembed.hw.instruction import HardwareSpec
from cpembed.network.assignment.solve import policy_cost
from cpembed.network.attention import AttentionKernel
from cpembed.network.build import CompiledNetwork, compile_network, prepared_and_named
from cpembed.network.convolution_methods import ConvolutionMethod
from cpembed.network.executions import WEIGHT_ONLY, Execution
from cpembed.network.inputs import random_inputs
from cpembed.network.library_cache import LibraryCache, library_key
from cpembed.network.observation import Verdict
from cpembed.network.plan import NetworkPlan, Planning, plan_network
from cpembed.network.product_kernels import family_text, utilisation
from cpembed.network.run import NetworkRun, run_network
from cpembed.network.stepwise import StepwiseRun, run_stepwise, stepwise_document
from cpembed.runtime.measurement.environment import provenance
from cpembed.steps import Progress, silent
from cpembed.targets.capabilities import links_here, saved_file_instructions
from cpembed.targets.registry import open_target
from cpembed.targets.units import NATIVE, Units


@dataclass(frozen=True)
class NetworkRequest:
    """Options of a run.

    Attributes
    ----------
    target : str, HardwareSpec or Units
        Units of the products, as :func:`~cpembed.driver.matching.network_units` takes them.
    folder : Path, optional
        Folder for the library, once it is verified, or for the programs of a target without
        libraries.
    verifies : bool
        Compare each operator with its definition.
    times : bool
        Time the network and each operator.
    name : str, optional
        Name of the library; by default that of the network.
    contents : Contents
        Files of the library to write.
    reuses : bool
        Take an equal library that was verified before, without a run and its outputs.
    """

    target: str | HardwareSpec | Units = NATIVE
    folder: Path | None = None
    planning: Planning = field(default_factory=Planning)
    verifies: bool = True
    times: bool = True
    name: str | None = None
    contents: Contents = EVERYTHING
    reuses: bool = False


@dataclass(frozen=True)
class NetworkResult:
    """Document that ``cpembed network --json`` prints, and the library that was written, if any."""

    document: dict[str, Any]
    library: Library | None
    run: NetworkRun | StepwiseRun

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """Verdicts on operators that differ from their definition."""
        return self.run.failed

    def require(self) -> None:
        """Raise :class:`InvariantError` if an operator differs from its definition."""
        _require_verified(self.failed, "command line")


_STEPWISE_README = (
    "A folder for each product of the network, numbered in the order in which they run; "
    "`network.json` says what each computes, of which tensors, and what the host does in between."
)


def require_defined_results(draft: CompiledNetwork) -> None:
    """Run a draft on random inputs; raise :class:`InvariantError` unless results are as defined."""
    run = run_network(draft, random_inputs(draft.graph, 0), times=False, progress=silent)
    _require_verified(run.failed, "model")


def _require_verified(failed: Sequence[Verdict], cause: str) -> None:
    """Raise :class:`InvariantError` if operators differ from their definitions."""
    if failed:
        named = ", ".join(verdict.operator for verdict in failed[:3])
        raise InvariantError(
            f"{len(failed)} operators differ from their definition ({named}): please report this "
            f"{cause}"
        )


class _WrongResultError(Exception):
    """Ends the build of a library whose results are wrong before any file is written."""


def network(
    graph: Graph, request: NetworkRequest, inputs: Mapping[str, Array], progress: Progress = silent
) -> NetworkResult:
    """Plan, compile, verify and run a network, and write its library if asked to.

    Parameters
    ----------
    graph : Graph
        Network as a front end made it.
    request : NetworkRequest
    inputs : mapping from str to ndarray
    progress : Progress, optional

    Raises
    ------
    WorkloadError
        If the inputs are not those of the network.
    LoweringError, BackendUnavailable
        As :func:`~cpembed.network.build.compile_network` raises them.
    """
    check_inputs(graph, inputs)
    units = network_units(request.target)
    if not links(units):
        _require_implicit(units, request.planning)
        return _network_stepwise(graph, units, request, inputs, progress)
    libraries = LibraryCache(request.planning.cache)
    key = None
    if request.reuses and request.folder is not None:
        key = library_key(graph, units, request.planning, request.name, request.contents)
        reused = None if key is None else libraries.copied(key, request.folder)
        if reused is not None:
            library, document = reused
            return NetworkResult({**document, "reused": True}, library, NetworkRun({}, (), None))
    # A draft is loaded and run before any file of the library is written, so that a wrong library
    # never is. Its document is returned in either case.
    drafts: list[tuple[CompiledNetwork, NetworkRun]] = []

    def check(draft: CompiledNetwork) -> None:
        run = run_network(
            draft, inputs, verifies=request.verifies, times=request.times, progress=progress
        )
        drafts.append((draft, run))
        if run.failed:
            raise _WrongResultError

    compiled = None
    with tempfile.TemporaryDirectory(prefix="cpembed-") as scratch, suppress(_WrongResultError):
        compiled = compile_network(
            graph,
            units,
            request.folder or Path(scratch),
            request.planning,
            name=request.name,
            contents=request.contents,
            progress=progress,
            check=check,
        )
    draft, run = drafts[0]
    # Without a folder the library was only needed for the run, and its files are gone.
    library = None if compiled is None or request.folder is None else compiled.library
    document = {**network_document(draft.plan, draft, run), **float_types(graph, units)}
    if key is not None and library is not None:
        libraries.store(key, library, document)
    return NetworkResult(document, library, run)


def _network_stepwise(
    graph: Graph,
    units: Units,
    request: NetworkRequest,
    inputs: Mapping[str, Array],
    progress: Progress,
) -> NetworkResult:
    """Run a network product by product, on a target that no library of this machine holds."""
    stepwise = run_stepwise(
        prepared_and_named(graph, units),
        units.primary,
        inputs,
        progress=progress,
        timeout=request.planning.timeout,
        save=request.folder,
    )
    document = {**stepwise_document(stepwise), **float_types(graph, units)}
    if request.folder is not None:
        request.folder.mkdir(parents=True, exist_ok=True)
        write_whole(request.folder / "network.json", json.dumps(document, indent=1) + "\n")
        title = f"# {graph.name} on {units.name}"
        instructions = saved_file_instructions(open_target(units.primary))
        text = f"{title}\n\n{_STEPWISE_README}\n\n{instructions}\n"
        write_whole(request.folder / "README.md", text)
    return NetworkResult(document, None, stepwise)


def network_plan(
    graph: Graph,
    target: str | HardwareSpec | Units,
    planning: Planning,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Plan a network without compiling it, and return the document with estimated times.

    Parameters
    ----------
    graph : Graph
        Network as a front end made it.
    target : str, HardwareSpec or Units
        As :func:`~cpembed.driver.matching.network_units` takes it.
    planning : Planning
    progress : Progress, optional

    Raises
    ------
    BackendUnavailable
        For a target that runs networks product by product.
    """
    units = network_units(target)
    if not links(units):
        raise BackendUnavailable(f"{units.name} has no plan of layouts: leave --plan-only out")
    plan = plan_network(prepared_and_named(graph, units), units, planning, progress)
    return {**network_document(plan, None, None), **float_types(graph, units)}


def float_types(graph: Graph, units: Units) -> dict[str, Any]:
    """Return the types in which a network's floats are computed."""
    return {
        "floats": units.float_type,
        "float16_as": "float32" if has_half_floats(graph) else None,
    }


def links(units: Units) -> bool:
    """True if a library of this machine can hold the kernels of the units."""
    return links_here(open_target(units.primary))


def _require_implicit(units: Units, planning: Planning) -> None:
    """Raise :class:`BackendUnavailable` if a method is insisted on that the target does not run."""
    if planning.method not in ("auto", "implicit"):
        raise BackendUnavailable(
            f"{units.name} runs networks product by product, each by its own sums: leave --method "
            f"{planning.method} out"
        )


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

    for operator in plan.graph.operators:
        document = _operator(plan, operator)
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
