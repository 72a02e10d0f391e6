"""Methods of a network's convolutions: Winograd and im2col on tensors in assigned layouts.

A method is an execution of a product like any other: it has a kernel, that of its product of
matrices, and parts around it, which read the image and write the result where they lie. Weights
are transformed when the program is made, and are constants of it.

Winograd's transforms take layouts with neighbouring channels, halos on either side, and do the
whole epilogue where they store. im2col writes the windows of an image of any layout side by side;
what follows is a convolution of one tap on them (:func:`one_tap`), which stores like any product.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.compiled import PACKING
from cpembed.codegen.method_calls import MethodTensors
from cpembed.codegen.method_layouts import TensorMemory, stacked_windows
from cpembed.codegen.methods import OutputMemory
from cpembed.codegen.packing import Direction, packing_source
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.recorded import Memory, RecordedCall, RecordedCalls, Recorder
from cpembed.errors import LoweringError
from cpembed.graph.kinds import Product
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.index import row_major_strides
from cpembed.ir.parser import parse_computation
from cpembed.network.layout import Layout
from cpembed.network.physical_product import PhysicalProduct, physical_product
from cpembed.network.product_kernel import ProductKernel, planned_product, recorded_kernel
from cpembed.network.product_kernels import KernelRequest
from cpembed.targets.methods import MethodPlan, methods_of
from cpembed.targets.registry import open_target
from cpembed.transform.methods.convolution import M, U, V, as_convolution, explicit
from cpembed.transform.methods.error_growth import error_growth
from cpembed.transform.methods.winograd import Winograd
from cpembed.transform.program import PackedOperand

Array = NDArray[Any]


@dataclass(frozen=True)
class ProductLayouts:
    """Layouts of the tensors of a product: image, result, and the residual if it adds one."""

    image: Layout
    output: Layout
    residual: Layout | None = None


@dataclass(frozen=True)
class ConvolutionMethod(ABC):
    """Method that computes a product of a network in some layouts.

    Attributes
    ----------
    kind : Product
    layouts : ProductLayouts
    parts_us : float
        Estimated time of all but the products of matrices, in microseconds.
    """

    kind: Product
    layouts: ProductLayouts
    parts_us: float

    @property
    def error_growth(self) -> float | None:
        """Expected growth of the rounding error over that of the convolution's own sums."""
        return None

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the method."""

    @property
    @abstractmethod
    def request(self) -> KernelRequest:
        """Request for the kernel of the product of matrices."""

    @property
    def calls(self) -> int:
        """Number of calls of the kernel of the product."""
        return 1

    @abstractmethod
    def recorded(
        self, kernel: ProductKernel, constants: Mapping[str, Array], threads: int
    ) -> RecordedCalls:
        """Return the calls of a run.

        Parameters
        ----------
        kernel : ProductKernel
            Kernel of the product of matrices.
        constants : mapping from str to ndarray
            Weights and vectors of the epilogue, in the shapes of the network's product.
        threads : int
            Number of threads.
        """

    def cost_us(self, kernel: ProductKernel) -> float:
        """Return the estimated time with a kernel of the product, in microseconds."""
        return self.parts_us + self.calls * kernel.cost_us


@dataclass(frozen=True)
class WinogradMethod(ConvolutionMethod):
    """Winograd's method, its tiles in blocks."""

    plan: MethodPlan
    target: HardwareSpec

    @property
    def name(self) -> str:
        return self.plan.method.name

    @property
    def winograd(self) -> Winograd:
        """Rewrite of the network's product."""
        assert isinstance(self.plan.method, Winograd)
        return self.plan.method

    @property
    def error_growth(self) -> float | None:
        return None if self.winograd.is_exact else error_growth(self.winograd)

    @property
    def request(self) -> KernelRequest:
        return KernelRequest(self.plan.product, None, placed=False, in_place=(V, M))

    @property
    def calls(self) -> int:
        return self.plan.count

    def recorded(
        self, kernel: ProductKernel, constants: Mapping[str, Array], threads: int
    ) -> RecordedCalls:
        methods = methods_of(open_target(self.target))
        assert methods is not None
        tensors = self._tensors()
        assert tensors is not None
        product = planned_product(kernel, None, Recorder(threads))
        return methods.recorded_in_place(self.plan, product, tensors, constants)

    @property
    def reads_in_place(self) -> bool:
        """True if the transforms read and write tensors in these layouts."""
        return self._tensors() is not None

    def _tensors(self) -> MethodTensors | None:
        # A chain of functions takes all registers, which the transforms fill with a tile.
        if self.kind.epilogue is not None and self.kind.epilogue.chain is not None:
            return None
        conv, layouts = self.winograd.convolution, self.layouts
        groups = conv.size(conv.groups)
        image, output = (tensor_memory(each, groups) for each in (layouts.image, layouts.output))
        residual = None if layouts.residual is None else tensor_memory(layouts.residual, groups)
        if image is None or output is None or (residual is None) != (layouts.residual is None):
            return None
        memory = OutputMemory(output, self.kind.epilogue, residual)
        return MethodTensors(image, memory, self.kind.padding)


@dataclass(frozen=True)
class Im2colMethod(ConvolutionMethod):
    """Windows of the image side by side, then a convolution of one tap on them."""

    @property
    def name(self) -> str:
        return "explicit"

    @cached_property
    def _one_tap(self) -> tuple[Product, PhysicalProduct]:
        """Product of the windows, and the same on memory."""
        kind, windows = one_tap(self.kind)
        return kind, physical_product(kind, windows, self.layouts.output, self.layouts.residual)

    @property
    def request(self) -> KernelRequest:
        kind, physical = self._one_tap
        return KernelRequest(physical.computation, kind.epilogue, placed=True)

    @property
    def is_possible(self) -> bool:
        """True if the product stores in these layouts."""
        try:
            return bool(self._one_tap)
        except LoweringError:
            return False

    @cached_property
    def windows(self) -> PackedOperand:
        """Windows of the image, with those elements that they have in its layout."""
        plain = Layout.plain(self.kind.shape)
        image = physical_product(self.kind, self.layouts.image, plain).computation
        return stacked_windows(as_convolution(image))

    def recorded(
        self, kernel: ProductKernel, constants: Mapping[str, Array], threads: int
    ) -> RecordedCalls:
        kind, physical = self._one_tap
        conv = as_convolution(self.kind.computation)
        groups, filters = conv.size(conv.groups), conv.size(conv.filters)
        # The matrix of im2col is [g, c, k], that of a convolution of one tap [g, k, c].
        weights = constants[conv.weights.name].reshape(conv.weights.shape)
        matrix = explicit(conv.workload, channels_last=True).weights_part(weights)
        matrix = np.ascontiguousarray(matrix.reshape(groups, -1, filters).swapaxes(1, 2))
        packed = {**constants, U: matrix.reshape(physical.computation.operand(U).shape)}
        epilogue = physical.epilogue(kind, places=kernel.places)
        calls = recorded_kernel(kernel, epilogue, packed, threads)
        memory = dict(calls.caller_memory)
        image, windows = Memory(self.layouts.image.elements, conv.image.dtype), memory.pop(V)
        source = packing_source(self.windows, Recorder(threads).thread_count(), Direction.PACK)
        pack = RecordedCall(KernelPlan(PACKING, source), (image, windows))
        memory[conv.image.name] = image
        return replace(calls, run=(pack, *calls.run), caller_memory=memory)


def one_tap(kind: Product) -> tuple[Product, Layout]:
    """Return the product of a convolution's windows and its weights, and the windows' layout.

    >>> from cpembed.workloads.convolutions import conv2d
    >>> layer = conv2d(n=1, c=3, h=8, w=8, k=4, r=3, s=3, stride=2, dtype="float32")
    >>> product, layout = one_tap(Product(layer, (1, 4, 3, 3)))
    >>> str(product.computation), str(layout)
    ('O[n, k, p, q] += (V[n, c, p, q] * U[k, c])', 'NHWC')
    """
    conv = as_convolution(kind.computation)
    outputs = [window.output for window in conv.windows]
    stored = [i.single_iterator or "" for i in kind.computation.access(conv.output.name).index]
    (channels,) = conv.channels
    image = [*conv.samples, *conv.groups, channels, *outputs]
    extents = {axis: kind.computation.extents[axis] for axis in stored}
    depth = conv.size(conv.channels) * math.prod(window.taps for window in conv.windows)
    result, windows, filters = map(
        ", ".join, (stored, image, [*conv.groups, *conv.filters, channels])
    )
    computation = parse_computation(
        f"{conv.output.name}[{result}] += {V}[{windows}] * {U}[{filters}]",
        {**extents, channels: depth},
        name=f"{kind.computation.name}_im2col",
        dtypes={V: conv.image.dtype, U: conv.weights.dtype, conv.output.name: conv.output.dtype},
    )
    shape = (
        conv.size(conv.samples),
        conv.size(conv.groups) * depth,
        *(window.outputs for window in conv.windows),
    )
    return replace(kind, computation=computation, padding=0), Layout.plain(shape).channels_last()


def tensor_memory(layout: Layout, groups: int) -> TensorMemory | None:
    """Return a layout as transforms take it; None if neighbouring channels are not neighbours.

    >>> image = Layout.plain((1, 32, 8, 8))
    >>> tensor_memory(image, 1) is None
    True
    >>> tensor_memory(image.channels_last().with_halo((1, 1)), 1).pixels
    (320, 32)
    """
    distances = row_major_strides(layout.physical_shape)
    of_axis = {axis: distances[place] for place, axis in enumerate(layout.order)}
    blocks = layout.block > 1
    if (blocks and groups > 1) or not (blocks or of_axis[1] == 1):
        return None
    return TensorMemory(
        elements=layout.elements,
        sample=of_axis[0],
        group=0 if blocks else layout.shape[1] // groups,
        pixels=tuple(of_axis[axis] for axis in range(2, len(layout.shape))),
        offset=sum(width * of_axis[axis] for axis, width in enumerate(layout.halo)),
        halo=layout.halo[2:],
        block=layout.block if blocks else 0,
        block_stride=of_axis[1] if blocks else 0,
    )
