"""The products of a network with the tensors between them, as far as layouts matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cpembed.driver.bench_layers import product_key
from cpembed.errors import WorkloadError
from cpembed.exploration.shapes.layers import LayerSet
from cpembed.exploration.shapes.tensor_layout import TensorLayout
from cpembed.exploration.shapes.ways import Port, Use
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
from cpembed.ir.dtypes import size_bytes


@dataclass(frozen=True)
class NetworkTensor:
    """``item_bytes``: of an element, as products read it, else as the model has it. ``given`` from
    outside, or ``wanted`` there: in the order of its axes."""

    name: str
    shape: tuple[int, ...]
    item_bytes: int
    given: bool
    wanted: bool

    @property
    def plain(self) -> TensorLayout:
        return TensorLayout.plain(self.shape)


@dataclass(frozen=True)
class ProductNode:
    """An operator that shapes compute: the number of its :class:`Use`; tensors by their names,
    ``added`` the one that its result is added to."""

    name: str
    use: int
    reads: tuple[str, ...]
    writes: str
    added: str | None = None


@dataclass(frozen=True)
class OtherNode:
    """An operator that shapes do not compute. ``takes_along``: it reads and writes any layout, in
    the layout of its result but for the extents of ``axes``; else in the order of the axes."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    takes_along: bool = False
    axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Network:
    """``computations``: for each use the number of its computation in the layers."""

    tensors: Mapping[str, NetworkTensor]
    products: tuple[ProductNode, ...]
    others: tuple[OtherNode, ...]
    uses: tuple[Use, ...]
    computations: tuple[int, ...]

    @cached_property
    def has_images(self) -> bool:
        """Whether there is a convolution; then tensors of four or five axes are called images."""
        names = [use.workload.name for use in self.uses]
        return any(part in name for name in names for part in ("conv", "depthwise"))

    def named(self, layout: TensorLayout) -> str:
        return layout.named(image=self.has_images)

    def weight(self, use: int) -> int:
        """How often the network has a use."""
        return sum(node.use == use for node in self.products)


def network_of(layers: LayerSet, used: frozenset[int]) -> Network:
    """Of a model's layers; the products of computations that are not ``used`` are computed by
    something else, in the order of the axes.

    Raises :class:`WorkloadError` for a suite: it does not say which layer reads what.
    """
    if layers.graph is None:
        raise WorkloadError(
            f"{layers.suite} is a list of layers: layouts between them need a model, as .onnx or "
            ".pt2"
        )
    reader = _Reader(layers, layers.graph, used)
    for operator in layers.graph.operators:
        reader.add(operator)
    return Network(
        reader.tensors,
        tuple(reader.products),
        tuple(reader.others),
        tuple(use for use, _ in reader.uses),
        tuple(computation for _, computation in reader.uses),
    )


class _Reader:
    def __init__(self, layers: LayerSet, graph: Graph, used: frozenset[int]) -> None:
        self.products: list[ProductNode] = []
        self.others: list[OtherNode] = []
        self.uses: dict[tuple[Use, int], int] = {}
        self._layers, self._graph, self._used = layers, graph, used
        self._read = self._read_bytes()
        self.tensors = {
            name: self._tensor(name) for name in graph.types if not graph.is_constant(name)
        }

    def add(self, operator: Operator) -> None:
        kind = operator.kind
        reads = tuple(dict.fromkeys(n for n in operator.inputs if n in self.tensors))
        if isinstance(kind, Product) and self._number(kind) in self._used:
            self._add_product(operator, kind)
        elif isinstance(kind, Elementwise | Table | Quantize | Dequantize):
            axes = self._broadcast(operator)
            self.others.append(OtherNode(operator.name, reads, operator.outputs, True, axes))
        elif isinstance(kind, Pool):
            rank = len(self._graph.types[operator.output].shape)
            axes = tuple(range(rank - len(kind.window), rank))
            self.others.append(OtherNode(operator.name, reads, operator.outputs, True, axes))
        elif isinstance(kind, Concat):
            axes = (kind.axis,)
            self.others.append(OtherNode(operator.name, reads, operator.outputs, True, axes))
        else:
            self.others.append(OtherNode(operator.name, reads, operator.outputs))

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
        self.products.append(ProductNode(operator.name, place, names, operator.output, added))

    def _number(self, kind: Product) -> int:
        return self._layers.of_product[product_key(kind.computation)]

    def _port(self, operand: str, tensor: str) -> Port:
        found = self.tensors[tensor]
        return Port(operand, found.shape, found.item_bytes)

    def _tensor(self, name: str) -> NetworkTensor:
        graph, kind = self._graph, self._graph.types[name]
        size = self._read.get(name, size_bytes(kind.dtype))
        return NetworkTensor(
            name, tuple(kind.shape), size, name in graph.inputs, name in graph.outputs
        )

    def _read_bytes(self) -> dict[str, int]:
        """Bytes of an element of the tensors that products read, as they read them."""
        found: dict[str, int] = {}
        for operator in self._graph.operators:
            if isinstance(operator.kind, Product):
                workload = self._layers.workloads[self._number(operator.kind)]
                for operand, name in zip(workload.inputs, operator.inputs, strict=False):
                    size = size_bytes(operand.dtype)
                    found[name] = min(size, found.get(name, size))
        return found

    def _broadcast(self, operator: Operator) -> tuple[int, ...]:
        """The axes that some input has one element of."""
        whole = self._graph.types[operator.output].shape
        shapes = [self._graph.types[n].shape for n in operator.inputs if n in self.tensors]
        same_rank = [shape for shape in shapes if len(shape) == len(whole)]
        return tuple(a for a in range(len(whole)) if any(s[a] != whole[a] for s in same_rank))
