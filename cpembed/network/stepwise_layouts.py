"""Layouts of tensors in a network that runs product by product.

Where a target's kernels read images with the channels last, all images of a network lie so, through
the operators between convolutions as well. Others are row-major, and so are the network's inputs
and outputs, so that conversions remain only where both meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cpembed.errors import LoweringError
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Product, Reduce
from cpembed.ir.computation import Computation
from cpembed.network.host_work import HostWork
from cpembed.network.layout import (
    PROPAGATING,
    CandidateLayouts,
    Layout,
    is_convolution,
    padding_of,
    residual_of,
)
from cpembed.network.operator_costs import estimate_copy_us
from cpembed.network.operators import PlacedTensor
from cpembed.network.physical_product import physical_product
from cpembed.targets.capabilities import AnyTarget


@dataclass(frozen=True)
class Conversion:
    """Copy of a tensor into the layout in which operators read it.

    Attributes
    ----------
    tensor : str
    written, read : Layout
    reader : str
        First operator that reads the copy, or the one that writes an output of the network.
    """

    tensor: str
    written: Layout
    read: Layout
    reader: str


@dataclass(frozen=True)
class StepLayouts:
    """Layouts of the tensors of a graph.

    Attributes
    ----------
    graph : Graph
    channels_last : bool
        True if images have the channels last.
    """

    graph: Graph
    channels_last: bool

    @cached_property
    def _images(self) -> frozenset[str]:
        return CandidateLayouts(self.graph).images if self.channels_last else frozenset()

    def at(self, operator: Operator, tensor: str) -> Layout:
        """Return the layout in which an operator reads or writes a tensor."""
        plain = Layout.plain(self.graph.types[tensor].shape)
        takes_images = is_convolution(operator) or isinstance(operator.kind, (*PROPAGATING, Reduce))
        return plain.channels_last() if takes_images and tensor in self._images else plain

    def written(self, tensor: str) -> Layout:
        """Return the layout in which a tensor is written; inputs of the network are row-major."""
        producer = self.graph.producers.get(tensor)
        if producer is None:
            return Layout.plain(self.graph.types[tensor].shape)
        return self.at(producer, tensor)

    def require_row_major(self, operator: Operator) -> None:
        """Raise :class:`LoweringError` if an operator writes no row-major tensor."""
        layout = self.at(operator, operator.output)
        if not layout.same_memory(Layout.plain(layout.shape)):
            raise LoweringError(f"{operator.output} is reshaped, and lies as {layout}")

    @cached_property
    def conversions(self) -> tuple[Conversion, ...]:
        """All conversions, each once for all readers in one layout."""
        conversions: list[Conversion] = []
        for tensor in self.graph.types:
            if self.graph.is_constant(tensor):
                continue
            written = self.written(tensor)
            reads = [(self.at(o, tensor), o.name) for o in self.graph.readers[tensor]]
            if tensor in self.graph.outputs and tensor in self.graph.producers:
                plain = Layout.plain(self.graph.types[tensor].shape)
                reads.append((plain, self.graph.producers[tensor].name))
            layouts: list[Layout] = [written]
            for layout, reader in reads:
                if not any(layout.same_memory(existing) for existing in layouts):
                    layouts.append(layout)
                    conversions.append(Conversion(tensor, written, layout, reader))
        return tuple(conversions)

    def conversion_work(self, operator: Operator, host: AnyTarget) -> tuple[HostWork, ...]:
        """Return the conversions before, or of an output after, an operator.

        Parameters
        ----------
        operator : Operator
        host : Target
            Target whose constants estimate the host.
        """
        return tuple(
            HostWork(f"{each.written} to {each.read}", self.conversion_us(each, host))
            for each in self.conversions
            if each.reader == operator.name
        )

    def conversion_us(self, conversion: Conversion, host: AnyTarget) -> float:
        """Return the estimated microseconds of a conversion by the host."""
        kind = self.graph.types[conversion.tensor]
        written, read = (PlacedTensor(kind, x) for x in (conversion.written, conversion.read))
        return estimate_copy_us(host, written, read, 1)

    def placed(self, operator: Operator, tensors: Sequence[str]) -> list[PlacedTensor]:
        """Return tensors of an operator in the layouts in which it reads and writes them."""
        return [PlacedTensor(self.graph.types[n], self.at(operator, n)) for n in tensors]

    def product(self, operator: Operator, kind: Product) -> PlacedProduct:
        """Return a product on its tensors as they lie in memory.

        Parameters
        ----------
        operator : Operator
        kind : Product
            Product of the operator.

        Raises
        ------
        LoweringError
            If the layout of an image does not suit the product.
        """
        first, output = (self.at(operator, n) for n in (operator.inputs[0], operator.outputs[0]))
        # Targets pad with zeros only; another zero point becomes part of the image.
        if kind.padding and is_convolution(operator):
            widths = padding_of(kind, self.graph.types[operator.inputs[0]])
            first = first.with_halo(widths) if any(widths) else first
        residual = output if residual_of(operator) else None
        computation = physical_product(kind, first, output, residual).computation
        return PlacedProduct(computation, first, output)


@dataclass(frozen=True)
class PlacedProduct:
    """Product whose operands are indexed as they lie in memory; the second factor is row-major."""

    computation: Computation
    first: Layout
    output: Layout
