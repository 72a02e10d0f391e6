"""Executions of pairs of operators: one kernel, or two with a layout and a copy between them.

A pair is one node of the layout problem. Nothing else reads the tensor between both, so its best
layout for each combination of the other layouts is known before the problem is solved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from cpembed.errors import LoweringError
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Pool, Product
from cpembed.network.bands import Band
from cpembed.network.convolution_methods import ProductLayouts
from cpembed.network.executions import Execution, GraphOnTarget, Ports, ports_of
from cpembed.network.layout import Layout, residual_of
from cpembed.network.operators import PlacedTensor
from cpembed.network.operators.pairs import IMAGE, OUTPUT, RESIDUAL
from cpembed.network.pair_parts import ProductPart
from cpembed.network.pairs import (
    PairChoice,
    PairKernel,
    PairLayouts,
    most_saved_us,
    obstacle,
    pairs_of,
)
from cpembed.network.product_executions import ProductExecutions
from cpembed.network.product_kernels import KernelRequest
from cpembed.targets.capabilities import host_times
from cpembed.wording import duration

PairPolicy = Literal["auto", "always", "never"]
"""Pairs in one kernel: where that is faster by the costs, wherever it is possible, or nowhere."""

_SLOWER = 1.25
"""Cost, relative to its fastest, above which an execution's layouts are not searched for a pair."""

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
    """Executions of the pairs of a graph.

    Attributes
    ----------
    separate : callable
        Function that returns the executions of an operator by itself.
    """

    setting: GraphOnTarget
    products: ProductExecutions
    separate: Callable[[Operator], Sequence[Execution]]
    policy: PairPolicy

    @cached_property
    def pairs(self) -> Mapping[str, Operator]:
        """First operator of each pair that may be faster in one kernel, by the second's name."""
        if self.policy == "never":
            return {}
        return pairs_of(self.setting.graph, None if self.policy == "always" else self._may_pay)

    def _may_pay(self, first: Operator, second: Operator) -> bool:
        """True if moving the tensor between two operators takes much of their time."""
        costs = [self._native_us(operator) for operator in (first, second)]
        limit = (self.setting.target.policy.tie_ratio - 1) * sum(costs)
        return self._most_saved_us(first) > limit

    def _native_us(self, operator: Operator) -> float:
        """Return the least cost of an operator by itself; infinite for portable code."""
        costs = (e.cost_us for e in self.separate(operator) if _is_native(operator, e))
        return min(costs, default=math.inf)

    def _most_saved_us(self, first: Operator) -> float:
        setting = self.setting
        names = (first.inputs[0], first.output)
        size = sum(PlacedTensor.plain(setting.graph.types[name]).bytes for name in names)
        assert isinstance(first.kind, Product)
        times = host_times(setting.target)
        return most_saved_us(first.kind, size, times, setting.threads)

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
        assert isinstance(consumer, Product | Pool)
        setting = self.setting
        times = host_times(setting.target)
        reading = [*self._layouts(second)]
        for first_ports, first_layouts in self._layouts(first):
            if first_layouts.output.has_halo:
                continue
            for second_ports, second_layouts in reading:
                if second_layouts.image != first_layouts.output:
                    continue
                layouts = PairLayouts(first_layouts, second_layouts)
                choice = PairChoice((producer, consumer), layouts, times, setting.threads)
                if choice.is_possible:
                    yield first_ports, second_ports, choice

    def _layouts(self, operator: Operator) -> list[tuple[Ports, ProductLayouts]]:
        """Return the layouts of an operator's tensors in which it is not much slower by itself."""
        costs = {e.ports: e.cost_us for e in self.separate(operator) if _is_native(operator, e)}
        limit = min(costs.values(), default=math.inf) * _SLOWER
        if isinstance(operator.kind, Product):
            layouts = self.products.layouts(operator, operator.kind)
            return [each for each in layouts if costs.get(each[0], math.inf) <= limit]
        return [(p, ProductLayouts(*p)) for p, cost in costs.items() if cost <= limit]

    @cached_property
    def _parts(self) -> dict[KernelRequest, ProductPart | None]:
        """Parts by the search for their kernel; places in tensors do not influence schedules."""
        return {}

    def _part(self, request: KernelRequest, band: Band) -> ProductPart | None:
        """Return a part of a pair; None if there is no kernel that takes a band in place."""
        if request not in self._parts:
            kernel = self.setting.products.lookup(request)
            self._parts[request] = None
            if kernel is not None:
                with suppress(LoweringError):
                    self._parts[request] = ProductPart.scheduled(band, kernel)
        part = self._parts[request]
        return None if part is None else replace(part, band=band, epilogue=band.epilogue())

    def _fused(self, first: Operator, second: Operator) -> Iterator[PairExecution]:
        """Yield the executions in one kernel."""
        for first_ports, second_ports, choice in self._choices(first, second):
            tensors = self._tensors(first, second, choice.layouts)
            parts = [
                self._part(request, band)
                for request, band in zip(choice.requests, choice.products, strict=True)
            ]
            products = [part for part in parts if part is not None]
            if len(products) < len(parts):
                continue
            last = products[1:] or [choice.pool_part(self.setting.target, tensors[OUTPUT])]
            kernel = choice.kernel((products[0], last[0]), tensors)
            cost = self._cost_us(kernel)
            if not math.isfinite(cost):
                continue
            kernels = [part.kernel for part in products]
            yield PairExecution(
                (*first_ports[:-1], *second_ports[1:]),
                cost,
                Execution(first_ports, 0.0, kernels[0], fused_with=second.name),
                Execution(
                    second_ports,
                    cost,
                    kernels[1] if len(kernels) > 1 else None,
                    pair=kernel,
                    fused_with=first.name,
                ),
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
            if isinstance(part, ProductPart)
        )
        return kernel.cost_us + chains

    @cached_property
    def fused_us(self) -> dict[str, float]:
        """Least cost of each pair in one kernel by the second's name, as far as it was needed."""
        return {}

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
        if fused:
            self.fused_us[second.name] = min(execution.cost_us for execution in fused)
        is_forced = self.policy == "always" and bool(fused)
        candidates = fused if is_forced else [*_separate(*separate, conversion), *fused]
        best: dict[Ports, PairExecution] = {}
        for execution in candidates:
            current = best.get(execution.ports)
            if current is None or self._ranked_us(execution) < self._ranked_us(current):
                best[execution.ports] = execution
        return tuple(best.values())

    def reason(self, first: Operator, second: Operator, separate_us: float) -> str:
        """Return why two operators are not one kernel, as :func:`~cpembed.network.pairs.obstacle`.

        Parameters
        ----------
        first, second : Operator
            Operators of :func:`~cpembed.network.pairs.followers`.
        separate_us : float
            Cost of both by themselves, as they were planned.
        """
        if self.policy == "never":
            return "pairs are off"
        reason = obstacle(self.setting.graph, first, second)
        if reason is not None:
            return reason
        if first.name in self.pairs:
            return f"the first may be in a pair: {first.name}"
        both = duration(separate_us)
        if second.name in self.fused_us:
            fused = duration(self.fused_us[second.name])
            return f"no clear gain: {fused} in one kernel, {both} in two"
        if second.name in self.pairs or separate_us == math.inf:
            return "no kernel of a band in place"
        return f"little to save: at most {duration(self._most_saved_us(first))} of {both}"

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


def _is_native(operator: Operator, execution: Execution) -> bool:
    """True unless portable code computes a product."""
    if isinstance(operator.kind, Pool):
        return True
    return execution.kernel is not None and execution.kernel.is_native
