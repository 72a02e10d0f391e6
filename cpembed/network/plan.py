"""A network planned for a target: an execution of each operator, a layout of each tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from cpembed.codegen.runtime import thread_count
from cpembed.graph.graph import Graph, Operator
from cpembed.hw.instruction import HardwareSpec
from cpembed.network.assignment import Assignment, assign
from cpembed.network.cache import Cache, default_folder
from cpembed.network.comparison import by_policy
from cpembed.network.layout import Layout
from cpembed.network.measuring import Measuring
from cpembed.network.options import Execution, Ways
from cpembed.network.products import Products, cores
from cpembed.network.splitting import without_residuals
from cpembed.network.tensors import Layouts
from cpembed.steps import Progress, silent

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
