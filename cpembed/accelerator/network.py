"""Networks on an accelerator: a program for each operator, and what stays on the host, by name.

Operators are planned one after the other. All programs that read or write a tensor agree on its
layout in main memory, in which margins hold the padding that readers need. An operator whose
statements no instructions compute, or that no plan fits, is executed by the host, with the reason
and its estimated time; a change of layout that is not a mere view is host work too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.host import copy_us, host_us
from cpembed.accelerator.lowering import OperatorPlan, operator_plans
from cpembed.accelerator.matching import Match, match_statement
from cpembed.accelerator.operators import specifications
from cpembed.accelerator.operators.forms import GraphTensor, NoForm, OperatorForm
from cpembed.accelerator.problem import OperatorProblem, PlanningError
from cpembed.accelerator.program import MainTensor, Program
from cpembed.accelerator.template import default_layouts, make_template
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Reshape
from cpembed.hw.isa import InstructionSet
from cpembed.steps import Progress, silent

_MATCHES = 3
"""Maximum number of matches of one statement that are planned."""
_PROBLEMS = 6
"""Maximum number of combinations of matches of an operator that are planned."""


@dataclass(frozen=True)
class ProgramStep:
    """Operator that the accelerator executes."""

    operator: Operator
    form: OperatorForm
    plan: OperatorPlan
    program: Program


@dataclass(frozen=True)
class HostStep:
    """Operator that the host executes, with the reason; ``us`` is None without figures."""

    operator: Operator
    reason: str
    us: float | None


@dataclass(frozen=True)
class ViewStep:
    """Operator whose result has the elements of its input in the same order."""

    operator: Operator


@dataclass(frozen=True)
class LayoutStep:
    """Tensor that the host brings into another layout, where a program needs it."""

    tensor: str
    layout: MainTensor
    reason: str
    us: float | None


Step = ProgramStep | HostStep | ViewStep | LayoutStep


@dataclass(frozen=True)
class AcceleratorNetwork:
    """Network planned for an accelerator.

    Attributes
    ----------
    graph : Graph
        Prepared graph.
    steps : tuple of Step
        Steps in their order.
    """

    graph: Graph
    machine: InstructionSet
    steps: tuple[Step, ...]

    @property
    def programs(self) -> tuple[ProgramStep, ...]:
        """Steps of the accelerator."""
        return tuple(step for step in self.steps if isinstance(step, ProgramStep))

    @property
    def on_host(self) -> tuple[HostStep | LayoutStep, ...]:
        """Steps of the host that take time."""
        return tuple(step for step in self.steps if isinstance(step, HostStep | LayoutStep))

    @property
    def cycles(self) -> float:
        """Estimated cycles of all programs, one after the other."""
        return math.fsum(step.plan.cycles for step in self.programs)

    @property
    def bound_cycles(self) -> float:
        """Lower bound on the cycles of all programs that have these specifications and matches."""
        return math.fsum(step.plan.bound_cycles for step in self.programs)


def plan_network(
    graph: Graph, machine: InstructionSet, progress: Progress = silent
) -> AcceleratorNetwork:
    """Plan a prepared network for an accelerator.

    Parameters
    ----------
    graph : Graph
        Graph after :func:`~cpembed.graph.passes.prepare` with factors of int8.
    machine : InstructionSet
    progress : Progress, optional
        Told each operator by its name.
    """
    return _Planner(graph, machine, progress).network()


@dataclass(frozen=True)
class _Candidate:
    """Form of an operator with an instruction for each of its statements."""

    form: OperatorForm
    matches: tuple[Match, ...]

    def problem(self, layouts: Mapping[str, MainTensor]) -> OperatorProblem:
        return OperatorProblem(self.form.specification, self.matches, layouts=layouts)


class _Planner:
    """Plans of all operators of a network, equal ones once."""

    def __init__(self, graph: Graph, machine: InstructionSet, progress: Progress) -> None:
        self.graph = graph
        self.machine = machine
        self.progress = progress
        self.candidates: dict[str, list[_Candidate]] = {}
        self.reasons: dict[str, str] = {}
        self.layouts: dict[GraphTensor, MainTensor] = {}
        self.available: dict[str, list[tuple[GraphTensor, MainTensor] | None]] = {}
        self.plans: dict[Any, OperatorPlan | str] = {}

    def network(self) -> AcceleratorNetwork:
        for operator in self.graph.operators:
            self._find_candidates(operator)
        self._decide_layouts()
        # A caller's arrays are row-major.
        for name in self.graph.inputs:
            self.available[name] = [_row_major(self.graph, name)]
        steps: list[Step] = []
        for operator in self.graph.operators:
            self.progress(operator.name)
            steps += self._steps(operator)
        for name in self.graph.outputs:
            tensor, layout = _row_major(self.graph, name)
            steps += self._conversion(name, tensor, layout, "the caller's array is row-major")
        return AcceleratorNetwork(self.graph, self.machine, tuple(steps))

    def _find_candidates(self, operator: Operator) -> None:
        forms = specifications(operator, self.graph, self.machine)
        if isinstance(forms, NoForm):
            self.reasons[operator.name] = forms.reason
            return
        candidates: list[_Candidate] = []
        for form in forms:
            matchings = [match_statement(s, self.machine) for s in form.specification.statements]
            reason = next((m.reason for m in matchings if not m.matches), "")
            if reason:
                self.reasons.setdefault(operator.name, reason)
                continue
            combinations = itertools.product(*(m.matches[:_MATCHES] for m in matchings))
            candidates += [_Candidate(form, c) for c in itertools.islice(combinations, _PROBLEMS)]
        if candidates:
            self.candidates[operator.name] = candidates

    def _decide_layouts(self) -> None:
        """Decide the layout of each tensor from what its producer and its readers need."""
        needs: dict[GraphTensor, list[MainTensor]] = {}
        for candidates in self.candidates.values():
            for candidate in candidates:
                needed = self._needs(candidate)
                if needed:
                    for tensor, layout in needed:
                        needs.setdefault(tensor, []).append(layout)
                    break
        self.layouts = {tensor: merged_layout(layouts) for tensor, layouts in needs.items()}

    def _needs(self, candidate: _Candidate) -> list[tuple[GraphTensor, MainTensor]]:
        """Return the layouts that one candidate needs; none if it has no template."""
        try:
            template = make_template(candidate.problem({}), self.machine)
            return [
                (tensor, default_layouts(template, name)[0])
                for name, tensor in candidate.form.tensors.items()
            ]
        except PlanningError:
            return []

    def _steps(self, operator: Operator) -> Iterator[Step]:
        """Yield the step of an operator after the changes of layout that it needs."""
        if isinstance(operator.kind, Reshape):
            self.available[operator.output] = self.available.get(operator.inputs[0], [None])
            yield ViewStep(operator)
            return
        step = self._planned(operator)
        if isinstance(step, HostStep):
            for name in operator.outputs:
                # The host writes whatever layout a reader needs.
                self.available[name] = [None]
            yield step
            return
        form = step.form
        for name in form.specification.inputs:
            tensor, layout = form.tensors[name], step.program.tensors[name]
            yield from self._conversion(tensor.name, tensor, layout, f"{operator.name} reads it so")
        yield step
        for name in form.specification.outputs:
            tensor = form.tensors[name]
            self.available[tensor.name] = [(tensor, step.program.tensors[name])]

    def _conversion(
        self, name: str, tensor: GraphTensor, layout: MainTensor, reason: str
    ) -> Iterator[LayoutStep]:
        """Yield the step that provides a tensor in a layout, unless it is there already."""
        if name in self.graph.constants:
            return
        for place in self.available.get(name, [None]):
            if place is None or _is_view(self.graph, place, (tensor, layout)):
                return
        self.available[name].append((tensor, layout))
        yield LayoutStep(name, layout, reason, copy_us(layout.elements, self.machine))

    def _planned(self, operator: Operator) -> ProgramStep | HostStep:
        """Return the step of the operator's best plan, or of the host with the reason."""
        best: tuple[OperatorPlan, _Candidate] | None = None
        reason = self.reasons.get(operator.name, "no instruction computes it")
        for candidate in self.candidates.get(operator.name, []):
            plan = self._plan(candidate)
            if isinstance(plan, str):
                reason = plan
            elif best is None or plan.cycles < best[0].cycles:
                best = plan, candidate
        if best is None:
            us = host_us(operator, self.graph.types, self.machine)
            return HostStep(operator, reason, us)
        plan, candidate = best
        return ProgramStep(operator, candidate.form, plan, plan.program({}))

    def _plan(self, candidate: _Candidate) -> OperatorPlan | str:
        """Return the best plan of a candidate, or why there is none."""
        form = candidate.form
        layouts = {
            name: replace(self.layouts[tensor], name=name)
            for name, tensor in form.tensors.items()
            if tensor in self.layouts
        }
        try:
            plans = operator_plans(candidate.problem(layouts), self.machine)
        except PlanningError as error:
            return str(error)
        return plans[0] if plans else "no tiling fits"


def merged_layout(layouts: Sequence[MainTensor]) -> MainTensor:
    """Return a layout that serves all of some layouts of one tensor.

    The order of the first is kept, with the largest margins of all.
    """
    first = layouts[0]
    return replace(
        first,
        before=tuple(map(max, *(layout.before for layout in layouts), first.before)),
        after=tuple(map(max, *(layout.after for layout in layouts), first.after)),
        fill=next((layout.fill for layout in layouts if layout.fill), first.fill),
    )


def _row_major(graph: Graph, name: str) -> tuple[GraphTensor, MainTensor]:
    kind = graph.types[name]
    order = tuple(range(len(kind.shape)))
    tensor = GraphTensor(name, order, kind.shape)
    return tensor, MainTensor.dense(name, kind.shape, kind.dtype, "input")


def _is_view(
    graph: Graph, first: tuple[GraphTensor, MainTensor], second: tuple[GraphTensor, MainTensor]
) -> bool:
    """Return True if two layouts of the same elements have the same bytes, margins included."""
    if first[1].elements != second[1].elements or first[1].fill != second[1].fill:
        return False
    buffers = [_numbered(graph, tensor, layout) for tensor, layout in (first, second)]
    return np.array_equal(*buffers)


def _numbered(graph: Graph, tensor: GraphTensor, layout: MainTensor) -> NDArray[np.int64]:
    """Return a layout's buffer of the numbers of elements, from 1 on, with margins of 0."""
    kind = graph.types[tensor.name]
    numbers = np.arange(1, kind.elements + 1).reshape(kind.shape)
    return replace(layout, dtype="int64", fill=0).buffer(tensor.logical(numbers))
