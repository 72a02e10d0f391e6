"""Zero points of products become additions to sums of the integers as they are, which is what
kernels compute: ``sum (A - a) (B - b) = sum A B - b sum A - a sum B + n a b``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Elementwise, Input, Kind, Product, Reshape, Scalar
from cpembed.graph.passes.channels import reduced
from cpembed.graph.passes.expressions import apply
from cpembed.graph.passes.requantization import requantized
from cpembed.graph.passes.rewriting import Array, Rewriting
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import is_integer
from cpembed.kernel.epilogue import BIAS, SCALE, Epilogue, channel_axes, channel_numbers


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


def corrected(product: Product, weights: Array) -> Array:
    """What is added to the sums of each channel for the zero point of the first operand, in int32:
    ``-a * sum B``, padding being that zero point."""
    return _wrapped(-product.zero_points[0] * _sums_of_weights(product, weights))


def _sums_of_weights(product: Product, weights: Array) -> Array:
    """Of each channel, the sum of what the first operand is multiplied with."""
    small = _at_one_point(product.computation, {*channel_axes(product.computation)})
    a, b = small.inputs
    ones = np.ones(a.shape, a.dtype)
    sums = Product(small, small.output.shape, padding=1).sums(ones, weights.reshape(b.shape))
    vector = np.zeros(product.channels, np.int64)
    vector[channel_numbers(small)] = sums
    return vector


def _wrapped(numbers: Array) -> Array:
    """As sums of 32 bits hold them."""
    return numbers.astype(np.int64).astype(np.int32)


def _has_sums(graph: Graph, operator: Operator, product: Product) -> bool:
    """Whether sums of integers are stored as they are, or scaled by constants."""
    epilogue = product.epilogue
    vectors = operator.inputs[2 : 2 + len(product.vectors)]
    plain = epilogue is None or not epilogue.is_integral
    sums = product.computation.output.dtype
    return plain and is_integer(sums) and all(name in graph.constants for name in vectors)


def _at_one_point(workload: Computation, kept: set[str]) -> Computation:
    """The computation at one point of the results' axes other than those that are ``kept``."""
    access = workload.access(workload.output.name)
    stored = {name for index in access.index for name in index.iterators}
    axes = tuple(
        replace(axis, extent=1) if axis.name in stored - kept else axis for axis in workload.axes
    )
    extents = {axis.name: axis.extent for axis in axes}
    shape = tuple(index.bounds(extents)[1] + 1 for index in access.index)
    return replace(workload, axes=axes, outputs=(replace(workload.output, shape=shape),))


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
        vectors[BIAS] = rewriting.constant(f"{operator.name} bias", _wrapped(added))
        kind = replace(product, zero_points=(0, 0), epilogue=epilogue, padding=product.padding + a)
        names = (vectors[name] for name in epilogue.vectors)
        inputs = (*operator.inputs[:2], *names, *operator.inputs[2 + count :])
        rewriting.replace(operator, replace(operator, kind=kind, inputs=inputs))
        return
    parts = _Parts(rewriting, operator, product)
    total = parts.corrected_sums(added, weights is None)
    rewriting.replace(operator, *parts.stored(total, vectors.get(SCALE)))


@dataclass
class _Parts:
    """Operators in the making: all in the shape of the computation's result."""

    rewriting: Rewriting
    operator: Operator
    product: Product
    operators: list[Operator] = field(default_factory=list[Operator])

    def corrected_sums(self, added: Array, varies: bool) -> str:
        """The sums without zero points; ``added`` to each channel. ``varies``: the second operand,
        so that its sums are computed in every call."""
        (a, b), shape = self.product.zero_points, self.product.computation.output.shape
        first = a + self.product.padding
        plain = replace(self.product, zero_points=(0, 0), epilogue=None, padding=first, shape=shape)
        inputs = [self._new("sums", plain, self.operator.inputs[:2])]
        total: Scalar = Input(0)
        for which, zero in ((0, b), (1, a if varies else 0)):
            if zero:
                total = apply("sub", total, apply("mul", Input(len(inputs)), zero))
                inputs.append(self._window(which, first))
        if added.any():
            total = apply("add", total, Input(len(inputs)))
            inputs.append(self._spread("bias", _wrapped(added)))
        return self._new("corrected sums", Elementwise(total, "int32"), inputs)

    def stored(self, sums: str, scale: str | None) -> list[Operator]:
        """What the epilogue makes of the sums."""
        epilogue, product = self.product.epilogue, self.product
        name, inputs = sums, [sums]
        if epilogue is not None and (epilogue.dtype != "int32" or scale is not None):
            graph = self.rewriting.source
            factor = None
            if scale is not None:
                factor = Input(len(inputs))
                inputs.append(self._spread("scale", graph.constants[scale].reshape(-1)))
            other = None
            if epilogue.residual is not None:
                other = Input(len(inputs))
                shape = product.computation.output.shape
                inputs.append(self._new("residual", Reshape(shape), [self.operator.inputs[-1]]))
            value = requantized(epilogue, Input(0), factor, other)
            name = self._new("stored", Elementwise(value, epilogue.dtype, "float32"), inputs)
        last = Operator(self.operator.name, Reshape(product.shape), (name,), self.operator.outputs)
        return [*self.operators, last]

    def _window(self, which: int, padding: int) -> str:
        """Sums of one operand under each window: its product with ones."""
        workload = self.product.computation
        kept = {
            name
            for index in workload.access(workload.inputs[which].name).index
            for name in index.iterators
        }
        part = _at_one_point(workload, kept)
        other = part.inputs[1 - which]
        if not other.zero_outside:
            # No more ones than are read.
            bounds = [index.bounds(part.extents) for index in part.access(other.name).index]
            other = replace(other, shape=tuple(high + 1 for _, high in bounds), varies=False)
            part = part.with_operands(lambda o: other if o.name == other.name else o)
        array = np.ones(other.shape, other.dtype)
        constant = self.rewriting.constant(f"{self.operator.name} ones", array)
        operand = self.operator.inputs[which]
        kind = Product(part, part.output.shape, padding=padding if which == 0 else 1)
        inputs = (operand, constant) if which == 0 else (constant, operand)
        return self._new(f"sums of operand {which + 1}", kind, inputs)

    def _spread(self, what: str, vector: Array) -> str:
        """A vector of the channels as a constant that broadcasts to the result."""
        workload = self.product.computation
        small = _at_one_point(workload, {*channel_axes(workload)})
        array = vector[channel_numbers(small)]
        return self.rewriting.constant(f"{self.operator.name} {what}", array)

    def _new(self, what: str, kind: Kind, inputs: list[str] | tuple[str, ...]) -> str:
        name = self.rewriting.fresh(f"{self.operator.output} {what}")
        self.operators.append(Operator(self.operator.name, kind, tuple(inputs), (name,)))
        return name
