"""A network planned for a target: an execution of each operator, a layout of each tensor."""

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
from cpembed.network.candidate_layouts import Layouts
from cpembed.network.costs import Measuring
from cpembed.network.kernel_cache import Cache, Progress, cores, default_folder, silent
from cpembed.network.layout import Layout
from cpembed.network.layout_problem import Execution, Ways
from cpembed.network.product_kernels import Products


def without_residuals(graph: Graph, names: Collection[str]) -> Graph:
    """The graph in which these operators, by name, store what they make of their own sums, and
    another operator adds the residual: equal bit for bit, since that is rounded in between either
    way, or stored as floats where it is not."""
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
    alone = replace(epilogue, residual=None)
    if not residual.rounds:
        alone = Epilogue("float32", epilogue.scale, epilogue.bias, epilogue.relu)
    added = Elementwise(_sum(epilogue, residual), kind.dtype, "float32")
    return (
        replace(
            operator,
            kind=kind.with_epilogue(alone),
            inputs=operator.inputs[:-1],
            outputs=(between,),
        ),
        Operator(
            f"{operator.name} residual", added, (between, operator.inputs[-1]), operator.outputs
        ),
    )


def _sum(epilogue: Epilogue, residual: Residual) -> Scalar:
    """What :meth:`~cpembed.codegen.epilogue.Epilogue.apply` does with a residual, the second input,
    and the stored value, the first."""
    own, other = Input(0), Input(1)
    if epilogue.dtype == "float32":
        total = Apply("add", (own, other))
        return Apply("max", (total, Number(0.0))) if residual.relu else total
    moved = Apply("sub", (own, Number(epilogue.zero_point))) if residual.rounds else own
    scaled = Apply("mul", (Apply("sub", (other, Number(residual.zero_point))),
                           Number(residual.scale)))  # fmt: skip
    total = Apply("fma", (moved, Number(residual.own_scale), scaled))
    low, high = epilogue.residual_range
    limited = Apply("max", (Apply("min", (Apply("round", (total,)), Number(high))), Number(low)))
    return Apply("add", (limited, Number(residual.stored_zero_point)))


CHANNELS_LAST = "channels_last"

Policy = Literal["assigned", "channels_last", "alone"]
"""How layouts are chosen: over the whole network, all channels last, or the fastest of each
operator by itself. The last two are there to be compared with."""


@dataclass(frozen=True)
class Converted:
    """A tensor that is copied into another layout, once, after it was written."""

    tensor: str
    source: Layout
    target: Layout
    cost_us: float


@dataclass(frozen=True)
class NetworkPlan:
    """``executions`` by operator; ``written``: the layout in which each tensor is written or
    given."""

    target: HardwareSpec
    ways: Ways
    executions: Mapping[str, Execution]
    written: Mapping[str, Layout]
    conversions: tuple[Converted, ...]
    assignment: Assignment

    @property
    def graph(self) -> Graph:
        return self.ways.graph

    @property
    def threads(self) -> int:
        return self.ways.threads

    def execution(self, operator: Operator) -> Execution:
        return self.executions[operator.name]


SEARCH_LIMIT = 20.0
"""Seconds of each search for embeddings, where nobody says otherwise."""


@dataclass(frozen=True)
class Planning:
    """How kernels and layouts are chosen. ``timeout``: seconds of each search for embeddings;
    ``time_limit``: of the search for layouts, by ``policy``; ``measures``: what options cost is
    measured, not estimated; ``cache``: what is kept, by default in the user's folder."""

    timeout: float | None = SEARCH_LIMIT
    time_limit: float = 10.0
    policy: Policy = "assigned"
    measures: bool = False
    cache: Cache = field(default_factory=lambda: Cache(default_folder()))


def plan_network(
    graph: Graph, target: HardwareSpec, how: Planning, progress: Progress = silent
) -> NetworkPlan:
    """Choose kernels and layouts for a graph that was prepared for the target.

    Raises :class:`~cpembed.errors.LoweringError` where an operator has no kernel.
    """
    ways = _ways(graph, target, how, progress)
    problem = ways.problem
    progress("choosing layouts", 0, 1)
    chosen = assign(problem, time_limit=how.time_limit)
    if how.policy != "assigned":
        fixed = ways.channels_last() if how.policy == CHANNELS_LAST else None
        chosen = by_policy(problem, chosen, fixed)
    if ways.measuring is not None:
        # A plan is sent to the worker, and lasts longer than whoever watches.
        ways.measuring.progress = silent
    return _planned(ways, target, chosen)


def _ways(graph: Graph, target: HardwareSpec, how: Planning, progress: Progress) -> Ways:
    """The executions of each operator, the kernels of its products searched; residuals that no
    kernel of the instruction adds are operators of their own."""
    products, threads = Products(target, how.cache, how.timeout, cores()), thread_count()
    measuring = Measuring(how.cache, threads, progress) if how.measures else None
    ways = Ways(graph, Layouts(graph), products, threads, measuring)
    ways.search(progress)
    apart = ways.without_kernels_that_add()
    if apart:
        whole = without_residuals(graph, apart)
        ways = replace(ways, graph=whole, layouts=Layouts(whole))
        ways.search(progress)
    return ways


def _planned(ways: Ways, target: HardwareSpec, assignment: Assignment) -> NetworkPlan:
    """The plan that an assignment is."""
    layouts = ways.layouts.of
    problem = ways.problem
    conversions = tuple(
        Converted(
            done.tensor,
            layouts[done.tensor][done.source],
            layouts[done.tensor][done.target],
            problem.tensor_of[done.tensor].conversion[done.source, done.target],
        )
        for done in assignment.conversions
    )
    return NetworkPlan(
        target,
        ways,
        {name: ways.executions[name][number] for name, number in assignment.options.items()},
        {name: layouts[name][number] for name, number in assignment.written.items()},
        conversions,
        assignment,
    )
