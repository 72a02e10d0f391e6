"""Zero points of products become additions to sums of the integers as they are, which is what
kernels compute: ``sum (A - a) (B - b) = sum A B - b sum A - a sum B + n a b``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cpembed.codegen.epilogue import BIAS, SCALE, Epilogue, channel_axes, channel_numbers
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Elementwise, Input, Kind, Product, Reshape, Scalar
from cpembed.graph.passes.epilogue_matching import reduced
from cpembed.graph.passes.expressions import apply
from cpembed.graph.passes.quantization import requantized
from cpembed.graph.passes.rewriting import Array, Rewriting, broadcastable
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import dtype_info, is_integer


def without_zero_points(graph: Graph) -> Graph:
    """The same results, equal bit for bit, of products without zero points.

    That of a first operand goes into the bias, where the second is constant, and padding becomes
    that zero point (:attr:`Product.padding`). Where the second has a zero point, or varies, the
    sums are stored in 32 bits; a product with ones sums what one operand has under the zero point
    of the other, and elementwise operators put all together and do what the epilogue did.
    """
    rewriting = Rewriting(graph)
    for operator in graph.operators:
        match operator.kind:
            case Product(zero_points=(a, b)) as product if a or b:
                if _has_sums(graph, operator, product):
                    _remove(rewriting, operator, product)
            case _:
                pass
    return rewriting.graph()


def _sums_of_weights(product: Product, weights: Array) -> Array:
    """Of each channel, the sum of what the first operand is multiplied with."""
    small = at_one_point(product.computation, {*channel_axes(product.computation)})
    a, b = small.inputs
    ones = np.ones(a.shape, a.dtype)
    sums = Product(small, small.output.shape, padding=1).sums(ones, weights.reshape(b.shape))
    vector = np.zeros(product.channels, np.int64)
    vector[channel_numbers(small)] = sums
    return vector


def _has_sums(graph: Graph, operator: Operator, product: Product) -> bool:
    """Whether sums of integers are stored as they are, or scaled by constants."""
    epilogue = product.epilogue
    vectors = operator.inputs[2 : 2 + len(product.vectors)]
    plain = epilogue is None or not epilogue.is_integral
    sums = product.computation.output.dtype
    return plain and is_integer(sums) and all(name in graph.constants for name in vectors)


def _remove(rewriting: Rewriting, operator: Operator, product: Product) -> None:
    graph = rewriting.source
    (a, b), count = product.zero_points, len(product.vectors)
    vectors = dict(zip(product.vectors, operator.inputs[2:], strict=False))
    weights = graph.constants.get(operator.inputs[1])
    added = np.full(product.channels, a * b * reduced(product), np.int64)
    if weights is not None and a:
        added -= a * _sums_of_weights(product, weights)
    if BIAS in vectors:
        added += graph.constants[vectors[BIAS]].reshape(-1)
    if b == 0 and weights is not None:
        epilogue = product.epilogue or Epilogue(product.dtype)
        epilogue = replace(epilogue, bias=True)
        vectors[BIAS] = rewriting.constant(f"{operator.name} bias", wrapped(added))
        kind = replace(product, zero_points=(0, 0), epilogue=epilogue, padding=product.padding + a)
        names = (vectors[name] for name in epilogue.vectors)
        inputs = (*operator.inputs[:2], *names, *operator.inputs[2 + count :])
        rewriting.replace(operator, replace(operator, kind=kind, inputs=inputs))
        return
    rewriting.replace(operator, *corrections(rewriting, operator, product, added, weights is None))


_EXACT_FLOAT32 = 1 << 24


def at_one_point(workload: Computation, kept: set[str]) -> Computation:
    """The computation at one point of the results' axes other than those that are ``kept``."""
    access = workload.access(workload.output.name)
    stored = {name for index in access.index for name in index.iterators}
    axes = tuple(
        replace(axis, extent=1) if axis.name in stored - kept else axis for axis in workload.axes
    )
    extents = {axis.name: axis.extent for axis in axes}
    shape = tuple(index.bounds(extents)[1] + 1 for index in access.index)
    return replace(workload, axes=axes, outputs=(replace(workload.output, shape=shape),))


def wrapped(numbers: Array) -> Array:
    """As sums of 32 bits hold them."""
    return numbers.astype(np.int64).astype(np.int32)


def corrections(
    rewriting: Rewriting, operator: Operator, product: Product, added: Array, varies: bool
) -> list[Operator]:
    """The operators that do what a product with zero points does; ``added``: to the sums of each
    channel. ``varies``: the second operand, so that its sums are computed in every call; otherwise
    ``added`` has them.

    Where no sum is beyond 2^24, float32 holds all of them, and one elementwise operator does all
    that follows the sums.
    """
    parts = _Parts(rewriting, operator, product)
    a, b = product.zero_points
    total = parts.total(a if varies else 0, b, added)
    epilogue = product.epilogue
    if epilogue is None or (epilogue.dtype == "int32" and not epilogue.scale):
        return parts.finished(total, "int32", None)
    if _largest_sum(product, added) >= _EXACT_FLOAT32:
        parts.inputs = [parts.stored(total, "int32", None)]
        total = Input(0)
    scale = residual = None
    vectors = dict(zip(product.vectors, operator.inputs[2:], strict=False))
    if SCALE in vectors:
        numbers = rewriting.source.constants[vectors[SCALE]].reshape(-1)
        scale = parts.read(parts.spread("scale", numbers))
    if epilogue.residual is not None:
        residual = parts.read(parts.shaped("residual", operator.inputs[-1]))
    value = requantized(epilogue, total, scale, residual)
    return parts.finished(value, epilogue.dtype, "float32")


def _largest_sum(product: Product, added: Array) -> int:
    """A bound of all that is added and subtracted."""
    first, second = (
        max(map(abs, dtype_info(operand.dtype).integer_range))
        for operand in product.computation.inputs
    )
    a, b = map(abs, product.zero_points)
    products = first * second + b * first + a * second
    return reduced(product) * products + int(np.abs(added).max(initial=0))


@dataclass
class _Parts:
    """Operators in the making, and the ``inputs`` of the elementwise one that comes last. All are
    in the result's ``shape``, or, where parts do not broadcast to it, in the computation's."""

    rewriting: Rewriting
    operator: Operator
    product: Product
    operators: list[Operator] = field(default_factory=list[Operator])
    inputs: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        workload = self.product.computation
        kept = [self._axes_of(0), self._axes_of(1), {*channel_axes(workload)}]
        self.shape = self.product.shape
        if any(self._broadcast(axes) is None for axes in kept):
            self.shape = workload.output.shape

    def total(self, a: int, b: int, added: Array) -> Scalar:
        """The sums without zero points."""
        first = self.product.zero_points[0] + self.product.padding
        plain = replace(
            self.product, zero_points=(0, 0), epilogue=None, padding=first, shape=self.shape
        )
        total: Scalar = self.read(self._new("sums", plain, self.operator.inputs[:2]))
        for which, zero in ((0, b), (1, a)):
            if zero:
                window = self.read(self._window(which, first))
                total = apply("sub", total, apply("mul", window, zero))
        if added.any():
            total = apply("add", total, self.read(self.spread("bias", wrapped(added))))
        return total

    def read(self, name: str) -> Input:
        """A tensor as a further input."""
        self.inputs.append(name)
        return Input(len(self.inputs) - 1)

    def stored(self, value: Scalar, dtype: str, computing: str | None) -> str:
        return self._new("stored", Elementwise(value, dtype, computing), self.inputs)

    def finished(self, value: Scalar, dtype: str, computing: str | None) -> list[Operator]:
        """All operators; the last writes the result."""
        name = self.stored(value, dtype, computing)
        if self.shape != self.product.shape:
            name = self._new("reshaped", Reshape(self.product.shape), [name])
        *before, last = self.operators
        return [*before, replace(last, outputs=self.operator.outputs)]

    def shaped(self, what: str, name: str) -> str:
        """Another tensor of the result's elements in the shape of all others."""
        if self.shape == self.product.shape:
            return name
        return self._new(what, Reshape(self.shape), [name])

    def spread(self, what: str, vector: Array) -> str:
        """A vector of the channels as a constant that broadcasts to the result."""
        array = vector[:1].reshape(())
        if np.any(vector != vector[0]):
            axes = {*channel_axes(self.product.computation)}
            small = at_one_point(self.product.computation, axes)
            array = vector[channel_numbers(small)].reshape(self._broadcast(axes) or ())
        return self.rewriting.constant(f"{self.operator.name} {what}", array)

    def _axes_of(self, which: int) -> set[str]:
        """The axes that an operand has."""
        workload = self.product.computation
        access = workload.access(workload.inputs[which].name)
        return {name for index in access.index for name in index.iterators}

    def _broadcast(self, axes: set[str]) -> tuple[int, ...] | None:
        """The shape of a tensor that has, of the result's axes, these."""
        workload = self.product.computation
        index = workload.access(workload.output.name).index
        kept = [not axes.isdisjoint(i.iterators) for i in index]
        return broadcastable(workload.output.shape, kept, self.shape)

    def _window(self, which: int, padding: int) -> str:
        """Sums of one operand under each window: its product with ones."""
        axes = self._axes_of(which)
        part = at_one_point(self.product.computation, axes)
        other = part.inputs[1 - which]
        if not other.zero_outside:
            # No more ones than are read.
            bounds = [index.bounds(part.extents) for index in part.access(other.name).index]
            other = replace(other, shape=tuple(high + 1 for _, high in bounds), varies=False)
            part = part.with_operands(lambda o: other if o.name == other.name else o)
        ones = np.ones(other.shape, other.dtype)
        constant = self.rewriting.constant(f"{self.operator.name} ones", ones)
        shape = self._broadcast(axes) or part.output.shape
        kind = Product(part, shape, padding=padding if which == 0 else 1)
        operand = self.operator.inputs[which]
        inputs = (operand, constant) if which == 0 else (constant, operand)
        return self._new(f"sums of operand {which + 1}", kind, inputs)

    def _new(self, what: str, kind: Kind, inputs: Sequence[str]) -> str:
        name = self.rewriting.fresh(f"{self.operator.output} {what}")
        self.operators.append(Operator(self.operator.name, kind, tuple(inputs), (name,)))
        return name
