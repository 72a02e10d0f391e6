"""Networks some of whose operators run elsewhere: libraries, and functions of Python, in turn.

The operators before, between and after foreign ones are graphs by themselves, each with a library.
:func:`run_parts` is what ``cpembed network --fallback`` does.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpembed.driver.matching import network_units
from cpembed.graph.graph import Array, Graph, Operator, check_inputs
from cpembed.graph.kinds import Foreign
from cpembed.hw.instruction import HardwareSpec
from cpembed.network.build import (
    CallableNetwork,
    CompiledNetwork,
    RunningNetwork,
    compile_network,
    signature,
)
from cpembed.network.plan import Planning
from cpembed.network.run import Verdict
from cpembed.network.service import NetworkRequest, network
from cpembed.steps import Progress, silent
from cpembed.targets.units import Units

Part = Graph | Operator
"""Graph of operators that kernels compute, or a foreign operator."""


def parts_of(graph: Graph) -> list[Part]:
    """Divide a network at its foreign operators, in the order in which the parts run.

    Operators join the first part that has their inputs, so that there are as few as possible.
    """
    # Odd stages are foreign: an operator belongs to the first stage of its sort that is not before
    # those of its inputs.
    stages: dict[str, int] = {}
    by_stage: dict[int, list[Operator]] = {}
    for operator in graph.operators:
        is_foreign = isinstance(operator.kind, Foreign)
        stage = max((stages.get(name, 0) for name in operator.inputs), default=0)
        stage += stage % 2 != is_foreign
        by_stage.setdefault(stage, []).append(operator)
        stages |= dict.fromkeys(operator.outputs, stage)
    parts: list[Part] = []
    for stage in sorted(by_stage):
        if stage % 2:
            parts += by_stage[stage]
        else:
            parts.append(_graph_of(graph, by_stage[stage], len(parts)))
    return parts


def _graph_of(graph: Graph, operators: Sequence[Operator], number: int) -> Graph:
    """Return some operators as a graph, whose outputs are the tensors that other operators read."""
    written = [name for operator in operators for name in operator.outputs]
    names = {operator.name for operator in operators}
    readers = [operator for operator in graph.operators if operator.name not in names]
    read_elsewhere = {name for operator in readers for name in operator.inputs} | {*graph.outputs}
    inputs = {
        name: graph.types[name]
        for operator in operators
        for name in operator.inputs
        if name not in graph.constants and name not in written
    }
    return Graph(
        f"{graph.name}_{number}",
        inputs,
        tuple(name for name in written if name in read_elsewhere),
        {
            name: graph.constants[name]
            for operator in operators
            for name in operator.inputs
            if name in graph.constants
        },
        tuple(operators),
    )


@dataclass(repr=False)
class PartedNetwork(CallableNetwork):
    """Network of libraries and foreign operators, called with arrays.

    Attributes
    ----------
    graph : Graph
        The network.
    parts : sequence
        Loaded libraries with their graphs, and foreign operators, in the order in which they run.
    seconds : dict of str to float
        Time of each foreign operator in the last call.
    """

    graph: Graph
    parts: Sequence[tuple[Graph, RunningNetwork] | Operator]
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def __repr__(self) -> str:
        count = len(self.parts)
        return f"<network {self.graph.name} of {count} parts: {signature(self.graph)}>"

    @property
    def input_names(self) -> Sequence[str]:
        return [*self.graph.inputs]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        check_inputs(self.graph, inputs)
        values = {**self.graph.constants, **inputs}
        for part in self.parts:
            if isinstance(part, Operator):
                started = time.perf_counter()
                results = part.kind.evaluate([values[name] for name in part.inputs])
                self.seconds[part.name] = time.perf_counter() - started
                values |= zip(part.outputs, results, strict=True)
            else:
                graph, library = part
                values |= library.run({name: values[name] for name in graph.inputs})
        return {name: values[name] for name in self.graph.outputs}

    def close(self) -> None:
        for part in self.parts:
            if not isinstance(part, Operator):
                part[1].close()


@dataclass(frozen=True)
class PartsResult:
    """Results of a network with foreign operators that was run part by part.

    Attributes
    ----------
    document : dict
        ``parts``, the documents of the libraries, and ``fallback``, the foreign operators with
        their times and the number of libraries that run before each.
    outputs : mapping from str to ndarray
    failed : tuple of Verdict
        Verdicts on operators that differ from their definition.
    """

    document: dict[str, Any]
    outputs: Mapping[str, Array]
    failed: tuple[Verdict, ...]


_ROUNDS = 7
"""Number of calls of a foreign operator, whose median time is reported."""


def run_parts(
    graph: Graph, request: NetworkRequest, inputs: Mapping[str, Array], progress: Progress = silent
) -> PartsResult:
    """Compile, verify and time the libraries of a network, and time its foreign operators.

    Parameters
    ----------
    graph : Graph
    request : NetworkRequest
        Options of each library.
    inputs : mapping from str to ndarray
    progress : Progress, optional
    """
    check_inputs(graph, inputs)
    values = {**graph.constants, **inputs}
    documents: list[dict[str, Any]] = []
    fallback: list[dict[str, Any]] = []
    failed: list[Verdict] = []
    for part in parts_of(graph):
        if isinstance(part, Operator):
            results, microseconds = _timed_foreign(part, values)
            values |= zip(part.outputs, results, strict=True)
            fallback.append(
                {
                    "operator": part.name,
                    "kind": part.kind.label,
                    "measured_us": microseconds,
                    "after_parts": len(documents),
                }
            )
            continue
        result = network(part, request, {name: values[name] for name in part.inputs}, progress)
        values |= result.run.outputs
        documents.append(result.document)
        failed += result.failed
    libraries = [document["totals"]["measured_us"] for document in documents]
    document = {
        "network": graph.name,
        "target": network_units(request.target).name,
        "parts": documents,
        "fallback": fallback,
        "totals": {
            "measured_us": None if None in libraries else math.fsum(libraries),
            "fallback_us": math.fsum(entry["measured_us"] for entry in fallback),
        },
    }
    outputs = {name: values[name] for name in graph.outputs}
    return PartsResult(document, outputs, tuple(failed))


def _timed_foreign(
    operator: Operator, values: Mapping[str, Array]
) -> tuple[tuple[Array, ...], float]:
    """Return the results of a foreign operator, and its median time in microseconds."""
    arrays = [values[name] for name in operator.inputs]
    results = operator.kind.evaluate(arrays)
    times: list[float] = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        operator.kind.evaluate(arrays)
        times.append(time.perf_counter() - started)
    return results, 1e6 * statistics.median(times)


def compile_parts(
    graph: Graph,
    target: str | HardwareSpec | Units,
    folder: Path,
    threads: int,
    planning: Planning,
    *,
    check: Callable[[CompiledNetwork], None] | None = None,
) -> PartedNetwork:
    """Compile the libraries of a network with foreign operators, and load them.

    Parameters
    ----------
    graph : Graph
    target : str, HardwareSpec or Units
    folder : Path
        Folder for a folder of each library.
    threads : int
        Number of threads; 0 for as many as the process has for kernels.
    planning : Planning
    check : callable, optional
        Called with the loadable draft of each library before its files are written.
    """
    running: list[tuple[Graph, RunningNetwork] | Operator] = []
    for part in parts_of(graph):
        if isinstance(part, Operator):
            running.append(part)
        else:
            compiled = compile_network(part, target, folder / part.name, planning, check=check)
            running.append((part, compiled.open(threads)))
    return PartedNetwork(graph, running)
