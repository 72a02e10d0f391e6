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
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from cpembed.accelerator.chains import ChainPlanner
from cpembed.accelerator.division import Division, divided
from cpembed.accelerator.form_choice import (
    FormChooser,
    Outcome,
    PlannedForm,
    disagreement,
    keep_better,
    temporary_layouts,
)
from cpembed.accelerator.graph_layouts import GraphLayout, LayoutKey
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
from cpembed.accelerator.operators.forms import NoForm, OperatorForm
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
        self.plans: Mapping[str, PlannedForm] = {}
        self.reasons: dict[str, str] = {}
        self.outcomes: dict[Hashable, Outcome] = {}
        self.divisions: dict[Hashable, Outcome] = {}
        self.layouts: Mapping[LayoutKey, MainTensor] = {}
        self.available: dict[str, list[GraphLayout | None]] = {}

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
        choice = FormChooser(self.graph, self.machine, forms).choice()
        self.layouts, self.plans = choice.layouts, choice.forms
        # A caller's arrays are row-major.
        types = self.graph.types
        self.available = {n: [GraphLayout.row_major(n, types[n])] for n in self.graph.inputs}
        steps = [step for operator in self.graph.operators for step in self._steps(operator)]
        for name in self.graph.outputs:
            view = GraphLayout.row_major(name, types[name])
            steps += self._conversion(view, "the caller reads it row-major")
        bound = network_bound(steps, self.graph, self.machine)
        steps = ChainPlanner(self.graph.outputs, self.machine).steps(steps)
        return AcceleratorNetwork(self.graph, self.machine, tuple(steps), bound)

    def _plan_operator(self, operator: Operator) -> None:
        """Keep the best plan of an operator, or the reason why there is none."""
        forms = specifications(operator, self.graph, self.machine)
        if isinstance(forms, NoForm):
            self.reasons[operator.name] = forms.reason
            return
        best: dict[Hashable, PlannedForm] = {}
        reordered: dict[Hashable, PlannedForm] = {}
        canonical_forms = tuple(form.canonical for form in forms)
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
        key = form.signature
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

    def _with_all_orders(self) -> Mapping[str, Sequence[PlannedForm]] | None:
        """Return plans in the orders that any operator uses; None if all keep the tensors' own.

        Each operator is offered the orders in which others read or write its tensors, so that
        operators that follow each other may keep an order without changes of layout.
        """
        reordered: dict[str, dict[LayoutKey, GraphLayout]] = {}
        for planned in itertools.chain(*self.forms.values(), *self.reordered.values()):
            for view in planned.views.values():
                if not has_own_order(view.layout):
                    reordered.setdefault(view.tensor.name, {})[view.key] = view
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
        self, planned: PlannedForm, reordered: Mapping[str, Mapping[LayoutKey, GraphLayout]]
    ) -> Iterator[PlannedForm]:
        """Yield the plans of a form with some tensors in the orders that other operators use."""
        options: list[list[tuple[str, MainTensor] | None]] = []
        for name, view in planned.views.items():
            orders = [
                (name, used.layout)
                for key, used in reordered.get(view.tensor.name, {}).items()
                if used.tensor == view.tensor and key != view.key
            ]
            options.append([None, *orders])
        for choice in itertools.islice(itertools.product(*options), 1, _ORDERS):
            layouts = {
                name: replace(
                    order,
                    before=planned.views[name].layout.before,
                    after=planned.views[name].layout.after,
                    fill=planned.views[name].layout.fill,
                )
                for name, order in (c for c in choice if c is not None)
            }
            plans = tuple(self._agreed(plan, layouts) for plan in planned.plans)
            division = replace(planned.division, plans=plans)
            candidate = replace(planned, division=division)
            offered = {n: replace(planned.views[n], layout=x).key for n, x in layouts.items()}
            if all(candidate.views[name].key == key for name, key in offered.items()):
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
            view = GraphLayout(form.tensors[name], step.layout(name, is_read=True))
            yield from self._conversion(view, f"{operator.name} reads it so")
        yield step
        for name in form.specification.outputs:
            tensor, written = form.tensors[name], None
            if step.has(name):
                written = GraphLayout(tensor, step.layout(name, is_read=False))
            self.available[tensor.name] = [written]

    def _program_step(self, operator: Operator) -> ProgramStep | HostStep:
        """Return the step with the layouts that programs agree on, or of the host."""
        planned = self.plans.get(operator.name)
        if planned is None:
            return self._host_step(
                operator, self.reasons.get(operator.name, "no tiling fits the memories")
            )
        layouts = {name: self.layouts[view.key] for name, view in planned.views.items()}
        layouts |= temporary_layouts(planned)
        plans = tuple(self._agreed(plan, layouts) for plan in planned.plans)
        programs = tuple(plan.program() for plan in plans)
        disputed = disagreement(planned.form, programs)
        if disputed:
            return self._host_step(
                operator,
                f"its programs need {disputed} between them in different layouts: describe a move "
                "that transposes, or the instruction that makes one of them read other lanes",
            )
        costs = tuple(plan.cost for plan in plans)
        return ProgramStep((operator,), planned.form, plans, programs, costs, planned.host)

    def _host_step(self, operator: Operator, reason: str) -> HostStep:
        return HostStep(operator, reason, host_us(operator, self.graph.types, self.machine))

    def _agreed(self, plan: OperatorPlan, layouts: Mapping[str, MainTensor]) -> OperatorPlan:
        """Return a plan with the layouts that programs agree on, if there is one."""
        specification = plan.problem.specification
        agreed_layouts = {
            n: replace(layouts[n], name=n, role=role)
            for n, role in specification.roles.items()
            if n in layouts and n not in specification.constants
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

    def _conversion(self, view: GraphLayout, reason: str) -> Iterator[LayoutStep]:
        """Yield the step that provides a tensor in a layout, unless it is there already."""
        name = view.tensor.name
        if name in self.graph.constants:
            return
        for place in self.available.get(name, [None]):
            if place is None or place.has_bytes_of(view):
                return
        self.available[name].append(view)
        # Margins are filled once, before the first run.
        us = copy_us(self.graph.types[name].elements, self.machine)
        yield LayoutStep(name, view.layout, reason, us)


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
