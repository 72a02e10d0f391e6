"""What ``cpembed network`` does, as a library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpembed.api.solve import hardware_spec
from cpembed.errors import BackendUnavailable, InvariantError
from cpembed.export.library import EVERYTHING, Contents
from cpembed.graph.graph import Array, Graph, check_inputs
from cpembed.network.build import SEARCH_LIMIT, CompiledNetwork, compile_network, prepared_for
from cpembed.network.cache import Cache, default_folder
from cpembed.network.document import network_document, plan_document
from cpembed.network.plan import Policy, plan_network
from cpembed.network.products import Progress
from cpembed.network.run import NetworkRun, random_inputs, run_network
from cpembed.network.stepwise import StepwiseRun, run_stepwise, stepwise_document
from cpembed.targets.registry import open_target


@dataclass(frozen=True)
class Asked:
    """``folder``: where the library is written; ``policy``: how layouts are chosen; ``timeout`` of
    each search for embeddings, ``time_limit`` of the search for layouts, in seconds."""

    target: str
    folder: Path
    policy: Policy = "assigned"
    timeout: float | None = SEARCH_LIMIT
    time_limit: float = 10.0
    verifies: bool = True
    times: bool = True
    measures: bool = False
    plan_only: bool = False


@dataclass(frozen=True)
class NetworkResult:
    """``document``: what ``cpembed network --json`` prints; without a plan alone, the library and
    its run."""

    document: dict[str, Any]
    compiled: CompiledNetwork | None = None
    run: NetworkRun | StepwiseRun | None = None


def build_network(
    graph: Graph,
    target: str,
    folder: Path,
    progress: Progress,
    *,
    name: str | None = None,
    contents: Contents = EVERYTHING,
    timeout: float | None = SEARCH_LIMIT,
) -> NetworkResult:
    """Write a network's library for people to take away; it is run on random inputs and every
    operator compared with its definition before a file is written.

    Raises :class:`InvariantError` where one differs, and as
    :func:`~cpembed.network.build.compile_network` does.
    """
    found: list[NetworkRun] = []

    def check(compiled: CompiledNetwork) -> None:
        inputs = random_inputs(compiled.graph, 0)
        run = run_network(compiled, inputs, times=False, progress=progress)
        if run.failed:
            named = ", ".join(one.operator for one in run.failed[:3])
            raise InvariantError(
                f"{graph.name} on {target}: {len(run.failed)} operators differ from their "
                f"definition ({named}): please report this command line"
            )
        found.append(run)

    compiled = compile_network(
        graph,
        target,
        folder,
        name=name,
        progress=progress,
        timeout=timeout,
        contents=contents,
        check=check,
    )
    return NetworkResult(network_document(compiled, found[0]), compiled, found[0])


def network(
    graph: Graph, asked: Asked, inputs: Mapping[str, Array] | None, progress: Progress
) -> NetworkResult:
    """Plan, compile and run a network as a front end made it.

    Raises :class:`~cpembed.errors.WorkloadError` for other inputs than its own, and as
    :func:`~cpembed.network.build.compile_network` does.
    """
    spec = hardware_spec(asked.target)
    if inputs is not None:
        check_inputs(graph, inputs)
    machine = open_target(spec)
    if not machine.links or machine.triple is not None:
        if inputs is None:
            raise BackendUnavailable(f"{spec.name} has no plan of layouts: leave --plan-only out")
        found = run_stepwise(
            prepared_for(graph, spec), spec, inputs, progress=progress, timeout=asked.timeout
        )
        return NetworkResult(stepwise_document(found), run=found)
    if asked.plan_only or inputs is None:
        plan = plan_network(
            prepared_for(graph, spec),
            spec,
            cache=Cache(default_folder()),
            progress=progress,
            timeout=asked.timeout,
            time_limit=asked.time_limit,
            policy=asked.policy,
            measures=asked.measures,
        )
        return NetworkResult(plan_document(plan))
    compiled = compile_network(
        graph,
        asked.target,
        asked.folder,
        progress=progress,
        timeout=asked.timeout,
        time_limit=asked.time_limit,
        policy=asked.policy,
        measures=asked.measures,
    )
    run = run_network(
        compiled, inputs, verifies=asked.verifies, times=asked.times, progress=progress
    )
    return NetworkResult(network_document(compiled, run), compiled, run)
