"""Steps of a planned network: programs of the accelerator, and work of the host."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cpembed.accelerator.cost import ProgramCost
from cpembed.accelerator.division import HostPart
from cpembed.accelerator.lowering import OperatorPlan
from cpembed.accelerator.operators.forms import OperatorForm
from cpembed.accelerator.program import MainTensor, Program
from cpembed.graph.graph import Graph, Operator
from cpembed.hw.isa import InstructionSet


@dataclass(frozen=True)
class Resident:
    """Tensor that stays in rows of a memory on chip between the programs' parts.

    Attributes
    ----------
    tensor : str
        Name in the graph, or in the specification for one that the graph does not have.
    row, rows : int
        First row and number of rows.
    bytes : int
        Bytes of its elements.
    """

    tensor: str
    memory: str
    row: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class Chain:
    """Tensors that a program of several operators keeps on chip, and what that saves.

    Attributes
    ----------
    operators : tuple of str
        Name of the operator of each plan.
    cycles_apart : float
        Estimated cycles of the operators in programs of their own, one after the other.
    bytes_apart : int
        Bytes of main memory of these programs.
    selected_cycles, selected_bound : float
        Cycles of the selection, part by part, and their least number over all selections from the
        plans and homes that were compared.
    is_optimal : bool
        True if the solver proved that no selection from them costs less.
    """

    residents: tuple[Resident, ...]
    operators: tuple[str, ...]
    cycles_apart: float
    bytes_apart: int
    selected_cycles: float
    selected_bound: float
    is_optimal: bool

    @property
    def gap(self) -> float:
        """Fraction by which the selection may exceed the least cost; 0 if that is proven."""
        if self.is_optimal or not self.selected_cycles:
            return 0.0
        return 1 - self.selected_bound / self.selected_cycles


@dataclass(frozen=True)
class ProgramStep:
    """Operators that the accelerator executes: one, or a chain of them.

    Attributes
    ----------
    form : OperatorForm
        Specification of all of its statements. It names also the tensors of the graph that are on
        chip only.
    plans : tuple of OperatorPlan
        Plans of consecutive statements. Between two programs, tensors that only the specification
        has are in main memory.
    programs : tuple of Program
        Program of each plan; one of all plans of a chain.
    costs : tuple of ProgramCost
        What each program costs.
    host : tuple of HostPart
        Statements that the host computes before, between and after the programs.
    chain : Chain, optional
        What stays on chip between the plans of one program.
    """

    operators: tuple[Operator, ...]
    form: OperatorForm
    plans: tuple[OperatorPlan, ...]
    programs: tuple[Program, ...]
    costs: tuple[ProgramCost, ...]
    host: tuple[HostPart, ...] = ()
    chain: Chain | None = None

    @property
    def name(self) -> str:
        """Name of the operator; of a chain, of its first and its last one."""
        first, last = self.operators[0].name, self.operators[-1].name
        return first if len(self.operators) == 1 else f"{first} to {last}"

    @property
    def plans_of_programs(self) -> tuple[tuple[OperatorPlan, ...], ...]:
        """Plans of each program."""
        return tuple((p,) for p in self.plans) if self.chain is None else (self.plans,)

    @property
    def cycles(self) -> float:
        """Estimated cycles of all programs."""
        return math.fsum(cost.cycles for cost in self.costs)

    @property
    def main_bytes(self) -> int:
        """Bytes to and from main memory."""
        return sum(cost.main_bytes for cost in self.costs)

    @property
    def cycles_bound(self) -> float:
        """Lower bound on the cycles of programs of each plan's statements with these instructions.

        Of a chain, tensors that stay on chip are not counted.
        """
        return math.fsum(plan.cycles_bound for plan in self.plans)

    def has(self, name: str) -> bool:
        """Return True if a program reads or writes a tensor of the specification."""
        return any(name in program.tensors for program in self.programs)

    def layout(self, name: str, *, is_read: bool) -> MainTensor:
        """Return the layout of a tensor of the specification that programs read or write."""
        programs = self.programs if is_read else self.programs[::-1]
        return next(p.tensors[name] for p in programs if name in p.tensors)


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
    bound_cycles : float
        Lower bound on the cycles of every plan of the network with the same matches
        (:func:`~cpembed.accelerator.network_bound.network_bound`).
    """

    graph: Graph
    machine: InstructionSet
    steps: tuple[Step, ...]
    bound_cycles: float

    @property
    def programs(self) -> tuple[ProgramStep, ...]:
        """Steps of the accelerator."""
        return tuple(step for step in self.steps if isinstance(step, ProgramStep))

    @property
    def on_host(self) -> tuple[HostStep | LayoutStep | HostPart, ...]:
        """Steps of the host that take time, and its parts of the accelerator's steps."""
        steps: list[HostStep | LayoutStep | HostPart] = []
        for step in self.steps:
            if isinstance(step, ProgramStep):
                steps += step.host
            elif isinstance(step, HostStep | LayoutStep):
                steps.append(step)
        return tuple(steps)

    @property
    def cycles(self) -> float:
        """Estimated cycles of all programs, one after the other."""
        return math.fsum(step.cycles for step in self.programs)

    @property
    def main_bytes(self) -> int:
        """Bytes to and from main memory of all programs."""
        return sum(step.main_bytes for step in self.programs)
