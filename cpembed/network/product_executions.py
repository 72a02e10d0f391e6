"""Executions of products: kernels of their own sums, and methods of convolutions that beat them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cpembed.driver.options import MethodName
from cpembed.errors import LoweringError
from cpembed.graph.graph import Operator
from cpembed.graph.kinds import Product, TensorType
from cpembed.graph.passes.chain_fusion import split_chain
from cpembed.network.convolution_methods import ConvolutionMethod, ProductLayouts
from cpembed.network.executions import Execution, GraphOnTarget, Ports, ports_of
from cpembed.network.layout import residual_of
from cpembed.network.method_choices import CostLimit, MethodChoices
from cpembed.network.operator_costs import estimate_operator_us
from cpembed.network.operators import PlacedTensor
from cpembed.network.operators.operation_counts import WIDTH, expression_operations
from cpembed.network.physical_product import physical_product
from cpembed.network.product_kernel import ProductKernel
from cpembed.network.product_kernels import KernelRequest
from cpembed.targets.capabilities import host_times


@dataclass(frozen=True)
class ProductExecutions:
    """Executions of the products of a graph; convolutions are computed by a ``method``."""

    setting: GraphOnTarget
    method: MethodName

    # ---------------------------------------------------------------------------------- requests

    def requests(self, operator: Operator, kind: Product) -> Iterator[tuple[Ports, KernelRequest]]:
        """Yield the combinations of layouts of a product, with the kernel that each one needs."""
        for ports, layouts in self.layouts(operator, kind):
            try:
                physical = physical_product(kind, layouts.image, layouts.output, layouts.residual)
            except LoweringError:
                continue
            yield ports, KernelRequest(physical.computation, kind.epilogue, True)

    def layouts(self, operator: Operator, kind: Product) -> Iterator[tuple[Ports, ProductLayouts]]:
        """Yield the combinations of layouts of a product."""
        setting, layouts = self.setting, self.setting.layouts
        first_name, second_name = operator.inputs[:2]
        residual = residual_of(operator)
        residual_layouts = layouts.by_tensor[residual[0]] if residual else (None,)
        padded = layouts.reads_padding(operator, kind)
        for first in setting.layouts_of(first_name):
            # A halo holds the padding of the first reader only; others need a layout without it.
            if padded and first.has_halo and kind.padding != layouts.fills[first_name]:
                continue
            for output_layout in layouts.by_tensor[operator.output]:
                # Each channel is computed from one of the image, so both are lanes of one vector.
                if _lane_by_lane(kind) and first.order != output_layout.order:
                    continue
                for residual_layout in residual_layouts:
                    # A second factor that varies is read in the order of its axes.
                    reads = [(first_name, first), (second_name, setting.row_major(second_name))]
                    reads += [] if residual_layout is None else [(residual[0], residual_layout)]
                    layout_of = dict(reads)
                    if any(layout_of[name] != layout for name, layout in reads):
                        continue
                    names, _ = ports_of(setting.graph, operator)
                    ports = [layout_of.get(name) or setting.row_major(name) for name in names]
                    yield (
                        (*ports, output_layout),
                        ProductLayouts(first, output_layout, residual_layout),
                    )

    def without_placement(self, request: KernelRequest) -> tuple[KernelRequest, ...]:
        """Return the request for an unplaced kernel, unless a native one can place its results."""
        kernel = self.setting.products.lookup(request)
        is_native = kernel is not None and kernel.is_native
        return () if is_native or not request.placed else (replace(request, placed=False),)

    # ------------------------------------------------------------------------------- chains

    def should_split(self, operator: Operator) -> bool:
        """True if the residual or the chain of a product pays in no native kernel."""
        if not (residual_of(operator) or _has_chain(operator)):
            return False
        kernels = [execution.kernel for execution in self._sums(operator)]
        native = [kernel for kernel in kernels if kernel is not None and kernel.is_native]
        return not native or not self.chain_pays(operator, native)

    def chain_pays(self, operator: Operator, kernels: Sequence[ProductKernel]) -> bool:
        """True if a chain takes no longer in one of some kernels than as an operator."""
        kind = operator.kind
        if not isinstance(kind, Product) or not _has_chain(operator):
            return True
        graph = self.setting.graph
        parts, _ = split_chain(graph, operator, kind, operator.output)
        # Kernels compute it for padding too, and for results that two tasks compute.
        fused = min(self.chain_us(kernel, kind) for kernel in kernels)
        result = PlacedTensor.plain(graph.types[operator.output])
        floats = PlacedTensor.plain(replace(result.type, dtype="float32"))
        inputs = [floats] * (1 + len(residual_of(operator)))
        inputs += [PlacedTensor.plain(TensorType((), "float32"))] * (
            len(parts[1].inputs) - len(inputs)
        )
        return fused <= estimate_operator_us(
            self.setting.target, parts[1].kind, inputs, [result], self.setting.threads
        )

    def chain_us(self, kernel: ProductKernel, kind: Product) -> float:
        """Return the time of a chain in a kernel, whose sums are in the nearest cache."""
        if kind.epilogue is None or kind.epilogue.chain is None:
            return 0.0
        vectors = kernel.computed_results / WIDTH
        operations = vectors * expression_operations(kind.epilogue.chain.expression)
        operation_ns = host_times(self.setting.target).operation_ns
        return operations * operation_ns / self.setting.threads / 1e3

    # ------------------------------------------------------------------- own sums and methods

    def _sums(self, operator: Operator) -> tuple[Execution, ...]:
        """Return the executions of a product by its own sums."""
        kind = operator.kind
        assert isinstance(kind, Product)
        executions: dict[Ports, Execution] = {}
        has_residual = bool(residual_of(operator))
        for ports, placed_request in self.requests(operator, kind):
            for request in (placed_request, *self.without_placement(placed_request)):
                kernel = self.setting.products.lookup(request)
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
        if self.setting.timer is not None:
            return self.setting.timer.product_us(kernel)
        cost = kernel.estimate_us(kind.computation.macs, self.setting.threads)
        return cost + self.chain_us(kernel, kind) if kernel.is_native else cost

    @cached_property
    def methods(self) -> Mapping[str, list[tuple[Ports, ConvolutionMethod]]]:
        """Methods that compete with each product's own sums, with the layouts of its ports."""
        graph = self.setting.graph
        choices = MethodChoices(self.setting.products.units, self.method)
        own_us: dict[str, float] = {}
        rate = 0.0
        for operator in graph.operators:
            if not isinstance(operator.kind, Product) or self.method == "implicit":
                continue
            costs = [e.cost_us for e in self._sums(operator) if e.kernel and e.kernel.is_native]
            # A target without an instruction for the convolution has none for its products.
            if costs:
                own_us[operator.name] = min(costs)
                rate = max(rate, operator.kind.computation.macs / min(costs))
        methods: dict[str, list[tuple[Ports, ConvolutionMethod]]] = {}
        for operator in graph.operators:
            kind = operator.kind
            if operator.name not in own_us or not graph.is_constant(operator.inputs[1]):
                continue
            assert isinstance(kind, Product)
            ports_of_layouts = {v: k for k, v in self.layouts(operator, kind)}
            limit = CostLimit(own_us[operator.name], rate)
            candidates = choices.candidates(kind, ports_of_layouts, limit)
            methods[operator.name] = [(ports_of_layouts[m.layouts], m) for m in candidates]
        return methods

    @cached_property
    def _choices(self) -> dict[str, tuple[Execution, ...]]:
        """Executions of products by operator, as far as they were needed."""
        return {}

    def choices(self, operator: Operator) -> tuple[Execution, ...]:
        """Return the executions of a product, each by the fastest method for its layouts."""
        if operator.name not in self._choices:
            self._choices[operator.name] = self._fastest(operator)
        return self._choices[operator.name]

    def _fastest(self, operator: Operator) -> tuple[Execution, ...]:
        executions = {execution.ports: execution for execution in self._sums(operator)}
        by_method: dict[Ports, Execution] = {}
        # An estimate has to be clearly better: sums have no error of a method's and no workspace.
        margin = self.setting.target.policy.tie_ratio if self.setting.timer is None else 1.0
        for ports, method in self.methods.get(operator.name, ()):
            kernel = self.setting.products.lookup(method.request)
            if kernel is None or not kernel.is_native:
                continue
            cost = self._method_us(method, kernel)
            current = by_method.get(ports)
            if math.isfinite(cost) and (current is None or cost < current.cost_us):
                by_method[ports] = Execution(ports, cost, kernel, method=method)
        if by_method and self.method != "auto":
            return tuple(by_method.values())
        for ports, execution in by_method.items():
            sums = executions.get(ports)
            is_native = sums is not None and sums.kernel is not None and sums.kernel.is_native
            if sums is None or not is_native or execution.cost_us * margin < sums.cost_us:
                executions[ports] = execution
        return tuple(executions.values())

    def _method_us(self, method: ConvolutionMethod, kernel: ProductKernel) -> float:
        if self.setting.timer is not None:
            return self.setting.timer.method_us(method, kernel)
        return method.cost_us(kernel) + self.chain_us(kernel, method.kind)


def _has_chain(operator: Operator) -> bool:
    kind = operator.kind
    if not isinstance(kind, Product) or kind.epilogue is None:
        return False
    return kind.epilogue.chain is not None


def _lane_by_lane(kind: Product) -> bool:
    """True if each channel of the result is computed from one channel of the image.

    >>> from cpembed.driver.named import workload
    >>> layer = workload("depthwise n=1 c=16 h=8 w=8 r=3 s=3 pad=1")
    >>> _lane_by_lane(Product(layer, (1, 16, 8, 8)))
    True
    """
    workload = kind.computation
    image, weights = (workload.access(operand.name) for operand in workload.inputs[:2])
    result = workload.access(workload.output.name)
    # A sum over channels has an iterator that indexes the image by itself, other than a tap's.
    plain_indices = {index.single_iterator for index in image.index} - {None}
    is_stored = plain_indices <= {*result.iterators}
    return is_stored and not plain_indices.isdisjoint(weights.iterators)


def _priority(kernel: ProductKernel | None, cost: float) -> tuple[bool, float]:
    """Return a sort key: kernels of the instruction before portable code, then by cost."""
    return kernel is None or not kernel.is_native, cost
