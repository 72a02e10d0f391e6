"""The products of a network with the tensors between them, as far as layouts matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cpembed.driver.bench_layers import product_key
from cpembed.errors import WorkloadError
from cpembed.exploration.shapes.question import LayerSet
from cpembed.exploration.shapes.tensor_layout import TensorLayout
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import (
    Concat,
    Dequantize,
    Elementwise,
    Pool,
    Product,
    Quantize,
    Table,
)
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import size_bytes


@dataclass(frozen=True)
class Port:
    """A tensor that a layer reads or writes as an operand: its shape in the network, and the bytes
    of an element there."""

    operand: str
    shape: tuple[int, ...]
    item_bytes: int


@dataclass(frozen=True)
class Use:
    """A computation with the tensors that it reads, without constants, and the one that it writes.

    ``adds``: it adds another tensor to its result, which has to lie in the layout of the result.
    """

    workload: Computation
    reads: tuple[Port, ...]
    writes: Port
    adds: bool = False


@dataclass(frozen=True)
class NetworkTensor:
    """A tensor that is not constant. ``item_bytes`` is the size of an element as products read it,
    else as the model has it. Inputs and outputs of the network lie in the order of their axes."""

    name: str
    shape: tuple[int, ...]
    item_bytes: int
    is_input: bool
    is_output: bool

    @property
    def plain(self) -> TensorLayout:
        """The layout in the order of the axes."""
        return TensorLayout.plain(self.shape)


@dataclass(frozen=True)
class ProductNode:
    """An operator that shapes compute: the number of its :class:`Use` and the names of its tensors,
    of which ``added`` is the one that its result is added to."""

    name: str
    use: int
    reads: tuple[str, ...]
    writes: str
    added: str | None = None


@dataclass(frozen=True)
class UnmappedNode:
    """An operator that shapes do not compute.

    ``any_layout``: it reads its inputs in the layout of its result, whatever that is, but for the
    extents of ``axes``; else all its tensors lie in the order of their axes.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    any_layout: bool = False
    axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Network:
    """The tensors and operators of a model; ``computations`` holds for each of the ``uses`` the
    number of its computation in the layers."""

    tensors: Mapping[str, NetworkTensor]
    products: tuple[ProductNode, ...]
    unmapped: tuple[UnmappedNode, ...]
    uses: tuple[Use, ...]
    computations: tuple[int, ...]

    @cached_property
    def has_images(self) -> bool:
        """True if there is a convolution; then tensors of four or five axes are called images."""
        names = [use.workload.name for use in self.uses]
        return any(part in name for name in names for part in ("conv", "depthwise"))

    def layout_name(self, layout: TensorLayout) -> str:
        """Return the name of a layout, as in ``NCHW16c``."""
        return layout.named(image=self.has_images)

    def weight(self, use: int) -> int:
        """Return how often the network has a use."""
        return sum(node.use == use for node in self.products)


def network_of(layers: LayerSet, computations: frozenset[int]) -> Network:
    """Return the network of a model's layers.

    Products whose computation is not among ``computations`` are not computed by shapes; their
    tensors lie in the order of the axes.

    Raises
    ------
    WorkloadError
        If the layers are a suite's, which does not say which layer reads what.
    """
    if layers.graph is None:
        raise WorkloadError(
            f"{layers.suite} is a list of layers: layouts between them need a model, as .onnx or "
            ".pt2"
        )
    reader = _Reader(layers, layers.graph, computations)
    for operator in layers.graph.operators:
        reader.add(operator)
    return Network(
        tensors=reader.tensors,
        products=tuple(reader.products),
        unmapped=tuple(reader.unmapped),
        uses=tuple(use for use, _ in reader.uses),
        computations=tuple(computation for _, computation in reader.uses),
    )


class _Reader:
    """Collects the operators of a graph."""

    def __init__(self, layers: LayerSet, graph: Graph, computations: frozenset[int]) -> None:
        self.products: list[ProductNode] = []
        self.unmapped: list[UnmappedNode] = []
        self.uses: dict[tuple[Use, int], int] = {}
        self._layers, self._graph, self._computations = layers, graph, computations
        self._item_bytes = self._read_bytes()
        self.tensors = {
            name: self._tensor(name) for name in graph.types if not graph.is_constant(name)
        }

    def add(self, operator: Operator) -> None:
        kind = operator.kind
        if isinstance(kind, Product) and self._number(kind) in self._computations:
            self._add_product(operator, kind)
            return
        axes: tuple[int, ...] | None = None
        if isinstance(kind, Elementwise | Table | Quantize | Dequantize):
            axes = self._broadcast(operator)
        elif isinstance(kind, Pool):
            rank = len(self._graph.types[operator.output].shape)
            axes = tuple(range(rank - len(kind.window), rank))
        elif isinstance(kind, Concat):
            axes = (kind.axis,)
        reads = tuple(dict.fromkeys(n for n in operator.inputs if n in self.tensors))
        self.unmapped.append(
            UnmappedNode(operator.name, reads, operator.outputs, axes is not None, axes or ())
        )

    def _add_product(self, operator: Operator, kind: Product) -> None:
        number = self._number(kind)
        workload = self._layers.workloads[number]
        factors = [
            (operand, name)
            for operand, name in zip(workload.inputs, operator.inputs, strict=False)
            if name in self.tensors
        ]
        reads = tuple(self._port(operand.name, name) for operand, name in factors)
        writes = self._port(workload.output.name, operator.output)
        adds = kind.epilogue is not None and kind.epilogue.residual
        added = operator.inputs[-1] if adds and operator.inputs[-1] in self.tensors else None
        use = Use(workload, reads, writes, added is not None)
        place = self.uses.setdefault((use, number), len(self.uses))
        names = tuple(name for _, name in factors)
        node = ProductNode(operator.name, place, reads=names, writes=operator.output, added=added)
        self.products.append(node)

    def _number(self, kind: Product) -> int:
        return self._layers.of_product[product_key(kind.computation)]

    def _port(self, operand: str, name: str) -> Port:
        tensor = self.tensors[name]
        return Port(operand, tensor.shape, tensor.item_bytes)

    def _tensor(self, name: str) -> NetworkTensor:
        graph, kind = self._graph, self._graph.types[name]
        return NetworkTensor(
            name=name,
            shape=tuple(kind.shape),
            item_bytes=self._item_bytes.get(name, size_bytes(kind.dtype)),
            is_input=name in graph.inputs,
            is_output=name in graph.outputs,
        )

    def _read_bytes(self) -> dict[str, int]:
        """Return the bytes of an element of the tensors that products read, as they read them."""
        sizes: dict[str, int] = {}
        for operator in self._graph.operators:
            if isinstance(operator.kind, Product):
                workload = self._layers.workloads[self._number(operator.kind)]
                for operand, name in zip(workload.inputs, operator.inputs, strict=False):
                    size = size_bytes(operand.dtype)
                    sizes[name] = min(size, sizes.get(name, size))
        return sizes

    def _broadcast(self, operator: Operator) -> tuple[int, ...]:
        """Return the axes along which some input is repeated."""
        shape = self._graph.types[operator.output].shape
        shapes = [self._graph.types[n].shape for n in operator.inputs if n in self.tensors]
        same_rank = [s for s in shapes if len(s) == len(shape)]
        return tuple(a for a in range(len(shape)) if any(s[a] != shape[a] for s in same_rank))
