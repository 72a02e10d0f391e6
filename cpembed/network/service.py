"""What ``cpembed network`` does, as a library."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpembed.driver.named import hardware_spec
from cpembed.errors import BackendUnavailable, InvariantError
from cpembed.export.library import EVERYTHING, Contents, Library
from cpembed.files import write_whole
from cpembed.graph.graph import Array, Graph, check_inputs
from cpembed.hw.instruction import HardwareSpec
from cpembed.network.build import CompiledNetwork, compile_network, prepared_for
from cpembed.network.document import network_document, plan_document
from cpembed.network.plan import Planning, plan_network
from cpembed.network.run import NetworkRun, run_network
from cpembed.network.stepwise import StepwiseRun, run_stepwise, stepwise_document
from cpembed.network.verification import Judged
from cpembed.steps import Progress, silent
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
            title, how = f"# {graph.name} on {spec.name}", open_target(spec).instructions
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
    target = open_target(spec)
    return target.links and target.triple is None
