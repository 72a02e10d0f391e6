"""Networks on an accelerator: a program for each operator, and what stays on the host, by name.

Operators are planned one after the other. All programs that read or write a tensor agree on its
layout in main memory, in which margins hold the padding that readers need. An operator whose
statements no instructions compute, or that no plan fits, is executed by the host, with the reason
and its estimated time; a change of layout that is not a mere view is host work too.
Where memories and instructions allow it, tensors then stay on chip between operators, which become
one program (:mod:`~cpembed.accelerator.chains`).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.chains import ChainPlanner
from cpembed.accelerator.division import Division, divided
from cpembed.accelerator.form_choice import (
    FormChooser,
    LayoutKey,
    Outcome,
    PlannedForm,
    View,
    disagreement,
    keep_better,
    layout_key,
    temporary_layouts,
)
from cpembed.accelerator.host import copy_cycles, copy_us, host_us
from cpembed.accelerator.lowering import OperatorPlan, operator_plan
from cpembed.accelerator.main_layouts import has_own_order
from cpembed.accelerator.matching import Match, match_statement
from cpembed.accelerator.network_bound import network_bound
from cpembed.accelerator.network_steps import (
    AcceleratorNetwork,
    HostStep,
    LayoutStep,
    ProgramStep,
    Step,
    ViewStep,
)
from cpembed.accelerator.operator_search import OperatorSearch, segment
from cpembed.accelerator.operators import is_view, specifications
from cpembed.accelerator.operators.forms import (
    GraphTensor,
    NoForm,
    OperatorForm,
)
from cpembed.accelerator.problem import PlanningError
from cpembed.accelerator.program import MainTensor
from cpembed.accelerator.specification import Statement
from cpembed.graph.graph import Graph, Operator
from cpembed.hw.isa import InstructionSet
from cpembed.steps import Progress, silent


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


_FORMS = 8
"""Maximum number of forms of an operator among which layouts are chosen."""
_ORDERS = 8
"""Maximum number of combinations of orders of an operator's tensors that are planned."""
_DIVIDED_FORMS = 3
"""Maximum number of forms of an operator that are divided between the machine and its host."""


class _Planner:
    """Plans of all operators of a network, equal ones once."""

    def __init__(self, graph: Graph, machine: InstructionSet, progress: Progress) -> None:
        self.graph = graph
        self.machine = machine
        self.progress = progress
        self.forms: dict[str, list[PlannedForm]] = {}
        self.reordered: dict[str, list[PlannedForm]] = {}
        self.plans: dict[str, PlannedForm] = {}
        self.reasons: dict[str, str] = {}
        self.outcomes: dict[Hashable, Outcome] = {}
        self.divisions: dict[Hashable, Outcome] = {}
        self.layouts: Mapping[LayoutKey, MainTensor] = {}
        self.available: dict[str, list[tuple[GraphTensor, MainTensor] | None]] = {}

    def network(self) -> AcceleratorNetwork:
        operators = self.graph.operators
        for number, operator in enumerate(operators):
            self.progress(operator.name, number, len(operators))
            if not is_view(operator, self.graph):
                self._plan_operator(operator)
        network = self._network_of(self.forms)
        forms = self._with_all_orders()
        if forms is None:
            return network
        # Layouts are chosen by the plans' cycles; margins that readers share may change them.
        return min(network, self._network_of(forms), key=_estimated_us)

    def _network_of(self, forms: Mapping[str, Sequence[PlannedForm]]) -> AcceleratorNetwork:
        """Return the network of the best choice among the plans of each operator's forms."""
        self._choose_forms(forms)
        # A caller's arrays are row-major.
        self.available = {name: [_row_major(self.graph, name)] for name in self.graph.inputs}
        steps = [step for operator in self.graph.operators for step in self._steps(operator)]
        for name in self.graph.outputs:
            steps += self._conversion(
                *_row_major(self.graph, name), "the caller reads it row-major"
            )
        bound = network_bound(steps, self.graph, self.machine)
        steps = ChainPlanner(
            self.graph.outputs,
            self.machine,
            signature,
            lambda first, second: _has_bytes_of(self.graph, first, second),
        ).steps(steps)
        return AcceleratorNetwork(self.graph, self.machine, tuple(steps), bound)

    def _plan_operator(self, operator: Operator) -> None:
        """Keep the best plan of an operator, or the reason why there is none."""
        forms = specifications(operator, self.graph, self.machine)
        if isinstance(forms, NoForm):
            self.reasons[operator.name] = forms.reason
            return
        best: dict[Hashable, PlannedForm] = {}
        reordered: dict[Hashable, PlannedForm] = {}
        canonical_forms = tuple(map(canonical, forms))
        for form in canonical_forms:
            self._add(best, reordered, operator, form, self._outcome(form, self.outcomes))
        if not best:
            alone_us = host_us(operator, self.graph.types, self.machine)
            divided_forms = 0
            for form in canonical_forms:
                outcome = self._outcome(form, self.divisions, alone_us)
                self._add(best, reordered, operator, form, outcome)
                divided_forms += not isinstance(outcome, str)
                if divided_forms == _DIVIDED_FORMS:
                    break
        if best:
            self.forms[operator.name] = sorted(best.values(), key=lambda p: p.cycles)[:_FORMS]
            self.reordered[operator.name] = sorted(reordered.values(), key=lambda p: p.cycles)[
                :_FORMS
            ]

    def _add(
        self,
        best: dict[Hashable, PlannedForm],
        reordered: dict[Hashable, PlannedForm],
        operator: Operator,
        form: OperatorForm,
        outcome: Outcome,
    ) -> None:
        """Add the plans of a form that are the best of those with the same layouts.

        A second one, in another order of dimensions, is added to those reordered.
        """
        if isinstance(outcome, str):
            # The reason of the first form, which is the nearest to the operator.
            self.reasons.setdefault(operator.name, outcome)
            return
        for division, target in zip(outcome, (best, reordered), strict=False):
            keep_better(target, PlannedForm(form, division, self.machine))

    def _outcome(
        self,
        form: OperatorForm,
        outcomes: dict[Hashable, Outcome],
        alone_us: float | None = None,
    ) -> Outcome:
        """Return the best plans of a form, which those of an equal one are, or why there are none.

        Parameters
        ----------
        form : OperatorForm
        outcomes : dict of Hashable to Outcome
            Earlier outcomes by the forms' signatures: of whole forms, or of divided ones.
        alone_us : float or None
            Microseconds of the operator on the host, which bound those of a divided form.
        """
        key = signature(form)
        equal = self._equal_outcome(form, outcomes[key]) if key in outcomes else None
        if equal is not None:
            return equal
        specification = form.specification
        if outcomes is self.divisions:
            division = divided(specification, self.machine, alone_us)
            outcomes[key] = division if isinstance(division, str) else (division,)
        else:
            plans = OperatorSearch(specification, self.machine).alternatives()
            outcomes[key] = (
                plans
                if isinstance(plans, str)
                else tuple(
                    Division.of_plans(p).with_faster_host(specification, self.machine)
                    for p in plans
                )
            )
        return outcomes[key]

    def _equal_outcome(self, form: OperatorForm, outcome: Outcome) -> Outcome | None:
        """Return the outcome of an equal form with this one's constants; None if it has none."""
        if isinstance(outcome, str):
            return outcome
        divisions = [self._equal_division(form, division) for division in outcome]
        return tuple(d for d in divisions if d is not None) if None not in divisions else None

    def _equal_division(self, form: OperatorForm, outcome: Division) -> Division | None:
        """Return the plans of an equal form with this one's constants; None if it has none."""
        plans: list[OperatorPlan] = []
        for first, plan in zip(outcome.firsts, outcome.plans, strict=True):
            part = segment(form.specification, first, first + len(plan.problem.matches))
            matches = [
                self._equal_match(*pair)
                for pair in zip(part.statements, plan.problem.matches, strict=True)
            ]
            if None in matches:
                return None
            of_part = tuple(m for m in matches if m is not None)
            plans.append(
                replace(plan, problem=replace(plan.problem, specification=part, matches=of_part))
            )
        return replace(outcome, plans=tuple(plans))

    def _equal_match(self, statement: Statement, match: Match) -> Match | None:
        """Return the match of a statement by the same instruction along the same axes."""
        candidates = match_statement(statement, self.machine).matches
        return next(
            (m for m in candidates if m.instruction is match.instruction and m.axes == match.axes),
            None,
        )

    def _choose_forms(self, forms: Mapping[str, Sequence[PlannedForm]]) -> None:
        """Choose a form for each operator, and with it the layouts that programs agree on."""
        graph = self.graph
        ends = {name: _row_major(graph, name) for name in (*graph.inputs, *graph.outputs)}
        candidates = {name: [p.candidate for p in planned] for name, planned in forms.items()}
        chooser = FormChooser(
            graph, self.machine, candidates, ends, lambda a, b: _has_bytes_of(graph, a, b)
        )
        choice = chooser.choice()
        self.layouts = choice.layouts
        self.plans = {name: forms[name][n] for name, n in choice.numbers.items()}

    def _with_all_orders(self) -> Mapping[str, Sequence[PlannedForm]] | None:
        """Return plans in the orders that any operator uses; None if all keep the tensors' own.

        Each operator is offered the orders in which others read or write its tensors, so that
        operators that follow each other may keep an order without changes of layout.
        """
        reordered: dict[str, dict[LayoutKey, View]] = {}
        for planned in itertools.chain(*self.forms.values(), *self.reordered.values()):
            for view in planned.views.values():
                if not has_own_order(view[1]):
                    reordered.setdefault(view[0].name, {})[layout_key(view)] = view
        if not reordered:
            return None
        all_forms: dict[str, Sequence[PlannedForm]] = {}
        for name, forms in self.forms.items():
            best: dict[Hashable, PlannedForm] = {}
            for planned in (*forms, *self.reordered.get(name, ())):
                keep_better(best, planned)
                for candidate in self._with_orders(planned, reordered):
                    keep_better(best, candidate)
            all_forms[name] = sorted(best.values(), key=lambda p: p.cycles)
        return all_forms

    def _with_orders(
        self, planned: PlannedForm, reordered: Mapping[str, Mapping[LayoutKey, View]]
    ) -> Iterator[PlannedForm]:
        """Yield the plans of a form with some tensors in the orders that other operators use."""
        options: list[list[tuple[str, MainTensor] | None]] = []
        for name, (tensor, layout) in planned.views.items():
            orders = [
                (name, used)
                for key, (_, used) in reordered.get(tensor.name, {}).items()
                if key[0] == tensor and key != layout_key((tensor, layout))
            ]
            options.append([None, *orders])
        for choice in itertools.islice(itertools.product(*options), 1, _ORDERS):
            layouts = {
                name: replace(
                    order,
                    before=planned.views[name][1].before,
                    after=planned.views[name][1].after,
                    fill=planned.views[name][1].fill,
                )
                for name, order in (c for c in choice if c is not None)
            }
            plans = tuple(self._agreed(plan, layouts) for plan in planned.plans)
            division = replace(planned.division, plans=plans)
            candidate = replace(planned, division=division)
            keys = {name: layout_key(view) for name, view in candidate.views.items()}
            if all(keys[n] == layout_key((planned.views[n][0], x)) for n, x in layouts.items()):
                yield candidate

    def _steps(self, operator: Operator) -> Iterator[Step]:
        """Yield the step of an operator after the changes of layout that it needs."""
        if is_view(operator, self.graph):
            self.available[operator.output] = self.available.get(operator.inputs[0], [None])
            yield ViewStep(operator)
            return
        step = self._program_step(operator)
        if isinstance(step, HostStep):
            for name in operator.outputs:
                # The host writes whatever layout a reader needs.
                self.available[name] = [None]
            yield step
            return
        form = step.form
        for name in filter(step.has, form.specification.inputs):
            tensor, layout = form.tensors[name], step.layout(name, is_read=True)
            yield from self._conversion(tensor, layout, f"{operator.name} reads it so")
        yield step
        for name in form.specification.outputs:
            tensor = form.tensors[name]
            written = (tensor, step.layout(name, is_read=False)) if step.has(name) else None
            self.available[tensor.name] = [written]

    def _program_step(self, operator: Operator) -> ProgramStep | HostStep:
        """Return the step with the layouts that programs agree on, or of the host."""
        planned = self.plans.get(operator.name)
        if planned is None:
            reason = self.reasons.get(operator.name, "no tiling fits the memories")
            return HostStep(operator, reason, host_us(operator, self.graph.types, self.machine))
        form = planned.form
        layouts = {name: self.layouts[layout_key(v)] for name, v in planned.views.items()}
        layouts |= temporary_layouts(planned)
        plans = tuple(self._agreed(plan, layouts) for plan in planned.plans)
        programs = tuple(plan.program() for plan in plans)
        disputed = disagreement(form, programs)
        if disputed:
            reason = (
                f"its programs need {disputed} between them in different layouts: describe a move "
                "that transposes, or the instruction that makes one of them read other lanes"
            )
            return HostStep(operator, reason, host_us(operator, self.graph.types, self.machine))
        costs = tuple(plan.cost for plan in plans)
        return ProgramStep((operator,), form, plans, programs, costs, planned.host)

    def _agreed(self, plan: OperatorPlan, layouts: Mapping[str, MainTensor]) -> OperatorPlan:
        """Return a plan with the layouts that programs agree on, if there is one."""
        specification = plan.problem.specification
        roles = {**dict.fromkeys(specification.inputs, "input")}
        roles |= dict.fromkeys(specification.outputs, "output")
        agreed_layouts = {
            n: replace(layouts[n], name=n, role=r) for n, r in roles.items() if n in layouts
        }
        problem = replace(plan.problem, layouts=agreed_layouts)
        try:
            # The same tiling, if instructions can address the layouts that are agreed on.
            agreed = replace(plan, problem=problem)
            agreed.program()
            return agreed
        except PlanningError:
            pass
        try:
            return operator_plan(problem, self.machine) or plan
        except PlanningError:
            return plan

    def _conversion(
        self, tensor: GraphTensor, layout: MainTensor, reason: str
    ) -> Iterator[LayoutStep]:
        """Yield the step that provides a tensor in a layout, unless it is there already."""
        name = tensor.name
        if name in self.graph.constants:
            return
        for place in self.available.get(name, [None]):
            if place is None or _has_bytes_of(self.graph, place, (tensor, layout)):
                return
        self.available[name].append((tensor, layout))
        # Margins are filled once, before the first run.
        us = copy_us(self.graph.types[name].elements, self.machine)
        yield LayoutStep(name, layout, reason, us)


def _estimated_us(network: AcceleratorNetwork) -> float:
    """Return the estimated microseconds of the programs, and of what the host does."""
    machine = network.machine
    cycles = math.fsum(step.cycles for step in network.programs)
    copied = math.fsum(
        copy_cycles(network.graph.types[step.tensor].elements, machine)
        for step in network.steps
        if isinstance(step, LayoutStep)
    )
    host = [part.us or 0.0 for step in network.programs for part in step.host]
    host += [step.us or 0.0 for step in network.steps if isinstance(step, HostStep)]
    return (cycles + copied) / machine.clock_mhz + math.fsum(host)


def canonical(form: OperatorForm) -> OperatorForm:
    """Return a form whose tensors are named by their roles, so that equal operators are equal."""
    specification = form.specification
    roles = {**dict.fromkeys(specification.inputs, "input")}
    roles |= dict.fromkeys(specification.constants, "constant")
    roles |= dict.fromkeys(specification.outputs, "output")
    names = {
        name: f"{roles.get(name, 'temporary')}{number}"
        for number, name in enumerate(specification.operands)
    }
    statements = tuple(
        replace(s, computation=s.computation.with_names(names)) for s in specification.statements
    )
    renamed = replace(
        specification,
        statements=statements,
        inputs=tuple(names[name] for name in specification.inputs),
        outputs=tuple(names[name] for name in specification.outputs),
        constants={names[name]: array for name, array in specification.constants.items()},
    )
    return OperatorForm(renamed, {names[name]: tensor for name, tensor in form.tensors.items()})


def signature(form: OperatorForm) -> Hashable:
    """Return what the plan of a canonical form depends on: all but its floating-point numbers."""
    specification = form.specification
    statements = tuple(
        (
            _FLOAT.sub("#", str(statement.computation.statement)),
            statement.accumulates,
            tuple(statement.computation.extents.items()),
            tuple(replace(operand) for operand in statement.computation.operands),
        )
        for statement in specification.statements
    )
    return statements, specification.inputs, specification.outputs, tuple(specification.constants)


_FLOAT = re.compile(r"\d+\.\d*(e[-+]?\d+)?")


def _row_major(graph: Graph, name: str) -> tuple[GraphTensor, MainTensor]:
    kind = graph.types[name]
    order = tuple(range(len(kind.shape)))
    tensor = GraphTensor(name, order, kind.shape)
    return tensor, MainTensor.dense(name, kind.shape, kind.dtype, "input")


def _has_bytes_of(
    graph: Graph, first: tuple[GraphTensor, MainTensor], second: tuple[GraphTensor, MainTensor]
) -> bool:
    """Return True if two layouts of the same elements have the same bytes, margins included."""
    if first[1].elements != second[1].elements or first[1].fill != second[1].fill:
        return False
    buffers = [_numbered(graph, tensor, layout) for tensor, layout in (first, second)]
    return np.array_equal(buffers[0], buffers[1])


def _numbered(graph: Graph, tensor: GraphTensor, layout: MainTensor) -> NDArray[np.int64]:
    """Return a layout's buffer of the numbers of elements, from 1 on, with margins of 0."""
    kind = graph.types[tensor.name]
    numbers = np.arange(1, kind.elements + 1).reshape(kind.shape)
    return replace(layout, dtype="int64", fill=0).buffer(tensor.logical(numbers))
