"""Command ``cpembed network``: plan, compile, verify and run a network, as one JSON document."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from cpembed.driver.matching import network_units
from cpembed.errors import BackendUnavailable, InvariantError
from cpembed.export.library import EVERYTHING, Contents, Library
from cpembed.files import write_whole
from cpembed.graph.graph import Array, Graph, check_inputs
from cpembed.graph.passes.half_floats import has_half_floats
from cpembed.hw.instruction import HardwareSpec
from cpembed.network.build import CompiledNetwork, compile_network, prepared_and_named
from cpembed.network.document import network_document
from cpembed.network.inputs import random_inputs
from cpembed.network.library_cache import LibraryCache, library_key
from cpembed.network.observation import Verdict
from cpembed.network.plan import Planning, plan_network
from cpembed.network.run import NetworkRun, run_network
from cpembed.network.stepwise import StepwiseRun, run_stepwise
from cpembed.network.stepwise_document import stepwise_document
from cpembed.steps import Progress, silent
from cpembed.targets.capabilities import links_here
from cpembed.targets.chains import Chaining
from cpembed.targets.outputs import saved_file_instructions
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


def require_none(wrong: Sequence[str], fault: str, cause: str) -> None:
    """Raise :class:`InvariantError` if there is anything wrong; the message names three of it.

    Parameters
    ----------
    wrong : sequence of str
        Names of what is wrong.
    fault, cause : str
        What is wrong with it, after their number, and what is to be reported.
    """
    if wrong:
        names = ", ".join(wrong[:3])
        raise InvariantError(f"{len(wrong)} {fault} ({names}): please report this {cause}")


def _require_verified(failed: Sequence[Verdict], cause: str) -> None:
    names = [verdict.operator for verdict in failed]
    require_none(names, "operators differ from their definition", cause)


class WrongResultError(Exception):
    """Ends the build of a library whose results are wrong before any file is written."""


T = TypeVar("T")


def written_unless_wrong(folder: Path | None, write: Callable[[Path], T]) -> T | None:
    """Write a library to a folder; None if its results are wrong.

    Without a folder it is written to a temporary one, for its check alone: None is returned.
    """
    with tempfile.TemporaryDirectory(prefix="cpembed-") as scratch, suppress(WrongResultError):
        written = write(folder or Path(scratch))
        return None if folder is None else written
    return None


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
            raise WrongResultError

    def write(folder: Path) -> Library:
        return compile_network(
            graph,
            units,
            folder,
            request.planning,
            name=request.name,
            contents=request.contents,
            progress=progress,
            check=check,
        ).library

    library = written_unless_wrong(request.folder, write)
    draft, run = drafts[0]
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
        pairs=request.planning.pairs,
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
    """Raise :class:`BackendUnavailable` for a method, or pairs, that the target does not run."""
    if planning.pairs == "always" and not isinstance(open_target(units.primary), Chaining):
        raise BackendUnavailable(
            f"{units.name} runs networks product by product: leave --pairs always out"
        )
    if planning.method not in ("auto", "implicit"):
        raise BackendUnavailable(
            f"{units.name} runs networks product by product, each by its own sums: leave --method "
            f"{planning.method} out"
        )
