"""The ways in which each operator of a network can be executed, as a problem of layouts.

An operator's option is a layout of each of its tensors, and for a product the kernel that is chosen
for these; its cost is what that kernel's target estimates, packing included, or what moving the
bytes takes; or both are measured. Products that nothing estimates cost what portable code of this
kind takes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cpembed.errors import LoweringError
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Kind, Product, Reshape, Transpose
from cpembed.network.assignment import Node, Option, Problem, Tensor
from cpembed.network.candidate_layouts import Layouts, residual_of
from cpembed.network.costs import Measuring, conversion_us, estimate_us
from cpembed.network.kernel_cache import Progress
from cpembed.network.layout import Layout
from cpembed.network.operators import Placed, conversion_plan, generated_plan
from cpembed.network.physical_product import laid_out
from cpembed.network.product_kernels import Layer, Products, Wanted
from cpembed.targets.base import Target
from cpembed.targets.registry import open_target

PORTABLE_MACS_PER_US = 500.0
"""Multiply-accumulates a microsecond and thread of portable code: of the right order, so that a
native kernel in another layout is taken before it."""

MOST_COMBINATIONS = 256
"""Of the layouts of an operator's tensors that are compared in one order of the axes: of a
concatenation of many images, each with a halo or without, there are more."""

Ports = tuple[Layout, ...]
"""A layout for each port of an operator: what it reads and is no constant, then what it writes."""


@dataclass(frozen=True)
class Execution:
    """One way to execute an operator; ``layer``: of a product."""

    ports: Ports
    cost_us: float
    layer: Layer | None = None
    aliases: bool = False
    """Whether the result is the input's memory, and nothing is executed."""


def ports_of(graph: Graph, operator: Operator) -> tuple[list[str], list[str]]:
    """The tensors that it reads, but for constants, and those that it writes."""
    return [n for n in operator.inputs if not graph.is_constant(n)], [*operator.outputs]


@dataclass(frozen=True)
class Ways:
    """The executions of each operator of a graph."""

    graph: Graph
    layouts: Layouts
    products: Products
    threads: int
    measuring: Measuring | None = None
    """Measures what options cost; None: they are estimated."""

    @cached_property
    def target(self) -> Target[Any, Any, Any]:
        return open_target(self.products.target)

    def search(self, progress: Progress) -> None:
        """Search the kernels of all products."""
        products = [(o, o.kind) for o in self.graph.operators if isinstance(o.kind, Product)]
        asked = [w for o, kind in products for _, w in self._laid_out(o, kind)]
        self.products.search(asked, progress)
        self.products.search([w for one in asked for w in self._instead(one)], progress)

    def _instead(self, wanted: Wanted) -> tuple[Wanted, ...]:
        """Where no kernel of the instruction stores in a larger buffer, one that does not."""
        layer = self.products.layer(wanted)
        native = layer is not None and layer.is_native
        return () if native or not wanted.placed else (replace(wanted, placed=False),)

    def without_kernels_that_add(self) -> list[str]:
        """Products that add a residual, and that no kernel of the instruction computes with it."""
        return [
            operator.name
            for operator in self.graph.operators
            if residual_of(operator)
            and not any(way.layer and way.layer.is_native for way in self._product(operator))
        ]

    @cached_property
    def executions(self) -> Mapping[str, tuple[Execution, ...]]:
        """By operator.

        Raises :class:`LoweringError`, which names the operator, where there is none.
        """
        found: dict[str, tuple[Execution, ...]] = {}
        for operator in self.graph.operators:
            is_product = isinstance(operator.kind, Product)
            ways = self._product(operator) if is_product else self._generated(operator)
            if not ways:
                raise LoweringError(f"{self.graph.name}: {operator.name} has no kernel")
            found[operator.name] = ways
        return found

    def placed(self, name: str, layout: Layout) -> Placed:
        fill = self.layouts.fills.get(name, 0)
        return Placed(self.graph.types[name], layout, fill)

    # ------------------------------------------------------------------------------ products

    def _laid_out(self, operator: Operator, kind: Product) -> Iterator[tuple[Ports, Wanted]]:
        """A product in all layouts of its tensors."""
        first_name, second_name = operator.inputs[:2]
        output, residual = operator.output, residual_of(operator)
        padded = self.layouts.reads_padding(operator, kind)
        for first in self._layouts(first_name):
            if padded and first.has_halo and kind.padding != self.layouts.fills[first_name]:
                continue
            for stored in self.layouts.of[output]:
                if lane_by_lane(kind) and first.order != stored.order:
                    continue
                for added in self.layouts.of[residual[0]] if residual else (None,):
                    try:
                        made = laid_out(kind, first, stored, added)
                    except LoweringError:
                        continue
                    # A second factor that varies is read in the order of its axes.
                    taken = [(first_name, first), (second_name, self._row_major(second_name))]
                    taken += [] if added is None else [(residual[0], added)]
                    places = dict(taken)
                    if any(places[name] != layout for name, layout in taken):
                        continue
                    names, _ = ports_of(self.graph, operator)
                    ports = [places.get(name) or self._row_major(name) for name in names]
                    yield (*ports, stored), Wanted(made.computation, kind.epilogue, True)

    def _layouts(self, name: str) -> tuple[Layout, ...]:
        constant = self.graph.is_constant(name)
        return (self._row_major(name),) if constant else self.layouts.of[name]

    def _row_major(self, name: str) -> Layout:
        """The layout of a tensor in the order of its axes, as its list has it."""
        plain = Layout.plain(self.graph.types[name].shape)
        known = () if self.graph.is_constant(name) else self.layouts.of[name]
        return next((layout for layout in known if layout.same_memory(plain)), plain)

    def _product(self, operator: Operator) -> tuple[Execution, ...]:
        kind = operator.kind
        assert isinstance(kind, Product)
        found: dict[Ports, Execution] = {}
        added = bool(residual_of(operator))
        for ports, placed in self._laid_out(operator, kind):
            for wanted in (placed, *self._instead(placed)):
                layer = self.products.layer(wanted)
                if layer is None or (not wanted.placed and (added or ports[-1].has_halo)):
                    continue
                cost = self._layer_us(layer, kind)
                if not math.isfinite(cost):
                    continue
                known = found.get(ports)
                if known is None or _order(layer, cost) < _order(known.layer, known.cost_us):
                    found[ports] = Execution(ports, cost, layer)
        return tuple(found.values())

    def _layer_us(self, layer: Layer, kind: Product) -> float:
        if self.measuring is not None:
            return self.measuring.layer_us(layer)
        if layer.is_native:
            return layer.cost_us
        return kind.computation.macs / (PORTABLE_MACS_PER_US * self.threads)

    # ------------------------------------------------------------------------------ the others

    def _generated(self, operator: Operator) -> tuple[Execution, ...]:
        reads, writes = ports_of(self.graph, operator)
        names = [*reads, *writes]
        found: list[Execution] = []
        for ports in self._alike(names):
            if _aliases(operator, ports) and not self._is_outside(names):
                found.append(Execution(ports, 0.0, aliases=True))
                continue
            places = dict(zip(names, ports, strict=True))
            inputs = [self._input(name, places) for name in operator.inputs]
            outputs = [self.placed(name, places[name]) for name in writes]
            cost = self._kernel_us(operator.kind, inputs, outputs)
            if math.isfinite(cost):
                found.append(Execution(ports, cost))
        return tuple(found)

    def _kernel_us(self, kind: Kind, inputs: Sequence[Placed], outputs: Sequence[Placed]) -> float:
        if self.measuring is None:
            return estimate_us(self.target, kind, inputs, outputs, self.threads)
        plan = generated_plan(kind, inputs, outputs, self.threads)
        return self.measuring.plan_us(plan, (*inputs, *outputs))

    def _conversion_us(self, source: Placed, into: Placed) -> float:
        if self.measuring is None:
            return conversion_us(self.target, source, into, self.threads)
        plan = conversion_plan(source, into, self.threads)
        return self.measuring.plan_us(plan, (source, into))

    def _alike(self, names: Sequence[str]) -> list[Ports]:
        """Layouts of tensors that are all read and written by one operator: where there are
        several inputs, all in the order of the one with most elements, others are converted."""
        if len(names) < 3:
            return list(itertools.product(*(self.layouts.of[name] for name in names)))
        whole = max(names, key=lambda name: self.graph.types[name].elements)
        found: dict[Ports, None] = {}
        for order in self.layouts.of[whole]:
            alike = [[one for one in self.layouts.of[n] if agrees(one, order)] for n in names]
            if math.prod(map(len, alike)) > MOST_COMBINATIONS:
                # All with the halo that they may have, which is the last layout, or none.
                alike = [of[-1:] if order.has_halo else of[:1] for of in alike]
            combined = itertools.product(*alike)
            places = (dict(zip(names, ports, strict=True)) for ports in combined)
            found |= dict.fromkeys(tuple(place[name] for name in names) for place in places)
        return list(found) or [tuple(self.layouts.of[name][0] for name in names)]

    def _input(self, name: str, places: Mapping[str, Layout]) -> Placed:
        kind = self.graph.types[name]
        return self.placed(name, places[name]) if name in places else Placed.plain(kind)

    def _is_outside(self, names: Sequence[str]) -> bool:
        """Whether a tensor is the caller's memory."""
        return any(name in self.graph.inputs or name in self.graph.outputs for name in names)

    # ------------------------------------------------------------------------------ the problem

    @cached_property
    def problem(self) -> Problem:
        """The choice of an execution for each operator, of a layout for each tensor."""
        return Problem(
            tuple(self._node(operator) for operator in self.graph.operators),
            tuple(self._tensor(name) for name in self.layouts.activations),
        )

    def channels_last(self) -> dict[str, int]:
        """Of each image the number of its layout with the channels innermost and no halo."""
        found: dict[str, int] = {}
        for name in self.layouts.images:
            last = Layout.plain(self.graph.types[name].shape).channels_last()
            for number, layout in enumerate(self.layouts.of[name]):
                if layout.same_memory(last):
                    found[name] = number
        return found

    def _node(self, operator: Operator) -> Node:
        reads, writes = ports_of(self.graph, operator)
        numbers = [self.layouts.of[name].index for name in (*reads, *writes)]
        options = [
            Option(
                ", ".join(map(str, way.ports)),
                tuple(number(layout) for number, layout in zip(numbers, way.ports, strict=True)),
                way.cost_us,
            )
            for way in self.executions[operator.name]
        ]
        return Node(operator.name, tuple(reads), tuple(writes), tuple(options))

    def _tensor(self, name: str) -> Tensor:
        layouts, kind = self.layouts.of[name], self.graph.types[name]
        row_major = Layout.plain(kind.shape)
        plain = next((n for n, one in enumerate(layouts) if one.same_memory(row_major)), 0)
        pairs = itertools.permutations(enumerate(self.placed(name, one) for one in layouts), 2)
        costs = {(a, b): self._conversion_us(one, other) for (a, one), (b, other) in pairs}
        conversion = {pair: cost for pair, cost in costs.items() if math.isfinite(cost)}
        return Tensor(
            name,
            tuple(map(str, layouts)),
            conversion,
            plain if name in self.graph.inputs else None,
            (plain,) if name in self.graph.outputs else (),
        )


def lane_by_lane(kind: Product) -> bool:
    """Whether each channel of the result is made of one of the image: both lie alike."""
    return "depthwise" in kind.computation.name


def _order(layer: Layer | None, cost: float) -> tuple[bool, float]:
    """Kernels of the instruction come before portable code."""
    return layer is None or not layer.is_native, cost


def agrees(layout: Layout, whole: Layout) -> bool:
    """Whether the axes that have several elements in both lie in the same order; axes are counted
    from the last, as they are broadcast.

    >>> image = Layout.plain((1, 8, 4, 4))
    >>> scales = Layout.plain((1, 8, 1, 1))
    >>> agrees(scales, image.channels_last()), agrees(image, image.channels_last())
    (True, False)
    """
    ours, theirs = _extended(layout), _extended(whole)
    if len(ours) > 1 and layout.block != whole.block:
        return False
    return [a for a in ours if a in theirs] == [a for a in theirs if a in ours]


def _extended(layout: Layout) -> list[int]:
    """Axes of several elements in their order in memory, counted from the last."""
    return [axis - len(layout.shape) for axis in layout.order if layout.shape[axis] > 1]


def _aliases(operator: Operator, ports: Ports) -> bool:
    """Whether the result of moving elements lies as its input does."""
    if len(ports) != 2:
        return False
    before, after = ports
    if before.has_halo or after.has_halo:
        return False
    if isinstance(operator.kind, Reshape):
        plain = before.same_memory(Layout.plain(before.shape))
        return plain and after.same_memory(Layout.plain(after.shape))
    if isinstance(operator.kind, Transpose) and before.block == after.block == 1:
        after_in_memory = [operator.kind.order[axis] for axis in after.order]
        moved, kept = (
            [axis for axis in order if before.shape[axis] > 1]
            for order in (after_in_memory, before.order)
        )
        return moved == kept
    return False
