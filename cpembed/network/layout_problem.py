"""Build the assignment problem of a network: executions of each operator, and their costs.

Executions of products are in :mod:`cpembed.network.product_executions`, those of two products in
one kernel in :mod:`cpembed.network.pair_executions`. Costs are estimated or
measured (:mod:`cpembed.network.costs`). The solver is in :mod:`cpembed.network.assignment`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cpembed.driver.options import MethodName
from cpembed.errors import LoweringError
from cpembed.graph.graph import Operator
from cpembed.graph.kinds import (
    Attention,
    Kind,
    Product,
    QuantizedAttention,
    Reshape,
    TensorType,
    Transpose,
)
from cpembed.graph.loop import Loop
from cpembed.network.assignment import Node, Option, Problem, Tensor
from cpembed.network.attention import AttentionChoice
from cpembed.network.executions import Execution, GraphOnTarget, Ports, ports_of
from cpembed.network.layout import Layout
from cpembed.network.operator_costs import estimate_copy_us, estimate_operator_us
from cpembed.network.operators import PlacedTensor, conversion_plan, generated_plan
from cpembed.network.pair_executions import (
    PairExecution,
    PairExecutions,
    PairPolicy,
    pair_ports,
)
from cpembed.network.product_executions import ProductExecutions
from cpembed.network.quantized_attention import QuantizedAttentionChoice
from cpembed.steps import Progress

AnyAttentionChoice = AttentionChoice | QuantizedAttentionChoice
"""Choice of the kernel of an attention of floats, or of integers."""

MOST_COMBINATIONS = 256
"""Maximum number of layout combinations per operator and order of axes.

A concatenation of many images, each with or without a halo, would explode.
"""


@dataclass(frozen=True)
class ExecutionChoices(GraphOnTarget):
    """Executions of each operator of a graph; convolutions are computed by a ``method``.

    ``loops_us`` are the costs of loops, whose bodies have plans of their own. ``pairs`` says where
    two operators are one kernel.
    """

    method: MethodName = "auto"
    pairs: PairPolicy = "auto"
    loops_us: Mapping[str, float] = field(default_factory=dict[str, float])

    @cached_property
    def of_products(self) -> ProductExecutions:
        """Executions of the products."""
        return ProductExecutions(self, self.method)

    @cached_property
    def of_pairs(self) -> PairExecutions:
        """Executions of pairs of operators."""
        return PairExecutions(self, self.of_products, self.separate_executions, self.pairs)

    def search(self, progress: Progress) -> None:
        """Search the kernels of all products."""
        products = [(o, o.kind) for o in self.graph.operators if isinstance(o.kind, Product)]
        requests = [w for o, kind in products for _, w in self.of_products.requests(o, kind)]
        for choice in dict.fromkeys(self.attentions.values()):
            requests += choice.requests
        self.products.search(requests, progress)
        # Only now is it known which requests have no native kernel that stores inside a halo.
        without_placement = self.of_products.without_placement
        self.products.search([w for r in requests for w in without_placement(r)], progress)

    def search_methods(self, progress: Progress) -> None:
        """Search the kernels of the methods that may be faster than the products' own sums."""
        candidates = itertools.chain.from_iterable(self.of_products.methods.values())
        self.products.search([method.request for _, method in candidates], progress)

    def search_pairs(self, progress: Progress) -> None:
        """Search the kernels of bands of pairs that may be faster in one kernel."""
        self.products.search(self.of_pairs.requests, progress)

    def products_to_split(self) -> list[str]:
        """Return the products whose residual or chain pays in no native kernel."""
        return [o.name for o in self.graph.operators if self.of_products.should_split(o)]

    @cached_property
    def executions(self) -> Mapping[str, tuple[Execution, ...]]:
        """Executions by operator.

        Raises :class:`LoweringError`, which names the operator, if one has none.
        """
        executions: dict[str, tuple[Execution, ...]] = {}
        for operator in self.graph.operators:
            candidates = self._candidates(operator)
            if not candidates:
                raise LoweringError(f"{self.graph.name}: {operator.name} has no kernel")
            executions[operator.name] = candidates
        return executions

    def separate_executions(self, operator: Operator) -> tuple[Execution, ...]:
        """Return the executions of an operator in a kernel of its own."""
        return self.executions[operator.name]

    @cached_property
    def pair_executions(self) -> Mapping[str, tuple[PairExecution, ...]]:
        """Executions of each pair by the name of its second operator."""
        executions: dict[str, tuple[PairExecution, ...]] = {}
        for operator in self.graph.operators:
            if operator.name not in self.of_pairs.pairs:
                continue
            first = self.of_pairs.pairs[operator.name]
            separate = self.executions[first.name], self.executions[operator.name]
            layouts = self.layouts.by_tensor[first.output]
            conversion = {
                (layouts[a], layouts[b]): cost
                for (a, b), cost in self._tensor(first.output).conversion.items()
            }
            pair = self.of_pairs.executions(first, operator, separate, conversion)
            if not pair:
                raise LoweringError(f"{self.graph.name}: {operator.name} has no kernel")
            executions[operator.name] = pair
        return executions

    def _candidates(self, operator: Operator) -> tuple[Execution, ...]:
        if isinstance(operator.kind, Product):
            return self.of_products.choices(operator)
        if isinstance(operator.kind, Attention | QuantizedAttention):
            return self._attention(operator)
        return self._generated(operator)

    # ------------------------------------------------------------------------------ attention

    @cached_property
    def attentions(self) -> Mapping[str, AnyAttentionChoice]:
        """Choice of each attention's kernel, one for all that are equal."""
        choices: dict[tuple[Kind, tuple[TensorType, ...]], AnyAttentionChoice] = {}
        by_operator: dict[str, AnyAttentionChoice] = {}
        for operator in self.graph.operators:
            kind, types = operator.kind, tuple(self.graph.types[name] for name in operator.inputs)
            if isinstance(kind, Attention):
                choice = AttentionChoice(kind, types, self.products, self.threads)
            elif isinstance(kind, QuantizedAttention):
                choice = QuantizedAttentionChoice(kind, types, self.products, self.threads)
            else:
                continue
            by_operator[operator.name] = choices.setdefault((kind, types), choice)
        return by_operator

    def attentions_to_split(self) -> list[str]:
        """Return the attentions whose products and softmax are faster as operators of their own."""
        is_split: dict[AnyAttentionChoice, bool] = {}
        for operator in self.graph.operators:
            choice = self.attentions.get(operator.name)
            if choice is not None and choice not in is_split:
                is_split[choice] = self._is_faster_split(operator, choice)
        return [name for name, choice in self.attentions.items() if is_split[choice]]

    def _is_faster_split(self, operator: Operator, choice: AnyAttentionChoice) -> bool:
        try:
            executions = self._attention(operator)
        except LoweringError:
            # Nothing multiplies its tiles.
            return True
        limit = min((execution.cost_us for execution in executions), default=math.inf)
        return choice.split_us(self.target, limit) < limit

    def _attention(self, operator: Operator) -> tuple[Execution, ...]:
        """Return the execution of an attention on row-major tensors."""
        reads, writes = ports_of(self.graph, operator)
        ports = tuple(self.row_major(name) for name in (*reads, *writes))
        inputs = [self.placed(name, self.row_major(name)) for name in operator.inputs]
        outputs = [self.placed(name, self.row_major(name)) for name in writes]
        kernel = self.attentions[operator.name].kernel(self.target, inputs, outputs)
        cost = kernel.cost_us
        if self.timer is not None:
            cost = self.timer.call_us(kernel.recorded([*inputs, *outputs]))
        return (Execution(ports, cost, attention=kernel),) if math.isfinite(cost) else ()

    # ---------------------------------------------------------------- operators between products

    def _generated(self, operator: Operator) -> tuple[Execution, ...]:
        reads, writes = ports_of(self.graph, operator)
        names = [*reads, *writes]
        if isinstance(operator.kind, Loop):
            # Slices along the first axis are neighbours in row-major order only.
            plain = tuple(map(self.row_major, names))
            return (Execution(plain, self.loops_us[operator.name]),)
        executions: list[Execution] = []
        for ports in self._combinations(names):
            # The caller's memory is the caller's: a result in it is copied.
            if _aliases(operator, ports) and not self._is_callers_memory(names):
                executions.append(Execution(ports, 0.0, aliases=True))
                continue
            layout_of = dict(zip(names, ports, strict=True))
            inputs = [self._input(name, layout_of) for name in operator.inputs]
            outputs = [self.placed(name, layout_of[name]) for name in writes]
            kind, threads = operator.kind, self.threads
            if self.timer is None:
                cost = estimate_operator_us(self.target, kind, inputs, outputs, threads)
            else:
                plan = generated_plan(kind, inputs, outputs, threads)
                cost = self.timer.plan_us(plan, (*inputs, *outputs))
            if math.isfinite(cost):
                executions.append(Execution(ports, cost))
        return tuple(executions)

    def _conversion_us(self, source: PlacedTensor, destination: PlacedTensor) -> float:
        if self.timer is None:
            return estimate_copy_us(self.target, source, destination, self.threads)
        plan = conversion_plan(source, destination, self.threads)
        return self.timer.plan_us(plan, (source, destination))

    def _combinations(self, names: Sequence[str]) -> list[Ports]:
        """Return combinations of layouts that agree with the order of the largest tensor.

        An operator with several inputs walks all tensors in one order; layouts in another order are
        left out, and the assignment converts the tensor first.
        """
        if len(names) < 3:
            return list(itertools.product(*(self.layouts.by_tensor[name] for name in names)))
        largest = max(names, key=lambda name: self.graph.types[name].elements)
        combinations: dict[Ports, None] = {}
        for order in self.layouts.by_tensor[largest]:
            agreeing = [
                [layout for layout in self.layouts.by_tensor[n] if agrees(layout, order)]
                for n in names
            ]
            if math.prod(map(len, agreeing)) > MOST_COMBINATIONS:
                # Only one stays: all with the halo they may have (the last layout), or none.
                agreeing = [layouts[-1:] if order.has_halo else layouts[:1] for layouts in agreeing]
            combined = itertools.product(*agreeing)
            places = (dict(zip(names, ports, strict=True)) for ports in combined)
            combinations |= dict.fromkeys(tuple(place[name] for name in names) for place in places)
        return list(combinations) or [tuple(self.layouts.by_tensor[name][0] for name in names)]

    def _input(self, name: str, layout_of: Mapping[str, Layout]) -> PlacedTensor:
        kind = self.graph.types[name]
        return self.placed(name, layout_of[name]) if name in layout_of else PlacedTensor.plain(kind)

    def _is_callers_memory(self, names: Sequence[str]) -> bool:
        return any(name in self.graph.inputs or name in self.graph.outputs for name in names)

    # ------------------------------------------------------------------------------ the problem

    @cached_property
    def problem(self) -> Problem:
        """Assignment problem: an execution for each operator and a layout for each tensor.

        A pair is one operator, in the place of its second one; what lies inside it is no tensor.
        """
        firsts = {operator.name: operator for operator in self.of_pairs.pairs.values()}
        inside = {operator.output for operator in firsts.values()}
        return Problem(
            tuple(self._node(o) for o in self.graph.operators if o.name not in firsts),
            tuple(self._tensor(name) for name in self.layouts.activations if name not in inside),
        )

    def channels_last(self) -> dict[str, int]:
        """Return the number of each image's layout with channels last and no halo."""
        numbers: dict[str, int] = {}
        for name in self.layouts.images:
            last = Layout.plain(self.graph.types[name].shape).channels_last()
            for number, layout in enumerate(self.layouts.by_tensor[name]):
                if layout.same_memory(last):
                    numbers[name] = number
        return numbers

    def _node(self, operator: Operator) -> Node:
        reads, writes = ports_of(self.graph, operator)
        executions: Sequence[Execution | PairExecution] = self.executions[operator.name]
        if operator.name in self.of_pairs.pairs:
            reads, writes = pair_ports(self.graph, self.of_pairs.pairs[operator.name], operator)
            executions = self.pair_executions[operator.name]
        numbers = [self.layouts.by_tensor[name].index for name in (*reads, *writes)]
        options = [
            Option(
                ", ".join(map(str, execution.ports)),
                tuple(
                    number(layout) for number, layout in zip(numbers, execution.ports, strict=True)
                ),
                execution.cost_us,
            )
            for execution in executions
        ]
        return Node(operator.name, tuple(reads), tuple(writes), tuple(options))

    def _tensor(self, name: str) -> Tensor:
        layouts, kind = self.layouts.by_tensor[name], self.graph.types[name]
        row_major = Layout.plain(kind.shape)
        row_major_number = next(
            (n for n, layout in enumerate(layouts) if layout.same_memory(row_major)), 0
        )
        pairs = itertools.permutations(
            enumerate(self.placed(name, layout) for layout in layouts), 2
        )
        costs = {(a, b): self._conversion_us(layout, target) for (a, layout), (b, target) in pairs}
        # A kernel that cannot be measured has an infinite cost: the conversion is impossible.
        conversion = {pair: cost for pair, cost in costs.items() if math.isfinite(cost)}
        return Tensor(
            name=name,
            layouts=tuple(map(str, layouts)),
            conversion=conversion,
            input_layout=row_major_number if name in self.graph.inputs else None,
            output_layouts=(row_major_number,) if name in self.graph.outputs else (),
        )


def agrees(layout: Layout, reference: Layout) -> bool:
    """True if the axes with several elements in both layouts lie in the same order.

    Axes are counted from the last, as they broadcast.

    >>> image = Layout.plain((1, 8, 4, 4))
    >>> scales = Layout.plain((1, 8, 1, 1))
    >>> agrees(scales, image.channels_last()), agrees(image, image.channels_last())
    (True, False)
    """
    order, reference_order = _extended(layout), _extended(reference)
    if len(order) > 1 and layout.block != reference.block:
        return False
    return [a for a in order if a in reference_order] == [a for a in reference_order if a in order]


def _extended(layout: Layout) -> list[int]:
    """Return the axes with several elements in memory order, counted from the last."""
    return [axis - len(layout.shape) for axis in layout.order if layout.shape[axis] > 1]


def _aliases(operator: Operator, ports: Ports) -> bool:
    """True if a reshape or transposition leaves every element at its position in memory."""
    if len(ports) != 2:
        return False
    before, after = ports
    # A halo lies between the elements, and the other shape would have it elsewhere.
    if before.has_halo or after.has_halo:
        return False
    if isinstance(operator.kind, Reshape):
        plain = before.same_memory(Layout.plain(before.shape))
        return plain and after.same_memory(Layout.plain(after.shape))
    if isinstance(operator.kind, Transpose) and before.block == after.block == 1:
        after_in_memory = [operator.kind.order[axis] for axis in after.order]
        permuted, original = (
            [axis for axis in order if before.shape[axis] > 1]
            for order in (after_in_memory, before.order)
        )
        return permuted == original
    return False
