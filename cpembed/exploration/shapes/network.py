"""Layouts of tensors, and the products of a network with the tensors between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cpembed.driver.bench_layers import product_key
from cpembed.errors import WorkloadError
from cpembed.exploration.shapes.shape import LayerSet
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
from cpembed.ir.index import IndexExpr, row_major_strides
from cpembed.transform.program import PackedOperand

_IMAGES = {4: "NCHW", 5: "NCDHW"}
"""Letters of the axes of images, by their rank."""

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Letters of the axes of all other tensors."""


@dataclass(frozen=True)
class Part:
    """A dimension in memory: ``extent`` elements of a tensor's ``axis`` that are ``step`` apart."""

    axis: int
    step: int
    extent: int


@dataclass(frozen=True)
class TensorLayout:
    """The dimensions of a tensor in memory, the outermost first.

    In this form, as ``parts``, layouts of different programs are compared.

    >>> layout = TensorLayout.plain((1, 64, 56, 56))
    >>> layout.named(image=True)
    'NCHW'
    >>> blocks = (Part(1, 16, 4), Part(2, 1, 56), Part(3, 1, 56), Part(1, 1, 16))
    >>> TensorLayout((1, 64, 56, 56), blocks).named(image=True)
    'NCHW16c'

    Axes of one element have no part. A buffer may have room for more of the outermost part of an
    axis, a halo or padding: whoever stores into it takes the distances between its elements from
    the buffer.

    Where elements lie more than once or irregularly, as in an unrolled window, there are no parts:
    ``packed`` is the number of elements in memory, and ``text`` identifies the layout.
    """

    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    packed: int = 0
    text: str = ""

    @staticmethod
    def plain(shape: Sequence[int]) -> TensorLayout:
        """Return the layout of a shape in the order of its axes."""
        parts = tuple(Part(axis, 1, size) for axis, size in enumerate(shape) if size > 1)
        return TensorLayout(tuple(shape), parts)

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)

    @property
    def moved(self) -> int:
        """Number of elements read and written by a copy into this layout."""
        return self.elements + (self.packed or self.elements)

    def carried_to(self, shape: Sequence[int], axes: Sequence[int]) -> TensorLayout | None:
        """Return the same layout of a tensor of another shape; None if there is none.

        The shapes may differ along ``axes`` alone, and a block has to be full in both.
        """
        if self.packed or len(shape) != len(self.shape):
            return None
        # Only the outermost part of an axis changes with its extent; a dict keeps the last, which
        # has the largest step.
        outermost = {part.axis: part for part in sorted(self.parts, key=lambda part: part.step)}
        parts: list[Part] = []
        for part in self.parts:
            size, outer = shape[part.axis], outermost[part.axis]
            if size == self.shape[part.axis]:
                parts.append(part)
            elif part.axis not in axes or (size > 1 and size % outer.step):
                return None
            elif part is not outer and size > 1:
                parts.append(part)
            elif size > outer.step:
                parts.append(Part(part.axis, part.step, size // part.step))
        covered = {part.axis for part in parts}
        if any(size > 1 and axis not in covered for axis, size in enumerate(shape)):
            return None
        return TensorLayout(tuple(shape), _merged(parts, shape))

    def named(self, *, image: bool) -> str:
        """Return the letters of the axes, small ones with extents inside blocks, as in ``NCHW16c``.

        With ``image`` a tensor of four or five axes has the letters of an image.
        """
        letters = _IMAGES.get(len(self.shape), _LETTERS) if image else _LETTERS
        if self.packed:
            return f"packed, {self.packed:,} elements"
        named: set[int] = set()
        name = ""
        for part in self.parts:
            letter = letters[part.axis]
            # Further parts of an axis are blocks, named by their extents.
            name += f"{part.extent}{letter.lower()}" if part.axis in named else letter
            named.add(part.axis)
        return "".join(letters[n] for n in range(len(self.shape)) if n not in named) + name


def tensor_layout(operand: PackedOperand, shape: Sequence[int], *, stored: bool) -> TensorLayout:
    """Return the layout of a tensor that a program has as an operand.

    Parameters
    ----------
    operand
        The operand; its original shape may be a row-major reshape of the tensor's.
    shape
        The shape of the tensor.
    stored
        True if the program writes it. A layout without regular parts then equals no layout that is
        read, as one that repeats elements cannot be stored.
    """
    parts = _parts(operand)
    if parts is not None:
        parts = _reshaped(parts, operand.original_shape, shape)
    if parts is not None and _are_digits(parts, shape):
        return TensorLayout(tuple(shape), _merged(parts, shape))
    dimensions = ",".join(f"{d.name}:{d.extent}" for d in operand.dimensions)
    # A layout that repeats elements cannot be stored, so what is stored irregularly equals nothing
    # that is read.
    text = f"{'stored ' * stored}{dimensions} | {'; '.join(map(str, operand.source))}"
    return TensorLayout(tuple(shape), (), operand.elements, text)


def _parts(operand: PackedOperand) -> list[Part] | None:
    """Return the dimensions of a packed operand, cut where they hold several digits.

    None where one is no digit of a single axis, or a halo moves the blocks of an axis.
    """
    parts: list[Part] = []
    for dimension in operand.dimensions:
        cut = _cut(dimension.name, dimension.extent, operand.source)
        if cut is None:
            return None
        parts += cut
    for axis, (size, index) in enumerate(zip(operand.original_shape, operand.source, strict=True)):
        of_axis = [n for n, part in enumerate(parts) if part.axis == axis]
        if not of_axis:
            continue
        outer = max(of_axis, key=lambda n: parts[n].step)
        step = parts[outer].step
        # A halo that is no multiple of the block moves where the blocks of the axis begin.
        if index.constant % step:
            return None
        parts[outer] = Part(axis, step, -(-size // step))
    return [part for part in parts if part.extent > 1]


def _cut(name: str, extent: int, source: Sequence[IndexExpr]) -> list[Part] | None:
    """Return a dimension as digits, each of one axis; None where it is no such product."""
    terms = [
        (axis, term) for axis, index in enumerate(source) for term in index.terms
        if name in term.iterators
    ]  # fmt: skip
    if extent == 1:
        return []
    if any(term.inner is not None for _, term in terms):
        return None
    # A dimension is cut where the digit that moves an axis changes: at divisors, and where a
    # modulus wraps around.
    ends = {t.divisor * t.modulus for _, t in terms if t.modulus is not None}
    cuts = sorted(c for c in {1, *(t.divisor for _, t in terms), *ends} if c < extent)
    parts: list[Part] = []
    for cut, following in zip(cuts, [*cuts[1:], extent], strict=True):
        if following % cut and following != extent:
            return None
        feeding = [
            (axis, term.coefficient * (cut // term.divisor))
            for axis, term in terms
            if term.divisor <= cut
            and (term.modulus is None or cut < term.divisor * term.modulus)
            and cut % term.divisor == 0
        ]
        # No axis moves, or two do: as in the sum of a pixel and a tap.
        if len(feeding) != 1 or feeding[0][1] <= 0:
            return None
        parts.append(Part(*feeding[0], -(-following // cut)))
    return parts[::-1]


def _reshaped(
    parts: Sequence[Part], before: Sequence[int], shape: Sequence[int]
) -> list[Part] | None:
    """Return parts of a shape as those of a row-major reshape of it.

    None where one ends within an axis of the other shape.
    """
    # Row-major: a part is a distance and an extent in elements of the flat tensor, which is cut
    # anew at the strides of the other shape.
    strides, targets = row_major_strides(before), row_major_strides(shape)
    reshaped: list[Part] = []
    for part in parts:
        step, extent = part.step * strides[part.axis], part.extent
        pieces: list[Part] = []
        while extent > 1:
            axes = [a for a, s in enumerate(shape) if s > 1 and step % targets[a] == 0]
            axes = [a for a in axes if step < targets[a] * shape[a]]
            if not axes:
                return None
            axis = axes[0]
            room = -(-targets[axis] * shape[axis] // step)
            size = min(extent, room)
            if extent > room and (extent % room or targets[axis] * shape[axis] % step):
                return None
            pieces.append(Part(axis, step // targets[axis], size))
            extent, step = -(-extent // size), step * size
        reshaped += pieces[::-1]
    return reshaped


def _are_digits(parts: Sequence[Part], shape: Sequence[int]) -> bool:
    """True if each element has one place: the parts of an axis are the digits of its index."""
    for axis, size in enumerate(shape):
        reach = 1
        for part in sorted((p for p in parts if p.axis == axis), key=lambda p: p.step):
            if part.step != reach:
                return False
            reach *= part.extent
        # A buffer may have room for more than the axis, not for less.
        if reach < size:
            return False
    return True


def _merged(parts: Sequence[Part], shape: Sequence[int]) -> tuple[Part, ...]:
    """Join neighbouring parts that are one digit, with no more elements than the axis has."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if last and last.axis == part.axis and last.step == part.step * part.extent:
            extent = min(last.extent * part.extent, -(-shape[part.axis] // part.step))
            merged[-1] = Part(part.axis, part.step, extent)
        else:
            merged.append(part)
    return tuple(merged)


@dataclass(frozen=True)
class Port:
    """A tensor that a layer reads or writes as an operand.

    It has a shape in the network, and bytes of an element there.
    """

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
    """A tensor that is not constant.

    ``item_bytes`` is the size of an element as products read it, else as the model has it. Inputs
    and outputs of the network lie in the order of their axes.
    """

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
    """An operator that shapes compute.

    It has the number of its :class:`Use` and the names of its tensors, of which ``added`` is the
    one that its result is added to.
    """

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
    """The tensors and operators of a model.

    ``computations`` holds for each of the ``uses`` the number of its computation in the layers.
    """

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
    tensors lie in the order of the axes. Raises :class:`WorkloadError` if the layers are a suite's,
    which does not say which layer reads what.
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
        # These kinds compute elements independently along all axes but those named, so that they
        # work in any layout of the others.
        if isinstance(kind, Elementwise | Table | Quantize | Dequantize):
            axes = self._broadcast(operator)
        elif isinstance(kind, Pool):
            rank = len(self._graph.types[operator.output].shape)
            axes = tuple(range(rank - len(kind.window), rank))
        elif isinstance(kind, Concat):
            axes = (kind.axis,)
        reads = tuple(dict.fromkeys(n for n in operator.inputs if n in self.tensors))
        self.unmapped.append(
            UnmappedNode(
                operator.name, reads, operator.outputs, any_layout=axes is not None, axes=axes or ()
            )
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
