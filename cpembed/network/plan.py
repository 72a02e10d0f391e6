"""Plan of a network: a kernel for each operator and a layout for each tensor."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from cpembed.codegen.epilogue import Epilogue, Residual
from cpembed.codegen.runtime import thread_count
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Apply, Elementwise, Input, Number, Product, Scalar
from cpembed.hw.instruction import HardwareSpec
from cpembed.network.assignment import Assignment, assign
from cpembed.network.assignment.policies import by_policy
from cpembed.network.candidate_layouts import CandidateLayouts
from cpembed.network.costs import KernelTimer
from cpembed.network.kernel_cache import Cache, Progress, cores, default_folder, silent
from cpembed.network.layout import Layout
from cpembed.network.layout_problem import Execution, ExecutionChoices
from cpembed.network.product_kernels import ProductKernels


def split_residuals(graph: Graph, names: Collection[str]) -> Graph:
    """Split some products into a product and an operator that adds the residual.

    Equal bit for bit, since the residual's addend is rounded in between either way, or stored as a
    float
    if it is not.
    """
    operators: list[Operator] = []
    tensors = set(graph.types)
    for operator in graph.operators:
        if operator.name not in names:
            operators.append(operator)
            continue
        name = f"{operator.output} before the residual"
        while name in tensors:
            name += "'"
        tensors.add(name)
        operators += _split(operator, name)
    return graph.with_operators(operators)


def _split(operator: Operator, between: str) -> tuple[Operator, Operator]:
    kind = operator.kind
    assert isinstance(kind, Product)
    assert kind.epilogue is not None
    assert kind.epilogue.residual is not None
    epilogue, residual = kind.epilogue, kind.epilogue.residual
    without_residual = replace(epilogue, residual=None)
    if not residual.rounds:
        without_residual = Epilogue("float32", epilogue.scale, epilogue.bias, epilogue.relu)
    added = Elementwise(_sum(epilogue, residual), kind.dtype, "float32")
    return (
        replace(
            operator,
            kind=kind.with_epilogue(without_residual),
            inputs=operator.inputs[:-1],
            outputs=(between,),
        ),
        Operator(
            f"{operator.name} residual", added, (between, operator.inputs[-1]), operator.outputs
        ),
    )


def _sum(epilogue: Epilogue, residual: Residual) -> Scalar:
    """Return what an epilogue does with the stored value (input 0) and the residual (input 1)."""
    value, addend = Input(0), Input(1)
    if epilogue.dtype == "float32":
        total = Apply("add", (value, addend))
        return Apply("max", (total, Number(0.0))) if residual.relu else total
    centred = Apply("sub", (value, Number(epilogue.zero_point))) if residual.rounds else value
    scaled = Apply("mul", (Apply("sub", (addend, Number(residual.zero_point))),
                           Number(residual.scale)))  # fmt: skip
    total = Apply("fma", (centred, Number(residual.own_scale), scaled))
    low, high = epilogue.residual_range
    limited = Apply("max", (Apply("min", (Apply("round", (total,)), Number(high))), Number(low)))
    return Apply("add", (limited, Number(residual.stored_zero_point)))


CHANNELS_LAST = "channels_last"

Policy = Literal["assigned", "channels_last", "alone"]
"""Choice of layouts: over the whole network, all channels last, or the fastest for each operator by
itself. The last two are for comparisons."""


@dataclass(frozen=True)
class LayoutConversion:
    """Copy of a tensor into another layout, made once after it was written."""

    tensor: str
    source: Layout
    target: Layout
    cost_us: float


@dataclass(frozen=True)
class NetworkPlan:
    """Executions by operator, and the layout in which each tensor is written or given."""

    target: HardwareSpec
    choices: ExecutionChoices
    executions: Mapping[str, Execution]
    written: Mapping[str, Layout]
    conversions: tuple[LayoutConversion, ...]
    assignment: Assignment

    @property
    def graph(self) -> Graph:
        return self.choices.graph

    @property
    def threads(self) -> int:
        return self.choices.threads

    def execution(self, operator: Operator) -> Execution:
        return self.executions[operator.name]


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
    policy : Policy
    measures : bool
        Measure the costs of executions instead of estimating them.
    cache : Cache
        Cache of kernels, by default in the user's folder.
    """

    timeout: float | None = SEARCH_LIMIT
    time_limit: float = 10.0
    policy: Policy = "assigned"
    measures: bool = False
    cache: Cache = field(default_factory=lambda: Cache(default_folder()))


def plan_network(
    graph: Graph, target: HardwareSpec, planning: Planning, progress: Progress = silent
) -> NetworkPlan:
    """Choose kernels and layouts for a graph that was prepared for the target.

    Parameters
    ----------
    graph : Graph
    target : HardwareSpec
    planning : Planning
    progress : Progress

    Raises
    ------
    LoweringError
        If an operator has no kernel.
    """
    choices = _searched_choices(graph, target, planning, progress)
    problem = choices.problem
    progress("choosing layouts", 0, 1)
    assignment = assign(problem, time_limit=planning.time_limit)
    if planning.policy != "assigned":
        fixed = choices.channels_last() if planning.policy == CHANNELS_LAST else None
        assignment = by_policy(problem, assignment, fixed)
    if choices.timer is not None:
        # A plan is sent to the worker, and lasts longer than whoever watches.
        choices.timer.progress = silent
    return _planned(choices, target, assignment)


def _searched_choices(
    graph: Graph, target: HardwareSpec, planning: Planning, progress: Progress
) -> ExecutionChoices:
    """Return the executions of each operator, with all kernels searched.

    Residuals that no kernel of the instruction adds become operators of their own.
    """
    products, threads = (
        ProductKernels(target, planning.cache, planning.timeout, cores()),
        thread_count(),
    )
    timer = KernelTimer(planning.cache, threads, progress) if planning.measures else None
    choices = ExecutionChoices(
        graph=graph,
        layouts=CandidateLayouts(graph),
        products=products,
        threads=threads,
        timer=timer,
    )
    choices.search(progress)
    unfused = choices.products_without_fused_residual()
    if unfused:
        split = split_residuals(graph, unfused)
        choices = replace(choices, graph=split, layouts=CandidateLayouts(split))
        choices.search(progress)
    return choices


def _planned(
    choices: ExecutionChoices, target: HardwareSpec, assignment: Assignment
) -> NetworkPlan:
    """Return the plan of an assignment."""
    layouts = choices.layouts.by_tensor
    problem = choices.problem
    conversions = tuple(
        LayoutConversion(
            conversion.tensor,
            layouts[conversion.tensor][conversion.source],
            layouts[conversion.tensor][conversion.target],
            problem.tensor_of[conversion.tensor].conversion[conversion.source, conversion.target],
        )
        for conversion in assignment.conversions
    )
    return NetworkPlan(
        target=target,
        choices=choices,
        executions={
            name: choices.executions[name][number] for name, number in assignment.options.items()
        },
        written={name: layouts[name][number] for name, number in assignment.written.items()},
        conversions=conversions,
        assignment=assignment,
    )
