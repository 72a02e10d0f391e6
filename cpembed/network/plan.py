"""Plan of a network: a kernel for each operator and a layout for each tensor."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from cpembed.codegen.epilogue import Epilogue, Residual
from cpembed.codegen.runtime import thread_count
from cpembed.driver.options import MethodName
from cpembed.graph.graph import Array, Graph, Operator
from cpembed.graph.kinds import (
    Apply,
    Elementwise,
    GroupedProduct,
    Input,
    Number,
    Product,
    Scalar,
)
from cpembed.graph.loop import Loop, nested_graphs
from cpembed.graph.passes.attention_splitting import split_attentions
from cpembed.graph.passes.chain_fusion import split_chain
from cpembed.graph.passes.quantized_attention import split_quantized_attentions
from cpembed.host import core_count
from cpembed.network.assignment import Assignment, assign, by_policy
from cpembed.network.costs import KernelTimer
from cpembed.network.executions import Execution
from cpembed.network.kernel_cache import Cache, default_folder
from cpembed.network.layout import CandidateLayouts, Layout
from cpembed.network.layout_problem import ExecutionChoices
from cpembed.network.pair_executions import PairPolicy
from cpembed.network.product_kernels import KernelRequest, ProductKernel, ProductKernels
from cpembed.steps import Progress, silent
from cpembed.targets.units import Units


def split_epilogues(graph: Graph, names: Collection[str]) -> Graph:
    """Split some products into a product and an operator that adds the residual or has the chain.

    The results stay equal bit for bit: what is stored in between is rounded as the epilogue rounds
    it, or a float if the epilogue does not round.
    """
    operators: list[Operator] = []
    constants: dict[str, Array] = {}
    tensors = set(graph.types)
    for operator in graph.operators:
        if operator.name not in names:
            operators.append(operator)
            continue
        kind = operator.kind
        has_chain = isinstance(kind, Product) and kind.epilogue and kind.epilogue.chain
        name = f"{operator.output} before the {'chain' if has_chain else 'residual'}"
        # The model itself may have a tensor of this name.
        while name in tensors:
            name += "'"
        tensors.add(name)
        if isinstance(kind, Product) and has_chain:
            parts, added = split_chain(graph, operator, kind, name)
            operators += parts
            constants |= added
        else:
            operators += _split(operator, name)
    return graph.with_operators(operators, constants)


def _split(operator: Operator, between: str) -> tuple[Operator, Operator]:
    kind = operator.kind
    assert isinstance(kind, Product)
    assert kind.epilogue is not None
    assert kind.epilogue.residual is not None
    epilogue, residual = kind.epilogue, kind.epilogue.residual
    # The product stores what the epilogue has before the residual: rounded integers, or floats.
    without_residual = replace(epilogue, residual=None)
    if not residual.rounds:
        without_residual = Epilogue("float32", epilogue.scale, epilogue.bias, epilogue.relu)
    added = Elementwise(_sum(epilogue, residual), kind.dtype, "float32")
    name, inputs = f"{operator.name} residual", (between, operator.inputs[-1])
    product = kind.with_epilogue(without_residual)
    return (
        replace(operator, kind=product, inputs=operator.inputs[:-1], outputs=(between,)),
        Operator(name, added, inputs, operator.outputs),
    )


def _sum(epilogue: Epilogue, residual: Residual) -> Scalar:
    """Express what an epilogue does with the stored value (input 0) and the residual (input 1)."""
    value, addend = Input(0), Input(1)
    if epilogue.dtype == "float32":
        total = Apply("add", (value, addend))
        return Apply("max", (total, Number(0.0))) if residual.relu else total
    centred = Apply("sub", (value, Number(epilogue.zero_point))) if residual.rounds else value
    scaled = Apply("mul", (Apply("sub", (addend, Number(residual.zero_point))),
                           Number(residual.scale)))  # fmt: skip
    # Kernels of products contract this sum into one rounding too.
    total = Apply("fma", (centred, Number(residual.own_scale), scaled))
    low, high = epilogue.residual_range
    limited = Apply("max", (Apply("min", (Apply("round", (total,)), Number(high))), Number(low)))
    return Apply("add", (limited, Number(residual.stored_zero_point)))


CHANNELS_LAST = "channels_last"

Policy = Literal["assigned", "channels_last", "alone"]
"""Choice of layouts: over the whole network, all channels last, or each operator's fastest.

The last two are for comparisons.
"""


@dataclass(frozen=True)
class LayoutConversion:
    """Copy of a tensor into another layout, made once after the tensor was written."""

    tensor: str
    source: Layout
    target: Layout
    cost_us: float


@dataclass(frozen=True)
class NetworkPlan:
    """Execution of each operator, and the layout in which each tensor is written.

    Attributes
    ----------
    choices : ExecutionChoices
        Problem that was solved, with the graph in which some residuals may be split off.
    executions : mapping from str to Execution
        Execution by operator.
    written : mapping from str to Layout
        Layout in which each tensor is written, or in which the caller passes it.
    bodies : mapping from str to NetworkPlan
        Plan of the body of each loop, by the loop's name.
    """

    units: Units
    choices: ExecutionChoices
    executions: Mapping[str, Execution]
    written: Mapping[str, Layout]
    conversions: tuple[LayoutConversion, ...]
    assignment: Assignment
    bodies: Mapping[str, NetworkPlan] = field(default_factory=dict[str, "NetworkPlan"])

    @property
    def graph(self) -> Graph:
        """Network, whose residuals that no native kernel adds are operators of their own."""
        return self.choices.graph

    @property
    def threads(self) -> int:
        return self.choices.threads

    @property
    def macs(self) -> int:
        """Number of multiply-accumulates of a run."""
        total = 0
        for operator, plan, times in self.nested():
            attention = plan.execution(operator).attention
            if isinstance(operator.kind, Product):
                total += times * operator.kind.computation.macs
            elif isinstance(operator.kind, GroupedProduct):
                total += times * operator.kind.macs
            elif attention is not None:
                total += times * attention.macs
        return total

    def execution(self, operator: Operator) -> Execution:
        """Return the execution that was chosen for an operator."""
        return self.executions[operator.name]

    def all_plans(self) -> Iterator[NetworkPlan]:
        """Yield this plan and those of loops, at any depth."""
        yield self
        for body in self.bodies.values():
            yield from body.all_plans()

    def nested(self) -> Iterator[tuple[Operator, NetworkPlan, int]]:
        """Yield each operator, those inside loops after their loop, with its plan.

        The number is how often it is executed in a run; a loop that only a condition ends counts
        once.
        """
        for operator in self.graph.operators:
            yield operator, self, 1
            if operator.name in self.bodies:
                assert isinstance(operator.kind, Loop)
                steps = operator.kind.counted_steps
                for inner, plan, times in self.bodies[operator.name].nested():
                    yield inner, plan, times * steps


SEARCH_LIMIT = 20.0
"""Default limit of each search for embeddings, in seconds."""


@dataclass(frozen=True)
class Planning:
    """Options of planning.

    Attributes
    ----------
    timeout : float, optional
        Seconds of each search for embeddings.
    time_limit : float
        Seconds of the search for layouts.
    measures : bool
        Measure the costs of executions instead of estimating them.
    method : MethodName
        ``auto`` compares all methods of a convolution, ``implicit`` takes its own sums, another
        name this method wherever it is possible.
    pairs : PairPolicy
        Where a convolution and the one that reads its rows are computed by one kernel; nowhere with
        a policy of layouts other than ``assigned``.
    cache : Cache
        Cache of kernels, by default in the user's folder.
    kernels : dict, optional
        Kernels of one set of units that were searched for other networks, to which those of this
        one are added.
    """

    timeout: float | None = SEARCH_LIMIT
    time_limit: float = 10.0
    policy: Policy = "assigned"
    measures: bool = False
    method: MethodName = "auto"
    pairs: PairPolicy = "auto"
    cache: Cache = field(default_factory=lambda: Cache(default_folder()))
    kernels: dict[KernelRequest, ProductKernel | None] | None = field(default=None, repr=False)


def plan_network(
    graph: Graph, units: Units, planning: Planning, progress: Progress = silent
) -> NetworkPlan:
    """Choose kernels and layouts for a graph that was prepared for the units.

    Parameters
    ----------
    graph : Graph
    units : Units
        Targets that compute its products.
    planning : Planning
    progress : Progress, optional

    Raises
    ------
    LoweringError
        If an operator has no kernel.
    """
    # Bodies first: the cost of a loop is that of its body. Each has an assignment of its own, since
    # slices and states are row-major.
    loops = {o.name: o.kind for o in graph.operators if isinstance(o.kind, Loop)}
    bodies = {
        name: plan_network(kind.body, units, planning, progress) for name, kind in loops.items()
    }
    costs = {
        name: loops[name].counted_steps * body.assignment.cost for name, body in bodies.items()
    }
    choices = _searched_choices(graph, units, planning, progress, costs)
    problem = choices.problem
    progress("choosing layouts", 0, 1)
    assignment = assign(problem, time_limit=planning.time_limit)
    if planning.policy != "assigned":
        fixed = choices.channels_last() if planning.policy == CHANNELS_LAST else None
        assignment = by_policy(problem, assignment, fixed)
    if choices.timer is not None:
        # The plan, timer included, is pickled for the worker; a caller's callback cannot be.
        choices.timer.progress = silent
    return replace(_planned(choices, units, assignment), bodies=bodies)


def _searched_choices(
    graph: Graph,
    units: Units,
    planning: Planning,
    progress: Progress,
    loops_us: Mapping[str, float],
) -> ExecutionChoices:
    """Return the executions of each operator, with all kernels searched.

    Residuals that no kernel of the instruction adds, and chains that no such kernel computes,
    become operators of their own: with them the product would be portable code.
    """
    kernels = {} if planning.kernels is None else planning.kernels
    products = ProductKernels(units, planning.cache, planning.timeout, core_count(), kernels)
    threads = thread_count()
    timer = KernelTimer(planning.cache, threads, progress) if planning.measures else None
    choices = ExecutionChoices(
        graph=graph,
        layouts=CandidateLayouts(graph),
        products=products,
        threads=threads,
        timer=timer,
        method=planning.method,
        pairs=planning.pairs if planning.policy == "assigned" else "never",
        loops_us=loops_us,
    )
    choices.search(progress)
    # Only after the search is it known which kernels can add a residual or compute a chain.
    unfused = choices.products_to_split()
    if unfused:
        split = split_epilogues(graph, unfused)
        choices = replace(choices, graph=split, layouts=CandidateLayouts(split))
        choices.search(progress)
    if slow := choices.attentions_to_split():
        split = split_quantized_attentions(split_attentions(choices.graph, slow), slow)
        choices = replace(choices, graph=split, layouts=CandidateLayouts(split))
        choices.search(progress)
    choices.search_methods(progress)
    choices.search_pairs(progress)
    return choices


def _planned(choices: ExecutionChoices, units: Units, assignment: Assignment) -> NetworkPlan:
    """Translate an assignment's numbers of options and layouts to executions and layouts."""
    layouts = choices.layouts.by_tensor
    problem = choices.problem
    conversions = [
        LayoutConversion(
            conversion.tensor,
            layouts[conversion.tensor][conversion.source],
            layouts[conversion.tensor][conversion.target],
            problem.tensor_of[conversion.tensor].conversion[conversion.source, conversion.target],
        )
        for conversion in assignment.conversions
    ]
    executions: dict[str, Execution] = {}
    written = {name: layouts[name][number] for name, number in assignment.written.items()}
    for name, number in assignment.options.items():
        if name not in choices.pair_executions:
            executions[name] = choices.executions[name][number]
            continue
        first, pair = choices.of_pairs.pairs[name], choices.pair_executions[name][number]
        executions |= {first.name: pair.first, name: pair.second}
        between, read = pair.first.ports[-1], pair.second.ports[0]
        written[first.output] = between
        if pair.is_converted:
            copied = LayoutConversion(first.output, between, read, pair.conversion_us)
            conversions.append(copied)
    return NetworkPlan(
        units=units,
        choices=choices,
        executions=executions,
        written=written,
        conversions=tuple(conversions),
        assignment=assignment,
    )


def search_kernels(
    graph: Graph, units: Units, planning: Planning, progress: Progress = silent
) -> None:
    """Search the kernels that a graph's plan needs, into the ``kernels`` of ``planning``.

    Parameters
    ----------
    graph : Graph
        Graph that was prepared for the units.
    units : Units
        Targets that compute its products.
    planning : Planning
    progress : Progress, optional
    """
    for each in nested_graphs(graph):
        # Kernels do not depend on what loops cost.
        free = {o.name: 0.0 for o in each.operators if isinstance(o.kind, Loop)}
        _searched_choices(each, units, planning, progress, free)
