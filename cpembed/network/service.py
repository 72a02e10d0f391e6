"""What ``cpembed network`` does, as a library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpembed.api.solve import hardware_spec
from cpembed.graph.graph import Array, Graph, check_inputs
from cpembed.network.build import SEARCH_LIMIT, CompiledNetwork, compile_network, prepared_for
from cpembed.network.cache import Cache, default_folder
from cpembed.network.document import network_document, plan_document
from cpembed.network.plan import Policy, plan_network
from cpembed.network.products import Progress
from cpembed.network.run import NetworkRun, run_network


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
    plan_only: bool = False


@dataclass(frozen=True)
class NetworkResult:
    """``document``: what ``cpembed network --json`` prints; without a plan alone, the library and
    its run."""

    document: dict[str, Any]
    compiled: CompiledNetwork | None = None
    run: NetworkRun | None = None


def network(
    graph: Graph, asked: Asked, inputs: Mapping[str, Array] | None, progress: Progress
) -> NetworkResult:
    """Plan, compile and run a network as a front end made it.

    Raises :class:`~cpembed.errors.WorkloadError` for other inputs than its own, and as
    :func:`~cpembed.network.build.compile_network` does.
    """
    if inputs is not None:
        check_inputs(graph, inputs)
    if asked.plan_only or inputs is None:
        spec = hardware_spec(asked.target)
        plan = plan_network(
            prepared_for(graph, spec),
            spec,
            cache=Cache(default_folder()),
            progress=progress,
            timeout=asked.timeout,
            time_limit=asked.time_limit,
            policy=asked.policy,
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
    )
    run = run_network(
        compiled, inputs, verifies=asked.verifies, times=asked.times, progress=progress
    )
    return NetworkResult(network_document(compiled, run), compiled, run)
