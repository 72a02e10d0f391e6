"""Forms of an operator with their best plans, among which a network's layouts are chosen."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cpembed.accelerator.division import Division, HostPart
from cpembed.accelerator.form_choice import Candidate, View, merged_layout
from cpembed.accelerator.operator_search import Plans
from cpembed.accelerator.operators.forms import OperatorForm
from cpembed.accelerator.program import MainTensor, Program
from cpembed.hw.isa import InstructionSet

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


def agree_on_temporaries(form: OperatorForm, programs: Sequence[Program]) -> bool:
    """Return True if programs find tensors that only the specification has in one layout."""
    layouts: dict[str, MainTensor] = {}
    for program in programs:
        for name, tensor in program.tensors.items():
            plain = replace(tensor, role="")
            is_temporary = name not in form.tensors and tensor.role != "constant"
            if is_temporary and layouts.setdefault(name, plain) != plain:
                return False
    return True
