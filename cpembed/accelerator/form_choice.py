"""Choice of one form for each operator, such that few tensors change their layout.

An operator may have several forms, whose programs find a tensor in different layouts: pixels as one
dimension, or rows and columns with margins. Layouts are chosen over the whole network, with the
cycles of programs and of changes of layout, by :mod:`cpembed.network.assignment`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cpembed.accelerator.division import Division, HostPart
from cpembed.accelerator.graph_layouts import GraphLayout, LayoutKey, merged_layout
from cpembed.accelerator.host import copy_cycles
from cpembed.accelerator.operator_search import Plans
from cpembed.accelerator.operators.forms import OperatorForm
from cpembed.accelerator.program import MainTensor, Program
from cpembed.graph.graph import Graph, Operator
from cpembed.hw.isa import InstructionSet
from cpembed.network.assignment.problem import ANY, Node, Option, Problem, Tensor
from cpembed.network.assignment.solve import assign

Outcome = tuple[Division, ...] | str
"""Best plans of a form, in its own order of dimensions and in another; or why there are none."""


@dataclass(frozen=True)
class PlannedForm:
    """Best plans of an operator with the form that they compute."""

    form: OperatorForm
    division: Division
    machine: InstructionSet

    @property
    def plans(self) -> Plans:
        return self.division.plans

    @cached_property
    def host(self) -> tuple[HostPart, ...]:
        return self.division.host_parts(self.form.specification, self.machine)

    @property
    def cycles(self) -> float:
        """Cycles of the programs, and those that pass while the host computes its parts."""
        host = math.fsum(part.us or 0.0 for part in self.host)
        return math.fsum(plan.cost.cycles for plan in self.plans) + host * self.machine.clock_mhz

    @cached_property
    def views(self) -> dict[str, GraphLayout]:
        """Tensor of the graph, with its layout, of each tensor of the form."""
        views: dict[str, GraphLayout] = {}
        for plan in self.plans:
            for name, layout in plan.program().tensors.items():
                if name in self.form.tensors:
                    views.setdefault(name, GraphLayout(self.form.tensors[name], layout))
        return views

    @cached_property
    def keys(self) -> dict[str, LayoutKey]:
        """Layout of each tensor of the graph, but for its margins."""
        return {view.tensor.name: view.key for view in self.views.values()}


def keep_better(best: dict[Hashable, PlannedForm], planned: PlannedForm) -> None:
    """Keep the faster of plans that find all tensors in the same layouts."""
    key = tuple(sorted(planned.keys.items()))
    if key not in best or planned.cycles < best[key].cycles:
        best[key] = planned


def temporary_layouts(planned: PlannedForm) -> dict[str, MainTensor]:
    """Return the layouts of tensors that only the specification has, between its programs."""
    needs: dict[str, list[MainTensor]] = {}
    for plan in planned.plans:
        for name, layout in plan.program().tensors.items():
            if name not in planned.form.tensors and layout.role != "constant":
                needs.setdefault(name, []).append(layout)
    return {name: merged_layout(layouts) for name, layouts in needs.items()}


def disagreement(form: OperatorForm, programs: Sequence[Program]) -> str:
    """Return a tensor of the specification that programs find in different layouts, or nothing."""
    layouts: dict[str, MainTensor] = {}
    for program in programs:
        for name, tensor in program.tensors.items():
            plain = replace(tensor, role="")
            is_temporary = name not in form.tensors and tensor.role != "constant"
            if is_temporary and layouts.setdefault(name, plain) != plain:
                return name
    return ""


Candidates = Mapping[str, Sequence[PlannedForm]]
"""Candidates of each operator that the machine executes."""


@dataclass(frozen=True)
class FormChoice:
    """Chosen forms, by operator, layouts with the margins that they need, and the cycles."""

    forms: Mapping[str, PlannedForm]
    layouts: Mapping[LayoutKey, MainTensor]
    cycles: float


class FormChooser:
    """Search for the choice.

    Parameters
    ----------
    graph : Graph
    machine : InstructionSet
    candidates : mapping of str to sequence of PlannedForm
        Candidates of each operator that the machine executes.
    """

    def __init__(self, graph: Graph, machine: InstructionSet, candidates: Candidates) -> None:
        self.graph, self.machine = graph, machine
        self.candidates = candidates
        # A caller's arrays are row-major.
        self.row_major = {
            name: GraphLayout.row_major(name, graph.types[name])
            for name in (*graph.inputs, *graph.outputs)
        }
        self.layouts: dict[LayoutKey, MainTensor] = {}
        self.keys: dict[str, list[LayoutKey]] = {}

    def choice(self) -> FormChoice:
        """Return the choice of the fewest cycles.

        Layouts have the margins that all candidates need, and then those that the chosen ones need,
        among which candidates that need no more are chosen from again: margins may be what keeps
        two layouts from having the same bytes.
        """
        first = self._choice(self.candidates)
        needed = self._merged({name: [form] for name, form in first.forms.items()})
        if needed == first.layouts:
            return first
        fitting = {
            name: [form for form in each if _fits(form, needed)]
            for name, each in self.candidates.items()
        }
        return min(first, self._choice(fitting), key=lambda choice: choice.cycles)

    def _choice(self, candidates: Candidates) -> FormChoice:
        """Return the best choice among some candidates of each operator."""
        self.layouts = self._merged(candidates)
        self.keys = {}
        for key in self.layouts:
            self.keys.setdefault(key[0].name, []).append(key)
        nodes = tuple(self._node(o, candidates.get(o.name, ())) for o in self.graph.operators)
        names = dict.fromkeys(self.graph.inputs)
        names |= dict.fromkeys(name for node in nodes for name in node.writes)
        assignment = assign(Problem(nodes, tuple(map(self._tensor, names))))
        forms = {name: each[assignment.options[name]] for name, each in candidates.items()}
        return FormChoice(forms, self.layouts, assignment.cost)

    def _merged(self, candidates: Candidates) -> dict[LayoutKey, MainTensor]:
        """Return layouts that serve all of some candidates."""
        layouts: dict[LayoutKey, list[MainTensor]] = {}
        views = [view for each in candidates.values() for c in each for view in c.views.values()]
        for view in (*views, *self.row_major.values()):
            layouts.setdefault(view.key, []).append(view.layout)
        return {key: merged_layout(each) for key, each in layouts.items()}

    def _node(self, operator: Operator, candidates: Sequence[PlannedForm]) -> Node:
        reads = tuple(
            name for name in dict.fromkeys(operator.inputs) if not self.graph.is_constant(name)
        )
        ports = (*reads, *operator.outputs)
        options = tuple(
            Option(str(n), tuple(self._number(candidate, p) for p in ports), candidate.cycles)
            for n, candidate in enumerate(candidates)
        )
        free = (Option("host", (ANY,) * len(ports), 0.0),)
        return Node(operator.name, reads, operator.outputs, options or free)

    def _number(self, candidate: PlannedForm, name: str) -> int:
        key = candidate.keys.get(name)
        return ANY if key is None else self.keys[name].index(key)

    def _tensor(self, name: str) -> Tensor:
        keys = self.keys.get(name, [])
        layouts = [GraphLayout(key[0], self.layouts[key]) for key in keys]
        cycles = copy_cycles(self.graph.types[name].elements, self.machine)
        conversion = {
            (a, b): 0.0 if first.has_bytes_of(second) else cycles
            for a, first in enumerate(layouts)
            for b, second in enumerate(layouts)
            if a != b
        }
        row_major = None
        if name in self.row_major:
            row_major = keys.index(self.row_major[name].key)
        return Tensor(
            name,
            tuple(map(str, range(max(1, len(keys))))),
            conversion,
            row_major if name in self.graph.inputs else None,
            () if name not in self.graph.outputs or row_major is None else (row_major,),
        )


def _fits(candidate: PlannedForm, layouts: Mapping[LayoutKey, MainTensor]) -> bool:
    """True if a candidate needs no layouts but these, and no wider margins."""
    for view in candidate.views.values():
        layout = layouts.get(view.key)
        if layout is None or merged_layout([layout, view.layout]) != layout:
            return False
    return True
