"""Executions of pairs of convolutions: one kernel, or two with a layout and a copy between them.

A pair is one node of the layout problem. Nothing else reads the tensor between both, so its best
layout for each combination of the other layouts is known before the problem is solved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from cpembed.errors import LoweringError
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Product
from cpembed.network.bands import Band
from cpembed.network.executions import Execution, GraphOnTarget, Ports, ports_of
from cpembed.network.layout import Layout, residual_of
from cpembed.network.operators import PlacedTensor
from cpembed.network.operators.pairs import IMAGE, OUTPUT, RESIDUAL
from cpembed.network.pairs import (
    PairChoice,
    PairKernel,
    PairLayouts,
    PairPart,
    most_saved_us,
    pairs_of,
)
from cpembed.network.product_executions import ProductExecutions
from cpembed.network.product_kernels import KernelRequest
from cpembed.targets.capabilities import host_times

PairPolicy = Literal["auto", "always", "never"]
"""Pairs in one kernel: where that is faster by the costs, wherever it is possible, or nowhere."""


ESTIMATE_MARGIN = 1.15
"""Minimum ratio of the estimates of two kernels and of one for which one is taken.

Of seven layers of MobileNet, three with a larger ratio were 1.2 to 2.2 times as fast in one kernel,
four with a smaller one 0.9 to 1.04 times (Zen 3 with published times: ``benchmarks/pairs.py``).
"""


@dataclass(frozen=True)
class PairExecution:
    """Execution of a pair in a combination of layouts.

    Attributes
    ----------
    ports : tuple of Layout
        Layouts of :func:`pair_ports`.
    cost_us : float
        Time of both, and of a copy between them.
    conversion_us : float
        Time of the copy of the tensor between them into the layout in which the second reads it.
    """

    ports: Ports
    cost_us: float
    first: Execution
    second: Execution
    conversion_us: float = 0.0

    @property
    def is_converted(self) -> bool:
        """True if the tensor between both is copied into another layout."""
        return self.first.ports[-1] != self.second.ports[0]


@dataclass(frozen=True)
class PairExecutions:
    """Executions of the pairs of a graph."""

    setting: GraphOnTarget
    products: ProductExecutions
    policy: PairPolicy

    @cached_property
    def pairs(self) -> Mapping[str, Operator]:
        """First operator of each pair that may be faster in one kernel, by the second's name."""
        if self.policy == "never":
            return {}
        graph = self.setting.graph
        seconds = {operator.name: operator for operator in graph.operators}
        return {
            name: first
            for name, first in pairs_of(graph).items()
            if self.policy == "always" or self._may_pay(first, seconds[name])
        }

    def _may_pay(self, first: Operator, second: Operator) -> bool:
        """True if what is moved between two operators takes a part of their time that counts."""
        setting, costs = self.setting, list[float]()
        for operator in (first, second):
            native = [e.cost_us for e in self.products.choices(operator) if _is_native(e)]
            if not native:
                return False
            costs.append(min(native))
        names = (first.inputs[0], first.output)
        size = sum(PlacedTensor.plain(setting.graph.types[name]).bytes for name in names)
        assert isinstance(first.kind, Product)
        times = host_times(setting.target)
        saved = most_saved_us(first.kind, size, times, setting.threads)
        return saved > (setting.target.policy.tie_ratio - 1) * sum(costs)

    @cached_property
    def requests(self) -> list[KernelRequest]:
        """Searches for the kernels of bands."""
        choices = (choice for _, _, choice in self._choices_of_all())
        return [request for choice in choices for request in choice.requests]

    def _choices_of_all(self) -> Iterator[tuple[Ports, Ports, PairChoice]]:
        for second in self.setting.graph.operators:
            if second.name in self.pairs:
                yield from self._choices(self.pairs[second.name], second)

    def _choices(
        self, first: Operator, second: Operator
    ) -> Iterator[tuple[Ports, Ports, PairChoice]]:
        """Yield the layouts of both operators' ports in which bands are products of their own."""
        producer, consumer = first.kind, second.kind
        assert isinstance(producer, Product)
        assert isinstance(consumer, Product)
        setting = self.setting
        times = host_times(setting.target)
        # Depthwise convolutions write no other layout, and what follows is rarely in blocks.
        between = Layout.plain(setting.graph.types[first.output].shape).channels_last()
        writing = self.products.layouts(first, producer)
        reading = [
            (ports, layouts)
            for ports, layouts in self.products.layouts(second, consumer)
            if layouts.image.same_memory(between) and layouts.output.block == 1
        ]
        for first_ports, first_layouts in writing:
            if not first_layouts.output.same_memory(between):
                continue
            for second_ports, second_layouts in reading:
                layouts = PairLayouts(first_layouts, second_layouts)
                choice = PairChoice((producer, consumer), layouts, times, setting.threads)
                if choice.is_possible:
                    yield first_ports, second_ports, choice

    @cached_property
    def _parts(self) -> dict[KernelRequest, PairPart | None]:
        """Parts by the search for their kernel; places in tensors do not influence schedules."""
        return {}

    def _part(self, request: KernelRequest, band: Band, *, places: bool) -> PairPart | None:
        """Return a part of a pair; None if there is no kernel that takes a band in place."""
        epilogue = band.epilogue() if places else band.kind.epilogue
        if request not in self._parts:
            kernel = self.setting.products.lookup(request)
            self._parts[request] = None
            if kernel is not None:
                with suppress(LoweringError):
                    self._parts[request] = PairPart.scheduled(band, kernel, epilogue)
        part = self._parts[request]
        return None if part is None else replace(part, band=band, epilogue=epilogue)

    def _fused(self, first: Operator, second: Operator) -> Iterator[PairExecution]:
        """Yield the executions in one kernel."""
        for first_ports, second_ports, choice in self._choices(first, second):
            requests, bands = choice.requests, choice.products
            a = self._part(requests[0], bands[0], places=False)
            b = self._part(requests[1], bands[1], places=True)
            if a is None or b is None:
                continue
            kernel = choice.kernel((a, b), self._tensors(first, second, choice.layouts))
            cost = self._cost_us(kernel)
            if not math.isfinite(cost):
                continue
            yield PairExecution(
                (*first_ports[:-1], *second_ports[1:]),
                cost,
                Execution(first_ports, 0.0, a.kernel, fused_with=second.name),
                Execution(second_ports, cost, b.kernel, pair=kernel, fused_with=first.name),
            )

    def _tensors(
        self, first: Operator, second: Operator, layouts: PairLayouts
    ) -> dict[str, PlacedTensor]:
        """Return the tensors in which bands lie."""
        placed = self.setting.placed
        tensors = {IMAGE: placed(first.inputs[0], layouts.first.image)}
        if layouts.second.residual is not None:
            (residual,) = residual_of(second)
            tensors[RESIDUAL] = placed(residual, layouts.second.residual)
        return tensors | {OUTPUT: placed(second.output, layouts.second.output)}

    def _cost_us(self, kernel: PairKernel) -> float:
        if self.setting.timer is not None:
            return self.setting.timer.pair_us(kernel)
        chains = sum(
            self.products.chain_us(part.kernel, part.band.kind) * kernel.bands.tasks
            for part in kernel.parts
        )
        return kernel.cost_us + chains

    def executions(
        self,
        first: Operator,
        second: Operator,
        separate: tuple[Sequence[Execution], Sequence[Execution]],
        conversion: Mapping[tuple[Layout, Layout], float],
    ) -> tuple[PairExecution, ...]:
        """Return the fastest execution of a pair for each combination of layouts.

        Parameters
        ----------
        first, second : Operator
        separate : tuple of two sequences of Execution
            Executions of each of them.
        conversion : mapping from (Layout, Layout) to float
            Cost of copying the tensor between them into another layout, where that is possible.
        """
        fused = list(self._fused(first, second))
        is_forced = self.policy == "always" and bool(fused)
        candidates = fused if is_forced else [*_separate(*separate, conversion), *fused]
        best: dict[Ports, PairExecution] = {}
        for execution in candidates:
            current = best.get(execution.ports)
            if current is None or self._ranked_us(execution) < self._ranked_us(current):
                best[execution.ports] = execution
        return tuple(best.values())

    def _ranked_us(self, execution: PairExecution) -> float:
        """Return the cost by which executions in the same layouts are compared."""
        is_estimated = execution.second.pair is not None and self.setting.timer is None
        return execution.cost_us * (ESTIMATE_MARGIN if is_estimated else 1.0)


def pair_ports(graph: Graph, first: Operator, second: Operator) -> tuple[list[str], list[str]]:
    """Return the tensors that a pair reads, without that between its operators, and writes.

    Parameters
    ----------
    graph : Graph
    first, second : Operator
    """
    reads, _ = ports_of(graph, first)
    further, writes = ports_of(graph, second)
    # Weights are constants, so the second's first port is what the first writes.
    return [*reads, *further[1:]], writes


def _separate(
    firsts: Sequence[Execution],
    seconds: Sequence[Execution],
    conversion: Mapping[tuple[Layout, Layout], float],
) -> Iterator[PairExecution]:
    """Yield the executions in two kernels, with a copy between them where layouts differ."""
    for first in firsts:
        for second in seconds:
            written, read = first.ports[-1], second.ports[0]
            copied = 0.0 if written == read else conversion.get((written, read), math.inf)
            if copied < math.inf:
                ports = (*first.ports[:-1], *second.ports[1:])
                cost = first.cost_us + copied + second.cost_us
                yield PairExecution(ports, cost, first, second, copied)


def _is_native(execution: Execution) -> bool:
    return execution.kernel is not None and execution.kernel.is_native
