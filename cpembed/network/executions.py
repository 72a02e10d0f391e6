"""Executions of the operators of a network, and the problem of choosing them.

An execution is a layout for each tensor of an operator, and for products the kernel that is chosen
for these.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cpembed.graph.graph import Graph, Operator
from cpembed.network.attention import AttentionKernel
from cpembed.network.convolution_methods import ConvolutionMethod
from cpembed.network.costs import KernelTimer
from cpembed.network.layout import CandidateLayouts, Layout
from cpembed.network.operators import PlacedTensor
from cpembed.network.pairs import PairKernel
from cpembed.network.product_kernel import ProductKernel
from cpembed.network.product_kernels import ProductKernels
from cpembed.targets.capabilities import AnyTarget
from cpembed.targets.registry import open_target

Ports = tuple[Layout, ...]
"""Layout of each port: tensors that an operator reads, without constants, then those it writes."""

WEIGHT_ONLY = "weight-only product, in a kernel of its own"
"""Reason why a product by packed weights names no target."""


@dataclass(frozen=True)
class Execution:
    """Execution of an operator in a combination of layouts.

    Attributes
    ----------
    cost_us : float
        Estimated or measured microseconds.
    kernel : ProductKernel or None
        Kernel of a product, or of the product of matrices of a method; None for other operators.
    attention : AttentionKernel or None
        Kernel of an attention; None for other operators.
    method : ConvolutionMethod or None
        Method of a convolution; None if it is computed by its own sums.
    aliases : bool
        True if the result is the input's memory and nothing is executed.
    pair : PairKernel or None
        Kernel that computes the product and the one before it, whose result is nowhere in memory.
    fused_with : str or None
        Operator that the same kernel computes. The first of both costs nothing and has no call.
    """

    ports: Ports
    cost_us: float
    kernel: ProductKernel | None = None
    aliases: bool = False
    attention: AttentionKernel | None = None
    method: ConvolutionMethod | None = None
    pair: PairKernel | None = None
    fused_with: str | None = None

    @property
    def is_deferred(self) -> bool:
        """True if the kernel of a later operator computes this one."""
        return self.fused_with is not None and self.pair is None

    @property
    def kernels(self) -> tuple[ProductKernel, ...]:
        """Kernels of the products that are executed."""
        if self.attention is not None:
            return self.attention.products
        return () if self.kernel is None else (self.kernel,)


def ports_of(graph: Graph, operator: Operator) -> tuple[list[str], list[str]]:
    """Return the tensors that an operator reads, without constants, and those that it writes."""
    return [n for n in operator.inputs if not graph.is_constant(n)], [*operator.outputs]


@dataclass(frozen=True)
class GraphOnTarget:
    """Graph whose tensors have candidate layouts, on a target.

    Attributes
    ----------
    layouts : CandidateLayouts
        Layouts of the tensors among which is chosen.
    products : ProductKernels
        Kernels of products on the units of the target.
    timer : KernelTimer, optional
        Measures costs, which are estimated without one.
    """

    graph: Graph
    layouts: CandidateLayouts
    products: ProductKernels
    threads: int
    timer: KernelTimer | None = None

    @cached_property
    def target(self) -> AnyTarget:
        """Target whose calibration estimates the operators between products."""
        return open_target(self.products.units.primary)

    def placed(self, name: str, layout: Layout) -> PlacedTensor:
        """Return a tensor in a layout, with the value that its halo holds."""
        fill = self.layouts.fills.get(name, 0)
        return PlacedTensor(self.graph.types[name], layout, fill)

    def layouts_of(self, name: str) -> tuple[Layout, ...]:
        """Return the layouts of a tensor; a constant is row-major."""
        constant = self.graph.is_constant(name)
        return (self.row_major(name),) if constant else self.layouts.by_tensor[name]

    def row_major(self, name: str) -> Layout:
        """Return the row-major layout of a tensor, as its candidates have it."""
        plain = Layout.plain(self.graph.types[name].shape)
        candidates = () if self.graph.is_constant(name) else self.layouts.by_tensor[name]
        return next((layout for layout in candidates if layout.same_memory(plain)), plain)
