"""Run of a planned network: programs are executed on the generated executor, the rest in numpy.

Every program is compared with its specification on the data that it had, and the specification with
the operator's definition, so that a difference is reported where it arises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cpembed.accelerator.division import host_values
from cpembed.accelerator.executor import (
    ProgramRuns,
    Run,
    compile_executor,
    execute,
    largest_difference,
    rounding_tolerance,
)
from cpembed.accelerator.graph_layouts import GraphLayout
from cpembed.accelerator.network_steps import (
    AcceleratorNetwork,
    LayoutStep,
    ProgramStep,
    Step,
    ViewStep,
)
from cpembed.accelerator.operators.forms import GraphTensor
from cpembed.accelerator.program import MainTensor
from cpembed.graph.graph import Array, Operator, check_inputs
from cpembed.steps import Progress, silent


@dataclass(frozen=True, kw_only=True)
class StepRun(ProgramRuns):
    """Outcome of the programs of one step, compared with their specification.

    Attributes
    ----------
    deviation : float
        Largest difference of the results from the operators' definitions; of a tensor that stays
        on chip, of the specification from its operator's definition.
    """

    step: ProgramStep
    deviation: float = 0.0


@dataclass(frozen=True)
class NetworkRun:
    """Outcome of a run: the network's outputs, and each program's counts."""

    outputs: Mapping[str, Array]
    steps: tuple[StepRun, ...]

    @property
    def cycles(self) -> float:
        """Cycles of all programs, one after the other."""
        return math.fsum(step.cycles for step in self.steps)

    @property
    def is_right(self) -> bool:
        """True if every program computes its specification."""
        return all(step.is_right for step in self.steps)


def run_network(
    network: AcceleratorNetwork,
    inputs: Mapping[str, Array],
    seed: int = 0,
    progress: Progress = silent,
) -> NetworkRun:
    """Run a network.

    Parameters
    ----------
    network : AcceleratorNetwork
    inputs : mapping of str to ndarray
        Array of each input, with exactly the network's types.
    seed : int
        Seed of the order in which units execute where signals leave it open.
    progress : Progress, optional
        Told each operator by its name.

    Raises
    ------
    ExecutionFault
        If a program does what the machine leaves undefined.
    """
    graph = network.graph
    check_inputs(graph, inputs)
    values: dict[str, Array] = {**graph.constants, **inputs}
    if any(isinstance(step, ProgramStep) for step in network.steps):
        progress("compiling the machine's executor, once", 0, len(network.steps))
        compile_executor(network.machine)
    memory = MainMemory()
    outcomes: list[StepRun] = []
    views = {s.operator.output: s.operator for s in network.steps if isinstance(s, ViewStep)}
    for number, step in enumerate(network.steps):
        if isinstance(step, LayoutStep):
            memory.drop(step.tensor)
            continue
        progress(_label(step), number, len(network.steps))
        if isinstance(step, ProgramStep):
            outcome, results = _run_step(memory, step, values, seed)
            deviation = _deviation(step, views, values, results)
            values |= results
            outcomes.append(replace(outcome, deviation=deviation))
            continue
        defined = step.operator.kind.evaluate([values[name] for name in step.operator.inputs])
        values |= zip(step.operator.outputs, defined, strict=True)
    return NetworkRun({name: values[name] for name in graph.outputs}, tuple(outcomes))


def _label(step: Step) -> str:
    if isinstance(step, LayoutStep):
        return step.tensor
    return step.name if isinstance(step, ProgramStep) else step.operator.name


def _deviation(
    step: ProgramStep,
    views: Mapping[str, Operator],
    values: Mapping[str, Array],
    results: Mapping[str, Array],
) -> float:
    """Return the largest difference of results from the operators' definitions on their inputs."""
    arrays = {**values, **results}

    def array(name: str) -> Array:
        """Return a tensor, which may be a view of one that the step itself writes."""
        if name not in arrays:
            view = views[name]
            (arrays[name],) = view.kind.evaluate([array(source) for source in view.inputs])
        return arrays[name]

    deviation = 0.0
    for operator in step.operators:
        defined = operator.kind.evaluate([array(name) for name in operator.inputs])
        for name, expected in zip(operator.outputs, defined, strict=True):
            deviation = max(deviation, largest_difference(results[name], expected))
    return deviation


class MainMemory:
    """Buffers as programs leave them, with whatever their margins hold."""

    def __init__(self) -> None:
        self.buffers: dict[str, tuple[GraphLayout, Array]] = {}

    def drop(self, tensor: str) -> None:
        """Drop the buffer of a tensor that the host replaces."""
        self.buffers.pop(tensor, None)

    def buffer(self, tensor: GraphTensor, layout: MainTensor, array: Array) -> Array:
        """Return the buffer that a program reads: the one that is there, or a new one."""
        present = self.buffers.get(tensor.name)
        if present is not None and present[0] == GraphLayout(tensor, layout.anonymous):
            return present[1]
        return layout.buffer(tensor.logical(array))

    def keep(self, tensor: GraphTensor, layout: MainTensor, buffer: Array) -> None:
        """Keep what a program wrote."""
        self.buffers[tensor.name] = GraphLayout(tensor, layout.anonymous), buffer


def _run_step(
    memory: MainMemory, step: ProgramStep, values: Mapping[str, Array], seed: int
) -> tuple[StepRun, dict[str, Array]]:
    """Execute a step; return its outcome and the tensors that it writes in the graph's shapes."""
    form, specification = step.form, step.form.specification
    arrays = {
        name: form.tensors[name].logical(values[form.tensors[name].name])
        for name in specification.inputs
    }
    contents = {**specification.constants, **arrays}
    runs: list[Run] = []
    # Tensors between the programs of the step.
    inside: dict[str, Array] = {}
    for number, program in enumerate(step.programs):
        contents |= host_values(step.host, number, contents)
        assert program.specification is not None
        # Statements that several instructions compute have constants of their own.
        contents |= program.specification.constants
        buffers = {
            name: memory.buffer(form.tensors[name], layout, values[form.tensors[name].name])
            if name in arrays
            else inside.get(name, layout.buffer(contents.get(name)))
            for name, layout in program.tensors.items()
        }
        run = execute(program, buffers, seed)
        for name in program.specification.outputs:
            contents[name] = program.tensors[name].array(run.buffers[name])
            if name in form.tensors:
                memory.keep(form.tensors[name], program.tensors[name], run.buffers[name])
            else:
                inside[name] = run.buffers[name]
        runs.append(run)
    contents |= host_values(step.host, len(step.programs), contents)
    expected = specification.evaluate(arrays)
    error = tolerance = 0.0
    results: dict[str, Array] = {}
    for name in dict.fromkeys(s.output.tensor for s in specification.statements):
        actual = expected[name]
        if name in specification.outputs:
            actual = contents[name]
            error = max(error, largest_difference(actual, expected[name]))
            tolerance = max(tolerance, rounding_tolerance(expected[name]))
        if name in form.tensors:
            tensor = form.tensors[name]
            results[tensor.name] = tensor.graph_array(actual)
    return StepRun(step=step, runs=tuple(runs), error=error, tolerance=tolerance), results
