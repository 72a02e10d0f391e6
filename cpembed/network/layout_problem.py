"""Build the assignment problem of a network: executions of each operator, and their costs.

An execution is a layout for each tensor of an operator, and for products the kernel that is chosen
for these. Its cost is estimated or measured (:mod:`cpembed.network.costs`). The solver is in
:mod:`cpembed.network.assignment`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from cpembed.errors import LoweringError
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Product, Reshape, TensorType, Transpose
from cpembed.graph.loop import Loop
from cpembed.graph.passes.chain_fusion import split_chain
from cpembed.network.assignment import Node, Option, Problem, Tensor
from cpembed.network.costs import KernelTimer
from cpembed.network.layout import CandidateLayouts, Layout, residual_of
from cpembed.network.operator_costs import estimate_copy_us, estimate_operator_us
from cpembed.network.operators import PlacedTensor, conversion_plan, generated_plan
from cpembed.network.operators.work import WIDTH, expression_operations
from cpembed.network.physical_product import physical_product
from cpembed.network.product_kernels import KernelRequest, ProductKernel, ProductKernels
from cpembed.steps import Progress
from cpembed.targets.capabilities import AnyTarget, host_times
from cpembed.targets.registry import open_target

# Multiply-accumulates per microsecond and thread of portable code. Only the order of magnitude
# counts, so that a native kernel in another layout is preferred.
_PORTABLE_MACS_PER_US = 500.0

MOST_COMBINATIONS = 256
"""Maximum number of layout combinations per operator and order of axes.

A concatenation of many images, each with or without a halo, would explode.
"""

Ports = tuple[Layout, ...]
"""Layout of each port: tensors that an operator reads, without constants, then those it writes."""


@dataclass(frozen=True)
class Execution:
    """Execution of an operator in a combination of layouts.

    Attributes
    ----------
    cost_us : float
        Estimated or measured microseconds.
    kernel : ProductKernel or None
        Kernel of a product; None for other operators.
    aliases : bool
        True if the result is the input's memory and nothing is executed.
    """

    ports: Ports
    cost_us: float
    kernel: ProductKernel | None = None
    aliases: bool = False


def ports_of(graph: Graph, operator: Operator) -> tuple[list[str], list[str]]:
    """Return the tensors that an operator reads, without constants, and those that it writes."""
    return [n for n in operator.inputs if not graph.is_constant(n)], [*operator.outputs]


@dataclass(frozen=True)
class ExecutionChoices:
    """Executions of each operator of a graph; their costs are estimated without a ``timer``.

    ``loops_us`` are the costs of loops, whose bodies have plans of their own.
    """

    graph: Graph
    layouts: CandidateLayouts
    products: ProductKernels
    threads: int
    timer: KernelTimer | None = None
    loops_us: Mapping[str, float] = field(default_factory=dict[str, float])

    @cached_property
    def target(self) -> AnyTarget:
        """Target whose calibration estimates what lies between products."""
        return open_target(self.products.units.primary)

    def search(self, progress: Progress) -> None:
        """Search the kernels of all products."""
        products = [(o, o.kind) for o in self.graph.operators if isinstance(o.kind, Product)]
        requests = [w for o, kind in products for _, w in self._physical_products(o, kind)]
        self.products.search(requests, progress)
        # Only now is it known which requests have no native kernel that stores inside a halo.
        self.products.search(
            [w for request in requests for w in self._without_placement(request)], progress
        )

    def _without_placement(self, request: KernelRequest) -> tuple[KernelRequest, ...]:
        """Return the request for an unplaced kernel, unless a native one can place its results."""
        kernel = self.products.lookup(request)
        is_native = kernel is not None and kernel.is_native
        return () if is_native or not request.placed else (replace(request, placed=False),)

    def products_to_split(self) -> list[str]:
        """Return the products whose residual or chain pays in no native kernel."""
        names: list[str] = []
        for operator in self.graph.operators:
            if not (residual_of(operator) or _has_chain(operator)):
                continue
            kernels = [execution.kernel for execution in self._product(operator)]
            native = [kernel for kernel in kernels if kernel is not None and kernel.is_native]
            if not native or not self._chain_pays(operator, native):
                names.append(operator.name)
        return names

    def _chain_pays(self, operator: Operator, kernels: Sequence[ProductKernel]) -> bool:
        """True if a chain takes no longer in one of some kernels than as an operator."""
        kind = operator.kind
        if not isinstance(kind, Product) or not _has_chain(operator):
            return True
        parts, _ = split_chain(self.graph, operator, kind, operator.output)
        # Kernels compute it for padding too, and for results that two tasks compute.
        fused = min(self._chain_us(kernel, kind) for kernel in kernels)
        result = PlacedTensor.plain(self.graph.types[operator.output])
        floats = PlacedTensor.plain(replace(result.type, dtype="float32"))
        inputs = [floats] * (1 + len(residual_of(operator)))
        inputs += [PlacedTensor.plain(TensorType((), "float32"))] * (
            len(parts[1].inputs) - len(inputs)
        )
        return fused <= estimate_operator_us(
            self.target, parts[1].kind, inputs, [result], self.threads
        )

    def _chain_us(self, kernel: ProductKernel, kind: Product) -> float:
        """Return the time of a chain in a kernel, whose sums are in the nearest cache."""
        if kind.epilogue is None or kind.epilogue.chain is None:
            return 0.0
        vectors = kernel.computed_results / WIDTH
        operations = vectors * expression_operations(kind.epilogue.chain.expression)
        return operations * host_times(self.target).operation_ns / self.threads / 1e3

    @cached_property
    def executions(self) -> Mapping[str, tuple[Execution, ...]]:
        """Executions by operator.

        Raises :class:`LoweringError`, which names the operator, if one has none.
        """
        executions: dict[str, tuple[Execution, ...]] = {}
        for operator in self.graph.operators:
            is_product = isinstance(operator.kind, Product)
            candidates = self._product(operator) if is_product else self._generated(operator)
            if not candidates:
                raise LoweringError(f"{self.graph.name}: {operator.name} has no kernel")
            executions[operator.name] = candidates
        return executions

    def placed(self, name: str, layout: Layout) -> PlacedTensor:
        """Return a tensor in a layout, with the value that its halo holds."""
        fill = self.layouts.fills.get(name, 0)
        return PlacedTensor(self.graph.types[name], layout, fill)

    # ------------------------------------------------------------------------------ products

    def _physical_products(
        self, operator: Operator, kind: Product
    ) -> Iterator[tuple[Ports, KernelRequest]]:
        """Yield the combinations of layouts of a product, with the kernel that each one needs."""
        first_name, second_name = operator.inputs[:2]
        output, residual = operator.output, residual_of(operator)
        padded = self.layouts.reads_padding(operator, kind)
        for first in self._layouts(first_name):
            # A halo holds the padding of the first reader only; others need a layout without it.
            if padded and first.has_halo and kind.padding != self.layouts.fills[first_name]:
                continue
            for output_layout in self.layouts.by_tensor[output]:
                # Each channel is computed from one of the image, so both are lanes of one vector.
                if _lane_by_lane(kind) and first.order != output_layout.order:
                    continue
                for residual_layout in self.layouts.by_tensor[residual[0]] if residual else (None,):
                    try:
                        physical = physical_product(kind, first, output_layout, residual_layout)
                    except LoweringError:
                        continue
                    # A second factor that varies is read in the order of its axes.
                    reads = [(first_name, first), (second_name, self._row_major(second_name))]
                    reads += [] if residual_layout is None else [(residual[0], residual_layout)]
                    layout_of = dict(reads)
                    if any(layout_of[name] != layout for name, layout in reads):
                        continue
                    names, _ = ports_of(self.graph, operator)
                    ports = [layout_of.get(name) or self._row_major(name) for name in names]
                    yield (
                        (*ports, output_layout),
                        KernelRequest(physical.computation, kind.epilogue, True),
                    )

    def _layouts(self, name: str) -> tuple[Layout, ...]:
        constant = self.graph.is_constant(name)
        return (self._row_major(name),) if constant else self.layouts.by_tensor[name]

    def _row_major(self, name: str) -> Layout:
        """Return the row-major layout of a tensor, as its candidates have it."""
        plain = Layout.plain(self.graph.types[name].shape)
        candidates = () if self.graph.is_constant(name) else self.layouts.by_tensor[name]
        return next((layout for layout in candidates if layout.same_memory(plain)), plain)

    def _product(self, operator: Operator) -> tuple[Execution, ...]:
        kind = operator.kind
        assert isinstance(kind, Product)
        executions: dict[Ports, Execution] = {}
        has_residual = bool(residual_of(operator))
        for ports, placed_request in self._physical_products(operator, kind):
            for request in (placed_request, *self._without_placement(placed_request)):
                kernel = self.products.lookup(request)
                # An unplaced kernel has a buffer of its own: it can neither leave a halo nor add.
                if kernel is None or (not request.placed and (has_residual or ports[-1].has_halo)):
                    continue
                cost = self._product_us(kernel, kind)
                if not math.isfinite(cost):
                    continue
                # Several requests may serve the same layouts; the native, then cheapest one stays.
                current = executions.get(ports)
                if current is None or _priority(kernel, cost) < _priority(
                    current.kernel, current.cost_us
                ):
                    executions[ports] = Execution(ports, cost, kernel)
        return tuple(executions.values())

    def _product_us(self, kernel: ProductKernel, kind: Product) -> float:
        if self.timer is not None:
            return self.timer.product_us(kernel)
        if kernel.is_native:
            return kernel.cost_us + self._chain_us(kernel, kind)
        return kind.computation.macs / (_PORTABLE_MACS_PER_US * self.threads)

    # ---------------------------------------------------------------- operators between products

    def _generated(self, operator: Operator) -> tuple[Execution, ...]:
        reads, writes = ports_of(self.graph, operator)
        names = [*reads, *writes]
        if isinstance(operator.kind, Loop):
            # Slices along the first axis are neighbours in row-major order only.
            plain = tuple(map(self._row_major, names))
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
        """Assignment problem: an execution for each operator and a layout for each tensor."""
        return Problem(
            tuple(self._node(operator) for operator in self.graph.operators),
            tuple(self._tensor(name) for name in self.layouts.activations),
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
        numbers = [self.layouts.by_tensor[name].index for name in (*reads, *writes)]
        options = [
            Option(
                ", ".join(map(str, execution.ports)),
                tuple(
                    number(layout) for number, layout in zip(numbers, execution.ports, strict=True)
                ),
                execution.cost_us,
            )
            for execution in self.executions[operator.name]
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


def _has_chain(operator: Operator) -> bool:
    kind = operator.kind
    if not isinstance(kind, Product) or kind.epilogue is None:
        return False
    return kind.epilogue.chain is not None


def _lane_by_lane(kind: Product) -> bool:
    """True if each channel of the result is computed from one channel of the image."""
    return "depthwise" in kind.computation.name


def _priority(kernel: ProductKernel | None, cost: float) -> tuple[bool, float]:
    """Return a sort key: kernels of the instruction before portable code, then by cost."""
    return kernel is None or not kernel.is_native, cost


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
