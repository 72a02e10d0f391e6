"""The family of an instruction set whose keys vary, for the exploration of a design space.

A point gives values to keys of the file, which the ordinary reader builds in memory: sizes, rows,
banks, bandwidths, cycles, and instructions that are present or not. A layer of a table costs what
the planner of operators estimates for its best programs there, as ``cpembed run`` states it. A
model is planned as a whole, as ``cpembed network`` does: its operators are the layers, in the forms
and layouts that suit all of them. An operator that the host executes is left out with the reason.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from cpembed.accelerator.cost import summed
from cpembed.accelerator.energy import energy_table
from cpembed.accelerator.lowering import OperatorPlan
from cpembed.accelerator.network import plan_network
from cpembed.accelerator.network_steps import (
    AcceleratorNetwork,
    HostStep,
    LayoutStep,
    ProgramStep,
)
from cpembed.accelerator.operators import is_view
from cpembed.accelerator.problem import PlanningError
from cpembed.accelerator.workload import workload_plans
from cpembed.driver.bench_layers import MODELS, NamedSuite, prepared_suite
from cpembed.errors import LoweringError, SpecError, WorkloadError
from cpembed.exploration.described.family import Choices, DescribedFamily, Description
from cpembed.exploration.described.keys import ABSENT, replaced
from cpembed.graph.graph import Graph
from cpembed.graph.kinds.product import Product
from cpembed.graph.passes import prepare
from cpembed.hw.isa import InstructionSet
from cpembed.hw.isa_reader import read_instruction_set, typed_tables
from cpembed.hw.specification import SpecificationFile, Tables
from cpembed.provenance import Provenance
from cpembed.targets.family import Activity, Choice, Costs, OperatorWork, Point, Work
from cpembed.workloads.suites import Layer

_ENERGY = "energy_pj"
"""Name of the energy among the counts of an activity."""


class LayerPrograms(msgspec.Struct, frozen=True, kw_only=True):
    """Best programs of a layer on a machine, with their estimates.

    ``moved`` are bytes by memory and direction, ``main_bytes`` those read from main memory and
    written to it, ``instructions`` the executions of each instruction, ``energy_pj`` picojoules by
    level. ``conversions`` are changes of layout that the host makes for the layer, which are in no
    sum; ``absent`` is what the machine lacks beside what the point removes, with reasons.
    """

    mapping: str
    cycles: float
    bound_cycles: float
    bound: str
    energy_pj: dict[str, float]
    instructions: dict[str, int]
    moved: dict[str, float]
    main_bytes: tuple[float, float]
    conversions: list[str]
    absent: list[str] = []


@dataclass(frozen=True)
class _OperatorLayer(Layer):
    """An operator of a model, as a layer."""

    work: OperatorWork | None = None


@dataclass(frozen=True)
class _Adapted:
    """Machine of a point, with its file and what was left out of it, with reasons."""

    tables: Tables
    machine: InstructionSet
    absent: list[str]


@dataclass(frozen=True)
class _Model:
    """File of a model with the shapes of its inputs."""

    path: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]


class AcceleratorFamily(DescribedFamily):
    """Machines of an instruction set by the values of some of its keys.

    ``model`` is the network whose operators are the layers; None for a table of layers.
    """

    name: ClassVar[str] = "accelerator"
    analysis: ClassVar[Any] = LayerPrograms
    model: _Model | None = None

    @classmethod
    def check_file(cls, file: SpecificationFile, choices: Choices) -> None:
        for option, value in (("machine", choices.machine), ("technology", choices.technology)):
            if value is not None:
                raise SpecError(f"{file.path}: an instruction set has no {option} to choose")
        read_instruction_set(file.merged, str(file.path))

    @classmethod
    def check_types(cls, file: SpecificationFile, tables: Tables) -> None:
        typed_tables(tables, str(file.path))

    @property
    def default_objectives(self) -> tuple[str, ...]:
        """Time and energy; no table has the area of an instruction set's units."""
        return ("time", "energy")

    @property
    def silicon_flaw(self) -> str | None:
        """Reason why there is no area."""
        return "no table has the area of the units of an instruction set"

    def suite(self, name: str, shapes: Mapping[str, Any] | None) -> NamedSuite:
        if not name.lower().endswith(MODELS):
            return prepared_suite(name, _prepared, shapes)
        sizes = {key: tuple(value) for key, value in (shapes or {}).items()}
        self.model = _Model(name, tuple(sorted(sizes.items())))
        graph = _graph(self.model)
        layers = tuple(_operator_layers(graph, Path(name).name))
        if not layers:
            raise WorkloadError(f"{name} has no operators: there is nothing to plan")
        contents = hashlib.sha256(Path(name).read_bytes())
        contents.update(repr((self.model.shapes, layers)).encode())
        return NamedSuite(Path(name).name, layers, contents.hexdigest(), graph)

    def tables(self, point: Point) -> Tables:
        """Return the file of a point, without what the point has no use or no room for."""
        return _adapted(self.description(point)).tables

    def machine_of(self, point: Point) -> InstructionSet:
        """Return the machine of a point; raise :class:`SpecError` where there is none."""
        return _adapted(self.description(point)).machine

    def require_machine(self, point: Point) -> None:
        self.machine_of(point)

    def clock_mhz(self, point: Point) -> float:
        return self.machine_of(point).clock_mhz

    def area_um2(self, point: Point) -> float:
        return math.nan

    def leakage_w(self, point: Point) -> float:
        return 0.0

    def energy_pj(self, point: Point, activity: Activity) -> float:
        return activity.counts[_ENERGY]

    def typed(self, layer: Layer) -> Work:
        if isinstance(layer, _OperatorLayer):
            assert layer.work is not None
            return layer.work
        return layer.workload(None)

    def group(self, point: Point) -> Hashable:
        return self.digest(point)

    def analyse(self, point: Point, workload: Work) -> LayerPrograms:
        adapted = _adapted(self.description(point))
        machine = adapted.machine
        if isinstance(workload, OperatorWork):
            assert self.model is not None
            outcome = _outcomes(self.digest(point), self.model, machine)[workload.name]
        else:
            try:
                outcome = _programs(workload_plans(workload, machine), machine)
            except (PlanningError, LoweringError) as error:
                outcome = str(error)
        if isinstance(outcome, str):
            # The instruction that is missing may be one for which the point has no room.
            absent = [f"left out of this machine: {reason}" for reason in adapted.absent]
            raise LoweringError("; ".join([outcome, *absent]))
        return msgspec.structs.replace(outcome, absent=adapted.absent)

    def bound(self, point: Point, analysis: Any) -> Costs | None:
        """Return the costs themselves: nothing is left to evaluate."""
        return Costs(analysis.cycles, math.fsum(analysis.energy_pj.values()))

    def choices(self, point: Point, analysis: Any) -> tuple[Choice, ...]:
        counts = {**analysis.moved, _ENERGY: math.fsum(analysis.energy_pj.values())}
        activity = Activity(analysis.cycles, Provenance.ESTIMATED, counts)
        details = msgspec.to_builtins(analysis)
        return (Choice(analysis.mapping, analysis.mapping, None, activity, details),)


@lru_cache(maxsize=1 << 12)
def _adapted(description: Description) -> _Adapted:
    """Return the machine of a point, without what it has no use or no room for.

    A register that no instruction reads any more is left out with the instructions that set it, and
    an instruction whose operand is larger than a memory. Raises :class:`SpecError` for any other
    fault.
    """
    tables, path = description.tables, str(description.file.path)
    absent: list[str] = []
    while True:
        try:
            return _Adapted(tables, read_instruction_set(tables, path), absent)
        except SpecError as error:
            smaller = _without_unusable(tables, error)
            if smaller is None:
                if not absent:
                    raise
                # What is wrong now may follow from what did not fit.
                text = str(error).removeprefix(f"{path}: ")
                raise SpecError(f"{path}: {'; '.join(absent)}; without these, {text}") from None
            tables = smaller
            absent.append(str(error).removeprefix(f"{path}: "))


def _without_unusable(tables: Tables, error: SpecError) -> Tables | None:
    """Return tables without the instruction or the register of an error; None for other errors."""
    match error.key:
        case ("memories", str(name)) if "no instruction reads it" in str(error):
            setters = [
                each["name"]
                for each in tables["instructions"]
                if name in {place.get("memory") for place in each["operands"].values()}
            ]
            removed = [("memories", name), *(("instructions", setter) for setter in setters)]
        case ("instructions", str(name), "operands", str(), "rows") if "takes" in str(error):
            removed = [("instructions", name)]
        case _:
            return None
    for key in removed:
        tables = replaced(tables, key, ABSENT)
    return tables


def _prepared(graph: Graph) -> Graph:
    """Return a graph in the form that ``cpembed network`` plans on instruction sets."""
    return prepare(graph, first="int8", second="int8")


@lru_cache(maxsize=1)
def _graph(model: _Model) -> Graph:
    """Return the prepared graph of a model, read again in another process."""
    from cpembed.frontends import load_model

    return _prepared(load_model(Path(model.path), dict(model.shapes) or None))


def _operator_layers(graph: Graph, name: str) -> Iterable[Layer]:
    """Yield the operators that move or compute something."""
    operators = [o for o in graph.operators if not is_view(o, graph)]
    for index, operator in enumerate(operators):
        kind = operator.kind
        macs = kind.computation.macs if isinstance(kind, Product) else 0
        work = OperatorWork(operator.name, kind.label, macs)
        yield _OperatorLayer(name, index, operator.name, f"{operator.name} ({kind.label})", 1, work)


_PLANNED: dict[tuple[str, _Model], Mapping[str, LayerPrograms | str]] = {}
"""Outcomes by operator of the networks that were planned last, by machine."""

_MOST_PLANNED = 4
"""Number of them: the operators of a point are asked for one after the other."""


def _outcomes(
    digest: str, model: _Model, machine: InstructionSet
) -> Mapping[str, LayerPrograms | str]:
    """Return the programs of each operator of a network, or why the host executes it."""
    key = digest, model
    if key not in _PLANNED:
        while len(_PLANNED) >= _MOST_PLANNED:
            del _PLANNED[next(iter(_PLANNED))]
        _PLANNED[key] = _by_operator(plan_network(_graph(model), machine))
    return _PLANNED[key]


def _by_operator(network: AcceleratorNetwork) -> dict[str, LayerPrograms | str]:
    outcomes: dict[str, LayerPrograms | str] = {}
    conversions: list[str] = []
    for step in network.steps:
        if isinstance(step, LayoutStep):
            time = "" if step.us is None else f", {step.us:.3g} us"
            conversions.append(f"the host changes the layout of {step.tensor}{time}")
        elif isinstance(step, HostStep):
            outcomes[step.operator.name] = f"the host executes it: {step.reason}"
        elif isinstance(step, ProgramStep):
            outcomes |= _of_step(step, network.machine, conversions)
            conversions = []
    return outcomes


def _of_step(
    step: ProgramStep, machine: InstructionSet, conversions: Iterable[str]
) -> Iterator[tuple[str, LayerPrograms]]:
    """Yield the programs of each operator of a step.

    Of the program of a chain, each operator has the share that its plans have of all cycles.
    """
    if step.chain is None:
        yield step.name, _programs(step.plans, machine, conversions)
        return
    (cost,) = step.costs
    levels = energy_table(machine).by_level(cost.executions, cost.moved)
    total = math.fsum(plan.cost.cycles for plan in step.plans)
    for operator in step.operators:
        names = zip(step.plans, step.chain.operators, strict=True)
        plans = [plan for plan, name in names if name == operator.name]
        share = math.fsum(plan.cost.cycles for plan in plans) / total
        main = [share * cost.moved.get((machine.main.name, d), 0) for d in ("read", "written")]
        yield (
            operator.name,
            msgspec.structs.replace(
                _programs(plans, machine, conversions),
                cycles=share * cost.cycles,
                energy_pj={level: share * energy for level, energy in levels.items()},
                main_bytes=(main[0], main[1]),
                moved={f"{m}.{d}": share * size for (m, d), size in cost.moved.items()},
            ),
        )
        conversions = ()


def _programs(
    plans: Iterable[OperatorPlan], machine: InstructionSet, conversions: Iterable[str] = ()
) -> LayerPrograms:
    """Return the sums over the programs of a layer."""
    plans = tuple(plans)
    executions = summed(plan.cost.executions for plan in plans)
    moved = {key: float(n) for key, n in summed(plan.cost.moved for plan in plans).items()}
    units = summed(plan.cost.unit_cycles for plan in plans)
    main = machine.main.name
    return LayerPrograms(
        mapping="; ".join(line for plan in plans for line in plan.problem.instruction_lines),
        cycles=math.fsum(plan.cost.cycles for plan in plans),
        bound_cycles=math.fsum(plan.cycles_bound for plan in plans),
        bound=f"unit {max(units, key=lambda unit: units[unit])}" if units else "",
        energy_pj=energy_table(machine).by_level(executions, moved),
        instructions=executions,
        main_bytes=(moved.get((main, "read"), 0.0), moved.get((main, "written"), 0.0)),
        moved={f"{memory}.{direction}": size for (memory, direction), size in moved.items()},
        conversions=list(conversions),
    )
