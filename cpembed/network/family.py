"""Library of a network whose sizes are ranges: instances at a few sizes, compiled into one library.

Which sizes: :mod:`cpembed.network.size_choice`; what other sizes an instance computes:
:mod:`cpembed.graph.instances`; how a run is divided between them: the library's ``sizes.h``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cpembed.driver import matching
from cpembed.errors import WorkloadError
from cpembed.export.library import EVERYTHING, Contents, Library, write_library
from cpembed.export.loader import Library as OpenLibrary
from cpembed.export.loader import LibraryError
from cpembed.export.program import Role
from cpembed.export.sized import (
    FillerBuffer,
    ProgramInstance,
    SizedProgram,
    SizedTensor,
    Symbol,
)
from cpembed.graph.family import Family, Sizes
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.instances import Instance, Openness, make_instance, openness
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.dtypes import as_stored, as_typed
from cpembed.network.build import (
    CallableNetwork,
    library_name,
    prepared_and_named,
    require_kernels,
    require_library,
)
from cpembed.network.plan import NetworkPlan, Planning, plan_network, search_kernels
from cpembed.network.program import NetworkProgram, network_programs
from cpembed.network.size_choice import LOSS, MOST_INSTANCES, CostModel, Loss, SizeChoice
from cpembed.steps import Progress, silent
from cpembed.targets.units import Units

MOST_NECESSARY = 128
"""Maximum number of instances without which some size could not be run."""


@dataclass(frozen=True)
class Ranges:
    """Options of libraries whose sizes are ranges.

    Attributes
    ----------
    loss : float
        Largest predicted time of a run, relative to a library for its size, that is aimed at.
    instances : int
        Maximum number of sizes with kernels of their own, where fewer suffice to run all sizes.
    """

    loss: float = LOSS
    instances: int = MOST_INSTANCES


@dataclass(frozen=True)
class PlannedInstance:
    """Instance of a family with its plan and its program."""

    instance: Instance
    plan: NetworkPlan
    network: NetworkProgram | None = None

    @property
    def cost_us(self) -> float:
        """Predicted microseconds."""
        return self.plan.assignment.cost


@dataclass(frozen=True)
class FamilyPlan:
    """Instances of a family, and the predicted loss compared with libraries for single sizes."""

    family: Family
    facts: Openness
    instances: tuple[PlannedInstance, ...]
    loss: Loss


@dataclass(frozen=True)
class TensorSummary:
    """Name and element type of a network's input or output."""

    name: str
    dtype: str


@dataclass(frozen=True)
class CompiledFamily:
    """Library of a family, with its interface."""

    name: str
    target: str
    inputs: tuple[TensorSummary, ...]
    outputs: tuple[TensorSummary, ...]
    library: Library

    @classmethod
    def with_interface(cls, family: Family, units: Units, library: Library) -> CompiledFamily:
        """Return the library of a family with its interface."""
        graph = family.graph(family.largest)
        inputs, outputs = (
            tuple(TensorSummary(n, graph.types[n].dtype) for n in names)
            for names in (tuple(graph.inputs), tuple(dict.fromkeys(graph.outputs)))
        )
        return cls(family.name, units.name, inputs, outputs, library)

    def open(self, threads: int = 0) -> RunningFamily:
        """Load the library, for as many ``threads`` as it was planned for if 0."""
        return RunningFamily(self, OpenLibrary(self.library.path, self.library.name,
                                               threads=threads))  # fmt: skip


class RunningFamily(CallableNetwork):
    """Loaded library of a network that takes arrays of any sizes in its ranges."""

    def __init__(self, compiled: CompiledFamily, library: OpenLibrary) -> None:
        self.compiled = compiled
        self.library = library

    def __repr__(self) -> str:
        ranges = ", ".join(f"{n}={a}..{b}" for n, (a, b) in self.library.ranges.items())
        return f"<network {self.compiled.name} on {self.compiled.target}: {ranges}>"

    @property
    def input_names(self) -> Sequence[str]:
        return [tensor.name for tensor in self.compiled.inputs]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        compiled = self.compiled
        expected = {tensor.name: tensor.dtype for tensor in compiled.inputs}
        for name, dtype in expected.items():
            if name not in inputs:
                raise WorkloadError(f"{compiled.name}: input {name} ({dtype}) is missing")
            if str(inputs[name].dtype) != dtype:
                raise WorkloadError(
                    f"{compiled.name}: input {name} is {inputs[name].dtype}, the network has "
                    f"{dtype}"
                )
        for name in inputs:
            if name not in expected:
                raise WorkloadError(
                    f"{compiled.name} has no input {name}: its inputs are {', '.join(expected)}"
                )
        try:
            arrays = self.library.run(*(as_stored(inputs[name]) for name in expected))
        except LibraryError as error:
            raise WorkloadError(f"{compiled.name}: {error}") from None
        return {
            tensor.name: as_typed(array, tensor.dtype)
            for tensor, array in zip(compiled.outputs, arrays, strict=True)
        }

    def close(self) -> None:
        self.library.close()


# -- planning -------------------------------------------------------------------------------------


def plan_family(
    family: Family,
    units: Units,
    planning: Planning,
    ranges: Ranges,
    progress: Progress = silent,
    facts: Openness | None = None,
) -> FamilyPlan:
    """Choose the sizes of instances, and plan each of them.

    Parameters
    ----------
    family : Family
    units : Units
        Targets that compute its products.
    planning : Planning
    ranges : Ranges
    progress : Progress, optional
    facts : Openness, optional
        How sizes are computed, if that is known from another plan.

    Raises
    ------
    WorkloadError
        For a symbol whose sizes need more instances than there may be.
    LoweringError
        If an operator has no kernel.
    """
    progress("reading sizes", 0, 1)
    facts = facts or openness(family)
    choice = SizeChoice(family, facts, ranges.loss, ranges.instances)
    if (count := len(choice.necessary())) > MOST_NECESSARY:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in facts.reasons.items())
        raise WorkloadError(
            f"{family.name}: {family.ranges_text} needs kernels for {count} sizes, more than "
            f"{MOST_NECESSARY} ({reasons}): give smaller ranges"
        )
    model = CostModel(family)
    planning = replace(planning, kernels={})
    planned: dict[Sizes, PlannedInstance] = {}
    sizes: list[Sizes] = []
    # Plans correct the costs by which sizes are chosen, so that they are chosen again.
    while missing := [s for s in choice.extended(sizes, model) if s not in planned]:
        instances = [make_instance(family, facts, at, facts.regular) for at in missing]
        graphs = [prepared_and_named(instance.graph, units) for instance in instances]
        # All kernels are searched at once, by processes that start once.
        search_kernels(disjoint_union(graphs), units, planning, progress)
        for instance, graph in zip(instances, graphs, strict=True):
            progress(f"planning {family.text(instance.sizes)}", len(planned), len(planned) + 1)
            plan = plan_network(graph, units, planning, progress)
            planned[instance.sizes] = PlannedInstance(instance, plan)
            model.add(instance.sizes, plan.assignment.cost)
        sizes = list(planned)
    ordered = tuple(planned[at] for at in sorted(planned))
    return FamilyPlan(family, facts, ordered, choice.loss(sizes, model))


def disjoint_union(graphs: Sequence[Graph]) -> Graph:
    """Return the graph that computes several graphs side by side, their names numbered."""

    def named(number: int, name: str) -> str:
        return f"{number}/{name}"

    operators = [
        Operator(
            named(number, operator.name),
            operator.kind,
            tuple(named(number, name) for name in operator.inputs),
            tuple(named(number, name) for name in operator.outputs),
        )
        for number, graph in enumerate(graphs)
        for operator in graph.operators
    ]
    return Graph(
        graphs[0].name,
        {named(k, name): kind for k, g in enumerate(graphs) for name, kind in g.inputs.items()},
        tuple(named(k, name) for k, graph in enumerate(graphs) for name in graph.outputs),
        {named(k, name): a for k, g in enumerate(graphs) for name, a in g.constants.items()},
        tuple(operators),
    )


# -- compilation ----------------------------------------------------------------------------------


def compile_family(
    family: Family,
    target: str | HardwareSpec | Units,
    folder: Path,
    planning: Planning | None = None,
    *,
    ranges: Ranges | None = None,
    name: str | None = None,
    contents: Contents = EVERYTHING,
    progress: Progress = silent,
    check: Callable[[FamilyPlan, CompiledFamily], None] | None = None,
) -> CompiledFamily:
    """Write the library of a family of graphs to a folder.

    Parameters
    ----------
    family : Family
    target : str, HardwareSpec or Units
        As :func:`~cpembed.driver.matching.network_units` takes it.
    folder : Path
    planning, name, contents, progress
        As for :func:`~cpembed.network.build.compile_network`.
    ranges : Ranges, optional
    check : callable, optional
        Called with the plan and the loadable draft before any file is written; if it raises, none
        is.

    Raises
    ------
    WorkloadError, LoweringError
        As :func:`plan_family` does.
    BackendUnavailable
        If there is no C compiler, or the target has no library.
    """
    require_kernels(family.graph(family.largest))
    units, planning = matching.network_units(target), planning or Planning()
    require_library(units.primary)
    label = name or library_name(family.name)
    plan = plan_family(family, units, planning, ranges or Ranges(), progress)
    plan = with_programs(plan, label, planning, progress)
    program = sized_program(plan, label)
    progress("linking", 0, 1)

    def compiled(library: Library) -> CompiledFamily:
        return CompiledFamily.with_interface(family, units, library)

    def checked(path: Path) -> None:
        if check is not None:
            check(plan, compiled(Library(label, path.parent, ())))

    return compiled(write_library(program, folder, contents, check=checked))


def with_programs(
    plan: FamilyPlan, name: str, planning: Planning, progress: Progress = silent
) -> FamilyPlan:
    """Return a plan whose instances have programs, compiled together.

    Parameters
    ----------
    plan : FamilyPlan
    name : str
        Name of the library.
    planning : Planning
    progress : Progress, optional

    Raises
    ------
    LoweringError
        If a kernel cannot be compiled.
    """
    networks = network_programs([p.plan for p in plan.instances], name, planning.cache, progress)
    pairs = zip(plan.instances, networks, strict=True)
    return replace(plan, instances=tuple(replace(p, network=network) for p, network in pairs))


def sized_program(plan: FamilyPlan, name: str) -> SizedProgram:
    """Return the programs of a family's instances with one interface."""
    family, facts = plan.family, plan.facts
    graph = family.graph(family.largest)
    outputs = tuple(dict.fromkeys(graph.outputs))
    shapes = dict(zip(graph.outputs, facts.outputs, strict=True))
    first = _network(plan.instances[0])
    stored = {buffer.name: buffer.dtype for buffer in first.program.buffers}
    return SizedProgram(
        name,
        tuple(Symbol(symbol, r[0], r[-1]) for symbol, r in family.ranges.items()),
        facts.split,
        tuple(
            SizedTensor(tensor, stored[tensor], shape)
            for tensor, shape in zip(graph.inputs, facts.inputs, strict=True)
        ),
        tuple(
            SizedTensor(tensor, stored[first.results[tensor]], shapes[tensor]) for tensor in outputs
        ),
        tuple(_program_instance(p, tuple(graph.inputs), outputs) for p in plan.instances),
    )


def _network(planned: PlannedInstance) -> NetworkProgram:
    assert planned.network is not None
    return planned.network


def _program_instance(
    planned: PlannedInstance, inputs: Sequence[str], outputs: Sequence[str]
) -> ProgramInstance:
    instance, network = planned.instance, _network(planned)
    names = {buffer.name for buffer in network.program.with_role(Role.INPUT)}
    cost = planned.cost_us
    return ProgramInstance(
        network.program,
        instance.sizes,
        instance.least,
        instance.most,
        # Portable code has no estimate; its instances are compared by their sizes.
        cost if math.isfinite(cost) else 1e6 * math.prod(instance.sizes),
        tuple(inputs),
        tuple(network.results[name] for name in outputs),
        tuple(
            FillerBuffer(f.name, f.extent, f.size, f.kind)
            for f in instance.fillers
            if f.name in names
        ),
    )
