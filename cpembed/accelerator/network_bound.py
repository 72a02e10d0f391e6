"""Lower bound on the cycles of a network, whatever stays on chip between its operators."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence

from cpembed.accelerator.bounds import touched_bytes, unit_cycles
from cpembed.accelerator.chain_runs import view_origins
from cpembed.accelerator.cost import busiest_cycles
from cpembed.accelerator.network_steps import HostStep, LayoutStep, ProgramStep, Step
from cpembed.accelerator.template import exact_template
from cpembed.graph.graph import Graph
from cpembed.hw.isa import InstructionSet


def network_bound(steps: Sequence[Step], graph: Graph, machine: InstructionSet) -> float:
    """Return a lower bound on the cycles of every plan of a network with the same matches.

    Between two steps of the host, units have to execute the statements of all operators, and main
    memory has to carry constants, what was computed before, and what is needed afterwards, once
    each. All else may stay on chip and overlap.

    Parameters
    ----------
    steps : sequence of Step
        Steps of the network, with a step for each operator.
    graph : Graph
    machine : InstructionSet
    """
    origins = view_origins(steps)
    return math.fsum(_run_bound(run, steps, graph, machine, origins) for run in _runs(steps))


def _runs(steps: Sequence[Step]) -> Iterator[tuple[ProgramStep, ...]]:
    """Yield the programs between steps of the host."""
    run: list[ProgramStep] = []
    for step in steps:
        if isinstance(step, HostStep | LayoutStep):
            yield tuple(run)
            run = []
        elif isinstance(step, ProgramStep):
            run.append(step)
    yield tuple(run)


def _run_bound(
    run: Sequence[ProgramStep],
    steps: Sequence[Step],
    graph: Graph,
    machine: InstructionSet,
    origins: Mapping[str, str],
) -> float:
    units: Counter[str] = Counter()
    needed = {origins.get(name, name) for name in _needed(run, steps, graph)}
    written = {name for step in run for o in step.operators for name in o.outputs}
    moved: dict[Hashable, float] = {}
    for number, step in enumerate(run):
        for plan in step.plans:
            template = exact_template(plan.problem, machine)
            units.update(unit_cycles(template))
            specification = plan.problem.specification
            for name in (*specification.constants, *specification.inputs, *specification.outputs):
                key: Hashable = (number, name)
                if name not in specification.constants:
                    if name not in step.form.tensors:
                        continue
                    key = origins.get(step.form.tensors[name].name, step.form.tensors[name].name)
                    if key in written and key not in needed:
                        continue
                moved[key] = max(moved.get(key, 0.0), touched_bytes(template, name))
    traffic = math.fsum(moved.values()) / machine.main.bytes_per_cycle
    return max(busiest_cycles(units, machine), traffic)


def _needed(run: Sequence[ProgramStep], steps: Sequence[Step], graph: Graph) -> set[str]:
    """Return the graph's tensors that other steps read."""
    needed = set(graph.outputs)
    for step in steps:
        if isinstance(step, LayoutStep):
            needed.add(step.tensor)
        elif isinstance(step, HostStep):
            needed.update(step.operator.inputs)
        elif isinstance(step, ProgramStep) and not any(step is program for program in run):
            needed.update(name for o in step.operators for name in o.inputs)
    return needed
