"""Choice of one form for each operator, such that few tensors change their layout.

An operator may have several forms, whose programs find a tensor in different layouts: pixels as one
dimension, or rows and columns with margins. Layouts are chosen over the whole network, with the
cycles of programs and of changes of layout, by :mod:`cpembed.network.assignment`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from cpembed.accelerator.division import Division, HostPart
from cpembed.accelerator.host import copy_cycles
from cpembed.accelerator.operator_search import Plans
from cpembed.accelerator.operators.forms import GraphTensor, OperatorForm
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
    def views(self) -> dict[str, View]:
        """Tensor of the graph, with its layout, of each tensor of the form."""
        views: dict[str, View] = {}
        for plan in self.plans:
            for name, layout in plan.program().tensors.items():
                if name in self.form.tensors:
                    views.setdefault(name, (self.form.tensors[name], layout))
        return views

    @cached_property
    def candidate(self) -> Candidate:
        return Candidate(self.cycles, tuple(self.views.values()))


def keep_better(best: dict[Hashable, PlannedForm], planned: PlannedForm) -> None:
    """Keep the faster of plans that find all tensors in the same layouts."""
    key = tuple(sorted(planned.candidate.keys.items()))
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


LayoutKey = tuple[GraphTensor, tuple[int, ...], tuple[tuple[int, int], ...]]
"""Shape of a graph's tensor in a specification, with the order and the blocks of its layout."""

View = tuple[GraphTensor, MainTensor]


def layout_key(view: View) -> LayoutKey:
    """Return what two layouts have in common that differ in margins alone."""
    tensor, layout = view
    return tensor, layout.order, tuple(sorted(layout.blocks.items()))


@dataclass(frozen=True)
class Candidate:
    """Form of an operator with its cycles, and the layouts in which its programs find tensors."""

    cycles: float
    views: tuple[View, ...]

    @property
    def keys(self) -> dict[str, LayoutKey]:
        """Layout of each tensor of the graph."""
        return {tensor.name: layout_key((tensor, layout)) for tensor, layout in self.views}


@dataclass(frozen=True)
class FormChoice:
    """Chosen candidates, by operator, layouts with the margins that they need, and the cycles."""

    numbers: Mapping[str, int]
    layouts: Mapping[LayoutKey, MainTensor]
    cycles: float


@dataclass
class FormChooser:
    """Search for the choice.

    Attributes
    ----------
    candidates : mapping of str to sequence of Candidate
        Candidates of each operator that the machine executes.
    row_major : mapping of str to View
        Layouts of the network's inputs and outputs.
    are_equal : callable
        Test whether two layouts have the same bytes.
    """

    graph: Graph
    machine: InstructionSet
    candidates: Mapping[str, Sequence[Candidate]]
    row_major: Mapping[str, View]
    are_equal: Callable[[View, View], bool]
    layouts: dict[LayoutKey, MainTensor] = field(default_factory=dict[LayoutKey, MainTensor])
    keys: dict[str, list[LayoutKey]] = field(default_factory=dict[str, "list[LayoutKey]"])
    numbers: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])

    def choice(self) -> FormChoice:
        """Return the choice of the fewest cycles.

        Layouts have the margins that all candidates need, and then those that the chosen ones need,
        among which candidates that need no more are chosen from again: margins may be what keeps
        two layouts from having the same bytes.
        """
        first = self._choice({name: range(len(each)) for name, each in self.candidates.items()})
        selected = {name: [self.candidates[name][n]] for name, n in first.numbers.items()}
        needed = self._merged(selected)
        if needed == first.layouts:
            return first
        fitting = {
            name: [n for n, candidate in enumerate(each) if _fits(candidate, needed)]
            for name, each in self.candidates.items()
        }
        return min(first, self._choice(fitting), key=lambda choice: choice.cycles)

    def _choice(self, numbers: Mapping[str, Sequence[int]]) -> FormChoice:
        """Return the best choice among some candidates of each operator, by their numbers."""
        self.numbers = numbers
        self.layouts = self._merged(
            {name: [self.candidates[name][n] for n in each] for name, each in numbers.items()}
        )
        self.keys = {}
        for key in self.layouts:
            self.keys.setdefault(key[0].name, []).append(key)
        nodes = tuple(map(self._node, self.graph.operators))
        names = dict.fromkeys(self.graph.inputs)
        names |= dict.fromkeys(name for node in nodes for name in node.writes)
        assignment = assign(Problem(nodes, tuple(map(self._tensor, names))))
        selected_numbers = {
            name: numbers[name][assignment.options[name]] for name in self.candidates
        }
        return FormChoice(selected_numbers, self.layouts, assignment.cost)

    def _merged(self, candidates: Mapping[str, Sequence[Candidate]]) -> dict[LayoutKey, MainTensor]:
        """Return layouts that serve all of some candidates."""
        layouts: dict[LayoutKey, list[MainTensor]] = {}
        views = [view for each in candidates.values() for c in each for view in c.views]
        for view in (*views, *self.row_major.values()):
            layouts.setdefault(layout_key(view), []).append(view[1])
        return {key: merged_layout(each) for key, each in layouts.items()}

    def _node(self, operator: Operator) -> Node:
        reads = tuple(
            name for name in dict.fromkeys(operator.inputs) if not self.graph.is_constant(name)
        )
        ports = (*reads, *operator.outputs)
        numbers = self.numbers.get(operator.name, ())
        candidates = [self.candidates[operator.name][n] for n in numbers]
        options = tuple(
            Option(str(n), tuple(self._number(candidate, p) for p in ports), candidate.cycles)
            for n, candidate in zip(numbers, candidates, strict=True)
        )
        free = (Option("host", (ANY,) * len(ports), 0.0),)
        return Node(operator.name, reads, operator.outputs, options or free)

    def _number(self, candidate: Candidate, name: str) -> int:
        key = candidate.keys.get(name)
        return ANY if key is None else self.keys[name].index(key)

    def _tensor(self, name: str) -> Tensor:
        keys = self.keys.get(name, [])
        layouts = [(key[0], self.layouts[key]) for key in keys]
        cycles = self._copy_cycles(name)
        conversion = {
            (a, b): 0.0 if self.are_equal(first, second) else cycles
            for a, first in enumerate(layouts)
            for b, second in enumerate(layouts)
            if a != b
        }
        row_major = None
        if name in self.row_major:
            row_major = keys.index(layout_key(self.row_major[name]))
        return Tensor(
            name,
            tuple(map(str, range(max(1, len(keys))))),
            conversion,
            row_major if name in self.graph.inputs else None,
            () if name not in self.graph.outputs or row_major is None else (row_major,),
        )

    def _copy_cycles(self, name: str) -> float:
        return copy_cycles(self.graph.types[name].elements, self.machine)


def _fits(candidate: Candidate, layouts: Mapping[LayoutKey, MainTensor]) -> bool:
    """True if a candidate needs no layouts but these, and no wider margins."""
    for view in candidate.views:
        layout = layouts.get(layout_key(view))
        if layout is None or merged_layout([layout, view[1]]) != layout:
            return False
    return True


def merged_layout(layouts: Sequence[MainTensor]) -> MainTensor:
    """Return a layout that serves all of some layouts of one tensor.

    The order of the first is kept, with the largest margins of all.

    Parameters
    ----------
    layouts : sequence of MainTensor
        Layouts of tensors of one shape.
    """
    first = layouts[0]
    return replace(
        first,
        before=tuple(map(max, *(layout.before for layout in layouts), first.before)),
        after=tuple(map(max, *(layout.after for layout in layouts), first.after)),
        fill=next((layout.fill for layout in layouts if layout.fill), first.fill),
    )
